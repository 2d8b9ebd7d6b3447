//! Prometheus: the reference's series, and values that clients choose to break them.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    process::{Command, Stdio},
};

use crate::{
    asking::{Service, fixture, overriding},
    hosts::get,
    tollgate_process,
};

const SETTINGS: [(&str, &str); 2] = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0")];

/// Samples and types, without what nobody can repeat.
fn told(text: &str) -> BTreeSet<&str> {
    let timeless = |line: &&str| !line.contains("response_time") && !line.starts_with("# HELP");
    text.lines().filter(timeless).collect()
}

#[tokio::test]
async fn after_the_same_requests_prometheus_has_the_references_series() {
    let mut service = Service::as_the_reference(&SETTINGS).await;
    service.ask_all().await;
    let (status, text) = get(&service.served.address("prometheus"), "/metrics");
    assert_eq!(status, 200);
    let recorded = fixture("prometheus.txt");
    let (theirs, ours) = (told(&recorded), told(&text));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let more: Vec<_> = ours.difference(&theirs).collect();
    assert!(missing.is_empty() && more.is_empty(), "only the reference: {missing:#?}\nonly we: {more:#?}");
    for line in [
        "# TYPE ratelimit_service_response_time_seconds histogram",
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 1000",
        "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"+Inf\"} 1000",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
    let ours = get(&service.http, "/metrics").1;
    assert!(
        ours.contains("tollgate_charges_total{domain=\"shop\",rule=\"user\",verdict=\"refused\"}"),
        "{ours}"
    );
}

/// What has broken formats before: ends of lines and of fields, tags, quotes, escapes, what is no text.
const NASTY: [&[u8]; 12] = [
    b"a\nb 1",
    b"a\"} 1\n# TYPE x gauge\nx{y=\"",
    b"\\",
    b"\\n",
    b"a|c|#tag:b",
    b"a:1|c\nb:2|c",
    b"\xff\xfe",
    b"\0",
    "\u{2028}\u{85}\u{feff}".as_bytes(),
    "\u{1f600} {} , = # $1".as_bytes(),
    b".__tag=value",
    b"",
];

#[tokio::test]
async fn no_value_of_a_client_breaks_what_promtool_reads() {
    let rules = "\
domain: shop
descriptors:
- key: user
  value_to_metric: true
  rate_limit: {unit: year, requests_per_unit: 3}
- key: device
  detailed_metric: true
  rate_limit: {unit: year, requests_per_unit: 3}
";
    let settings: Vec<_> = SETTINGS.into_iter().chain([("EXTRA_TAGS", "env:prod\"\\,zone:eu{1}")]).collect();
    let mut service = Service::start(rules, &settings).await;
    for value in NASTY {
        for (key, limit) in [("user", false), ("device", false), ("other", true)] {
            let mut request = overriding("shop", key, value);
            if !limit {
                request.descriptors[0].limit = None;
            }
            assert!(service.ask(request).await, "{}", value.escape_ascii());
        }
        let domain = String::from_utf8_lossy(value).into_owned();
        service.ask(overriding(&domain, "user", value)).await;
    }
    let long = vec![b'x'; 100_000];
    assert!(service.ask(overriding("shop", "other", long)).await);
    let named = get(&service.served.address("prometheus"), "/metrics").1;
    assert!(named.contains(r#"domain="shop",key1="__overflow__""#), "{named}");
    assert!(named.contains("key1=\"user_a_b 1\""), "{named}");
    for text in [named, get(&service.http, "/metrics").1] {
        readable(&text);
    }
}

/// Every line is a comment or a sample, and promtool says the same where it is.
fn readable(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
        assert!(value.parse::<f64>().is_ok(), "{line:?}");
        assert_eq!(line.matches('{').count() > 0, line.contains('}'), "{line:?}");
    }
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut checking = command
        .spawn()
        .unwrap_or_else(|error| panic!("this test needs promtool (Debian's package prometheus): {error}"));
    // The end of OpenMetrics is a comment that the older format's reader does not know.
    checking.stdin.take().unwrap().write_all(text.replace("# EOF\n", "").as_bytes()).unwrap();
    let checked = checking.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    // 3 is its taste in names, which are the reference's.
    assert!(matches!(checked.status.code(), Some(0 | 3)), "{said}\n{text}");
}

#[tokio::test]
async fn mappings_of_a_file_hold_and_wrong_ones_end_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mappings.yaml");
    let mappings = "\
mappings:
- match: ratelimit.service.rate_limit.*.*.total_hits
  name: asked_total
  labels: {where: $1, of: \"${2}\"}
- {match: '.*', match_type: regex, action: drop}
";
    fs::write(&file, mappings).unwrap();
    let settings: Vec<_> =
        SETTINGS.into_iter().chain([("PROMETHEUS_MAPPER_YAML", file.to_str().unwrap())]).collect();
    let mut service = Service::as_the_reference(&settings).await;
    assert!(service.ask(overriding("shop", "a", "b")).await);
    let told = get(&service.served.address("prometheus"), "/metrics").1;
    let samples: Vec<_> = told.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, [r#"asked_total{of="a_b",where="shop"} 1"#]);

    fs::write(&file, "mappings:\n- {name: x}\n").unwrap();
    let mut command = tollgate_process::command();
    command.args(["--rules", dir.path().to_str().unwrap()]).envs(settings);
    let ended = tollgate_process::ended(&mut command);
    assert_eq!(ended.code, Some(64), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap();
    assert!(
        last.contains("PROMETHEUS_MAPPER_YAML") && last.contains("mapping 1: it has no `match`"),
        "{last}"
    );
}
