//! The only place that reads a clock.
//!
//! Decisions take the time as an argument, so that a test can pass any time in and nothing has to sleep to be right.
//! Two kinds of time are kept apart:
//!
//! - [`Micros`]: microseconds since the Unix epoch. Windows begin at multiples of their length since then, and states
//!   in a store outlive a process. A wall clock may step, so no state trusts it to be monotonic.
//! - [`std::time::Instant`]: for deadlines within this process, which a step of the wall clock must not move.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment: whole microseconds since the Unix epoch. 2^53 µs, the largest integer that Lua holds exactly, is the
/// year 2255.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// Tells the time.
pub trait Clock: Clone + Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Micros;
    /// The monotonic clock.
    fn instant(&self) -> Instant;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    fn instant(&self) -> Instant {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
        Instant::now()
    }
}
