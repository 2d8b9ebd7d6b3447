//! Split keys: nobody can tell that a limit is several counters, but who looks into the store.

use std::{future::poll_fn, task::Poll};

use proptest::prelude::*;

use super::*;
use crate::limit::{Algorithm, Cost, Limit, OnRefusal, Role};

/// Memory that is called elsewhere: answers come later, and requests meet.
#[derive(Clone, Debug)]
struct Elsewhere {
    store: Arc<MemoryStore<StandingClock>>,
    calls: Arc<AtomicU64>,
    charges: Arc<AtomicU64>,
    /// The most charges of a call.
    largest: Arc<AtomicU64>,
    /// Numbers by chance, the same ones each time.
    dice: Arc<AtomicU64>,
    /// The most that a call is put off, in turns of other requests; 0 for not at all.
    slow: u64,
}

impl Elsewhere {
    fn new(clock: StandingClock, slow: u64) -> Self {
        Self {
            store: Arc::new(MemoryStore::new(clock, 10_000)),
            calls: Arc::default(),
            charges: Arc::default(),
            largest: Arc::default(),
            dice: Arc::default(),
            slow,
        }
    }

    async fn dawdle(&self) {
        if self.slow > 0 {
            let n = self.dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            for _ in 0..(n ^ n >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33 & (self.slow - 1) {
                let mut others = true;
                poll_fn(|context| match std::mem::take(&mut others) {
                    true => {
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    false => Poll::Ready(()),
                })
                .await;
            }
        }
    }
}

impl Store for Elsewhere {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.charges.fetch_add(charges.len() as u64, Ordering::Relaxed);
        self.largest.fetch_max(charges.len() as u64, Ordering::Relaxed);
        self.dawdle().await;
        let decision = self.store.spend(charges, within).await;
        self.dawdle().await;
        decision
    }

    fn health(&self) -> Vec<ShardHealth> {
        Vec::new()
    }
}

const KEYS: [&str; 9] = ["drained", "strict", "bucket", "gcra", "sliding", "trial", "quota", "seen", "plain"];

/// With all of their limits split, or with none.
fn rules(shards: &str) -> String {
    format!(
        "
domain: d
descriptors:
- {{key: drained, rate_limit: {{window: 10s, requests_per_unit: 19, shards: {shards}}}}}
- {{key: strict, rate_limit: {{window: 10s, requests_per_unit: 17, mode: enforce, shards: {shards}}}}}
- {{key: bucket, rate_limit: {{unit: year, requests_per_unit: 11, burst: 19, algorithm: token_bucket, shards: {shards}}}}}
- {{key: gcra, rate_limit: {{unit: year, requests_per_unit: 20, mode: enforce, algorithm: gcra, shards: {shards}}}}}
- {{key: sliding, rate_limit: {{unit: year, requests_per_unit: 18, algorithm: sliding_window, shards: {shards}}}}}
- {{key: trial, shadow_mode: true, rate_limit: {{window: 20s, requests_per_unit: 12, shards: {shards}}}}}
- {{key: quota, quota_mode: true, rate_limit: {{window: 20s, requests_per_unit: 13, shards: {shards}}}}}
- {{key: seen, rate_limit: {{window: 10s, requests_per_unit: 11, mode: record, shards: {shards}}}}}
- {{key: plain, rate_limit: {{window: 10s, requests_per_unit: 10}}}}
"
    )
}

/// Everything that an answer tells; of limits that come back over a year no times, since parts of a hit are no hit.
fn told<S: Store>(it: &Harness<S>, question: &Question) -> String {
    let slow = ["bucket", "gcra", "sliding"];
    let timed =
        question.descriptors.iter().all(|d| !slow.iter().any(|key| *d.entries[0].key == *key.as_bytes()));
    it.with(question, |answer| {
        let answer = answer.unwrap();
        let Some(described) = answer.described.as_ref().filter(|_| timed) else { return words(&answer) };
        let Described { limit, remaining, reset_us, next_us, .. } = described;
        let (statuses, retry) = (&answer.statuses, answer.retry_us);
        format!("{} {statuses:?} {limit:?} {remaining} {reset_us} {next_us} {retry:?}", answer.refused)
    })
}

fn questions() -> impl Strategy<Value = Vec<(u64, Question)>> {
    let time = prop_oneof![8 => Just(0), 2 => 0..900_000_u64, 1 => Just(1_000_000), 1 => Just(7_000_000)];
    let hits = prop_oneof![
        4 => Just(None),
        1 => Just(Some((0, false))),
        2 => (1..8_u64).prop_map(|hits| Some((hits, false))),
        1 => (8..22_u64).prop_map(|hits| Some((hits, false))),
        1 => (1..12_u64).prop_map(|hits| Some((hits, true))),
    ];
    let one = (0..KEYS.len(), hits, prop::bool::weighted(0.1)).prop_map(|(key, hits, brings)| {
        let (hits, refund) = hits.map_or((None, false), |(hits, refund)| (Some(hits), refund));
        // Of one number a key, since other numbers are other parts of what was spent; one is below the number of parts.
        let limit = brings.then_some(Override { requests: if key % 2 == 0 { 5 } else { 15 }, unit: 3 });
        // A bucket's counter is shared by both.
        let limit = limit.filter(|_| !["bucket", "gcra"].contains(&KEYS[key]));
        Descriptor { hits, refund, limit, ..descriptor(&format!("{}=x", KEYS[key])) }
    });
    let asked = prop::collection::vec(one, 1..3).prop_map(|descriptors| question("d", &descriptors));
    // Twins may be dealt over other parts than one after the other would be.
    let asked = asked.prop_filter(
        "twins",
        |question| !matches!(&question.descriptors[..], [one, other] if one.entries == other.entries),
    );
    prop::collection::vec((time, asked), 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn one_tollgate_answers_of_a_split_limit_what_it_answers_of_a_whole_one(
        questions in questions(),
        shards in 2_u8..=11,
        near in any::<bool>(),
    ) {
        let options = || Options { near_bytes: if near { 1 << 20 } else { 0 }, ..OPTIONS };
        let split = harness(&rules(&shards.to_string()), options(), |clock| Elsewhere::new(clock, 0));
        let whole = harness(&rules("1"), options(), |clock| Elsewhere::new(clock, 0));
        for (us, question) in &questions {
            split.pass(*us);
            whole.pass(*us);
            prop_assert_eq!(told(&split, question), told(&whole, question), "{:?}", question);
        }
    }
}

/// Several Tollgates before one store.
struct Fleet {
    tollgates: Vec<Limiter<StandingClock, Elsewhere>>,
    time: Arc<AtomicU64>,
    store: Elsewhere,
}

fn fleet(number: usize, rate_limit: &str, near_bytes: usize) -> Fleet {
    let rules = format!("domain: d\ndescriptors:\n- {{key: k, rate_limit: {{{rate_limit}}}}}\n");
    let files = InMemory(BTreeMap::from([("rules.yaml", rules)]));
    let compiled = rules::compile(&files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let time = Arc::new(AtomicU64::new(EPOCH_US));
    let clock = StandingClock(time.clone(), SystemClock.instant());
    let store = Elsewhere::new(clock.clone(), 8);
    let rules = Arc::new(compiled.rules);
    let tollgates = (0..number).map(|_| {
        let local = MemoryStore::new(clock.clone(), 1_000);
        let options = Options { near_bytes, ..OPTIONS };
        let limiter = Limiter::new(clock.clone(), store.clone(), local, options, Metrics::new());
        limiter.load(rules.clone());
        limiter
    });
    Fleet { tollgates: tollgates.collect(), time, store }
}

impl Fleet {
    /// Asks for all of these at once, each of one of the Tollgates. How many hits were granted.
    fn ask(&self, costs: impl Iterator<Item = u64>) -> u64 {
        let asked = costs.enumerate().map(|(index, hits)| async move {
            let tollgate = &self.tollgates[index % self.tollgates.len()];
            let loaded = tollgate.loaded().unwrap();
            let question = costing("k=x", hits);
            let answer = tollgate.ask(&loaded, &question, Duration::from_secs(1)).await.unwrap();
            if answer.refused { 0 } else { hits }
        });
        block_on(futures_util::future::join_all(asked)).into_iter().sum()
    }
}

/// What the limit of an algorithm grants at most, by when it was granted what.
fn check(limit: &Limit, granted: &[(u64, u64)], case: &str) {
    let window = limit.window_us();
    if !limit.algorithm().has_window() {
        // The fullest interval that ends at each grant, in parts of a hit.
        let (tokens, us) = limit.reduced();
        let (mut level, mut then) = (0_u64, 0);
        for (at, hits) in granted {
            level = level.saturating_sub(tokens * (at - then)) + hits * us;
            then = *at;
            assert!(level <= u64::from(limit.burst()) * us, "{case}: {} at {at}", level / us);
        }
        return;
    }
    let in_window =
        |n: u64| granted.iter().filter(|(at, _)| at / window == n).map(|(_, hits)| hits).sum::<u64>();
    for (at, _) in granted {
        let this = granted.iter().filter(|(other, _)| other / window == at / window && other <= at);
        let this: u64 = this.map(|(_, hits)| hits).sum();
        let last = if limit.algorithm() == Algorithm::SlidingWindow { in_window(at / window - 1) } else { 0 };
        let weighted =
            u128::from(this) * u128::from(window) + u128::from(last) * u128::from(window - at % window);
        assert!(weighted <= u128::from(limit.requests()) * u128::from(window), "{case}: at {at}");
    }
}

const LIMITS: [(Algorithm, u32, u64, Option<u32>); 8] = [
    (Algorithm::TokenBucket, 100, 1_000_000, None),
    (Algorithm::TokenBucket, 1000, 1_000_000, Some(67)),
    (Algorithm::TokenBucket, 64, 7_000_000, Some(640)),
    (Algorithm::Gcra, 100, 1_000_000, None),
    (Algorithm::Gcra, 77, 3_000_000, Some(65)),
    (Algorithm::FixedWindow, 100, 1_000_000, None),
    (Algorithm::SlidingWindow, 100, 1_000_000, None),
    (Algorithm::SlidingWindow, 1000, 3_000_000, None),
];

fn written(
    &(algorithm, requests, window_us, burst): &(Algorithm, u32, u64, Option<u32>),
    shards: u64,
) -> String {
    let burst = burst.map(|burst| format!(", burst: {burst}")).unwrap_or_default();
    let algorithm = algorithm.as_str();
    format!(
        "window: {window_us}us, requests_per_unit: {requests}, algorithm: {algorithm}{burst}, shards: {shards}, mode: enforce"
    )
}

#[test]
fn whatever_several_tollgates_ask_at_once_no_more_than_the_limit_is_granted() {
    for seed in 0..12_u64 {
        let mut dice = seed;
        let mut below = |n: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % n
        };
        for numbers in &LIMITS {
            let (shards, tollgates) = (2 + below(63), 1 + below(4) as usize);
            let near_bytes = if below(4) == 0 { 0 } else { 1 << 20 };
            let fleet = fleet(tollgates, &written(numbers, shards), near_bytes);
            let most = if below(2) == 0 { 1 } else { 30 };
            let mut granted = Vec::new();
            for _ in 0..40 {
                let asked = 1 + below(40);
                let costs: Vec<u64> = (0..asked).map(|_| 1 + below(most)).collect();
                let hits = fleet.ask(costs.into_iter());
                granted.push((fleet.time.load(Ordering::Relaxed), hits));
                let pace = [1_000, 30_000, 300_000, 4_000_000][below(4) as usize];
                fleet.time.fetch_add(below(pace), Ordering::Relaxed);
            }
            let &(algorithm, requests, window_us, burst) = numbers;
            let limit = Limit::new(algorithm, requests, window_us, burst).unwrap();
            check(&limit, &granted, &format!("seed {seed}, {limit:?} in {shards}, {tollgates} tollgates"));
        }
    }
}

#[test]
fn all_of_a_limit_can_be_had_of_its_parts() {
    for (algorithm, requests, window_us, burst) in LIMITS {
        for (shards, tollgates, hits) in [(8, 1, 1), (8, 4, 7), (16, 3, 1)] {
            let numbers = (algorithm, requests, window_us, burst);
            let fleet = fleet(tollgates, &written(&numbers, shards), 1 << 20);
            // Twice what is granted, evenly: once all parts have been asked, for some windows.
            let windows = 5;
            let step_us = window_us * hits / (2 * u64::from(requests));
            let mut granted = 0;
            let mut ask = |windows: u64| {
                let rounds = windows * window_us / step_us;
                for _ in 0..rounds {
                    granted += fleet.ask(std::iter::repeat_n(hits, 1));
                    fleet.time.fetch_add(step_us, Ordering::Relaxed);
                }
                (rounds, std::mem::take(&mut granted))
            };
            ask(u64::from(burst.unwrap_or(requests)).div_ceil(requests.into()));
            let (rounds, granted) = ask(windows);
            let most = windows * u64::from(requests);
            let calls = fleet.store.calls.load(Ordering::Relaxed);
            let share = granted as f64 / most as f64;
            println!(
                "{:14} {requests:5} in {shards:2}, {tollgates} tollgates, {hits} hits each: {granted:6} of {most:6} \
                 ({:.1}%), {calls} calls for {rounds} requests",
                algorithm.as_str(),
                share * 100.0
            );
            // Each part of a sliding window rounds up, and what is left then is no cost.
            let lost = if algorithm == Algorithm::SlidingWindow { (shards + hits - 1) as f64 } else { 0.0 };
            assert!(share + lost / f64::from(requests) >= 0.98, "{algorithm:?} {requests} in {shards}");
        }
    }
}

/// How many hits each part of a key was asked for is nobody's business, but that each is asked is.
#[test]
fn the_hits_of_a_hot_key_are_spread_over_its_parts() {
    let it = harness(&rules("8"), OPTIONS, |clock| Elsewhere::new(clock, 0));
    for left in (0..17).rev() {
        assert_eq!(it.ask(&ask(&["strict=x"])), format!("OK ok:{left}"), "the whole limit's number is told");
    }
    assert_eq!(it.ask(&ask(&["strict=x"])), "OVER over:0");
    let key =
        it.limiter.plan(&it.limiter.loaded().unwrap(), &ask(&["strict=x"])).unwrap()[0].charge.key.clone();
    for part in 0..8 {
        let (key, limit) =
            (key.shard(part), Limit::new(Algorithm::FixedWindow, 100, 10_000_000, None).unwrap());
        let look =
            Charge { key, limit, cost: Cost::Look(1), role: Role::Shadow, on_refusal: OnRefusal::Keep };
        let left = it.limiter.store().store.decide(&[look]).verdicts[0].remaining;
        assert_eq!(100 - left, if part == 0 { 3 } else { 2 }, "17 are dealt to 8: part {part}");
    }
}

#[test]
fn a_cost_that_is_larger_than_a_part_is_taken_of_several_or_not_at_all() {
    let it = harness(&rules("8"), OPTIONS, |clock| Elsewhere::new(clock, 0));
    assert_eq!(it.ask(&costing("strict=x", 10)), "OK ok:7");
    assert_eq!(it.ask(&costing("strict=x", 8)), "OVER over:7");
    assert_eq!(it.ask(&costing("strict=x", 7)), "OK ok:0");
    assert_eq!(it.ask(&refunding("strict=x", 9)), "OK ok:9", "what is given back goes where it is missing");
    assert_eq!(it.ask(&costing("strict=x", 9)), "OK ok:0");
    it.with(&costing("strict=x", 18), |answer| assert_eq!(answer.unwrap().retry_us, None, "never"));
}

#[test]
fn a_refused_request_spends_nothing_of_a_split_limit_and_the_other_way_round() {
    let it = harness(&rules("8"), OPTIONS, |clock| Elsewhere::new(clock, 0));
    assert_eq!(it.ask(&costing("plain=x", 10)), "OK ok:0");
    assert_eq!(it.ask(&ask(&["strict=x", "plain=x"])), "OVER ok:17 over:0");
    assert_eq!(it.ask(&costing("strict=x", 17)), "OK ok:0");
    assert_eq!(it.ask(&ask(&["plain=y", "strict=x"])), "OVER ok:10 over:0");
}

#[test]
fn who_is_over_a_split_limit_costs_the_store_a_call_a_second() {
    let it = harness(&rules("8"), OPTIONS, |clock| Elsewhere::new(clock, 0));
    it.pass(1);
    for _ in 0..17 {
        it.ask(&ask(&["strict=x"]));
    }
    let before = it.limiter.store().calls.load(Ordering::Relaxed);
    for _ in 0..5_000 {
        it.pass(1_000);
        assert_eq!(it.ask(&ask(&["strict=x"])), "OVER over:0");
    }
    let calls = it.limiter.store().calls.load(Ordering::Relaxed) - before;
    assert!(calls <= 2 * 6, "{calls}: one for a part and one for the others, a second");
}

/// Asks about 64 hot keys at once whose limits, each of 64 in 64 parts, are used up, but for one if so wanted. The answer,
/// and how many calls it took, of how many charges altogether and at most.
fn ask_64_hot_keys(shadow_mode: bool, hits: u64, full: Option<usize>) -> (String, u64, u64, u64) {
    let mode = if shadow_mode { "" } else { ", mode: enforce" };
    let rules = format!(
        "
domain: d
descriptors:
- {{key: k, shadow_mode: {shadow_mode}, rate_limit: {{unit: year, requests_per_unit: 64, shards: 64{mode}}}}}
"
    );
    let it = harness(&rules, Options { near_bytes: 0, ..OPTIONS }, |clock| Elsewhere::new(clock, 0));
    for key in (0..64).filter(|key| Some(*key) != full) {
        assert!(it.ask(&costing(&format!("k={key}"), 64)).starts_with("OK"));
    }
    // What was heard then is not trusted any more.
    it.pass(10_000_000);
    let store = it.limiter.store();
    let counts = [&store.calls, &store.charges, &store.largest];
    counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    let descriptors: Vec<Descriptor> =
        (0..64).map(|key| Descriptor { hits: Some(hits), ..descriptor(&format!("k={key}")) }).collect();
    let told = it.ask(&question("d", &descriptors));
    let [calls, charges, largest] = counts.map(|count| count.load(Ordering::Relaxed));
    (told, calls, charges, largest)
}

#[test]
fn one_refused_request_about_many_hot_keys_does_not_hold_up_all_others_of_the_store() {
    let (told, calls, charges, largest) = ask_64_hot_keys(false, 1, None);
    assert!(told.starts_with("OVER over:0") && !told.contains("ok"), "{told}");
    assert!(calls == 2 && charges <= 64 + 256 && largest <= 256, "{calls} of {charges}, at most {largest}");

    let (told, calls, charges, largest) = ask_64_hot_keys(false, 65, None);
    assert!(told.starts_with("OVER over:0"), "{told}");
    assert_eq!((calls, charges, largest), (1, 64, 64), "what never fits needs no look");

    // None of these refuses, so each is looked at, but others get their turn in between.
    let (told, calls, charges, largest) = ask_64_hot_keys(true, 1, Some(63));
    assert!(told.starts_with("OK ") && told.ends_with("ok:63"), "{told}");
    assert!(calls > 63 / 4 && charges >= 63 * 63 && largest <= 256, "{calls} of {charges}, {largest}");
}
