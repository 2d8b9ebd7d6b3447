//! `tollgate call`, against a real service.

use std::{io::pipe, net::TcpListener, path::Path, process::Stdio};

use serde_json::Value;

use super::{SHOP, rules};
use crate::tollgate::{Served, command, run};

#[test]
fn call_tells_in_words_and_in_its_exit_code_what_the_service_says() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let (_served, at) = serve(dir.path());

    let told = run(["call", &at, "shop", "user=ann"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(
        told.stdout.starts_with("allowed\n  user=ann  ok  2 left, limit 3 a day (a-user), whole again in "),
        "{}",
        told.stdout
    );
    assert!(told.stdout.contains("RateLimit-Policy: \"a-user\";q=3;w=86400"), "{}", told.stdout);

    let told = run(["call", &at, "shop", "user=ann", "-n", "3"]);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert!(lines[0].starts_with("1  allowed") && lines[1].starts_with("2  allowed"), "{}", told.stdout);
    assert!(lines[2].starts_with("3  refused, try again in "), "{}", told.stdout);
    assert!(lines[3].starts_with("2 allowed, 1 refused, in "), "{}", told.stdout);

    let told = run(["call", &at, "shop", "user=ann"]);
    assert_eq!(told.code, Some(1));
    assert!(told.stdout.starts_with("refused, try again in 8 h"), "{}", told.stdout);
    assert!(told.stdout.contains("user=ann  over  0 left, limit 3 a day"), "{}", told.stdout);
}

#[test]
fn call_says_that_the_store_had_no_part_in_an_answer() {
    let shop = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 3, on_store_failure: allow}}";
    let dir = rules(&[("shop.yaml", shop)]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (_served, at) = serve_with(dir.path(), &[("REDIS_URL", &nobody)]);
    let told = run(["call", &at, "shop", "user=ann"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let wanted = "allowed\n  the store cannot be reached; answered by on_store_failure: allow\n";
    assert!(told.stdout.starts_with(wanted), "{}", told.stdout);
    let told = run(["call", &at, "shop", "user=ann", "-n", "2"]);
    assert!(told.stdout.starts_with("1  allowed  (the store cannot be reached; "), "{}", told.stdout);
}

#[test]
fn call_can_cost_more_look_only_and_give_back() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let (_served, at) = serve(dir.path());
    let left = |args: &[&str]| {
        let told = run([&["call", &at, "shop", "user=ann", "--json"], args].concat());
        let json: Value = serde_json::from_str(&told.stdout).unwrap();
        (told.code.unwrap(), json["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0))
    };
    assert_eq!(left(&["--hits", "0"]), (0, 3));
    assert_eq!(left(&["--hits", "3"]), (0, 0));
    assert_eq!(left(&["--hits", "0"]), (1, 0));
    assert_eq!(left(&["--hits", "2", "--refund"]), (0, 2));
    assert_eq!(left(&["--hits", "3"]), (1, 2));
    assert_eq!(left(&["--hits", "18446744073709551615"]), (1, 2));
}

#[test]
fn call_can_bring_a_limit_along_and_ask_about_several_descriptors() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let (_served, at) = serve(dir.path());
    let told = run(["call", &at, "shop", "user=ann", r"colour=\xFF\,", "--limit", "9/year"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let lines: Vec<String> =
        told.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(lines[1].starts_with("user=ann ok 8 left, limit 9 a year"), "{}", told.stdout);
    assert!(lines[2].starts_with(r"colour=\xFF\, ok 8 left, limit 9 a year"), "{}", told.stdout);
}

#[test]
fn call_speaks_json_a_line_each() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let (_served, at) = serve(dir.path());
    let told = run(["call", &at, "shop", "user=eve", "-n", "4", "--json"]);
    assert_eq!(told.code, Some(1));
    let codes: Vec<String> = told
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["overallCode"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(codes, ["OK", "OK", "OK", "OVER_LIMIT"]);
}

#[test]
fn call_stops_asking_when_nobody_reads() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let (_served, at) = serve(dir.path());
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    // The first answer is OK, and the second would be a refusal: hits of 3 and a limit of 3.
    let args = ["call", &at, "shop", "user=ann", "--hits", "3", "-n", "1000000"];
    let child = command().args(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()));
}

#[test]
fn call_that_gets_no_answer_says_why_and_ends_with_2() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    fails(&[&closed, "shop", "a=b"], "connection refused");

    // It accepts and is silent.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    fails(&[&silent.local_addr().unwrap().to_string(), "shop", "a=b", "--timeout", "200ms"], "within 200 ms");

    let dir = rules(&[("shop.yaml", SHOP)]);
    let (mut served, at) = serve(dir.path());
    fails(&[&served.address("http"), "shop", "a=b"], "is it the gRPC port");
    fails(&[&at, "", "a=b"], "the service does not accept the request: rate limit domain must not be empty");
    let many: Vec<&str> = [&*at, "shop"].into_iter().chain(["a=b"; 65]).collect();
    fails(&many, "65 descriptors are more than the 64");

    let bad = rules(&[("shop.yaml", "domain: [\n")]);
    let mut served = Served::start(bad.path(), &[]);
    fails(
        &[&served.address("grpc"), "shop", "a=b"],
        "the service cannot answer now: no rules are loaded yet",
    );
}

fn fails(args: &[&str], why: &str) {
    let told = run(["call"].iter().chain(args));
    assert_eq!((told.code, &*told.stdout), (Some(2), ""), "{}", told.stderr);
    assert!(told.stderr.starts_with("tollgate: ") && told.stderr.contains(why), "{}", told.stderr);
    assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
}

/// A service on the rules in a directory, and its address.
fn serve(dir: &Path) -> (Served, String) {
    serve_with(dir, &[])
}

fn serve_with(dir: &Path, settings: &[(&str, &str)]) -> (Served, String) {
    let mut served = Served::start(dir, settings);
    let at = served.address("grpc");
    served.line("rules in force");
    (served, at)
}
