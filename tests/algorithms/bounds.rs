//! The bounds of the design's table, and what the answers promise, on the pure functions.

use proptest::{prelude::*, sample::select};
use tollgate::{
    algorithm::{Counter, State, Write, decide},
    clock::Micros,
    limit::{Algorithm, Charge, Cost, Limit, OnRefusal, Verdict, WAIT_MAX_US, WINDOW_MAX_US},
};

use crate::{
    agree::{algorithms, histories, limits, runner},
    worlds::{DAY, Pure, SECOND, START, charge, limit, spend},
};

/// One counter under the pure functions.
#[derive(Clone, Copy, Default)]
struct One {
    state: Option<State>,
}

impl One {
    fn run(&mut self, now: u64, charge: &Charge) -> (Verdict, Write) {
        let mut counters = [Counter::new(self.state)];
        let decision = decide(Micros(now), std::slice::from_ref(charge), &mut counters, |_| 0);
        match counters[0].write() {
            Write::Nothing => {}
            Write::Put(state, _) => self.state = Some(state),
            Write::Delete => self.state = None,
        }
        (decision.verdicts[0], counters[0].write())
    }

    fn spend(&mut self, now: u64, limit: Limit, hits: u64) -> Verdict {
        self.run(now, &charge(limit, spend(hits))).0
    }

    fn look(mut self, now: u64, limit: Limit, hits: u64) -> Verdict {
        self.run(now, &charge(limit, Cost::Look(hits))).0
    }
}

/// What a client is granted that wants as much as it can get: at each moment all that is left, or a part of it.
fn saturate(limit: Limit, gaps: &[u64], parts: &[u64]) -> Vec<(u64, u64)> {
    let (mut counter, mut now, mut granted) = (One::default(), START, Vec::new());
    for (gap, part) in gaps.iter().zip(parts.iter().cycle()) {
        now += gap;
        let left = counter.look(now, limit, 0).remaining;
        // More than is left is asked for first; it is refused, and must not count.
        counter.spend(now, limit, left + 1);
        let hits = left.div_ceil(*part);
        if hits > 0 {
            assert!(counter.spend(now, limit, hits).fits);
            granted.push((now, hits));
        }
    }
    granted
}

/// Calls `check` with the length of each stretch from one grant to another, and what was granted in it, ends included.
fn stretches(granted: &[(u64, u64)], mut check: impl FnMut(u64, u64)) {
    for (i, (from, _)) in granted.iter().enumerate() {
        let mut sum = 0;
        for (to, hits) in &granted[i..] {
            sum += hits;
            check(to - from, sum);
        }
    }
}

/// Gaps that matter at this limit: around a window, a hit's interval, and nothing.
fn gaps(window: u64, requests: u64) -> impl Strategy<Value = Vec<u64>> {
    let interval = window / requests.max(1);
    let gap = prop_oneof![
        select(vec![0, 1, interval, interval + 1, window - 1, window]),
        0..=window,
        0..=interval + 1,
        0..=window / 5,
    ];
    prop::collection::vec(gap, 60)
}

fn clients() -> impl Strategy<Value = (Limit, Vec<u64>, Vec<u64>)> {
    algorithms()
        .prop_flat_map(limits)
        .prop_map(|limits| limits[0])
        .prop_filter("a limit of 0 grants nothing", |limit| limit.requests() > 0)
        .prop_flat_map(|limit| {
            let parts = prop::collection::vec(1..4_u64, 7);
            (Just(limit), gaps(limit.window_us(), limit.requests().into()), parts)
        })
}

#[test]
fn no_client_gets_more_than_the_designs_table_says() {
    runner(1500)
        .run(&clients(), |(limit, gaps, parts)| {
            let granted = saturate(limit, &gaps, &parts);
            let (requests, window) = (u128::from(limit.requests()), u128::from(limit.window_us()));
            match limit.algorithm() {
                Algorithm::TokenBucket | Algorithm::Gcra => stretches(&granted, |us, sum| {
                    let most = u128::from(limit.burst()) + u128::from(us) * requests / window;
                    assert!(u128::from(sum) <= most, "{sum} in {us} µs of {limit:?}");
                }),
                Algorithm::SlidingWindow => stretches(&granted, |us, sum| {
                    let most = if us == 0 { requests } else { 2 * requests - 1 };
                    let inside = u128::from(us) < window;
                    assert!(!inside || u128::from(sum) <= most, "{sum} in {us} µs of {limit:?}");
                }),
                Algorithm::FixedWindow => {
                    for window in granted.chunk_by(|a, b| a.0 / limit.window_us() == b.0 / limit.window_us())
                    {
                        let sum: u64 = window.iter().map(|(_, hits)| hits).sum();
                        assert!(u128::from(sum) <= requests, "{sum} in a window of {limit:?}");
                    }
                }
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_sliding_window_can_grant_twice_its_limit_but_one_and_no_more() {
    let ten = limit(Algorithm::SlidingWindow, 10, 60 * SECOND, None);
    let mut counter = One::default();
    assert!(counter.spend(START + 60 * SECOND - 1, ten, 10).fits);
    // 60 s less a microsecond later the last window's share is one hit, rounded up.
    assert_eq!(counter.look(START + 120 * SECOND - 2, ten, 10).retry_us, Some(2));
    assert!(counter.spend(START + 120 * SECOND - 2, ten, 9).fits);
}

/// Takes all that is left at each step; a bucket that is never full meanwhile must grant burst + rate·T to the hit.
fn greedy(limit: Limit, steps: impl Iterator<Item = u64>) -> u64 {
    let (mut counter, mut sum) = (One::default(), 0);
    for at in steps {
        let left = counter.look(START + at, limit, 0).remaining;
        if left > 0 {
            assert!(counter.spend(START + at, limit, left).fits);
            sum += left;
        }
    }
    sum
}

#[test]
fn nothing_drifts_from_ten_million_a_second_to_one_a_year() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
        let fast = limit(algorithm, 10_000_000, SECOND, None);
        assert_eq!(greedy(fast, 0..=20_000), 10_000_000 + 200_000);
        let odd = limit(algorithm, 9_999_991, SECOND, Some(50));
        assert_eq!(greedy(odd, (0..=SECOND).step_by(4)), 50 + 9_999_991);
        let third = limit(algorithm, 3, SECOND, Some(2));
        assert_eq!(greedy(third, (0..=1000 * SECOND).step_by(100_000)), 2 + 3_000);
        let daily = limit(algorithm, 1, DAY, Some(2));
        assert_eq!(greedy(daily, (0..=400 * DAY).step_by(600 * SECOND as usize)), 2 + 400);
        let yearly = limit(algorithm, 7, 365 * DAY, Some(2));
        assert_eq!(greedy(yearly, (0..=20 * 365 * DAY).step_by(DAY as usize)), 2 + 7 * 20);
    }
}

/// A state that a random history left behind, and when.
fn left_behind(history: &crate::agree::History) -> (Pure, u64, Vec<tollgate::key::Key>) {
    let mut pure = Pure::default();
    let steps = history.play(false, |step| pure.run(step));
    // Promises are about time that passes: from the latest time that any state has seen.
    let now = steps.iter().map(|step| step.now).max().unwrap_or(0);
    (pure, now, history.key_names())
}

#[test]
fn what_is_refused_fits_exactly_when_the_answer_says_and_not_a_microsecond_before() {
    let mut waited = 0;
    let kept = std::cell::RefCell::new(&mut waited);
    runner(1500)
        .run(&(histories(), 1..40_u64, any::<prop::sample::Index>()), |(history, hits, which)| {
            let (pure, now, keys) = left_behind(&history);
            let key = which.index(keys.len());
            // The last limit that the history knows for the key.
            let limit = *history.keys[key].last().expect("each key has a limit");
            let counter = One { state: pure.states.get(&keys[key]).map(|kept| kept.state) };
            for hits in [0, 1, hits, u64::from(limit.burst())] {
                let verdict = counter.look(now, limit, hits);
                let within = now < (1 << 52) && verdict.reset_us < WAIT_MAX_US;
                match verdict.retry_us {
                    None => prop_assert!(limit.requests() == 0 || hits > u64::from(limit.burst())),
                    Some(0) => prop_assert!(verdict.fits),
                    Some(wait) if within && wait < WAIT_MAX_US => {
                        prop_assert!(!verdict.fits);
                        prop_assert!(counter.look(now + wait, limit, hits).fits, "{:?} {:?}", limit, verdict);
                        prop_assert!(
                            !counter.look(now + wait - 1, limit, hits).fits,
                            "{:?} {:?}",
                            limit,
                            verdict
                        );
                        **kept.borrow_mut() += 1;
                    }
                    Some(_) => {}
                }
                if within && limit.requests() > 0 && verdict.next_us > 0 && verdict.next_us < WAIT_MAX_US {
                    let (more, next) = (verdict.remaining + 1, now + verdict.next_us);
                    prop_assert!(counter.look(next, limit, more).fits, "{:?} {:?}", limit, verdict);
                    let exact = limit.algorithm() != Algorithm::FixedWindow;
                    prop_assert!(
                        !exact || !counter.look(next - 1, limit, more).fits,
                        "{:?} {:?}",
                        limit,
                        verdict
                    );
                }
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(waited > 1000, "only {waited} waits were tried");
}

#[test]
fn a_counter_expires_exactly_when_it_equals_a_fresh_one() {
    runner(1000)
        .run(&(histories(), 0..4_u64), |(history, hits)| {
            let (pure, now, keys) = left_behind(&history);
            for (key, limits) in keys.iter().zip(&history.keys) {
                let limit = limits[0];
                let counter = One { state: pure.states.get(key).map(|kept| kept.state) };
                let mut spent = counter;
                let (verdict, write) = spent
                    .run(now, &Charge { on_refusal: OnRefusal::Count, ..charge(limit, spend(1 + hits)) });
                let Write::Put(_, ttl) = write else {
                    prop_assert!(limit.requests() == 0);
                    continue;
                };
                prop_assert_eq!(ttl, verdict.reset_us);
                if ttl == WAIT_MAX_US || now >= 1 << 52 {
                    continue;
                }
                let (end, fresh) = (now + ttl, One::default());
                for look in [0, 1, u64::from(limit.burst()), u64::from(limit.burst()) + 1] {
                    prop_assert_eq!(spent.look(end, limit, look), fresh.look(end, limit, look));
                }
                prop_assert!(spent.look(end - 1, limit, 0).reset_us == 1);
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_refused_hit_moves_nothing_however_often_it_is_tried() {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow]
    {
        let one = limit(algorithm, 1, SECOND, None);
        let mut counter = One::default();
        assert!(counter.spend(START, one, 1).fits);
        let state = counter.state;
        // Whoever tries in vain all the time waits no longer than who does not.
        let end = if algorithm == Algorithm::SlidingWindow { 2 * SECOND } else { SECOND };
        for at in (1..end).step_by(997) {
            assert!(!counter.spend(START + at, one, 1).fits);
            assert_eq!(counter.state, state);
        }
        assert!(counter.spend(START + end, one, 1).fits);
    }
}

#[test]
fn the_longest_window_and_the_last_microsecond_are_within_bounds() {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow]
    {
        for requests in [1, u32::MAX] {
            let long = limit(algorithm, requests, WINDOW_MAX_US, None);
            for now in [0, (1 << 53) - 1, 1 << 53, u64::MAX] {
                let mut counter = One::default();
                let verdict = counter.spend(now, long, requests.into());
                assert!(verdict.fits && verdict.reset_us <= 2 * WINDOW_MAX_US, "{verdict:?}");
                assert!(!counter.spend(now, long, 1).fits);
            }
        }
    }
}
