//! Near answers: who is known to be over does not reach the store.

use proptest::prelude::*;

use super::*;

/// A store elsewhere, and how often it was asked.
#[derive(Debug)]
struct Counted {
    store: MemoryStore<StandingClock>,
    calls: Arc<AtomicU64>,
}

impl Store for Counted {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.store.spend(charges, within).await
    }

    fn health(&self) -> Vec<ShardHealth> {
        Vec::new()
    }
}

/// A limiter before a store elsewhere, and the calls of that store.
fn counted(rules: &str, options: Options) -> (Harness<Counted>, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let of_store = calls.clone();
    let store = |clock| Counted { store: MemoryStore::new(clock, 1_000), calls: of_store };
    let it = harness(rules, options, store);
    // What was asked in the very microsecond of new rules is not remembered.
    it.pass(1);
    (it, calls)
}

const RULES: &str = "
domain: d
descriptors:
- {key: hour, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: strict, rate_limit: {unit: minute, requests_per_unit: 3, mode: enforce}}
- {key: bucket, rate_limit: {window: 10s, requests_per_unit: 3, algorithm: token_bucket}}
- {key: gcra, rate_limit: {window: 10s, requests_per_unit: 3, algorithm: gcra, mode: enforce}}
- {key: sliding, rate_limit: {window: 5s, requests_per_unit: 3, algorithm: sliding_window}}
- {key: trial, shadow_mode: true, rate_limit: {window: 5s, requests_per_unit: 2}}
- {key: quota, quota_mode: true, rate_limit: {window: 5s, requests_per_unit: 2}}
- {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: seen, rate_limit: {window: 5s, requests_per_unit: 2, mode: record}}
- key: two
  rate_limits:
  - {window: 2s, requests_per_unit: 1}
  - {unit: hour, requests_per_unit: 3}
";

const KEYS: [&str; 10] =
    ["hour", "strict", "bucket", "gcra", "sliding", "trial", "quota", "none", "seen", "two"];

#[test]
fn who_is_over_costs_the_store_one_call_a_second() {
    let (it, calls) = counted(RULES, OPTIONS);
    for _ in 0..4 {
        it.ask(&ask(&["hour=x"]));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    for _ in 0..5_000 {
        it.pass(1_000);
        assert_eq!(it.ask(&ask(&["hour=x"])), "OVER over:0");
    }
    assert_eq!(
        calls.load(Ordering::Relaxed),
        4 + 5,
        "once a second, since a refund may have passed elsewhere"
    );
    let counted = it.limiter.metrics.text();
    assert!(counted.contains("tollgate_near_answers_total 4995"), "{counted}");
    assert!(
        counted.contains(r#"tollgate_charges_total{domain="d",rule="hour",verdict="refused"} 5001"#),
        "{counted}"
    );
    assert_eq!(it.ask(&refunding("hour=x", 1)), "OK ok:1");
    assert_eq!(it.ask(&ask(&["hour=x"])), "OK ok:0", "a refund that passes here is noticed at once");
}

#[test]
fn new_rules_are_asked_for_at_once() {
    let (it, calls) = counted(RULES, OPTIONS);
    for _ in 0..5 {
        it.ask(&ask(&["hour=x"]));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    it.limiter.load(it.limiter.loaded().unwrap().rules.clone());
    it.ask(&ask(&["hour=x"]));
    assert_eq!(calls.load(Ordering::Relaxed), 5);
}

#[test]
fn a_size_of_0_asks_the_store_always_and_so_does_memory_which_is_here_already() {
    let (it, calls) = counted(RULES, Options { near_bytes: 0, ..OPTIONS });
    for _ in 0..10 {
        it.ask(&ask(&["hour=x"]));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 10);
    assert!(in_memory(RULES).limiter.near.is_none());
}

#[test]
fn an_outage_changes_nothing_for_who_is_known_to_be_over() {
    let rules = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 1, on_store_failure: allow}}";
    let (it, up) = lost::flapping(rules);
    it.pass(1);
    it.ask(&ask(&["k=x"]));
    it.ask(&ask(&["k=x"]));
    up.store(false, Ordering::Relaxed);
    it.with(&ask(&["k=x"]), |answer| {
        let answer = answer.unwrap();
        assert!(answer.refused && answer.degraded.is_none());
    });
    it.pass(1_000_000);
    assert_eq!(it.ask(&ask(&["k=x"])), "OK ok:0", "after that nothing is known");
}

#[test]
fn a_caller_who_waits_no_longer_is_charged_nothing() {
    let (it, calls) = counted(RULES, OPTIONS);
    let why = it.within(Duration::ZERO, &ask(&["hour=x"]), |answer| answer.unwrap_err());
    assert!(why.to_string().contains("not asked, since the caller waits no longer"), "{why}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

/// As the reference's local cache: golden cases `local-cache-and-other-limits`, `local-cache-and-stop-counting`.
#[test]
fn in_compat_the_other_limits_of_a_refused_request_are_asked_alone() {
    let rules = "
domain: d
descriptors:
- {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: three, rate_limit: {unit: hour, requests_per_unit: 3}}
";
    for (stop_counting, wanted) in
        [(false, ["OVER over:0 ok:1", "OVER over:0 ok:0"]), (true, ["OVER over:0 ok:2"; 2])]
    {
        let (it, calls) = counted(rules, Options { compat: true, stop_counting, ..OPTIONS });
        assert_eq!(it.ask(&ask(&["one=x", "three=x"])), "OK ok:0 ok:2");
        assert_eq!(it.ask(&ask(&["one=x"])), "OVER over:0");
        let before = calls.load(Ordering::Relaxed);
        for wanted in wanted {
            assert_eq!(it.ask(&ask(&["one=x", "three=x"])), wanted, "stop_counting: {stop_counting}");
        }
        it.pass(600_000_000);
        assert_eq!(it.ask(&ask(&["one=x"])), "OVER over:0", "until its window ends");
        assert_eq!(calls.load(Ordering::Relaxed) - before, 2, "a call for each of the other limit");
    }
}

/// Everything that an answer tells.
fn told<S: Store>(it: &Harness<S>, question: &Question) -> String {
    it.with(question, |answer| match answer {
        Ok(Answer { refused, statuses, described, retry_us, metadata, .. }) => {
            format!("{refused} {statuses:?} {described:?} {retry_us:?} {metadata:?}")
        }
        Err(error) => error.to_string(),
    })
}

fn questions() -> impl Strategy<Value = Vec<(u64, Question)>> {
    let time = prop_oneof![Just(0), 0..900_000_u64, Just(1_000_000), Just(7_000_000)];
    let hits = prop_oneof![4 => Just(None), 1 => Just(Some((0, false))), 1 => (1..5_u64).prop_map(|hits| Some((hits, false))), 1 => Just(Some((1, true)))];
    let one = (0..KEYS.len(), hits, prop::option::weighted(0.1, 1..5_u32)).prop_map(|(key, hits, limit)| {
        let (hits, refund) = hits.map_or((None, false), |(hits, refund)| (Some(hits), refund));
        // A bucket's counter is shared by both, and the store forgets it when it is whole by the one that wrote it last.
        let limit = limit.filter(|_| !["bucket", "gcra"].contains(&KEYS[key]));
        let limit = limit.map(|requests| Override { requests, unit: 3 });
        Descriptor { hits, refund, limit, ..descriptor(&format!("{}=x", KEYS[key])) }
    });
    let asked = prop::collection::vec(one, 1..3).prop_map(|descriptors| question("d", &descriptors));
    prop::collection::vec((time, asked), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn with_near_answers_nobody_can_tell_that_the_store_was_not_asked(questions in questions()) {
        let (near, _) = counted(RULES, OPTIONS);
        let (without, _) = counted(RULES, Options { near_bytes: 0, ..OPTIONS });
        for (us, question) in &questions {
            near.pass(*us);
            without.pass(*us);
            prop_assert_eq!(told(&near, question), told(&without, question), "{:?}", question);
        }
    }
}
