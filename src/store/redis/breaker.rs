//! When to stop asking a server that gives no answers, and how to find out that it does again.
//!
//! A caller of a hung server waits for his whole deadline and then gets his failure mode's answer; the breaker lets him
//! have that answer at once. It is a pure state machine, with the time passed in:
//!
//! ```text
//!            STREAK_MAX calls late in a row, or one without an answer for twice the timeout
//! closed ─────────────────────────────────────────────────────────────────────────────────> open
//!   ^                                                                                         │
//!   └────────── a probe was answered in time, or a new connection is up <─────────────────────┘
//! ```
//!
//! *Late* is a call that took longer than `STORE_TIMEOUT`: nobody waits for its answer any more, so it makes no difference
//! whether it comes. A late answer does therefore not close the breaker, else it would flap beside a server that is
//! constantly too slow. But it is a sign of life, so the next probe goes out at once.
//!
//! Probes go one at a time: while one is unanswered there is nothing to learn from another. Those that were answered late
//! are followed by others ever more slowly, from [`WAIT_MIN`] to [`WAIT_MAX`].

use std::time::{Duration, Instant};

/// So many late calls in a row, with none in time between them, open the breaker. One alone may be a fork or a slow
/// command of somebody else.
pub(super) const STREAK_MAX: u32 = 5;

/// A call that has no answer for so many timeouts opens it alone.
pub(super) const SILENT_TIMEOUTS: u32 = 2;

/// The wait after the first late probe.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// The longest wait between probes: a server that is well again is in use soon after.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// One server's breaker.
#[derive(Debug)]
pub(super) struct Breaker {
    /// Of a call, after which it is late.
    timeout: Duration,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed {
        /// Late calls since the last one in time.
        streak: u32,
        /// When the first of them was sent.
        since: Option<Instant>,
    },
    Open {
        /// When the first call was sent that was late.
        since: Instant,
        /// When a probe may go out.
        next: Instant,
        /// The wait after the next late probe, before its jitter.
        wait: Duration,
        probing: bool,
    },
}

const CLOSED: State = State::Closed { streak: 0, since: None };

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    Opened,
    Closed,
}

impl Breaker {
    /// Closed, for calls that may take so long.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, state: CLOSED }
    }

    /// A call that was sent at `sent` was answered now.
    pub(super) fn answered(&mut self, sent: Instant, now: Instant) {
        let late = self.is_late(sent, now);
        match &mut self.state {
            // It was counted when it became late.
            State::Closed { .. } if late => {}
            State::Closed { streak, since } => (*streak, *since) = (0, None),
            State::Open { next, probing: false, .. } => *next = (*next).min(now),
            State::Open { .. } => {}
        }
    }

    /// A call that was sent at `sent` has become late. To be told once for each.
    pub(super) fn late(&mut self, sent: Instant, now: Instant) -> Change {
        let State::Closed { streak, since } = &mut self.state else { return Change::Nothing };
        *streak += 1;
        let since = *since.get_or_insert(sent);
        if *streak >= STREAK_MAX { self.open(since, now) } else { Change::Nothing }
    }

    /// A call that was sent at `sent` has no answer for [`SILENT_TIMEOUTS`]. To be told once for each.
    pub(super) fn unanswered(&mut self, sent: Instant, now: Instant) -> Change {
        let State::Closed { since, .. } = self.state else { return Change::Nothing };
        self.open(since.map_or(sent, |since| since.min(sent)), now)
    }

    /// Since when there is no answer in time; `None` while it is closed.
    pub(super) fn open_since(&self) -> Option<Instant> {
        if let State::Open { since, .. } = self.state { Some(since) } else { None }
    }

    /// When a probe may go out, while it is open and none is on its way.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        if let State::Open { next, probing: false, .. } = self.state { Some(next) } else { None }
    }

    /// Whether the caller is to send a probe now. He tells its end by [`probed`](Self::probed) or
    /// [`probe_lost`](Self::probe_lost).
    pub(super) fn may_probe(&mut self, now: Instant) -> bool {
        let may = self.next_probe().is_some_and(|next| next <= now);
        if let State::Open { probing, .. } = &mut self.state {
            *probing |= may;
        }
        may
    }

    /// The probe that was sent at `sent` was answered now. `random` is any number, for the jitter.
    pub(super) fn probed(&mut self, sent: Instant, now: Instant, random: u64) -> Change {
        if !self.is_late(sent, now) {
            return self.close();
        }
        if let State::Open { next, wait, probing, .. } = &mut self.state {
            let half = *wait / 2;
            *next = now + half + half.mul_f64(random as f64 / u64::MAX as f64);
            (*wait, *probing) = ((*wait * 2).min(WAIT_MAX), false);
        }
        Change::Nothing
    }

    /// The probe's connection ended before its answer. Another one may be tried at once: a new connection is a new start.
    pub(super) fn probe_lost(&mut self) {
        if let State::Open { probing, .. } = &mut self.state {
            *probing = false;
        }
    }

    /// A new connection is up: the server has answered all that it takes to make one.
    pub(super) fn close(&mut self) -> Change {
        match std::mem::replace(&mut self.state, CLOSED) {
            State::Open { .. } => Change::Closed,
            State::Closed { .. } => Change::Nothing,
        }
    }

    fn open(&mut self, since: Instant, now: Instant) -> Change {
        self.state = State::Open { since, next: now, wait: WAIT_MIN, probing: false };
        Change::Opened
    }

    fn is_late(&self, sent: Instant, now: Instant) -> bool {
        now.saturating_duration_since(sent) > self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    const TIMEOUT: Duration = Duration::from_millis(5);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn start() -> (Breaker, Instant) {
        (Breaker::new(TIMEOUT), SystemClock.instant())
    }

    fn opened() -> (Breaker, Instant) {
        let (mut breaker, t) = start();
        assert_eq!(breaker.unanswered(t, t + 2 * TIMEOUT), Change::Opened);
        (breaker, t + 2 * TIMEOUT)
    }

    #[test]
    fn a_streak_of_late_calls_opens_it_and_a_single_one_in_time_ends_the_streak() {
        let (mut breaker, t) = start();
        for round in 0..3 {
            for n in 1..STREAK_MAX {
                let sent = t + ms(100 * round + 10 * u64::from(n));
                assert_eq!(breaker.late(sent, sent + ms(6)), Change::Nothing);
                // An answer that nobody waits for any more ends no streak.
                breaker.answered(sent, sent + ms(8));
            }
            breaker.answered(t + ms(100 * round + 90), t + ms(100 * round + 95));
        }
        for n in 1..STREAK_MAX {
            assert_eq!(breaker.late(t + ms(400 + u64::from(n)), t + ms(406)), Change::Nothing);
        }
        assert_eq!(breaker.open_since(), None);
        assert_eq!(breaker.late(t + ms(420), t + ms(425)), Change::Opened);
        assert_eq!(breaker.open_since(), Some(t + ms(401)));
        assert_eq!(breaker.late(t + ms(430), t + ms(435)), Change::Nothing, "it is open already");
    }

    #[test]
    fn one_call_without_an_answer_for_twice_the_timeout_opens_it() {
        let (mut breaker, t) = start();
        assert_eq!(breaker.late(t, t + ms(5)), Change::Nothing);
        assert_eq!(breaker.unanswered(t, t + ms(10)), Change::Opened);
        assert_eq!(breaker.open_since(), Some(t));
        assert_eq!(breaker.unanswered(t, t + ms(11)), Change::Nothing);
    }

    #[test]
    fn probes_go_one_at_a_time_and_one_in_time_closes_it() {
        let (mut breaker, t) = opened();
        assert!(breaker.may_probe(t));
        assert!(!breaker.may_probe(t + ms(1000)), "one is on its way");
        assert_eq!(breaker.next_probe(), None);
        breaker.answered(t, t + ms(1000));
        assert!(!breaker.may_probe(t + ms(1000)));
        assert_eq!(breaker.probed(t, t + TIMEOUT, 0), Change::Closed);
        assert!(breaker.open_since().is_none() && !breaker.may_probe(t + ms(1000)));
    }

    #[test]
    fn late_probes_become_rare_but_never_rarer_than_four_a_second() {
        let (mut breaker, mut t) = opened();
        for most in [10, 20, 40, 80, 160, 250, 250] {
            for random in [0, u64::MAX] {
                let mut breaker = Breaker { state: breaker.state, ..Breaker::new(TIMEOUT) };
                assert!(breaker.may_probe(t));
                assert_eq!(breaker.probed(t, t + ms(8), random), Change::Nothing);
                let wait = breaker.next_probe().unwrap() - (t + ms(8));
                let expected = if random == 0 { ms(most) / 2 } else { ms(most) };
                assert_eq!(wait, expected);
            }
            assert!(breaker.may_probe(t));
            breaker.probed(t, t + ms(8), u64::MAX);
            t = breaker.next_probe().unwrap();
        }
    }

    #[test]
    fn a_late_answer_is_a_sign_of_life_and_brings_the_next_probe_forward() {
        let (mut breaker, t) = opened();
        assert!(breaker.may_probe(t));
        breaker.probed(t, t + ms(8), u64::MAX);
        assert!(!breaker.may_probe(t + ms(9)));
        breaker.answered(t, t + ms(9));
        assert!(breaker.open_since().is_some() && breaker.may_probe(t + ms(9)));
    }

    #[test]
    fn a_new_connection_closes_it_and_a_lost_probe_makes_room_for_another() {
        let (mut breaker, t) = opened();
        assert!(breaker.may_probe(t));
        breaker.probe_lost();
        assert!(breaker.may_probe(t + ms(1)));
        assert_eq!(breaker.close(), Change::Closed);
        assert_eq!(breaker.close(), Change::Nothing);
        // A probe that was on its way then changes nothing.
        assert_eq!(breaker.probed(t, t + ms(8), 0), Change::Nothing);
        assert_eq!(breaker.open_since(), None);
    }
}
