//! What the memory store has for itself: its bound, whom it evicts, how it forgets, and its locks.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use tollgate::{
    clock::SystemClock,
    key::Key,
    limit::{Algorithm, Charge, Cost, OnRefusal},
    store::memory::MemoryStore,
};

use crate::worlds::{DAY, Memory, SECOND, START, Step, charge, limit, spend};

/// A charge on a bucket of 1000 a second, so that each hit takes a millisecond to come back.
fn on(key: &str, cost: Cost) -> Charge {
    Charge { key: Key::from_text(key), ..charge(limit(Algorithm::TokenBucket, 1000, SECOND, None), cost) }
}

fn at(now: u64, charges: Vec<Charge>) -> Step {
    Step { now, charges }
}

/// What is left of a key's 1000, which tells whether it is remembered.
fn left(memory: &Memory, now: u64, key: &str) -> u64 {
    memory.run(&at(now, vec![on(key, Cost::Look(1))])).verdicts[0].remaining
}

#[test]
fn a_full_store_evicts_the_key_that_is_nearest_to_full() {
    let memory = Memory::new(3);
    memory.run(&at(START, vec![on("a", spend(300))]));
    memory.run(&at(START, vec![on("b", spend(100))]));
    memory.run(&at(START, vec![on("c", spend(200))]));
    assert_eq!((memory.store.len(), memory.store.evictions()), (3, 0));
    memory.run(&at(START, vec![on("d", spend(50))]));
    assert_eq!((memory.store.len(), memory.store.evictions()), (3, 1));
    assert_eq!(["a", "b", "c", "d"].map(|key| left(&memory, START, key)), [700, 1000, 800, 950]);
}

#[test]
fn spending_on_makes_a_key_stay_and_a_refund_makes_it_leave_first() {
    let memory = Memory::new(3);
    memory.run(&at(START, vec![on("a", spend(100))]));
    memory.run(&at(START, vec![on("b", spend(200))]));
    memory.run(&at(START, vec![on("c", spend(300))]));
    memory.run(&at(START, vec![on("a", spend(500))]));
    memory.run(&at(START, vec![on("c", Cost::Refund(290))]));
    memory.run(&at(START, vec![on("d", spend(400))]));
    assert_eq!(["a", "b", "c", "d"].map(|key| left(&memory, START, key)), [400, 800, 1000, 600]);
    memory.run(&at(START, vec![on("e", spend(1))]));
    assert_eq!(["a", "b", "d", "e"].map(|key| left(&memory, START, key)), [400, 1000, 600, 999]);
}

#[test]
fn a_flood_of_invented_keys_stays_within_the_bound_and_is_counted() {
    for keys_max in [1, 10, 1023, 1024, 5000, 20_000] {
        let memory = Memory::new(keys_max);
        let keys = 2 * keys_max + 3000;
        for i in 0..keys {
            memory.run(&at(START, vec![on(&format!("k{i}"), spend(1))]));
        }
        let (len, evictions) = (memory.store.len(), memory.store.evictions());
        assert!(len <= keys_max && len >= keys_max * 9 / 10, "{len} of {keys_max}");
        assert_eq!(len as u64 + evictions, keys as u64);
    }
}

#[test]
fn a_request_with_more_keys_than_fit_is_still_decided() {
    let memory = Memory::new(2);
    let charges: Vec<Charge> = (0..5).map(|i| on(&format!("k{i}"), spend(1001 - i))).collect();
    let decision = memory.run(&at(START, charges));
    assert!(decision.refused);
    let charges: Vec<Charge> = (0..5).map(|i| on(&format!("k{i}"), spend(100 - i))).collect();
    let decision = memory.run(&at(START, charges));
    assert!(!decision.refused && decision.verdicts.iter().all(|v| v.fits));
    assert_eq!((memory.store.len(), memory.store.evictions()), (2, 3));
}

#[test]
fn keys_that_are_full_again_are_forgotten_while_others_are_asked_for() {
    let memory = Memory::new(100_000);
    for i in 0..10_000 {
        memory.run(&at(START, vec![on(&format!("k{i}"), spend(1))]));
    }
    assert_eq!(memory.store.len(), 10_000);
    // Each request forgets a few that have expired in its shard; none has to forget all of them.
    for i in 0..10_000 {
        memory.run(&at(START + SECOND, vec![on(&format!("other{i}"), Cost::Look(1))]));
    }
    assert!(memory.store.len() < 100, "{} are still there", memory.store.len());
    assert_eq!(memory.store.evictions(), 0);
}

#[test]
fn looking_makes_no_state_and_a_full_refund_unmakes_it() {
    let memory = Memory::new(10);
    memory.run(&at(START, vec![on("a", Cost::Look(1)), on("b", Cost::Look(0))]));
    memory.run(&at(START, vec![on("a", Cost::Refund(5))]));
    assert!(memory.store.is_empty());
    memory.run(&at(START, vec![on("a", spend(5))]));
    assert_eq!(memory.store.len(), 1);
    memory.run(&at(START, vec![on("a", Cost::Refund(5))]));
    assert!(memory.store.is_empty());
}

#[test]
fn two_charges_that_name_one_key_share_its_counter() {
    let memory = Memory::new(10_000);
    for keys in [2, 40] {
        let name = |i: usize| format!("k{keys}-{}", i % keys);
        let charges = (0..2 * keys).map(|i| on(&name(i), spend(1 + i as u64 % 2))).collect();
        let decision = memory.run(&at(START, charges));
        for (i, verdict) in decision.verdicts.iter().enumerate() {
            let before = if i >= keys { 1 + (i - keys) as u64 % 2 } else { 0 };
            assert_eq!(verdict.remaining, 1000 - before - (1 + i as u64 % 2));
        }
    }
}

#[test]
fn threads_that_name_keys_in_opposite_order_neither_wait_for_ever_nor_grant_too_much() {
    let store = MemoryStore::new(SystemClock, 100_000);
    let granted = AtomicU64::new(0);
    let day = limit(Algorithm::TokenBucket, 1, 365 * DAY, Some(1000));
    thread::scope(|scope| {
        for thread in 0..8_usize {
            let (store, granted) = (&store, &granted);
            scope.spawn(move || {
                for i in 0..500_usize {
                    let mut charges: Vec<Charge> = (0..6)
                        .map(|k| Charge {
                            key: Key::from_text(&format!("shared{k}")),
                            ..charge(day, spend(1))
                        })
                        .collect();
                    charges.rotate_left((thread + i) % 6);
                    if thread % 2 == 0 {
                        charges.reverse();
                    }
                    if !store.decide(&charges).refused {
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(granted.into_inner(), 1000);
    for k in 0..6 {
        let look = Charge { key: Key::from_text(&format!("shared{k}")), ..charge(day, Cost::Look(1)) };
        assert_eq!(store.decide(&[look]).verdicts[0].remaining, 0, "all or nothing, on every key");
    }
}

#[test]
fn a_drained_key_is_remembered_like_a_spent_one() {
    let memory = Memory::new(10);
    let drain = Charge { on_refusal: OnRefusal::Drain, ..on("a", spend(2000)) };
    let decision = memory.run(&at(START, vec![drain]));
    assert!(decision.refused && decision.verdicts[0].remaining == 0);
    assert_eq!(left(&memory, START, "a"), 0);
}
