//! `tollgate explain`.

use serde_json::Value;

use super::{API, SHOP, path, rules};
use crate::tollgate::run;

#[test]
fn explain_tells_rule_key_and_answer() {
    let told = explain(&["shop", "user=ann"]);
    insta::assert_snapshot!(told, @r#"
    user=ann in domain shop
      tried user=ann: the exact value      no match
            user=ann: the key user alone   matches   shop.yaml:6
            a-user: 3 in 1d, token_bucket  matches   shop.yaml:7
      rule  a-user: 3 a day (token_bucket)  shop.yaml:7
      key   tg:shop:user=ann:token_bucket
      mode  on_store_failure: error

    With nothing spent before, 1 hit:
    allowed
      user=ann  ok  2 left, limit 3 a day (a-user), whole again in 8 h

      RateLimit-Policy: "a-user";q=3;w=86400
      RateLimit: "a-user";r=2;t=28800
    "#);
}

#[test]
fn explain_tells_of_several_descriptors_and_several_hits() {
    let told =
        explain(&["shop", "user=ann", "path=/buy,method=POST", "staff=bob", "colour=red", "--hits", "2"]);
    insta::assert_snapshot!(told, @r#"
    user=ann in domain shop
      tried user=ann: the exact value      no match
            user=ann: the key user alone   matches   shop.yaml:6
            a-user: 3 in 1d, token_bucket  matches   shop.yaml:7
      rule  a-user: 3 a day (token_bucket)  shop.yaml:7
      key   tg:shop:user=ann:token_bucket
      mode  on_store_failure: error

    path=/buy,method=POST in domain shop
      tried path=/buy: the exact value              no match
            path=/buy: the key path alone           matches   shop.yaml:8
            method=POST: the exact value            matches   shop.yaml:10
            path.method: 100 in 1h, burst 10, gcra  matches   shop.yaml:12
      rule  path.method: 100 an hour, at most 10 at once (gcra)  shop.yaml:12
      key   tg:shop:path=/buy,method=POST:gcra
      mode  shadow: never refuses; on_store_failure: error

    staff=bob in domain shop
      tried staff=bob: the exact value      no match
            staff=bob: the key staff alone  matches   shop.yaml:13
            staff: unlimited                matches   shop.yaml:14
      rule  staff: unlimited  shop.yaml:14

    colour=red in domain shop
      tried colour=red: the exact value           no match
            colour=red: the key colour alone      no match
            the domain has no default: it passes  no match
      no rule matches, so it passes (and is counted as unmatched)

    With nothing spent before, 2 hits:
    allowed
      user=ann               ok  1 left, limit 3 a day (a-user), whole again in 16 h
      path=/buy,method=POST  ok  8 left, limit 100 an hour, whole again in 72 s
      staff=bob              ok  unlimited
      colour=red             ok  no limit

      RateLimit-Policy: "a-user";q=3;w=86400
      RateLimit: "a-user";r=1;t=28800
    "#);
}

#[test]
fn explain_tells_where_a_tier_comes_from() {
    let told = explain(&["api", "tenant=acme,route=search"]);
    insta::assert_snapshot!(told, @r#"
    tenant=acme,route=search in domain api
      tried tenant=acme: a known tenant                  matches  api.yaml:9
            the tier pro                                 matches  api.yaml:7
            route=search: the tier's rule for the route  matches  api.yaml:7
            pro.search: 20 in 1s, token_bucket           matches  api.yaml:7
      rule  pro.search: 20 a second (token_bucket)  api.yaml:7
      key   tg:{acme}:api:tenant=acme,route=search:token_bucket
      mode  on_store_failure: error

    With nothing spent before, 1 hit:
    allowed
      tenant=acme,route=search  ok  19 left, limit 20 a second, whole again in 50 ms

      RateLimit-Policy: "pro.search";q=20;w=1
      RateLimit: "pro.search";r=19;t=1
    "#);
}

#[test]
fn explain_tells_of_a_limit_that_blocks() {
    let told = explain(&["shop", "user=banned"]);
    for part in
        ["  rule  user: blocked (token_bucket)  shop.yaml:5", "\nrefused\n", "user=banned  over  0 left"]
    {
        assert!(told.contains(part), "{part} is missing in:\n{told}");
    }
}

#[test]
fn explain_tells_that_a_domain_is_unknown() {
    let told = explain(&["shopp", "user=ann"]);
    insta::assert_snapshot!(told, @r#"
    No rule file names the domain shopp; named are: api, shop
    user=ann in domain shopp
      no rule file names the domain, so it passes

    With nothing spent before, 1 hit:
    allowed
      user=ann  ok  no limit
    "#);
}

#[test]
fn explain_shows_a_limit_that_is_brought_along() {
    let told = explain(&["shop", "user=ann", "colour=red", "--limit", "7/year"]);
    assert!(told.contains("a-user: 7 a year (token_bucket), brought along instead of its own"), "{told}");
    assert!(told.contains("rule  none: 7 a year (fixed_window), brought along"), "{told}");
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
