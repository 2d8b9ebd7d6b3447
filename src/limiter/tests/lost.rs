//! What is answered when the store gives no answer.

use super::*;

/// A store that never answers.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    async fn spend(&self, _: &[Charge], _: Duration) -> Result<Decision, StoreError> {
        Err(StoreError::Unavailable { shard: "nowhere:1".into(), why: "gone".into() })
    }

    fn health(&self) -> Vec<ShardHealth> {
        Vec::new()
    }
}

#[test]
fn without_a_store_the_strictest_rule_decides() {
    let rules = "
domain: d
descriptors:
- {key: allow, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: allow}}
- {key: local, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: local}}
- {key: error, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: error}}
- {key: unsaid, rate_limit: {unit: hour, requests_per_unit: 8}}
- {key: deny, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: deny}}
- {key: vip, rate_limit: {unlimited: true}}
";
    let it = harness(rules, OPTIONS, |_| Gone);
    assert_eq!(it.ask(&ask(&["allow=x"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["allow=x", "local=x"])), "OK ok:1 ok:1", "8 over a fleet of 4");
    assert_eq!(it.ask(&ask(&["local=x"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["local=x"])), "OVER over:0");
    for error in ["error=x", "unsaid=x"] {
        let said = it.ask(&ask(&["local=x", error]));
        assert!(said.contains("nowhere:1 cannot be reached"), "{said}");
    }
    assert_eq!(it.ask(&ask(&["error=x", "deny=x"])), "OVER over:0 over:0");
    it.with(&ask(&["deny=x"]), |answer| assert_eq!(answer.unwrap().retry_us, Some(1_000_000)));
    assert!(it.ask(&ask(&["vip=x"])).starts_with("OK"), "what needs no store is answered without one");
}

#[test]
fn a_limit_on_trial_refuses_nobody_when_the_store_is_lost() {
    let rules = "
domain: d
descriptors:
- {key: live, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: allow}}
- {key: denied, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: deny}}
- {key: trial, rate_limit: {unit: hour, requests_per_unit: 8, mode: shadow, on_store_failure: deny}}
- {key: seen, rate_limit: {unit: hour, requests_per_unit: 8, mode: record}}
";
    let it = harness(rules, OPTIONS, |_| Gone);
    assert_eq!(it.ask(&ask(&["trial=x"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["live=x", "trial=x", "seen=x"])), "OK ok:0 ok:0 ok:0");
    assert_eq!(it.ask(&ask(&["denied=x", "trial=x"])), "OVER over:0 ok:0");
    let service = harness(rules, Options { shadow_mode: true, ..OPTIONS }, |_| Gone);
    assert_eq!(service.ask(&ask(&["denied=x"])), "OK ok:0", "SHADOW_MODE answers OK always");
}

#[test]
fn a_refund_is_never_refused_not_even_where_a_lost_store_denies() {
    let rules = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: deny}}
";
    let it = harness(rules, OPTIONS, |_| Gone);
    assert_eq!(it.ask(&refunding("k=x", 1)), "OK ok:0");
    let back = Descriptor { hits: Some(1), refund: true, ..descriptor("k=x") };
    assert_eq!(it.ask(&question("d", &[back, descriptor("k=y")])), "OVER ok:0 over:0");
}

#[test]
fn a_blocked_caller_stays_blocked_without_a_store() {
    let rules = "
domain: d
descriptors:
- {key: blocked, rate_limit: {unit: hour, requests_per_unit: 0, on_store_failure: allow}}
- {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0, on_store_failure: allow}}
- {key: local, rate_limit: {unit: hour, requests_per_unit: 8, on_store_failure: local}}
- {key: error, rate_limit: {unit: hour, requests_per_unit: 8}}
";
    let it = harness(rules, OPTIONS, |_| Gone);
    assert_eq!(it.ask(&ask(&["blocked=x"])), "OVER over:0");
    assert_eq!(it.ask(&ask(&["local=x", "blocked=x"])), "OVER ok:0 over:0");
    assert_eq!(it.ask(&ask(&["error=x", "blocked=x"])), "OVER ok:0 over:0");
    assert_eq!(it.ask(&ask(&["trial=x"])), "OK ok:0");
    assert_eq!(it.ask(&refunding("blocked=x", 1)), "OK ok:0");
    it.with(&ask(&["blocked=x"]), |answer| assert_eq!(answer.unwrap().retry_us, None));
}
