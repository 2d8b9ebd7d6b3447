//! `tollgate explain`.

use serde_json::Value;

use super::{API, SHOP, path, rules};
use crate::support::tollgate::run;

#[test]
fn explain_tells_rule_key_and_answer() {
    let told = explain(&["shop", "user=ann"]);
    insta::assert_snapshot!(told, @"");
}

#[test]
fn explain_tells_of_several_descriptors_and_several_hits() {
    let told = explain(&[
        "shop",
        "user=ann",
        "path=/buy,method=POST",
        "staff=bob",
        "user=banned",
        "colour=red",
        "--hits",
        "2",
    ]);
    insta::assert_snapshot!(told, @"");
}

#[test]
fn explain_tells_where_a_tier_comes_from() {
    let told = explain(&["api", "tenant=acme,route=search"]);
    insta::assert_snapshot!(told, @"");
}

#[test]
fn explain_tells_that_a_domain_is_unknown() {
    let told = explain(&["shopp", "user=ann"]);
    insta::assert_snapshot!(told, @"");
}

#[test]
fn explain_shows_a_limit_that_is_brought_along() {
    let told = explain(&["shop", "user=ann", "colour=red", "--limit", "7/year"]);
    assert!(told.contains("a-user: 7 in 365 d (token_bucket), brought along instead of its own"), "{told}");
    assert!(told.contains("rule  none: 7 in 365 d (fixed_window), brought along"), "{told}");
}

#[test]
fn explain_speaks_json() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let told = run(["explain", path(&dir), "shop", "user=ann", "--json"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let json: Value = serde_json::from_str(&told.stdout).unwrap();
    let charge = &json["descriptors"][0]["charges"][0];
    assert_eq!(charge["rule"], "shop.yaml:7");
    assert_eq!(charge["key"], "tg:shop:user=ann:token_bucket");
    assert_eq!(charge["requests"], 3);
    assert_eq!(json["answer"]["overallCode"], "OK");
    assert_eq!(json["answer"]["statuses"][0]["limitRemaining"], 2);
}

#[test]
fn explain_of_bad_rules_tells_the_mistakes() {
    let dir = rules(&[("a.yaml", "domain: a\nx: 1\n")]);
    let told = run(["explain", path(&dir), "a", "k=v"]);
    assert_eq!((told.code, &*told.stdout), (Some(1), ""));
    assert!(told.stderr.contains("a.yaml:2:1"), "{}", told.stderr);
}

#[test]
fn explain_shows_the_headers_of_the_setting() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let told = run(["explain", path(&dir), "shop", "user=ann", "--limit-headers", "draft-03"]);
    assert!(told.stdout.contains("RateLimit-Remaining: 2"), "{}", told.stdout);
}

/// What it prints about [`SHOP`] and [`API`].
fn explain(args: &[&str]) -> String {
    let dir = rules(&[("shop.yaml", SHOP), ("api.yaml", API)]);
    let told = run(["explain", path(&dir)].iter().chain(args));
    assert_eq!((told.code, &*told.stderr), (Some(0), ""));
    told.stdout
}
