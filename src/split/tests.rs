//! What is known of parts, and what is told of the whole.

use super::*;
use crate::{
    clock::{Clock, Micros, SystemClock},
    limit::{Algorithm, Cost, Limit, OnRefusal, Role, Verdict},
};

fn charge(key: &str, shards: u8) -> Charge {
    Charge {
        key: Key::from_text(key).in_shards(shards.try_into().ok()),
        limit: Limit::new(Algorithm::TokenBucket, 80, 1_000_000, None).unwrap(),
        cost: Cost::Spend(1.try_into().unwrap()),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

fn said(remaining: u64, next_us: u64, reset_us: u64) -> Verdict {
    Verdict { fits: true, remaining, beyond: 0, reset_us, retry_us: Some(0), next_us, since: Micros(0) }
}

#[test]
fn what_a_bucket_of_eight_has_left_grows_part_by_part() {
    let (splits, now) = (Splits::new(Duration::from_secs(1)), SystemClock.instant());
    let (mut split, _) = splits.begin(&charge("tg:a", 8), 1, now).unwrap();
    for part in 0..8 {
        split.hear(part, &said(0, 100_000 - 10_000 * u64::from(part), 1_000_000), splits.asked(now));
    }
    // Each part of 10 a second has its next hit by then, and others each tenth of a second.
    for (ms, left) in [(0, 0), (29, 0), (30, 1), (40, 2), (100, 8), (129, 8), (130, 9), (999, 79), (2000, 80)]
    {
        let later = now + Duration::from_millis(ms);
        assert_eq!(split.left(later), left, "{ms} ms");
        let verdict = split.verdict(false, 5, later);
        let missing = 5_u64.saturating_sub(verdict.remaining);
        if let Some(retry_us) = verdict.retry_us.filter(|_| missing > 0) {
            let at = |us| split.left(later + Duration::from_micros(us));
            assert_eq!((at(retry_us) >= 5, at(retry_us - 1) >= 5), (true, false), "{ms} ms");
        }
    }
}

#[test]
fn requests_at_the_same_time_choose_different_parts() {
    let (splits, now) = (Splits::new(Duration::ZERO), SystemClock.instant());
    let mut asked = [0; 8];
    for _ in 0..80 {
        let (_, deal) = splits.begin(&charge("tg:a", 8), 1, now).unwrap();
        asked[usize::from(deal[0].0)] += 1;
    }
    assert_eq!(asked, [10; 8], "nobody has answered yet, and no part is asked for more than it has");
}

#[test]
fn a_part_that_is_over_until_later_is_not_asked_again_before_or_until_it_is_not_trusted() {
    let (splits, now) = (Splits::new(Duration::from_secs(1)), SystemClock.instant());
    let (mut split, _) = splits.begin(&charge("tg:a", 2), 1, now).unwrap();
    split.hear(0, &said(0, 5_000_000, 9_000_000), splits.asked(now));
    let since = splits.asked(now);
    for (ms, asked) in [(0, vec![1]), (999, vec![1]), (1000, vec![0, 1])] {
        let later = now + Duration::from_millis(ms);
        assert_eq!(split.unsure(since, splits.trust(), later).collect::<Vec<_>>(), asked, "{ms} ms");
    }
    assert_eq!(split.unsure(since, Duration::ZERO, now).count(), 2, "0 asks always");
}

#[test]
fn keys_that_are_remembered_are_bounded() {
    let (splits, now) = (Splits::new(Duration::ZERO), SystemClock.instant());
    let known = || splits.maps.iter().map(|map| map.lock().unwrap().len()).sum::<usize>();
    for i in 0..2 * KEYS_MAX {
        splits.begin(&charge(&format!("tg:{i}"), 2), 1, now).unwrap();
    }
    assert!((KEYS_MAX / 2..=KEYS_MAX).contains(&known()), "{}", known());
    let later = now + IDLE;
    for i in 0..MAPS * 64 {
        splits.begin(&charge(&format!("tg:later{i}"), 2), 1, later).unwrap();
    }
    assert!(known() <= MAPS * 128, "{}: idle ones make room first", known());
}

#[test]
fn a_key_that_is_one_counter_and_a_limit_of_0_are_not_split() {
    let (splits, now) = (Splits::new(Duration::ZERO), SystemClock.instant());
    let blocked = Limit::new(Algorithm::TokenBucket, 0, 1_000_000, None).unwrap();
    assert!(splits.begin(&charge("tg:a", 0), 1, now).is_none());
    assert!(splits.begin(&Charge { limit: blocked, ..charge("tg:a", 8) }, 1, now).is_none());
}
