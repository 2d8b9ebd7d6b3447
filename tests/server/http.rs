//! What is asked over HTTP.

use tollgate::service::MESSAGE_MAX_BYTES;

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use crate::client::{Service, http};

#[tokio::test]
async fn json_says_200_429_and_400_and_shares_its_counters_with_grpc() {
    let service = Service::ready(&[]).await;
    let ann = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    assert_eq!(service.ask("user", "ann").await.unwrap().statuses[0].limit_remaining, 2);
    for left in [1, 0] {
        let (status, body) = service.post_json(ann);
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, answer["overallCode"].as_str()), (200, Some("OK")), "{body}");
        assert_eq!(answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0), left);
        assert_eq!(answer["statuses"][0]["currentLimit"]["unit"], "YEAR");
    }
    let (status, body) = service.post_json(ann);
    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, answer["overallCode"].as_str()), (429, Some("OVER_LIMIT")));
    let names: Vec<&str> = answer["responseHeadersToAdd"]
        .as_array()
        .unwrap()
        .iter()
        .map(|h| h["key"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["RateLimit-Policy", "RateLimit", "Retry-After"]);

    for bad in
        ["", "{", "[]", "{}", r#"{"domain": "test"}"#, r#"{"domain": "test", "descriptors": [{}], "x": 1}"#]
    {
        assert_eq!(service.post_json(bad).0, 400, "{bad}");
    }
    assert_eq!(http(&service.http, "PUT /json HTTP/1.1\r\n", &ann.replace("ann", "bob")).0, 200);
    // On both sides of the bound; one byte more than it, so that nothing is left unread when the answer comes.
    let long = |bytes: usize| ann.replace("ann", &"x".repeat(bytes + "ann".len() - ann.len()));
    assert_eq!(service.post_json(&long(MESSAGE_MAX_BYTES)).0, 200);
    let long = long(MESSAGE_MAX_BYTES + 1);
    assert_eq!(service.post_json(&long).0, 400);
}

#[tokio::test]
async fn json_without_an_answer_is_503_and_in_compat_400() {
    for (settings, status) in [(&[][..], 503), (&[("TOLLGATE_COMPAT", "reference")][..], 400)] {
        let mut service = Service::start(&[("rules.yaml", "domain: [")], settings);
        service.served.line("there are no rules yet");
        let ann = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
        assert_eq!(service.post_json(ann).0, status);
        assert_eq!(service.post_json("{").0, 400);
    }
}

#[tokio::test]
async fn probes_metrics_and_what_there_is() {
    let service = Service::ready(&[]).await;
    assert_eq!(service.get("/healthcheck"), (200, "OK".to_owned()));
    assert_eq!(http(&service.http, "HEAD /healthcheck HTTP/1.1\r\n", ""), (200, String::new()));
    let (status, body) = service.get("/ready");
    assert!(status == 200 && body.starts_with("OK\nrules: loaded\n"), "{body}");
    assert_eq!(service.get("/no-such-path").0, 404);

    service.ask("user", "ann").await.unwrap();
    let (status, metrics) = service.get("/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("tollgate_answers_total{answer=\"ok\"} 1\n"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
}

#[tokio::test]
async fn who_connects_and_says_nothing_keeps_no_probe_waiting() {
    let service = Service::ready(&[]).await;
    let mut silent = Vec::new();
    for _ in 0..560 {
        let mut connection = TcpStream::connect(&service.http).unwrap();
        connection.write_all(b"GET /healthcheck HTTP/1.1\r\nX").unwrap();
        connection.set_nonblocking(true).unwrap();
        silent.push(connection);
    }
    assert_eq!(service.get("/healthcheck"), (200, "OK".to_owned()));
    // The oldest had to leave; most have not even run out of time.
    let is_open = |connection: &mut TcpStream| {
        connection.read(&mut [0; 8]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(is_open(&mut silent[300]) && is_open(&mut silent[559]));
}

#[tokio::test]
async fn the_debug_port_shows_the_rules_in_force() {
    let service = Service::ready(&[]).await;
    let (status, lines) = http(&service.debug, "GET /rlconfig HTTP/1.1\r\n", "");
    assert_eq!(status, 200);
    let first = "test.user: unit=YEAR requests_per_unit=3, shadow_mode: false, quota_mode: false";
    assert!(lines.lines().any(|line| line.starts_with(first)), "{lines}");

    let (status, rules) = http(&service.debug, "GET /rules HTTP/1.1\r\n", "");
    let rules: serde_json::Value = serde_json::from_str(&rules).unwrap();
    assert_eq!(status, 200);
    assert!(rules["revision"].as_str().is_some_and(|revision| !revision.is_empty()), "{rules}");
    let list = http(&service.debug, "GET / HTTP/1.1\r\n", "").1;
    let paths: Vec<&str> = list.lines().map(|line| line.split_once(": ").unwrap().0).collect();
    assert_eq!(paths, ["/rlconfig", "/rules", "/stats"]);
    for path in paths {
        assert_eq!(http(&service.debug, &format!("GET {path} HTTP/1.1\r\n"), "").0, 200, "{path}");
    }

    service.ask("user", "ann").await.unwrap();
    let (_, stats) = http(&service.debug, "GET /stats HTTP/1.1\r\n", "");
    assert!(stats.contains("tollgate_answers_total{answer=\"ok\"}: 1\n"), "{stats}");
    assert!(stats.lines().all(|line| line.rsplit_once(": ").is_some_and(|(_, n)| n.parse::<f64>().is_ok())));
}
