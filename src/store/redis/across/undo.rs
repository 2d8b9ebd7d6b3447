//! What a request that does not pass has taken of servers that let it pass: how its answer reads without that, and what
//! gives it back.
//!
//! On one server such a request is decided again as if it had not come ([`decide`](crate::algorithm::decide)): only what
//! counts always is counted, and what does not fit uses up what is left. Here that has to be worked out from what the
//! servers have said. Charges of one key see what those before them have taken, so it is worked out key by key.

use std::num::NonZeroU64;

use crate::{
    algorithm::{Act, giving_back, hits_together, untaken},
    limit::{COUNT_MAX, Charge, Cost, Few, OnRefusal, Role, Verdict},
};

/// What a server has said of a charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) verdict: Verdict,
    /// Whether it let its part of the request pass.
    pub(super) passed: bool,
}

/// The verdicts of a refused request. `together`: of each charge, how many hits have to fit before it is worth to ask again.
pub(super) fn verdicts(charges: &[Charge], told: &[Option<Told>], together: &[u64]) -> Few<Verdict> {
    let excess = excess(charges, told);
    let verdict = |(((charge, told), excess), together): (((&Charge, &Option<Told>), i64), &u64)| {
        let verdict = untaken(&charge.limit, told.as_ref()?.verdict, excess);
        let never = !verdict.fits && *together > u64::from(charge.limit.burst());
        Some(Verdict { retry_us: verdict.retry_us.filter(|_| !never), ..verdict })
    };
    charges.iter().zip(told).zip(excess).zip(together).filter_map(verdict).collect()
}

/// Judges charges that the refusal has spared, by what was left when they were looked at: as if the refunds before them on
/// their keys, of which each is the first that was spared, had been made.
pub(super) fn judge(charges: &[Charge], spared: &[(usize, Act, u64)], told: &mut [Option<Told>]) {
    let mut all: Vec<i64> = Vec::with_capacity(spared.len());
    for &(index, act, hits) in spared {
        let of_key = |(other, ..): &(usize, Act, u64)| charges[*other].key == charges[index].key;
        let before = spared[..all.len()].iter().rposition(of_key);
        let Some(Told { verdict, .. }) = &mut told[index] else {
            all.push(0);
            continue;
        };
        let (before, wanted) = (before.map_or_else(|| left(verdict), |before| all[before]), hits as i64);
        let gives = matches!(act, Act::Give | Act::GiveBack(_));
        let fits = gives || wanted <= before;
        all.push(match act {
            Act::Give | Act::GiveBack(_) => (before + wanted).min(i64::from(charges[index].limit.burst())),
            Act::Count => before - wanted,
            Act::Take | Act::Drain if fits => before - wanted,
            Act::Drain => before.min(0),
            Act::Take | Act::Look => before,
        });
        if fits != verdict.fits {
            verdict.retry_us = if fits { Some(0) } else { Some(verdict.reset_us) };
            verdict.fits = fits;
        }
    }
}

/// See [`verdicts`].
pub(super) fn together(charges: &[Charge]) -> Vec<u64> {
    let first = |index: usize| {
        let same = charges.iter().position(|charge| charge.key == charges[index].key);
        same.unwrap_or(index)
    };
    let of_keys = hits_together(charges, charges.len(), first);
    (0..charges.len()).map(|index| of_keys[first(index)]).collect()
}

/// What leaves the keys as if the request had been refused at once.
pub(super) fn undoing(charges: &[Charge], told: &[Option<Told>]) -> Vec<Charge> {
    let excess = excess(charges, told);
    let mut undoing = Vec::new();
    for (last, charge) in charges.iter().enumerate() {
        let of_key = |index: &usize| charges[*index].key == charge.key;
        if excess[last] == 0 || (last + 1..charges.len()).any(|later| of_key(&later)) {
            continue;
        }
        let passed = |index: usize| told[index].filter(|told| told.passed).map(|told| (index, told.verdict));
        let Some((index, verdict)) = (0..=last).rev().filter(of_key).find_map(passed) else { continue };
        let (limit, hits) = (charges[index].limit, excess[last].unsigned_abs());
        let cost = if excess[last] > 0 {
            giving_back(&limit, &verdict, hits)
        } else {
            // What a refund gave others may have spent: then it is owed.
            Cost::Spend(NonZeroU64::MIN.saturating_add(hits - 1))
        };
        let (role, on_refusal) = (Role::Shadow, OnRefusal::Count);
        undoing.push(Charge { key: charge.key.clone(), limit, cost, role, on_refusal });
    }
    undoing
}

/// After each charge, how many hits of its key are taken that a refused request does not spend.
fn excess(charges: &[Charge], told: &[Option<Told>]) -> Vec<i64> {
    let mut all: Vec<i64> = Vec::with_capacity(charges.len());
    for (index, charge) in charges.iter().enumerate() {
        let before = charges[..index].iter().rposition(|other| other.key == charge.key);
        let so_far = before.map_or(0, |before| all[before]);
        let own = match (told[index], Act::of(charge)) {
            (Some(Told { passed: true, .. }), _) if charge.limit.requests() == 0 => 0,
            (Some(Told { verdict, passed: true }), (Act::Take | Act::Drain, hits)) if verdict.fits => {
                hits as i64
            }
            // It has used up what those before it had left, and would have used up what they took, too.
            (Some(Told { passed: true, .. }), (Act::Drain, hits)) => {
                let left = before.and_then(|before| told[before]).map_or(0, |told| left(&told.verdict));
                left.clamp(0, hits as i64) - (left + so_far).clamp(0, hits as i64)
            }
            (Some(Told { passed: true, .. }), (Act::Give, hits)) => -(hits as i64),
            _ => 0,
        };
        all.push((so_far + own).clamp(-(COUNT_MAX as i64), COUNT_MAX as i64));
    }
    all
}

/// Below 0 when overdrawn. GCRA knows only that it is, not by how much.
fn left(verdict: &Verdict) -> i64 {
    verdict.remaining as i64 - verdict.beyond as i64
}
