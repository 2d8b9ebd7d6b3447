//! Whether the server at the other end is alive.
//!
//! A connection may be dead without having ended: a host that lost its power sends no FIN, and the kernel would resend our
//! spends for a quarter of an hour before it gives up. A heartbeat finds that out, and a hung server when nobody spends, so
//! that health is true.

use std::time::{Duration, Instant};

/// How often an idle or busy connection is asked whether it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A server that has not answered PING for so long is given up. Far above any timeout of a spend, since connecting
/// again costs a busy server more than a late answer; short enough that a failed-over address is found soon.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The heartbeat of one connection.
#[derive(Debug)]
pub(super) struct Heart {
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// PING goes out at this time.
    Rests(Instant),
    /// It is answered until this time.
    Asked(Instant),
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    Nothing,
    /// Send PING.
    Ping,
    /// It was not answered.
    Dead,
}

impl Heart {
    pub(super) fn new(now: Instant) -> Self {
        Self { state: State::Rests(now + HEARTBEAT) }
    }

    /// PING was answered.
    pub(super) fn beats(&mut self, now: Instant) {
        self.state = State::Rests(now + HEARTBEAT);
    }

    /// What is to be done now. It takes for granted that it is done.
    pub(super) fn beat(&mut self, now: Instant) -> Beat {
        match self.state {
            State::Rests(until) if until <= now => {
                self.state = State::Asked(now + SILENCE_MAX);
                Beat::Ping
            }
            State::Asked(until) if until <= now => Beat::Dead,
            State::Rests(_) | State::Asked(_) => Beat::Nothing,
        }
    }

    /// When there is something to do again.
    pub(super) fn looks_at(&self) -> Instant {
        let (State::Rests(at) | State::Asked(at)) = self.state;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn two_seconds_of_silence_after_ping_are_its_end() {
        let start = SystemClock.instant();
        let mut heart = Heart::new(start);
        let soon = Duration::from_nanos(1);
        assert_eq!(heart.beat(start + HEARTBEAT - soon), Beat::Nothing);
        assert_eq!(heart.looks_at(), start + HEARTBEAT);
        assert_eq!(heart.beat(start + HEARTBEAT), Beat::Ping);
        assert_eq!(heart.beat(start + HEARTBEAT), Beat::Nothing, "one at a time");
        heart.beats(start + 2 * HEARTBEAT);
        assert_eq!(heart.beat(start + 3 * HEARTBEAT), Beat::Ping);
        let end = start + 3 * HEARTBEAT + SILENCE_MAX;
        assert_eq!((heart.beat(end - soon), heart.looks_at()), (Beat::Nothing, end));
        assert_eq!(heart.beat(end), Beat::Dead);
    }
}
