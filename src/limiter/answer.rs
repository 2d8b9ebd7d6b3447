//! From a decision to an answer: statuses in the order of the descriptors, and the one limit that headers describe.

use std::cmp::Reverse;

use smallvec::smallvec;

use super::{
    Options,
    plan::{Bare, Charged, Plan},
    spend::Decided,
};
use crate::{
    clock::Micros,
    limit::{Charge, Few, Limit, Role, Verdict, WAIT_MAX_US},
    rules::{FailureMode, Metadata, Rule, Unit},
};

/// What is answered.
#[derive(Debug)]
pub struct Answer<'r> {
    /// The overall code is OVER_LIMIT.
    pub refused: bool,
    /// One for each descriptor, in the request's order.
    pub statuses: Few<Status<'r>>,
    /// What the headers describe: the limit that refused, else the one nearest to refusing; `None` where nothing is
    /// limited.
    pub described: Option<Described<'r>>,
    /// For `Retry-After` when refused: until this very request would fit; `None` when it never will.
    pub retry_us: Option<u64>,
    /// `metadata` of the rules that let the request pass, in the order of the descriptors.
    pub metadata: Few<&'r Metadata>,
    /// That no store stands behind the answer, and what does.
    pub degraded: Option<Degraded>,
    /// What was said of each charge, for counting.
    pub(super) verdicts: Few<Verdict>,
    /// Which of them were known here; empty where none was.
    pub(super) near: Few<bool>,
}

/// What was answered without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// Which `on_store_failure` decided: the strictest of the request's rules.
    pub mode: FailureMode,
    /// The kind of the [`StoreError`](crate::store::StoreError).
    pub cause: &'static str,
}

/// What is answered for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status<'r> {
    /// The code is OVER_LIMIT.
    pub over: bool,
    /// `current_limit`: number, unit and the rule's own name.
    pub limit: Option<(u32, Unit, Option<&'r str>)>,
    /// `limit_remaining`, saturated at 2^32−1 (which is also what an unlimited rule says).
    pub remaining: u32,
    /// `duration_until_reset` in microseconds.
    pub reset_us: Option<u64>,
}

/// The one limit that headers describe.
#[derive(Clone, Copy, Debug)]
pub struct Described<'r> {
    /// The rule, or `None` for an override that no rule stands behind.
    pub rule: Option<&'r Rule>,
    /// The limit that was charged: the rule's own or an override.
    pub limit: Limit,
    /// Hits that are left.
    pub remaining: u64,
    /// Until the limit is whole again, in microseconds.
    pub reset_us: u64,
    /// Until one more hit is there; a window's end. Never beyond the answer's `retry_us`.
    pub next_us: u64,
}

#[cfg(test)]
impl<'r> Answer<'r> {
    /// As far as headers tell it.
    pub(crate) fn of_headers(refused: bool, described: Option<Described<'r>>, retry_us: Option<u64>) -> Self {
        Self {
            refused,
            statuses: Few::new(),
            described,
            retry_us,
            metadata: Few::new(),
            degraded: None,
            verdicts: Few::new(),
            near: Few::new(),
        }
    }
}

impl<'r> Plan<'r> {
    /// The answer where no descriptor is limited.
    pub(super) fn answer_without_charges(&self) -> Answer<'r> {
        Answer {
            refused: false,
            statuses: self.bare.iter().map(|bare| bare.status()).collect(),
            described: None,
            retry_us: None,
            metadata: Few::new(),
            degraded: None,
            verdicts: Few::new(),
            near: Few::new(),
        }
    }

    /// The answer that a decision makes.
    pub(super) fn answer(&self, decided: Decided, options: &Options, now: Micros) -> Answer<'r> {
        let Decided { decision, near } = decided;
        let verdicts = &decision.verdicts;
        let retry_us = if decision.refused { self.retry(verdicts) } else { None };
        let spoken =
            if options.compat { self.speaker_of_the_reference(verdicts) } else { self.speaker(verdicts) };
        let described = spoken.map(|index| {
            let verdict = &verdicts[index];
            let next_us = retry_us.filter(|_| decision.refused).unwrap_or(u64::MAX).min(verdict.next_us);
            Described {
                rule: self.charged[index].rule,
                limit: self.charges[index].limit,
                remaining: verdict.remaining,
                reset_us: verdict.reset_us,
                next_us,
            }
        });
        Answer {
            refused: decision.refused,
            statuses: self.statuses(verdicts, options, now),
            described,
            retry_us,
            metadata: self.metadata(verdicts),
            degraded: None,
            near,
            verdicts: decision.verdicts,
        }
    }

    /// A descriptor with several limits shows the one that speaks for it: over before fitting, then the nearest.
    fn statuses(&self, verdicts: &[Verdict], options: &Options, now: Micros) -> Few<Status<'r>> {
        let mut statuses: Few<Status<'r>> = self.bare.iter().map(|bare| bare.status()).collect();
        let mut nearest: Few<Option<Nearness>> = smallvec![None; statuses.len()];
        for ((charged, charge), verdict) in self.charged.iter().zip(&self.charges).zip(verdicts) {
            let nearness = nearness(charged, verdict);
            let seen = &mut nearest[charged.descriptor];
            if seen.is_none_or(|seen| nearness < seen) {
                *seen = Some(nearness);
                let mut status = status(charged, verdict);
                if options.compat {
                    as_the_reference(&mut status, charge, verdict, now);
                }
                statuses[charged.descriptor] = status;
            }
        }
        statuses
    }

    /// Of rules that are not over; a rule on trial never is. Whom an override or another rule replaces says nothing
    /// (golden case `metadata-of-modes`).
    fn metadata(&self, verdicts: &[Verdict]) -> Few<&'r Metadata> {
        let passing = self.charged.iter().zip(verdicts).filter(|(charged, verdict)| {
            !charged.overridden && (verdict.fits || charged.role == Role::Shadow)
        });
        passing.filter_map(|(charged, _)| charged.rule?.metadata.as_ref()).collect()
    }

    /// The limit that refuses longest, else the one nearest to refusing: the least remaining, then the longest reset.
    /// A limit on trial never refuses, so it is not what a client should hear of.
    fn speaker(&self, verdicts: &[Verdict]) -> Option<usize> {
        let enforced = (0..verdicts.len()).filter(|&index| self.charged[index].role != Role::Shadow);
        enforced.min_by_key(|&index| {
            let longest = Reverse(if verdicts[index].fits { 0 } else { wait(&verdicts[index]) });
            (longest, nearness(&self.charged[index], &verdicts[index]))
        })
    }

    /// The reference lets the last limit that refuses speak, else the first with the least remaining.
    fn speaker_of_the_reference(&self, verdicts: &[Verdict]) -> Option<usize> {
        let refusing = |&index: &usize| !verdicts[index].fits && self.charged[index].role == Role::Enforce;
        let all = 0..verdicts.len();
        all.clone().rev().find(refusing).or_else(|| all.min_by_key(|&index| verdicts[index].remaining))
    }

    /// Until the whole request fits: the longest of the limits that refuse it, and the shortest of its quotas, since
    /// one of those is enough.
    fn retry(&self, verdicts: &[Verdict]) -> Option<u64> {
        let refusing = |role| {
            let of_role = self.charges.iter().zip(verdicts).filter(move |(charge, _)| charge.role == role);
            of_role.map(|(_, verdict)| wait(verdict))
        };
        let limits = refusing(Role::Enforce).max().unwrap_or(0);
        let quotas = refusing(Role::Quota).min().unwrap_or(0);
        Some(limits.max(quotas)).filter(|wait| *wait <= WAIT_MAX_US)
    }
}

impl Bare {
    pub(super) fn status<'r>(self) -> Status<'r> {
        let remaining = if self == Self::Unbounded { u32::MAX } else { 0 };
        Status { over: false, limit: None, remaining, reset_us: None }
    }
}

/// Smaller is nearer to refusing: over before fitting, then the least remaining, then the longest reset.
type Nearness = (bool, u64, Reverse<u64>);

fn nearness(charged: &Charged<'_>, verdict: &Verdict) -> Nearness {
    (verdict.fits || charged.role == Role::Shadow, verdict.remaining, Reverse(verdict.reset_us))
}

/// Until a charge fits; 0 when it did; beyond [`WAIT_MAX_US`] when it never will.
fn wait(verdict: &Verdict) -> u64 {
    if verdict.fits { 0 } else { verdict.retry_us.unwrap_or(u64::MAX) }
}

fn status<'r>(charged: &Charged<'r>, verdict: &Verdict) -> Status<'r> {
    Status {
        over: !verdict.fits && charged.role != Role::Shadow,
        limit: Some(shown(charged)),
        remaining: u32::try_from(verdict.remaining).unwrap_or(u32::MAX),
        reset_us: Some(verdict.reset_us),
    }
}

/// The reference says 0 on a refusal, whatever is left, and tells a window's end also where nothing is spent.
fn as_the_reference(status: &mut Status<'_>, charge: &Charge, verdict: &Verdict, now: Micros) {
    if !verdict.fits {
        status.remaining = 0;
    }
    if verdict.reset_us == 0 && charge.limit.algorithm().has_window() {
        let window_us = charge.limit.window_us();
        status.reset_us = Some(window_us - now.0 % window_us);
    }
}

/// An override has no name: it is not the limit that the rule's name stands for.
pub(super) fn shown<'r>(charged: &Charged<'r>) -> (u32, Unit, Option<&'r str>) {
    let name = charged.rule.filter(|_| !charged.overridden).and_then(|rule| rule.name.as_deref());
    (charged.shown.0, charged.shown.1, name)
}
