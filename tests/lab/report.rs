//! What came of a scenario: counts that tests hold to, and figures that people read.
//!
//! A row goes to the standard error as it is, past the capture of `cargo test`, since the rows are what a lab is for.

use std::{
    env,
    io::{Write, stderr},
    time::Duration,
};

use crate::{
    load::{Answer, Asked, Drained, drain},
    service::{Counter, Service},
};

/// Whether to take the time that the table of what must be shown says (`TOLLGATE_LAB=whole`, as tests/run does), or only as much as
/// shows that a fault is survived.
pub(crate) fn whole(long: u64, short: u64) -> Duration {
    let whole = env::var_os("TOLLGATE_LAB").is_some_and(|word| word == "whole");
    Duration::from_secs(if whole { long } else { short })
}

/// Prints a row: what happened, and what was seen.
pub(crate) fn row(fault: &str, seen: &[String]) {
    let _ = writeln!(stderr(), "lab: {fault}: {}", seen.join("; "));
}

/// What memory may grow by, in kB: less than a thousand waiting requests hold on a busy machine. A request that is kept
/// for as long as a fault lasts would be several times that.
pub(crate) const GROWS_MAX_KB: u64 = 16 << 10;

/// How many of these have no answer of the store, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failures {
    pub(crate) failed: usize,
    pub(crate) of: usize,
}

impl std::fmt::Display for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} without the store", self.failed, self.of)
    }
}

pub(crate) fn failures<'a>(asked: impl IntoIterator<Item = &'a Asked>) -> Failures {
    asked.into_iter().fold(Failures { failed: 0, of: 0 }, |sum, asked| Failures {
        failed: sum.failed + usize::from(!asked.answer.is_whole()),
        of: sum.of + 1,
    })
}

/// The time in which this share of all was answered, in milliseconds.
pub(crate) fn percentile<'a>(asked: impl IntoIterator<Item = &'a Asked>, share: f64) -> f64 {
    let mut all: Vec<Duration> = asked.into_iter().map(|asked| asked.took).collect();
    all.sort_unstable();
    let at = ((all.len() as f64 * share).ceil() as usize).clamp(1, all.len().max(1)) - 1;
    all.get(at).map_or(0.0, |took| took.as_secs_f64() * 1000.0)
}

/// `p99 1.2 ms, calm 0.9 (x 1.3)`.
pub(crate) fn against_calm<'a>(
    now: impl IntoIterator<Item = &'a Asked>,
    calm: impl IntoIterator<Item = &'a Asked>,
) -> String {
    let (now, calm) = (percentile(now, 0.99), percentile(calm, 0.99));
    format!("p99 {now:.1} ms, calm {calm:.1} (x {:.1})", now / calm.max(0.001))
}

/// `p99 25.4 ms, the last 27.1; 0 later than 35 ms`: 10 ms more than the store's timeout.
pub(crate) fn latest<'a>(asked: impl Iterator<Item = &'a Asked> + Clone, timeout: Duration) -> String {
    let bound = timeout + Duration::from_millis(10);
    let late = asked.clone().filter(|asked| asked.took > bound).count();
    let (p99, last) = (percentile(asked.clone(), 0.99), percentile(asked, 1.0));
    format!("p99 {p99:.1} ms, the last {last:.1}; {late} later than {} ms", bound.as_millis())
}

/// What all counters granted together, after the load, and after each was asked until it refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Beyond the limit of a counter, all counters together.
    pub(crate) over: u32,
    /// Below the limit of a counter: spent for somebody who was never told.
    pub(crate) lost: u32,
    /// Requests without an answer of the store; each may have been spent.
    pub(crate) unknown: u32,
    pub(crate) granted: u32,
}

impl std::fmt::Display for Settled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { over, lost, granted, .. } = self;
        write!(f, "granted {granted}, {over} beyond the limits, {lost} spent for nobody")
    }
}

/// Uses up what is left, and adds up.
pub(crate) fn settle(service: &Service, book: &[Asked]) -> Settled {
    settle_some(service, book, |_| true)
}

/// The same for some of the counters, where others cannot be asked any more.
pub(crate) fn settle_some(service: &Service, book: &[Asked], counters: impl Fn(&Counter) -> bool) -> Settled {
    let mut all = drain(service, &counters);
    for asked in book {
        match asked.answer {
            Answer::Granted => all[asked.counter].granted += 1,
            Answer::Refused => {}
            Answer::Degraded { .. } | Answer::Failed => all[asked.counter].unknown += 1,
        }
    }
    let mut sum = Settled::default();
    let all = all.into_iter().zip(&service.counters);
    for (Drained { granted, unknown }, _) in all.filter(|(_, counter)| counters(counter)) {
        let lost = service.limit.saturating_sub(granted);
        assert!(lost <= unknown, "{lost} hits vanished, but only {unknown} had no answer");
        sum.over += granted.saturating_sub(service.limit);
        sum.lost += lost;
        sum.unknown += unknown;
        sum.granted += granted;
    }
    sum
}
