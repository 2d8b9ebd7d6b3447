//! The limiter over real rules and the memory store, at a time that stands still.

mod lost;
mod near;
mod split;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::*;
use crate::{
    clock::{Micros, SystemClock},
    key::Format,
    limit::{Charge, Decision},
    rules::{self, Dialect, Files, Unit},
    store::ShardHealth,
};

/// A Thursday, where windows of every unit but the year begin.
const EPOCH_US: u64 = 20_454 * 86_400 * 1_000_000;

/// Both kinds of time go together.
#[derive(Clone, Debug)]
struct StandingClock(Arc<AtomicU64>, Instant);

impl Clock for StandingClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }

    fn instant(&self) -> Instant {
        self.1 + Duration::from_micros(self.now().0 - EPOCH_US)
    }
}

struct InMemory(BTreeMap<&'static str, String>);

impl Files for InMemory {
    fn list(&self) -> Vec<String> {
        self.0.keys().map(|name| (*name).to_owned()).collect()
    }

    fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        self.0.get(name).map(|text| text.clone().into_bytes()).ok_or(std::io::ErrorKind::NotFound.into())
    }
}

struct Harness<S> {
    limiter: Limiter<StandingClock, S>,
    time: Arc<AtomicU64>,
}

const OPTIONS: Options = Options {
    compat: false,
    shadow_mode: false,
    quota_mode: false,
    on_store_failure: FailureMode::Error,
    stop_counting: false,
    fleet_size: 4,
    near_bytes: 1 << 20,
    lease_above: 0,
    keys: Format::OWN,
};

fn harness<S: Store>(rules: &str, options: Options, store: impl FnOnce(StandingClock) -> S) -> Harness<S> {
    let time = Arc::new(AtomicU64::new(EPOCH_US));
    let clock = StandingClock(time.clone(), SystemClock.instant());
    let files = InMemory(BTreeMap::from([("rules.yaml", rules.to_owned())]));
    let dialect = Dialect { compat: options.compat, ..Dialect::default() };
    let compiled = rules::compile(&files, dialect).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let local = MemoryStore::new(clock.clone(), 1_000);
    let limiter = Limiter::new(clock.clone(), store(clock), local, options, Metrics::new());
    limiter.load(Arc::new(compiled.rules));
    Harness { limiter, time }
}

fn in_memory(rules: &str) -> Harness<MemoryStore<StandingClock>> {
    harness(rules, OPTIONS, |clock| MemoryStore::new(clock, 1_000))
}

fn compat(rules: &str) -> Harness<MemoryStore<StandingClock>> {
    harness(rules, Options { compat: true, ..OPTIONS }, |clock| MemoryStore::new(clock, 1_000))
}

/// What a test looks at: `OK`, or `OVER`, then for each descriptor `ok` or `over` and what remains.
fn words(answer: &Answer<'_>) -> String {
    let mut words = if answer.refused { "OVER" } else { "OK" }.to_owned();
    for status in &answer.statuses {
        words += &format!(" {}:{}", if status.over { "over" } else { "ok" }, status.remaining);
    }
    words
}

impl<S: Store> Harness<S> {
    fn with<T>(&self, question: &Question, look: impl FnOnce(Result<Answer<'_>, AskError>) -> T) -> T {
        self.within(Duration::from_secs(1), question, look)
    }

    fn within<T>(
        &self,
        within: Duration,
        question: &Question,
        look: impl FnOnce(Result<Answer<'_>, AskError>) -> T,
    ) -> T {
        let loaded = self.limiter.loaded().expect("rules were loaded");
        look(block_on(self.limiter.ask(&loaded, question, within)))
    }

    fn ask(&self, question: &Question) -> String {
        self.with(question, |answer| answer.map_or_else(|error| error.to_string(), |answer| words(&answer)))
    }

    fn pass(&self, us: u64) {
        self.time.fetch_add(us, Ordering::Relaxed);
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn question(domain: &str, descriptors: &[Descriptor]) -> Question {
    Question { domain: Bytes::copy_from_slice(domain.as_bytes()), descriptors: descriptors.to_vec(), hits: 0 }
}

/// `user=ann,path=/`
fn descriptor(entries: &str) -> Descriptor {
    let entries = entries.split(',').filter_map(|entry| entry.split_once('=')).map(|(key, value)| Entry {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    });
    Descriptor { entries: entries.collect(), ..Descriptor::default() }
}

fn ask(entries: &[&str]) -> Question {
    question("d", &entries.iter().map(|entries| descriptor(entries)).collect::<Vec<_>>())
}

fn costing(entries: &str, hits: u64) -> Question {
    question("d", &[Descriptor { hits: Some(hits), ..descriptor(entries) }])
}

fn refunding(entries: &str, hits: u64) -> Question {
    question("d", &[Descriptor { hits: Some(hits), refund: true, ..descriptor(entries) }])
}

fn bringing(entries: &str, requests: u32, unit: i32) -> Question {
    question("d", &[Descriptor { limit: Some(Override { requests, unit }), ..descriptor(entries) }])
}

const TWO: &str = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: vip, rate_limit: {unlimited: true}}
- {key: b, value: free}
";

#[test]
fn a_refused_request_spends_from_none_of_its_limits() {
    let it = in_memory(TWO);
    assert_eq!(it.ask(&ask(&["a=x", "b=x"])), "OK ok:0 ok:1");
    assert_eq!(it.ask(&ask(&["b=x", "a=x"])), "OVER ok:1 over:0");
    assert_eq!(it.ask(&ask(&["b=x"])), "OK ok:0");
}

#[test]
fn the_reference_counts_refused_hits_and_so_does_the_switch() {
    let it = compat(TWO);
    assert_eq!(it.ask(&ask(&["a=x", "b=x"])), "OK ok:0 ok:1");
    assert_eq!(it.ask(&ask(&["b=x", "a=x"])), "OVER ok:0 over:0");
    assert_eq!(it.ask(&ask(&["b=x"])), "OVER over:0");
}

#[test]
fn what_no_rule_names_passes_and_an_unlimited_rule_says_so() {
    let it = in_memory(TWO);
    let answer = it.ask(&ask(&["vip=x", "unknown=x", "b=free", "a=x"]));
    assert_eq!(answer, format!("OK ok:{} ok:0 ok:0 ok:0", u32::MAX));
    assert_eq!(it.ask(&question("nobody", &[descriptor("a=x")])), "OK ok:0");
    let counted = it.limiter.metrics.text();
    assert!(counted.contains("tollgate_unmatched_descriptors_total{domain=\"d\"} 1"), "{counted}");
    assert!(counted.contains("tollgate_unmatched_descriptors_total{domain=\"\"} 1"), "{counted}");
}

#[test]
fn a_cost_of_zero_looks_and_changes_nothing() {
    let it = in_memory(TWO);
    assert_eq!(it.ask(&costing("a=x", 0)), "OK ok:1");
    assert_eq!(it.ask(&costing("a=x", 1)), "OK ok:0");
    assert_eq!(it.ask(&costing("a=x", 0)), "OVER over:0");
    it.with(&costing("a=x", 0), |answer| assert_eq!(answer.unwrap().retry_us, Some(3_600_000_000)));
    let reference = compat(TWO);
    assert_eq!(reference.ask(&costing("a=x", 1)), "OK ok:0");
    assert_eq!(
        reference.ask(&costing("a=x", 0)),
        "OK ok:0",
        "the reference passes a look at exactly the limit"
    );
}

#[test]
fn the_descriptors_own_cost_wins_over_the_requests() {
    let it = in_memory(TWO);
    let own = Descriptor { hits: Some(1), ..descriptor("b=x") };
    let question = Question { hits: 2, ..question("d", &[own, descriptor("b=y")]) };
    assert_eq!(it.ask(&question), "OK ok:1 ok:0");
}

#[test]
fn a_refund_gives_back_and_stops_at_full() {
    let it = in_memory(TWO);
    assert_eq!(it.ask(&costing("b=x", 2)), "OK ok:0");
    assert_eq!(it.ask(&refunding("b=x", 1)), "OK ok:1");
    assert_eq!(it.ask(&refunding("b=x", u64::MAX)), "OK ok:2");
    assert_eq!(it.ask(&costing("b=x", 2)), "OK ok:0");
}

#[test]
fn a_cost_that_does_not_fit_uses_up_what_was_left_where_no_mode_is_named() {
    let rules = "
domain: d
descriptors:
- {key: tokens, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: strict, rate_limit: {unit: hour, requests_per_unit: 10, mode: enforce}}
- {key: seen, rate_limit: {unit: hour, requests_per_unit: 10, mode: record}}
";
    let it = in_memory(rules);
    assert_eq!(it.ask(&costing("tokens=x", 11)), "OVER over:0");
    assert_eq!(it.ask(&costing("strict=x", 11)), "OVER over:10");
    assert_eq!(it.ask(&costing("strict=x", 10)), "OK ok:0");
    assert_eq!(it.ask(&costing("seen=x", 11)), "OK ok:0");
}

#[test]
fn a_limit_brought_along_replaces_the_numbers_and_shares_the_counter() {
    let it = in_memory(TWO);
    assert_eq!(it.ask(&ask(&["b=x"])), "OK ok:1");
    assert_eq!(it.ask(&bringing("b=x", 5, 3)), "OK ok:3");
    assert_eq!(it.ask(&ask(&["b=x"])), "OVER over:0");
    assert_eq!(it.ask(&bringing("none=x", 1, 3)), "OK ok:0");
    assert_eq!(it.ask(&bringing("none=x", 1, 3)), "OVER over:0");
    assert_eq!(it.ask(&bringing("vip=x", 1, 3)), "OK ok:0");
    it.with(&bringing("b=x", 5, 3), |answer| {
        assert_eq!(answer.unwrap().statuses[0].limit, Some((5, Unit::Hour, None)));
    });
    for unit in [0, 8, -1, i32::MAX] {
        let said = it.ask(&bringing("b=x", 5, unit));
        assert!(said.contains(&format!("limit.unit {unit} is none of 1 (SECOND) to 7 (WEEK)")), "{said}");
    }
}

#[test]
fn a_limit_brought_along_charges_no_counter_of_several_limits_twice() {
    let rules = "
domain: d
descriptors:
- key: k
  rate_limits:
  - {unit: minute, requests_per_unit: 100}
  - {unit: hour, requests_per_unit: 20}
";
    let it = in_memory(rules);
    assert_eq!(it.ask(&ask(&["k=x"])), "OK ok:19");
    assert_eq!(it.ask(&bringing("k=x", 10, 3)), "OK ok:8", "in place of the limit by the hour");
    assert_eq!(it.ask(&bringing("k=x", 5, 2)), "OK ok:2", "in place of the limit by the minute");
    assert_eq!(it.ask(&bringing("k=x", 50, 4)), "OK ok:16", "a window of its own, and the hour besides");
    assert_eq!(it.ask(&ask(&["k=x"])), "OK ok:15");
}

#[test]
fn in_a_domain_that_no_file_names_a_limit_brought_along_is_ignored() {
    let it = in_memory(TWO);
    let brought = Descriptor { limit: Some(Override { requests: 0, unit: 1 }), ..descriptor("a=x") };
    assert_eq!(it.ask(&question("nobody", &[brought])), "OK ok:0");
}

#[test]
fn the_callers_mistakes_are_named() {
    let it = in_memory(TWO);
    assert!(it.ask(&question("", &[descriptor("a=x")])).contains("domain must not be empty"));
    assert!(it.ask(&question("d", &[])).contains("descriptor list must not be empty"));
    let just = vec![descriptor("z=x"); DESCRIPTORS_MAX];
    assert!(it.ask(&question("d", &just)).starts_with("OK"));
    assert!(it.ask(&question("d", &vec![descriptor("z=x"); DESCRIPTORS_MAX + 1])).contains("65 descriptors"));
    let entries =
        |n| Descriptor { entries: vec![descriptor("k=v").entries[0].clone(); n], ..Descriptor::default() };
    assert!(it.ask(&question("d", &[entries(ENTRIES_MAX)])).starts_with("OK"));
    assert!(it.ask(&question("d", &[entries(10_000)])).contains("descriptor 0: 10000 entries"));
}

#[test]
fn retry_after_is_when_the_whole_request_fits() {
    let rules = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: q, value: s, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: q, value: l, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let it = in_memory(rules);
    it.pass(1_000_000);
    let all = ask(&["a=x", "b=x"]);
    assert_eq!(it.ask(&all), "OK ok:0 ok:0");
    it.with(&all, |answer| {
        let answer = answer.unwrap();
        assert_eq!(answer.retry_us, Some(3_599_000_000), "of the limit that refuses longest");
        assert_eq!(answer.described.unwrap().limit.window_us(), 3_600_000_000);
    });
    it.with(&ask(&["none=x", "a=x"]), |answer| {
        let answer = answer.unwrap();
        assert!(answer.refused && answer.retry_us.is_none(), "never fits");
        assert_eq!(answer.described.unwrap().limit.requests(), 0);
    });
    let quotas = ask(&["q=s", "q=l"]);
    assert_eq!(it.ask(&quotas), "OK ok:0 ok:0");
    it.with(&quotas, |answer| {
        assert_eq!(answer.unwrap().retry_us, Some(1_000_000), "one quota is enough");
    });
}

#[test]
fn retry_after_is_when_all_descriptors_of_one_counter_fit() {
    for algorithm in ["fixed_window", "sliding_window", "token_bucket", "gcra"] {
        let it = in_memory(&format!(
            "domain: d\ndescriptors:\n- {{key: k, rate_limit: {{window: 10s, requests_per_unit: 10, algorithm: {algorithm}, mode: enforce}}}}"
        ));
        let asking = |hits: &[u64]| {
            let one = |hits| Descriptor { hits: Some(hits), ..descriptor("k=x") };
            question("d", &hits.iter().copied().map(one).collect::<Vec<_>>())
        };
        it.pass(3);
        assert_eq!(it.ask(&asking(&[7])), "OK ok:3", "{algorithm}");
        for twice in [asking(&[4, 3]), asking(&[2, 5])] {
            let retry_us = it.with(&twice, |answer| answer.unwrap().retry_us.unwrap());
            it.pass(retry_us - 1);
            assert!(it.ask(&twice).starts_with("OVER"), "{algorithm}: {retry_us} is longer than needed");
            it.pass(1);
            assert!(it.ask(&twice).starts_with("OK"), "{algorithm}: refused again after {retry_us}");
        }
        it.with(&asking(&[6, 6]), |answer| {
            assert_eq!(answer.unwrap().retry_us, None, "{algorithm}: 12 of 10 never fit");
        });
    }
}

#[test]
fn headers_describe_the_limit_that_is_nearest_to_refusing() {
    let rules = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: b, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: c, rate_limit: {unit: week, requests_per_unit: 3}}
- {key: trial, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 1}}
";
    let it = in_memory(rules);
    it.pass(1);
    it.with(&ask(&["a=x", "b=x", "c=x", "trial=x"]), |answer| {
        let described = answer.unwrap().described.unwrap();
        assert_eq!((&*described.rule.unwrap().policy, described.remaining), ("c", 2));
    });
    it.with(&ask(&["trial=x"]), |answer| {
        let answer = answer.unwrap();
        assert!(!answer.refused && answer.described.is_none(), "a limit on trial is not shown");
        assert_eq!(answer.statuses[0].limit, Some((1, Unit::Week, None)));
    });
}

#[test]
fn a_tenants_budgets_are_charged_together() {
    let rules = "
domain: d
tenant: tenant
route: route
default_tier: free
tiers:
  free: { rate: 1/h }
  pro:
    rate: 10/h
    routes: { search: { rate: 2/h } }
    daily: { rate: 3/d, algorithm: fixed_window }
tenants:
  acme: { tier: pro }
";
    let it = in_memory(rules);
    assert_eq!(it.ask(&ask(&["tenant=acme,route=search"])), "OK ok:1");
    assert_eq!(it.ask(&ask(&["route=search,tenant=acme"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["tenant=acme,route=search"])), "OVER over:0");
    assert_eq!(
        it.ask(&ask(&["tenant=acme,route=other"])),
        "OK ok:0",
        "the daily limit has the least remaining"
    );
    assert_eq!(it.ask(&ask(&["tenant=acme,route=other"])), "OVER over:0", "the daily limit refuses");
    assert_eq!(it.ask(&ask(&["tenant=nobody"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["tenant=nobody"])), "OVER over:0");
    assert_eq!(it.ask(&ask(&["tenant=else"])), "OK ok:0");
}

#[test]
fn the_whole_service_on_trial_tells_what_would_have_been() {
    let options = Options { shadow_mode: true, ..OPTIONS };
    let it = harness(TWO, options, |clock| MemoryStore::new(clock, 1_000));
    assert_eq!(it.ask(&ask(&["a=x"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["a=x"])), "OK over:0");
}

#[test]
fn with_quota_mode_a_request_passes_while_one_limit_has_something_left() {
    let options = Options { quota_mode: true, ..OPTIONS };
    let it = harness(TWO, options, |clock| MemoryStore::new(clock, 1_000));
    assert_eq!(it.ask(&ask(&["a=x", "b=x"])), "OK ok:0 ok:1");
    assert_eq!(it.ask(&ask(&["a=x", "b=x"])), "OK over:0 ok:0");
    assert_eq!(it.ask(&ask(&["a=x", "b=x"])), "OVER over:0 over:0");
    assert_eq!(it.ask(&ask(&["a=x", "unknown=x"])), "OK over:0 ok:0");
    assert!(it.ask(&ask(&["a=x", "vip=x"])).starts_with("OVER over:0"));
}

#[test]
fn with_quota_mode_a_limit_on_trial_is_never_over() {
    let rules = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let options = Options { quota_mode: true, ..OPTIONS };
    let it = harness(rules, options, |clock| MemoryStore::new(clock, 1_000));
    assert_eq!(it.ask(&ask(&["a=x", "trial=x"])), "OK ok:0 ok:0");
    assert_eq!(it.ask(&ask(&["a=x", "trial=x"])), "OK over:0 ok:0");
    assert_eq!(it.ask(&ask(&["a=x"])), "OVER over:0");
}

#[test]
fn a_special_limit_takes_the_place_of_the_general_one_in_the_same_request() {
    let rules = "
domain: d
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 1, name: general}}
- {key: promo, rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: general}]}}
";
    let it = in_memory(rules);
    assert_eq!(it.ask(&ask(&["user=a", "promo=a"])), "OK ok:0 ok:2");
    assert_eq!(it.ask(&ask(&["user=a", "promo=a"])), "OK ok:0 ok:1");
    assert_eq!(it.ask(&ask(&["user=a"])), "OK ok:0");
    assert_eq!(it.ask(&ask(&["user=a"])), "OVER over:0");
}
