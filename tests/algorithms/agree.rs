//! Random histories, in which all implementations must agree.
//!
//! A history names a few keys, each with several limits (its rule over time, and overrides), and requests over them. Times
//! and hits are drawn where things happen: at the moment that the last answer promised and the microsecond before it, at
//! exactly what is left and one more, at the edges of what numbers can hold, and backwards.

use std::{cell::RefCell, num::NonZeroU64};

use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use tollgate::{
    clock::Micros,
    key::{Key, Plain},
    limit::{
        Algorithm, COUNT_MAX, Charge, Cost, Limit, OnRefusal, Role, Verdict, WAIT_MAX_US, WINDOW_MAX_US,
    },
};

use crate::{
    redis::Make,
    worlds::{DAY, Lua, Memory, Pure, SECOND, START, Step, keeps},
};

#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) start: u64,
    /// The limits that name each key; all of a key have one algorithm and, where that counts, one window.
    pub(crate) keys: Vec<Vec<Limit>>,
    /// Of each key with fixed windows, whether it is one of the reference's.
    plain: Vec<bool>,
    pub(crate) steps: Vec<(Pass, Vec<Wish>)>,
}

/// How the time moves before a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pass {
    Forward(u64),
    Back(u64),
    /// By a time of the last answer, and this much more.
    Retry(i64),
    Next(i64),
    Reset(i64),
}

/// A charge before it is known what is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    key: usize,
    limit: usize,
    cost: WishCost,
    role: Role,
    on_refusal: OnRefusal,
    /// If the key is one of the reference's.
    window: Plain,
}

#[derive(Clone, Copy, Debug)]
enum WishCost {
    Spend(Hits),
    Look(Hits),
    Refund(Hits),
    /// Taken so many windows, and so many microseconds, after the last answer's window began.
    GiveBack(Hits, i64, i64),
}

#[derive(Clone, Copy, Debug)]
enum Hits {
    Exactly(u64),
    /// The limit's burst, and this much more.
    Burst(i64),
    /// What the last answer said is left, and this much more.
    Left(i64),
}

pub(crate) fn limits(algorithm: Algorithm) -> impl Strategy<Value = Vec<Limit>> {
    let window = prop_oneof![
        select(vec![1, 2, 3, 7, 1000, SECOND, 60 * SECOND, 3600 * SECOND, DAY, 365 * DAY, WINDOW_MAX_US]),
        1..=WINDOW_MAX_US,
        1..10_000_u64,
    ];
    let requests = prop_oneof![
        4 => 1..20_u32,
        4 => select(vec![1, 2, 3, 10, 60, 1000, 10_000_000, u32::MAX - 1, u32::MAX]),
        2 => 1..=u32::MAX,
        1 => Just(0),
    ];
    let burst = prop_oneof![
        3 => Just(None),
        2 => (1..30_u32).prop_map(Some),
        1 => select(vec![1, 2, u32::MAX]).prop_map(Some),
    ];
    (window, prop::collection::vec((requests, burst, any::<bool>()), 1..4)).prop_flat_map(
        move |(window, numbers)| {
            let other = prop_oneof![Just(window), select(vec![1, 3, SECOND, DAY, WINDOW_MAX_US])];
            other.prop_map(move |other| {
                let limit = |&(requests, burst, same): &(u32, Option<u32>, bool)| {
                    let window = if same || algorithm.has_window() { window } else { other };
                    let burst = burst.filter(|_| requests > 0 && !algorithm.has_window());
                    Limit::new(algorithm, requests, window, burst).expect("valid by construction")
                };
                numbers.iter().map(limit).collect()
            })
        },
    )
}

pub(crate) fn algorithms() -> impl Strategy<Value = Algorithm> {
    select(vec![Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow])
}

fn wish() -> impl Strategy<Value = Wish> {
    let hits = || {
        prop_oneof![
            4 => (1..6_u64).prop_map(Hits::Exactly),
            3 => (-2..3_i64).prop_map(Hits::Left),
            2 => (-1..2_i64).prop_map(Hits::Burst),
            1 => select(vec![0, u64::from(u32::MAX), COUNT_MAX - 1, COUNT_MAX, COUNT_MAX + 1, 1 << 53, u64::MAX])
                .prop_map(Hits::Exactly),
            1 => any::<u64>().prop_map(Hits::Exactly),
            1 => any::<u32>().prop_map(|n| Hits::Exactly(n.into())),
        ]
    };
    let cost = prop_oneof![
        5 => hits().prop_map(WishCost::Spend),
        1 => hits().prop_map(WishCost::Look),
        1 => hits().prop_map(WishCost::Refund),
        1 => (hits(), -2..2_i64, prop_oneof![3 => Just(0), 1 => -20..20_i64])
            .prop_map(|(hits, windows, us)| WishCost::GiveBack(hits, windows, us)),
    ];
    let role = select(vec![Role::Enforce, Role::Enforce, Role::Shadow, Role::Quota]);
    let on_refusal = select(vec![OnRefusal::Keep, OnRefusal::Drain, OnRefusal::Count]);
    let us = || (1..=WINDOW_MAX_US).prop_map(|us| NonZeroU64::new(us).expect("from 1 on"));
    let window = (us(), us()).prop_map(|(ends_in_us, kept_us)| Plain { ends_in_us, kept_us });
    (0..3_usize, 0..3_usize, cost, role, on_refusal, window).prop_map(
        |(key, limit, cost, role, on_refusal, window)| Wish { key, limit, cost, role, on_refusal, window },
    )
}

fn pass() -> impl Strategy<Value = Pass> {
    prop_oneof![
        3 => (0..20_u64).prop_map(Pass::Forward),
        2 => (0..10 * SECOND).prop_map(Pass::Forward),
        1 => (0..=2 * WINDOW_MAX_US).prop_map(Pass::Forward),
        1 => (0..10 * SECOND).prop_map(Pass::Back),
        3 => (-1..2_i64).prop_map(Pass::Retry),
        3 => (-1..2_i64).prop_map(Pass::Next),
        1 => (-1..2_i64).prop_map(Pass::Reset),
    ]
}

pub(crate) fn histories() -> impl Strategy<Value = History> {
    let start = prop_oneof![
        6 => Just(START),
        2 => START..START + 400 * DAY,
        1 => 0..100_u64,
        1 => select(vec![WAIT_MAX_US, (1 << 53) - 1000, (1 << 53) - 1, 1 << 53, u64::MAX]),
    ];
    let keys = prop::collection::vec(algorithms().prop_flat_map(limits), 1..4);
    let charges = prop_oneof![
        3 => prop::collection::vec(wish(), 1),
        2 => prop::collection::vec(wish(), 2..5),
    ];
    let steps = prop::collection::vec((pass(), charges), 1..25);
    let plain = prop::collection::vec(any::<bool>(), 4);
    (start, keys, plain, steps).prop_map(|(start, keys, plain, steps)| History { start, keys, plain, steps })
}

impl History {
    pub(crate) fn key_names(&self) -> Vec<Key> {
        (0..self.keys.len()).map(|i| Key::from_text(&format!("k{i}"))).collect()
    }

    /// The requests with their times and hits, found out by running them: `run` is asked for each.
    pub(crate) fn play(
        &self,
        monotonic: bool,
        mut run: impl FnMut(&Step) -> tollgate::limit::Decision,
    ) -> Vec<Step> {
        let names = self.key_names();
        let (mut now, mut last) = (self.start, None::<Verdict>);
        self.steps
            .iter()
            .map(|(pass, wishes)| {
                let wait = |us: u64, more: i64| now.saturating_add(us).saturating_add_signed(more);
                let then = match (*pass, last) {
                    (Pass::Forward(us), _) => now.saturating_add(us),
                    (Pass::Back(us), _) => now.saturating_sub(us),
                    (Pass::Retry(more), Some(v)) => wait(v.retry_us.unwrap_or(0), more),
                    (Pass::Next(more), Some(v)) => wait(v.next_us, more),
                    (Pass::Reset(more), Some(v)) => wait(v.reset_us, more),
                    (_, None) => now,
                };
                now = if monotonic { then.max(now) } else { then };
                let charges = wishes.iter().map(|wish| self.charge(wish, &names, last)).collect();
                let step = Step { now, charges };
                last = run(&step).verdicts.first().copied();
                step
            })
            .collect()
    }

    fn charge(&self, wish: &Wish, names: &[Key], last: Option<Verdict>) -> Charge {
        let left = last.map_or(0, |v| v.remaining);
        let key = wish.key % names.len();
        let limit = self.keys[key][wish.limit % self.keys[key].len()];
        let number = |hits: Hits| match hits {
            Hits::Exactly(n) => n,
            Hits::Burst(more) => u64::from(limit.burst()).saturating_add_signed(more),
            Hits::Left(more) => left.saturating_add_signed(more),
        };
        let cost = match wish.cost {
            WishCost::Spend(hits) => Cost::Spend(NonZeroU64::new(number(hits)).unwrap_or(NonZeroU64::MIN)),
            WishCost::Look(hits) => Cost::Look(number(hits)),
            WishCost::Refund(hits) => Cost::Refund(number(hits)),
            WishCost::GiveBack(hits, windows, us) => {
                let window = i64::try_from(limit.window_us()).expect("ten years at most");
                let since = last.map_or(self.start, |v| v.since.0).min((1 << 53) - 1);
                let since = since.saturating_add_signed(windows * window + us);
                Cost::GiveBack { hits: number(hits), since: Micros(since) }
            }
        };
        let role = if let Cost::GiveBack { .. } = cost { Role::Shadow } else { wish.role };
        let name = names[key].clone();
        let plain = self.plain[key] && limit.algorithm() == Algorithm::FixedWindow;
        let name = if plain { name.with_plain(wish.window) } else { name };
        Charge { key: name, limit, cost, role, on_refusal: wish.on_refusal }
    }
}

pub(crate) fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn lua_says_what_the_pure_functions_say_and_stores_the_same() {
    for make in Make::all() {
        // The same script everywhere; other servers are other builds of Lua.
        lua_agrees(make, if make == Make::Installed { 1500 } else { 500 });
    }
}

fn lua_agrees(make: Make, cases: u32) {
    let lua = RefCell::new(Lua::start(make));
    let seen = RefCell::new([0_u32; 3]);
    runner(cases)
        .run(&histories(), |history| {
            let keys = history.key_names();
            let mut pure = Pure::default();
            let mut expected = Vec::new();
            let steps = history.play(false, |step| {
                expected.push(pure.outcome(step, &keys));
                expected.last().expect("just pushed").0.clone()
            });
            let outcomes = lua.borrow_mut().outcomes(&steps, &keys);
            for (i, (lua, pure)) in outcomes.iter().zip(&expected).enumerate() {
                prop_assert_eq!(&lua.0, &pure.0, "step {}: {:#?}", i, steps[i]);
                prop_assert!(keeps(&lua.1, &pure.1), "step {}: {:#?} {:#?}", i, steps[i], (&lua.1, &pure.1));
                let mut seen = seen.borrow_mut();
                seen[0] += u32::from(lua.0.refused);
                seen[1] += u32::from(lua.0.verdicts.iter().any(|v| v.remaining > 0));
                seen[2] += u32::from(lua.1.iter().any(Option::is_some));
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(seen.into_inner().iter().all(|&n| n > 2 * cases), "the histories are no longer interesting");
}

#[test]
fn the_memory_store_says_what_the_pure_functions_say() {
    runner(1500)
        .run(&histories(), |history| {
            let memory = Memory::new(1_000);
            let mut pure = Pure { expires: true, ..Pure::default() };
            let mut i = 0;
            let mut differs = None;
            history.play(true, |step| {
                let (expected, actual) = (pure.run(step), memory.run(step));
                if actual != expected && differs.is_none() {
                    differs = Some(format!("step {i}: {step:#?}\nmemory {actual:#?}\npure {expected:#?}"));
                }
                i += 1;
                expected
            });
            prop_assert_eq!(differs, None);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}
