//! When requests are due, whatever becomes of those before them.
//!
//! A client that sends its next request when the last was answered asks a stalled service nothing, and so measures
//! nothing of the stall: one slow answer instead of the thousand that callers would have met ("coordinated omission").
//! With a rate, requests have times of their own, and a request's latency begins when it *should* have been sent.

use std::time::Duration;

const NANOS: u128 = 1_000_000_000;

/// One thread's share of evenly spaced requests: of `threads` it takes each so manieth, beginning with `thread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    per_second: u64,
    thread: u64,
    threads: u64,
    /// How many there are for this thread.
    count: u64,
}

impl Schedule {
    /// `per_second` and `threads` at least 1. `all` is how many requests all threads make together.
    pub(super) fn new(per_second: u64, all: u64, thread: u64, threads: u64) -> Self {
        Self { per_second, thread, threads, count: share(all, thread, threads) }
    }

    /// How many requests are due within a time from the start: the first at once.
    pub(super) fn requests_in(per_second: u64, time: Duration) -> u64 {
        let due = (time.as_nanos() * u128::from(per_second)).div_ceil(NANOS);
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// When the nth request, from 0, is due after the start.
    pub(super) fn due(&self, nth: u64) -> Duration {
        let index = u128::from(self.thread) + u128::from(nth) * u128::from(self.threads);
        // Rounded up, so that a request that `due_by` counts is due.
        let nanos = (index * NANOS).div_ceil(u128::from(self.per_second));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many are due so long after the start.
    pub(super) fn due_by(&self, since: Duration) -> u64 {
        let all = since.as_nanos() * u128::from(self.per_second) / NANOS + 1;
        share(u64::try_from(all).unwrap_or(u64::MAX), self.thread, self.threads).min(self.count)
    }
}

/// How many of `all`, dealt in turn, one of several gets.
pub(super) fn share(all: u64, nth: u64, of: u64) -> u64 {
    all / of + u64::from(nth < all % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn requests_are_due_at_even_steps_from_the_start() {
        let schedule = Schedule::new(1_000, 10, 0, 1);
        assert_eq!(schedule.count(), 10);
        assert_eq!((schedule.due(0), schedule.due(1), schedule.due(9)), (Duration::ZERO, MS, 9 * MS));
        for (since, due) in
            [(Duration::ZERO, 1), (MS / 2, 1), (MS, 2), (8 * MS, 9), (9 * MS, 10), (99 * MS, 10)]
        {
            assert_eq!(schedule.due_by(since), due, "{since:?}");
        }
    }

    #[test]
    fn a_stall_makes_all_that_fell_into_it_due_at_their_own_times() {
        let schedule = Schedule::new(1_000, 1_000, 0, 1);
        // Nothing was sent for 300 ms: 300 more are due, the first of them 299 ms ago.
        let (before, after) = (schedule.due_by(100 * MS), schedule.due_by(400 * MS));
        assert_eq!(after - before, 300);
        assert_eq!(400 * MS - schedule.due(before), 299 * MS);
    }

    #[test]
    fn threads_share_a_rate_without_gaps() {
        for (rate, all, threads) in [(1_000, 100, 3), (7, 20, 4), (333_333, 1_000, 7), (1, 2, 5)] {
            let schedules: Vec<_> = (0..threads).map(|t| Schedule::new(rate, all, t, threads)).collect();
            let mut due: Vec<_> = schedules.iter().flat_map(|s| (0..s.count()).map(|n| s.due(n))).collect();
            due.sort();
            let alone = Schedule::new(rate, all, 0, 1);
            assert_eq!(due, (0..all).map(|n| alone.due(n)).collect::<Vec<_>>());
            for since in due {
                let together: u64 = schedules.iter().map(|schedule| schedule.due_by(since)).sum();
                assert_eq!(together, alone.due_by(since), "{since:?}");
            }
        }
    }

    #[test]
    fn what_is_due_is_due_at_rates_that_divide_no_second() {
        for rate in [1, 3, 7, 999, 1_001, 333_333, 10_000_000] {
            let schedule = Schedule::new(rate, u64::MAX, 0, 1);
            for nth in [0, 1, 2, 1_000, 123_456_789] {
                assert!(schedule.due_by(schedule.due(nth)) > nth, "{rate} {nth}");
                let before = schedule.due(nth).saturating_sub(Duration::from_nanos(100));
                assert!(nth == 0 || schedule.due_by(before) <= nth, "{rate} {nth}");
            }
        }
    }

    #[test]
    fn a_time_holds_as_many_requests_as_are_due_before_its_end() {
        for (rate, time, requests) in [(1_000, MS, 1), (1_000, MS * 5 / 2, 3), (3, 1_000 * MS, 3), (1, MS, 1)]
        {
            assert_eq!(Schedule::requests_in(rate, time), requests, "{rate} {time:?}");
        }
    }
}
