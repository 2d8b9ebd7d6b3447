//! What is answered when the store gives no answer.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

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

/// A store that is there at times.
#[derive(Debug)]
pub(super) struct Flapping {
    store: MemoryStore<StandingClock>,
    up: Arc<AtomicBool>,
}

impl Store for Flapping {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        if self.up.load(Ordering::Relaxed) {
            return self.store.spend(charges, within).await;
        }
        Err(StoreError::Timeout { shard: "at times:1".into(), after: within })
    }

    fn health(&self) -> Vec<ShardHealth> {
        Vec::new()
    }
}

pub(super) fn flapping(rules: &str) -> (Harness<Flapping>, Arc<AtomicBool>) {
    let up = Arc::new(AtomicBool::new(true));
    let of_store = up.clone();
    let it =
        harness(rules, OPTIONS, |clock| Flapping { store: MemoryStore::new(clock, 1_000), up: of_store });
    (it, up)
}

fn a_local_limit(algorithm: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n- {{key: k, rate_limit: {{window: 10s, requests_per_unit: 20, \
         algorithm: {algorithm}, on_store_failure: local}}}}"
    )
}

#[test]
fn an_outage_hands_out_no_fresh_share() {
    let (it, up) = flapping(&a_local_limit("fixed_window"));
    assert_eq!(it.ask(&ask(&["k=x"])), "OK ok:19");
    up.store(false, Ordering::Relaxed);
    assert_eq!(it.ask(&costing("k=x", 3)), "OK ok:1", "a part of 5, of which the store has granted one");
    for _ in 0..3 {
        up.store(true, Ordering::Relaxed);
        assert!(it.ask(&ask(&["k=x"])).starts_with("OK"));
        up.store(false, Ordering::Relaxed);
        assert_eq!(it.ask(&ask(&["k=x"])), "OVER over:0");
    }
    it.pass(10_000_000);
    assert_eq!(it.ask(&ask(&["k=x"])), "OK ok:4", "the next window has a part of its own");
}

#[test]
fn a_refund_through_the_store_is_one_of_the_local_part_too() {
    let (it, up) = flapping(&a_local_limit("token_bucket"));
    assert_eq!(it.ask(&costing("k=x", 20)), "OK ok:0");
    assert_eq!(it.ask(&refunding("k=x", 2)), "OK ok:2");
    assert_eq!(it.ask(&costing("k=x", 5)), "OVER over:0", "refused, and uses up what was left");
    up.store(false, Ordering::Relaxed);
    assert_eq!(it.ask(&costing("k=x", 0)), "OK ok:2");
}

/// A time in ms, whether the store is there, and how often is asked.
type Spell = (u64, bool, u8);

fn spells() -> impl Strategy<Value = Vec<Spell>> {
    prop::collection::vec((0..4_000_u64, any::<bool>(), 0..12_u8), 1..60)
}

/// Grants of the store and of this process in each spell.
fn grants(algorithm: &str, spells: &[Spell]) -> Vec<(u64, bool, u64)> {
    let (it, up) = flapping(&a_local_limit(algorithm));
    let mut grants = Vec::new();
    for &(ms, there, asked) in spells {
        it.pass(ms * 1_000);
        up.store(there, Ordering::Relaxed);
        for _ in 0..asked {
            let granted = it.ask(&ask(&["k=x"])).starts_with("OK");
            grants.push((it.time.load(Ordering::Relaxed) - EPOCH_US, there, u64::from(granted)));
        }
    }
    grants
}

proptest! {
    /// The part of 20 in 10 s is 5 in 10 s.
    #[test]
    fn however_the_store_flaps_no_more_is_granted_than_the_limit_and_the_local_part(spells in spells()) {
        for algorithm in ["token_bucket", "gcra"] {
            let grants = grants(algorithm, &spells);
            let of = |there| move |(_, up, granted): &(u64, bool, u64)| if *up == there { *granted } else { 0 };
            let time_us = grants.last().map_or(0, |(at, ..)| *at);
            let by_the_store: u64 = grants.iter().map(of(true)).sum();
            let here: u64 = grants.iter().map(of(false)).sum();
            prop_assert!(by_the_store <= 20 + 20 * time_us / 10_000_000, "{algorithm}: {by_the_store}");
            prop_assert!(here <= 5 + 5 * time_us / 10_000_000, "{algorithm}: {here} in {time_us} µs");
        }
        let mut window = (0, 0, 0);
        for (at, there, granted) in grants("fixed_window", &spells) {
            if at / 10_000_000 != window.0 {
                window = (at / 10_000_000, 0, 0);
            }
            // Nothing is granted here while the process has granted its part, through the store or not.
            prop_assert!(there || granted == 0 || window.1 + window.2 < 5, "{window:?}");
            if there { window.1 += granted } else { window.2 += granted }
            prop_assert!(window.1 <= 20 && window.2 <= 5, "{window:?}");
        }
    }
}
