//! Near answers beside the store that they stand for.

use std::{
    num::NonZeroU64,
    slice::from_ref,
    sync::{Arc, atomic::Ordering},
};

use proptest::prelude::*;

use super::*;
use crate::{
    clock::{Clock, Micros, SystemClock},
    key::Key,
    limit::Role,
    store::memory::MemoryStore,
};

/// A time in the middle of a window of all lengths below.
const BEGAN_US: u64 = 1_800_000_012_345_678;

/// A clock that stands still until it is moved; both kinds of time go together.
#[derive(Clone, Debug)]
struct Told(Arc<AtomicU64>, Instant);

impl Clock for Told {
    fn now(&self) -> Micros {
        Micros(BEGAN_US + self.0.load(Ordering::Relaxed))
    }

    fn instant(&self) -> Instant {
        self.1 + Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A store, and near answers before it.
struct World {
    clock: Told,
    store: MemoryStore<Told>,
    near: NearCache,
}

impl World {
    fn new(style: Style) -> Self {
        let clock = Told(Arc::default(), SystemClock.instant());
        let near = NearCache::new(1 << 20, style, clock.instant());
        Self { store: MemoryStore::new(clock.clone(), 1_000), clock, near }
    }

    fn pass(&self, us: u64) {
        self.clock.0.fetch_add(us, Ordering::Relaxed);
    }

    /// Asks the store, which takes no time.
    fn ask(&self, charges: &[Charge]) -> Decision {
        let now = self.clock.instant();
        let decision = self.store.decide(charges);
        self.near.learn(charges, &decision, now, now);
        self.near.refunded(charges, now);
        decision
    }

    fn look(&self, charges: &[Charge]) -> Known {
        self.near.look(charges, self.clock.instant())
    }
}

fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, 10_000_000, None).unwrap()
}

fn charge(key: &str, limit: Limit, cost: Cost) -> Charge {
    let key = Key::from_text(&format!("{key}:{}", limit.algorithm().as_str()));
    Charge { key, limit, cost, role: Role::Enforce, on_refusal: OnRefusal::Keep }
}

fn spend(hits: u64) -> Cost {
    Cost::Spend(NonZeroU64::new(hits).unwrap())
}

/// As answers tell it: what is counted beyond full is nobody's business but the store's.
fn told(decision: &Decision) -> Decision {
    let verdicts =
        decision.verdicts.iter().map(|verdict| Verdict { beyond: 0, since: Micros(0), ..*verdict });
    Decision { verdicts: verdicts.collect(), ..*decision }
}

const ALL: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow];

/// Time that passes in µs, then charges: key, limit's number, hits (0 looks, above 8 gives one back), role, refusal.
type Step = (u64, Vec<(u8, u32, u64, u8, u8)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![0..3_u64, 0..2_000_000_u64, Just(4_999_999), Just(10_000_000)];
    let charge = (0..3_u8, prop_oneof![Just(0_u32), Just(3), Just(4)], 0..10_u64, 0..3_u8, 0..3_u8);
    prop::collection::vec((time, prop::collection::vec(charge, 1..4)), 1..80)
}

/// With `debts` some charges count always, and one counter has one limit: a store keeps a counter until it is whole by the
/// limit that wrote it last, so by another one a debt may be forgotten early.
fn charges(algorithm: Algorithm, debts: bool, of: &[(u8, u32, u64, u8, u8)]) -> Vec<Charge> {
    let one = |&(key, requests, hits, role, refusal): &(u8, u32, u64, u8, u8)| {
        let cost = match hits {
            0 => Cost::Look(1),
            9.. => Cost::Refund(1),
            hits => spend(hits),
        };
        let requests = if debts { requests.min(3) } else { requests };
        let refusals =
            [OnRefusal::Keep, OnRefusal::Drain, if debts { OnRefusal::Count } else { OnRefusal::Keep }];
        Charge {
            role: [Role::Enforce, Role::Shadow, Role::Quota][role as usize],
            on_refusal: refusals[refusal as usize],
            ..charge(&format!("k{key}"), limit(algorithm, requests), cost)
        }
    };
    of.iter().map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The store is asked besides, which changes nothing there: what is over spends nothing.
    #[test]
    fn a_near_answer_is_what_the_store_would_say_to_the_microsecond(debts in any::<bool>(), steps in steps()) {
        for algorithm in ALL {
            let world = World::new(Style::Ours);
            for (us, of) in &steps {
                world.pass(*us);
                let charges = charges(algorithm, debts, of);
                let known = world.look(&charges);
                let decision = if known == Known::Nothing { world.ask(&charges) } else { world.store.decide(&charges) };
                if let Known::All(near) = known {
                    prop_assert_eq!(told(&near), told(&decision), "{:?} {:?}", algorithm, charges);
                }
            }
        }
    }
}

#[test]
fn who_is_over_is_refused_here_until_the_next_hit_is_there() {
    for algorithm in ALL {
        let world = World::new(Style::Ours);
        let one = [charge("k", limit(algorithm, 20), spend(1))];
        while !world.ask(&one).refused {}
        let (mut here, mut asked) = (0, 0);
        // A hit comes back after half a second in all but windows, which are longer than the hold.
        for _ in 0..499_000 {
            world.pass(1);
            match world.look(&one) {
                Known::All(decision) => {
                    assert!(decision.refused, "{algorithm:?}");
                    here += 1;
                }
                _ => asked += 1,
            }
        }
        assert_eq!((here, asked), (499_000, 0), "{algorithm:?}");
    }
}

#[test]
fn several_charges_are_answered_here_only_when_all_are_known_to_be_over() {
    let world = World::new(Style::Ours);
    let [a, b] = ["a", "b"].map(|key| charge(key, limit(Algorithm::FixedWindow, 1), spend(1)));
    world.ask(from_ref(&a));
    world.ask(from_ref(&a));
    assert!(matches!(world.look(from_ref(&a)), Known::All(_)));
    assert_eq!(world.look(&[a.clone(), b.clone()]), Known::Nothing);
    world.ask(from_ref(&b));
    world.ask(from_ref(&b));
    assert!(matches!(world.look(&[a.clone(), b.clone()]), Known::All(_)));
    let counted = Charge { on_refusal: OnRefusal::Count, role: Role::Shadow, ..b.clone() };
    assert_eq!(world.look(&[counted]), Known::Nothing, "mode: record counts always");
    let wider = Charge { limit: limit(Algorithm::FixedWindow, 2), ..b };
    assert_eq!(world.look(&[wider]), Known::Nothing, "another number is another limit");
}

#[test]
fn the_store_is_asked_again_after_the_hold_for_a_refund_may_have_passed_elsewhere() {
    let world = World::new(Style::Ours);
    let one = [charge("k", limit(Algorithm::FixedWindow, 1), spend(1))];
    world.ask(&one);
    world.ask(&one);
    world.pass(999_999);
    assert!(matches!(world.look(&one), Known::All(_)));
    world.pass(1);
    assert_eq!(world.look(&one), Known::Nothing);
}

#[test]
fn a_refund_ends_it_and_no_refusal_from_before_brings_it_back() {
    let world = World::new(Style::Ours);
    let one = [charge("k", limit(Algorithm::FixedWindow, 1), spend(1))];
    world.ask(&one);
    let before = world.clock.instant();
    let late = world.ask(&one);
    world.pass(10);
    world.ask(&[Charge { cost: Cost::Refund(1), ..one[0].clone() }]);
    assert_eq!(world.look(&one), Known::Nothing);
    world.near.learn(&one, &late, before, world.clock.instant());
    assert_eq!(world.look(&one), Known::Nothing, "it was asked before the refund");
    world.pass(1);
    world.ask(&one);
    world.ask(&one);
    assert!(matches!(world.look(&one), Known::All(_)));
    world.near.clear(world.clock.instant());
    assert_eq!(world.look(&one), Known::Nothing, "new rules");
    world.ask(&one);
    let counts = world.near.counts();
    assert_eq!((counts.keys, counts.hits, counts.overwritten, counts.evicted), (1, 1, 1, 0));
}

#[test]
fn a_hit_that_was_taken_and_given_back_as_another_shard_refused_makes_nobody_over() {
    let world = World::new(Style::Ours);
    let [a, b] = ["a", "b"].map(|key| charge(key, limit(Algorithm::FixedWindow, 1), spend(1)));
    world.ask(from_ref(&b));
    // While the first request has the only hit of `a`, on its way to `b`'s refusal, a second one asks for `a`.
    let asked = world.clock.instant();
    let over = {
        let other = World::new(Style::Ours);
        other.ask(from_ref(&a));
        other.ask(from_ref(&a))
    };
    world.pass(100);
    assert!(world.ask(&[a.clone(), b]).refused);
    world.near.learn(from_ref(&a), &over, asked, world.clock.instant());
    assert_eq!(world.look(from_ref(&a)), Known::Nothing);
    assert!(!world.ask(from_ref(&a)).refused);
}

#[test]
fn a_slow_store_makes_nobody_wait_longer_than_the_store_would() {
    let world = World::new(Style::Ours);
    let one = [charge("k", limit(Algorithm::TokenBucket, 20), spend(1))];
    while !world.store.decide(&one).refused {}
    // Half a second until the next hit, of which the answer's way takes 200 ms.
    let asked = world.clock.instant();
    let decision = world.store.decide(&one);
    world.pass(200_000);
    world.near.learn(&one, &decision, asked, world.clock.instant());
    assert!(matches!(world.look(&one), Known::All(_)));
    world.pass(300_000);
    assert!(!world.store.decide(&one).refused);
    assert_eq!(world.look(&one), Known::Nothing);
    // An answer that comes when the hit is there already teaches nothing.
    let asked = world.clock.instant();
    let decision = world.store.decide(&one);
    world.pass(600_000);
    world.near.learn(&one, &decision, asked, world.clock.instant());
    assert_eq!(world.look(&one), Known::Nothing);
}

#[test]
fn many_keys_take_no_more_than_the_bytes_they_are_given() {
    let now = SystemClock.instant();
    for bytes in [1, 10_000, 1 << 20] {
        let near = NearCache::new(bytes, Style::Ours, now);
        let verdict = Verdict {
            fits: false,
            remaining: 0,
            beyond: 0,
            reset_us: 1_000,
            retry_us: Some(1_000),
            next_us: 1_000,
            since: Micros(0),
        };
        let decision = Decision { refused: true, verdicts: smallvec::smallvec![verdict] };
        for number in 0..20_000 {
            let long = "x".repeat(number % 400);
            let one = [charge(&format!("{number}{long}"), limit(Algorithm::FixedWindow, 1), spend(1))];
            near.learn(&one, &decision, now, now);
        }
        let of_set = |set: &Mutex<Set>| {
            let set = set.lock().unwrap();
            let keys: usize = set.over.iter().map(|over| over.key.len()).sum();
            size_of::<Mutex<Set>>() + set.over.capacity() * size_of::<Over>() + keys
        };
        let used: usize = near.sets.iter().map(of_set).sum();
        assert!(used <= bytes.max(SET_BYTES), "{used} of {bytes}");
        assert!(used >= bytes / 4, "{used} of {bytes}: it is there to be used");
        let counts = near.counts();
        assert_eq!(counts.keys + counts.evicted, 20_000);
    }
}

#[test]
fn as_the_reference_refused_hits_are_not_counted_and_other_limits_are_asked_alone() {
    let world = World::new(Style::Reference);
    let counted = |key: &str| Charge {
        on_refusal: OnRefusal::Count,
        ..charge(key, limit(Algorithm::FixedWindow, 1), spend(1))
    };
    let (a, b) = (counted("a"), counted("b"));
    world.ask(from_ref(&a));
    world.ask(from_ref(&a));
    world.pass(2_000_000);
    assert!(matches!(world.look(from_ref(&a)), Known::All(_)), "until the window ends");
    let Known::Some(known) = world.look(&[a.clone(), b.clone()]) else { panic!("b is not known") };
    assert!(known[0].is_some_and(|verdict| !verdict.fits) && known[1].is_none());
    let look = Charge { cost: Cost::Look(0), ..a.clone() };
    assert!(matches!(world.look(&[look]), Known::All(_)), "golden case local-cache-of-refusals");
    let kept = Charge { on_refusal: OnRefusal::Keep, ..b };
    assert_eq!(world.look(&[a, kept]), Known::Nothing, "it has to hear that the request is refused");
}
