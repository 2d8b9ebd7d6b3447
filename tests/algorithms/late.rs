//! What was taken is given back, for another server has refused; and a server that hangs does that long after.

use std::cell::RefCell;

use proptest::{prelude::*, sample::select};
use tollgate::{
    algorithm::giving_back,
    key::{Format, Jitter, Key},
    limit::{
        Algorithm::{self, FixedWindow, Gcra, SlidingWindow, TokenBucket},
        Charge, Cost, Limit, OnRefusal, Role, Verdict,
    },
};

use crate::{
    agree::{limits, runner},
    redis::Make,
    worlds::{Lua, Pure, SECOND, START, Step, Stored, charge, keeps, limit, spend},
};

/// What gives back what a charge with this verdict took.
fn back(of: &Charge, verdict: &Verdict) -> Charge {
    let Cost::Spend(hits) = of.cost else { panic!("it took something") };
    let cost = giving_back(&of.limit, verdict, hits.get());
    Charge { cost, role: Role::Shadow, on_refusal: OnRefusal::Count, ..of.clone() }
}

/// The same steps through the pure functions and Lua, which agree: how many are left after each, and what then stands
/// under each key.
fn played(steps: &[Step], keys: &[Key]) -> Vec<(u64, Stored)> {
    let mut pure = Pure::default();
    let outcomes = Lua::start(Make::Installed).outcomes(steps, keys);
    let played = steps.iter().zip(outcomes).map(|(step, (decision, stored))| {
        let expected = pure.outcome(step, keys);
        assert_eq!(decision, expected.0, "{step:?}");
        assert!(keeps(&stored, &expected.1), "{step:?}: {stored:?}, {:?}", expected.1);
        (decision.verdicts[0].remaining, stored)
    });
    played.collect()
}

fn left_after(steps: &[Step]) -> Vec<u64> {
    played(steps, &[Key::from_text("k")]).into_iter().map(|(left, _)| left).collect()
}

fn at(us: u64, charge: &Charge) -> Step {
    Step { now: START + us, charges: vec![charge.clone()] }
}

/// 6 of 10 are taken half a minute before a window's end, and given back so much later; others take 8 at once in between.
fn left_when_given_back_after(algorithm: Algorithm, us: u64) -> Vec<u64> {
    let ten = limit(algorithm, 10, 60 * SECOND, None);
    let take = charge(ten, spend(6));
    let began = 30 * SECOND;
    let verdict = Pure::default().run(&at(began, &take)).verdicts[0];
    left_after(&[
        at(began, &take),
        at(began + us, &charge(ten, spend(8))),
        at(began + us, &back(&take, &verdict)),
        at(began + us, &charge(ten, Cost::Look(1))),
    ])
}

#[test]
fn what_a_server_gives_back_when_it_wakes_after_the_windows_end_is_no_hit_of_the_next_window() {
    assert_eq!(left_when_given_back_after(FixedWindow, 29 * SECOND), [4, 4, 10, 10], "in its window");
    assert_eq!(left_when_given_back_after(FixedWindow, 30 * SECOND), [4, 2, 2, 2]);
    assert_eq!(left_when_given_back_after(FixedWindow, 90 * SECOND), [4, 2, 2, 2]);
}

#[test]
fn what_is_given_back_to_the_last_of_two_sliding_windows_weighs_no_more_in_this_one() {
    assert_eq!(left_when_given_back_after(SlidingWindow, 29 * SECOND), [4, 4, 10, 10], "in its window");
    // At half of the next window three of the six are weighed, so eight do not fit.
    assert_eq!(left_when_given_back_after(SlidingWindow, 60 * SECOND), [4, 7, 10, 10]);
    assert_eq!(left_when_given_back_after(SlidingWindow, 90 * SECOND), [4, 2, 2, 2], "out of both");
}

#[test]
fn a_bucket_that_was_full_again_before_it_is_given_back_gets_nothing_twice() {
    for algorithm in [TokenBucket, Gcra] {
        // A token each six seconds, and each that has refilled is one that comes back no more.
        assert_eq!(left_when_given_back_after(algorithm, 0), [4, 4, 10, 10], "{algorithm:?}");
        assert_eq!(left_when_given_back_after(algorithm, 12 * SECOND), [4, 6, 10, 10], "{algorithm:?}");
        assert_eq!(left_when_given_back_after(algorithm, 24 * SECOND), [4, 0, 2, 2], "{algorithm:?}");
        assert_eq!(left_when_given_back_after(algorithm, 36 * SECOND), [4, 2, 2, 2], "{algorithm:?}");
    }
}

#[test]
fn a_count_in_the_references_form_has_its_window_in_its_key_and_gets_back_what_is_late_there() {
    let minute = limit(FixedWindow, 10, 60 * SECOND, None);
    let format = Format { reference: Some(Jitter(300)), ..Format::OWN };
    let key =
        |us: u64| format.reference(b"shop_user_ann_", &minute, tollgate::clock::Micros(START + us)).unwrap();
    let of = |us: u64, cost: Cost| Charge { key: key(us), ..charge(minute, cost) };
    let keys = [key(0), key(60 * SECOND)];
    assert_ne!(keys[0], keys[1]);
    let take = of(0, spend(6));
    let verdict = Pure::default().run(&at(0, &take)).verdicts[0];
    let steps = [
        at(0, &take),
        at(60 * SECOND, &of(60 * SECOND, spend(8))),
        at(61 * SECOND, &back(&take, &verdict)),
        at(61 * SECOND, &of(60 * SECOND, Cost::Look(1))),
        // Where it has expired, nothing is made of it.
        at(
            62 * SECOND,
            &Charge {
                key: Key::from_text("gone").with_plain(key(0).plain().unwrap()),
                ..back(&take, &verdict)
            },
        ),
    ];
    let gone = Key::from_text("gone");
    let all = [keys[0].clone(), keys[1].clone(), gone];
    let played = played(&steps, &all);
    let left: Vec<u64> = played.iter().map(|(left, _)| *left).collect();
    assert_eq!(left, [4, 2, 10, 2, 10]);
    let stored: Vec<bool> = played[4].1.iter().map(Option::is_some).collect();
    assert_eq!(stored, [false, true, false]);
}

/// A client that takes what it can get, and what becomes of each take.
#[derive(Clone, Copy, Debug)]
struct Take {
    /// Since the last one.
    gap: u64,
    /// What is left, divided by this, rounded up.
    part: u64,
    /// After so long it is given back, since another part of the request was refused.
    undone: Option<u64>,
}

fn takes(window: u64) -> impl Strategy<Value = Vec<Take>> {
    let time = move || {
        prop_oneof![select(vec![0, 1, window - 1, window]), 0..=window, 0..=3 * window, 0..=window / 5]
    };
    let undone = prop_oneof![1 => Just(None), 1 => time().prop_map(Some)];
    let take = (time(), 1..4_u64, undone).prop_map(|(gap, part, undone)| Take { gap, part, undone });
    prop::collection::vec(take, 40)
}

fn clients(algorithm: impl Strategy<Value = Algorithm>) -> impl Strategy<Value = (Limit, Vec<Take>)> {
    let limit = algorithm.prop_flat_map(limits).prop_map(|limits| limits[0]);
    let limit = limit.prop_filter("a limit of 0 grants nothing", |limit| limit.requests() > 0);
    limit.prop_flat_map(|limit| (Just(limit), takes(limit.window_us())))
}

/// What is on its way back.
struct Late {
    at: u64,
    charge: Charge,
}

/// What was kept, and when; and how much was left when nothing was on its way back: after how many that were kept, and when.
type Played = (Vec<(u64, Charge)>, Vec<(usize, u64, u64)>);

/// Lets a client take, of which at most so many takes at a time are on their way back.
fn play(limit: Limit, takes: &[Take], outstanding_max: usize) -> Played {
    let (mut world, mut now) = (Pure::default(), START);
    let (mut late, mut kept, mut seen) = (Vec::<Late>::new(), Vec::new(), Vec::new());
    let look = |world: &mut Pure, now| {
        world.run(&Step { now, charges: vec![charge(limit, Cost::Look(0))] }).verdicts[0].remaining
    };
    for take in takes {
        now += take.gap;
        late.sort_by_key(|late| late.at);
        let due: Vec<Late> = late.extract_if(.., |late| late.at <= now).collect();
        for Late { at, charge } in due {
            world.run(&Step { now: at, charges: vec![charge] });
        }
        let left = look(&mut world, now);
        if late.is_empty() {
            seen.push((kept.len(), now, left));
        }
        let hits = left.div_ceil(take.part);
        if hits == 0 {
            continue;
        }
        let taking = charge(limit, spend(hits));
        let decision = world.run(&Step { now, charges: vec![taking.clone()] });
        assert!(!decision.refused);
        match take.undone {
            Some(after) if late.len() < outstanding_max => {
                late.push(Late {
                    at: now.saturating_add(after),
                    charge: back(&taking, &decision.verdicts[0]),
                });
            }
            _ => kept.push((now, taking)),
        }
    }
    (kept, seen)
}

/// Everything that was kept fits, one after the other, into a counter that never heard of the rest. Returns what that one
/// has left at each of these moments.
fn all_fit(kept: &[(u64, Charge)], seen: &[(usize, u64, u64)]) -> Result<Vec<u64>, TestCaseError> {
    let (mut alone, mut left, mut done) = (Pure::default(), Vec::new(), 0);
    let mut run_to = |alone: &mut Pure, end: usize| {
        for (now, charge) in &kept[done..end] {
            let decision = alone.run(&Step { now: *now, charges: vec![charge.clone()] });
            prop_assert!(!decision.refused, "at {now}: {charge:?}: {:?}", decision.verdicts[0]);
        }
        done = end;
        Ok(())
    };
    for &(before, now, _) in seen {
        run_to(&mut alone, before)?;
        let look = charge(
            kept.first().map_or_else(|| limit(FixedWindow, 1, 1, None), |(_, c)| c.limit),
            Cost::Look(0),
        );
        left.push(alone.run(&Step { now, charges: vec![look] }).verdicts[0].remaining);
    }
    run_to(&mut alone, kept.len())?;
    Ok(left)
}

#[test]
fn no_window_grants_more_than_its_limit_however_late_what_was_refused_elsewhere_comes_back() {
    let undone = RefCell::new(0_u32);
    runner(1500)
        .run(&clients(select(vec![FixedWindow, SlidingWindow])), |(limit, takes)| {
            let (kept, seen) = play(limit, &takes, usize::MAX);
            let left = all_fit(&kept, &seen)?;
            *undone.borrow_mut() += (takes.len() - kept.len()) as u32;
            if !kept.is_empty() {
                // And when all is back, it is as if it had not been taken.
                for (alone, (_, now, left)) in left.iter().zip(&seen) {
                    prop_assert_eq!(alone, left, "at {}", now);
                }
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(undone.into_inner() > 10_000, "the clients are no longer interesting");
}

#[test]
fn no_bucket_grants_more_than_its_limit_however_late_what_was_refused_elsewhere_comes_back() {
    runner(1500)
        .run(&clients(select(vec![TokenBucket, Gcra])), |(limit, takes)| {
            let (kept, _) = play(limit, &takes, 1);
            all_fit(&kept, &[])?;
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}
