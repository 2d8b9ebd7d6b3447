//! `tollgate bench`, against real services, and against one that stalls when it is told to.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::{
    SHOP,
    fake::{Behaviour, Fake},
    rules,
};
use crate::tollgate::{Ended, Served, command, run};

const USERS: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 50, algorithm: token_bucket}
  - key: path
    rate_limit: {unit: day, requests_per_unit: 4000000000, algorithm: token_bucket}
";

#[test]
fn what_is_granted_refused_and_failed_is_all_that_was_asked_and_never_above_the_limit() {
    let dir = rules(&[("shop.yaml", USERS)]);
    let (_served, at) = serve(dir.path(), &[]);
    // Each of four users comes about a hundred times, and may come fifty times.
    let told =
        json(&run(["bench", &at, "shop", "user={key}", "--keys", "4", "-n", "400", "-c", "3", "--json"]));
    let result = &told["result"];
    assert_eq!(counts(result), (400, 200, 200, 0), "{told:#}");
    // They are spent now; the second run has keys beyond them, and threads of its own.
    let args = ["bench", &at, "shop", "user={key}", "--keys", "8", "-n", "900", "--threads", "2", "--json"];
    assert_eq!(counts(&json(&run(args))["result"]).0, 900);
    let told = json(&run(["bench", &at, "shop", "user={key}", "--keys", "8", "-n", "400", "--json"]));
    assert_eq!(counts(&told["result"]), (400, 0, 400, 0), "{told:#}");
}

#[test]
fn several_descriptors_and_hits_are_asked_as_call_asks_them() {
    let dir = rules(&[("shop.yaml", USERS)]);
    let (_served, at) = serve(dir.path(), &[]);
    // 50 hits of 10 each are 5 requests; the other descriptor has room for all.
    let told =
        json(&run(["bench", &at, "shop", "user=ann", "path=/{key}", "--hits", "10", "-n", "20", "--json"]));
    assert_eq!(counts(&told["result"]), (20, 5, 15, 0), "{told:#}");
    assert_eq!(told["load"]["descriptors"], Value::from(vec!["user=ann", "path=/{key}"]));
    assert_eq!(told["load"]["keys"], 10_000);
}

#[test]
fn json_has_the_load_and_the_figures() {
    let dir = rules(&[("shop.yaml", USERS)]);
    let (served, at) = serve(dir.path(), &[]);
    let pid = served.pid().to_string();
    let told = run([
        "bench",
        &at,
        "shop",
        "path=/{key}",
        "--keys",
        "100",
        "--zipf",
        "1.1",
        "--rate",
        "500",
        "-n",
        "50",
        "--pid",
        &pid,
        "--json",
    ]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{}", told.stdout);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["address"], at);
    let load = &told["load"];
    assert_eq!((&load["rate"], &load["requests"], &load["zipf"]), (&500.into(), &50.into(), &1.1.into()));
    let result = &told["result"];
    assert_eq!(counts(result), (50, 50, 0, 0), "{told:#}");
    for latency in ["latencyUs", "sentLateUs"] {
        let [p50, p99, max] = ["p50", "p99", "max"].map(|at| result[latency][at].as_f64().unwrap());
        assert!(p50 <= p99 && p99 <= max, "{told:#}");
    }
    assert_eq!(result["processes"][0]["name"], "tollgate");
    assert!(result["processes"][0]["cpuUsPerRequest"].is_number(), "{told:#}");
    assert!(
        result["clientCpuUsPerRequest"].is_number() && result["requestsPerSecond"].is_number(),
        "{told:#}"
    );
    assert_eq!(result["interrupted"], false);
}

#[test]
fn people_get_counts_percentiles_a_chart_and_the_cost() {
    let dir = rules(&[("shop.yaml", USERS)]);
    let (served, at) = serve(dir.path(), &[]);
    let told = run(["bench", &at, "shop", "user=ann", "-n", "200", "--pid", &served.pid().to_string()]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""));
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert_eq!(
        lines[0],
        format!("{at}: user=ann, 1 hit, over 4 connections of 32 streams, 200 requests"),
        "{}",
        told.stdout
    );
    for line in ["granted   50   25.0 %", "refused   150  75.0 %", "errors    0    0.0 %"] {
        assert!(lines.contains(&line), "no {line:?} in\n{}", told.stdout);
    }
    for part in ["p50", "p999", "up to ", "█", "µs a request", "  tollgate (pid "] {
        assert!(told.stdout.contains(part), "no {part:?} in\n{}", told.stdout);
    }
}

#[test]
fn a_stall_is_met_by_all_requests_that_fell_into_it() {
    const STALL: Duration = Duration::from_millis(500);
    let service = Fake::serve(Behaviour::StallOnce { after: 50, stall: STALL });
    // One every 10 ms, each of which would have met an answer of nearly nothing, were it sent after the one before.
    let told = json(&run([
        "bench",
        &service.at,
        "shop",
        "a=b",
        "--rate",
        "100",
        "-n",
        "200",
        "-c",
        "1",
        "-s",
        "1",
        "--timeout",
        "20s",
        "--json",
    ]));
    assert_eq!(counts(&told["result"]), (200, 200, 0, 0), "{told:#}");
    // The 51st waits for 500 ms, the 52nd was due 10 ms later and waits for 490, and so on: the 20 slowest of 200 wait
    // for more than 300 ms, however fast the service is before and after.
    let latency = |at: &str| told["result"]["latencyUs"][at].as_f64().unwrap();
    assert!(latency("max") >= 499_000.0 && latency("p90") >= 290_000.0, "{told:#}");
    assert!(told["result"]["sentLateUs"]["max"].as_f64().unwrap() >= 480_000.0, "{told:#}");
}

#[test]
fn requests_that_nobody_answers_are_counted_and_not_left_out() {
    let service = Fake::serve(Behaviour::Silent);
    let told = run([
        "bench",
        &service.at,
        "shop",
        "a=b",
        "--rate",
        "100",
        "-n",
        "40",
        "-c",
        "1",
        "-s",
        "2",
        "--timeout",
        "100ms",
        "--json",
    ]);
    assert_eq!(told.code, Some(2), "{}", told.stderr);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(counts(&told["result"]), (40, 0, 0, 40), "{told:#}");
    // Whoever's clock goes off first, the caller's or the service's, they waited in vain for as long as they would.
    assert!(told["result"]["latencyUs"]["p50"].as_f64().unwrap() >= 99_000.0, "{told:#}");
}

#[test]
fn errors_are_counted_by_kind_with_an_example() {
    let bad = rules(&[("shop.yaml", "domain: [\n")]);
    let mut served = Served::start(bad.path(), &[]);
    let told = run(["bench", &served.address("grpc"), "shop", "a=b", "-n", "30"]);
    assert_eq!(told.code, Some(2), "{}", told.stderr);
    assert!(told.stdout.contains("  30 x gRPC Unavailable: no rules are loaded yet"), "{}", told.stdout);
}

#[test]
fn a_service_that_cannot_be_reached_is_told_as_by_call() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap().to_string();
    let dir = rules(&[("shop.yaml", SHOP)]);
    let (mut served, at) = serve(dir.path(), &[]);
    for (args, why) in [
        (&[&*closed, "shop", "a=b"][..], "connection refused"),
        (&[&silent_at, "shop", "a=b", "--timeout", "200ms"], "within 200 ms"),
        (&[&served.address("http"), "shop", "a=b"], "is it the gRPC port"),
        (&["compare", &at, &closed, "shop", "a=b", "-n", "1"], "connection refused"),
    ] {
        let told = run(["bench"].iter().chain(args));
        assert_eq!((told.code, &*told.stdout), (Some(2), ""), "{}", told.stderr);
        assert!(told.stderr.starts_with("tollgate: ") && told.stderr.contains(why), "{}", told.stderr);
        assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
    }
}

#[test]
fn a_service_that_wants_its_clients_to_connect_anew_sees_no_errors() {
    let dir = rules(&[("shop.yaml", USERS)]);
    let (_served, at) = serve(dir.path(), &[("GRPC_MAX_CONNECTION_AGE", "200ms")]);
    let told = json(&run([
        "bench",
        &at,
        "shop",
        "path=/",
        "--rate",
        "1000",
        "--duration",
        "1500ms",
        "--timeout",
        "20s",
        "--json",
    ]));
    assert_eq!(counts(&told["result"]), (1500, 1500, 0, 0), "{told:#}");
}

#[test]
fn ctrl_c_prints_what_there_is() {
    let service = Fake::serve(Behaviour::Answers);
    let mut command = command();
    command.args(["bench", &service.at, "shop", "a=b", "--duration", "1h", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // 128 are in flight at a time, so some were answered by then.
    service.wait_for(200);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(told["result"]["interrupted"], true);
    assert!(told["result"]["granted"].as_u64().unwrap() > 0, "{told:#}");
}

#[test]
fn compare_lets_two_services_take_turns_and_tells_ratios() {
    let dir = rules(&[("shop.yaml", USERS)]);
    let ((a, at_a), (b, at_b)) = (serve(dir.path(), &[]), serve(dir.path(), &[]));
    let (pid_a, pid_b) = (a.pid().to_string(), b.pid().to_string());
    let args = [
        "bench",
        "compare",
        &at_a,
        &at_b,
        "shop",
        "path=/{key}",
        "-n",
        "300",
        "--rounds",
        "3",
        "--pid-a",
        &pid_a,
        "--pid-b",
        &pid_b,
    ];
    let told = run(args);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{}", told.stdout);
    for part in
        ["medians of 3 rounds", "requests a second", "latency p999", "CPU a request, tollgate  ", "A/B"]
    {
        assert!(told.stdout.contains(part), "no {part:?} in\n{}", told.stdout);
    }

    let told = json(&run([&args[..], &["--json"]].concat()));
    for side in ["a", "b"] {
        let rounds = told[side]["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 3);
        rounds.iter().for_each(|round| assert_eq!(counts(round), (300, 300, 0, 0), "{told:#}"));
        assert_eq!(told[side]["medians"]["granted"], 300.0);
    }
    for figure in ["requestsPerSecond", "latencyUsP50", "latencyUsP99"] {
        let ratio = |of: &str| told["ratios"][figure][of].as_f64().unwrap();
        assert!(ratio("min") <= ratio("median") && ratio("median") <= ratio("max"), "{told:#}");
    }
    assert_eq!(told["ratios"]["granted"]["median"], 1.0);
    // Nothing was refused, and nothing divided by nothing is no ratio.
    assert_eq!(told["ratios"]["refused"], Value::Null);
}

/// Requests, granted, refused, errors.
fn counts(result: &Value) -> (u64, u64, u64, u64) {
    let of = |what: &str| result[what].as_u64().unwrap();
    (of("requests"), of("granted"), of("refused"), of("errors"))
}

fn json(told: &Ended) -> Value {
    assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{}", told.stdout);
    serde_json::from_str(&told.stdout).unwrap()
}

/// A service on the rules in a directory, and its address.
fn serve(dir: &Path, settings: &[(&str, &str)]) -> (Served, String) {
    let mut served = Served::start(dir, settings);
    let at = served.address("grpc");
    served.line("rules in force");
    (served, at)
}
