//! How long to wait before a management server is asked again.
//!
//! A server that restarts finds all its clients waiting. Waits that double keep them from wearing it down, and chance
//! keeps them from coming at the same moment. Chance only shortens a wait: the longest is what the settings say.

use std::time::Duration;

use crate::settings::XdsBackoff;

/// So often a wait doubles at most; any of them has reached its bound long before, and the arithmetic stays finite.
const DOUBLINGS_MAX: u32 = 32;

/// Counts what failed in a row.
#[derive(Debug)]
pub(super) struct Backoff {
    options: XdsBackoff,
    failures: u32,
}

impl Backoff {
    pub(super) fn new(options: XdsBackoff) -> Self {
        Self { options, failures: 0 }
    }

    /// The server has served.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure; the first is about `first`. `dice` is any number, from which chance is taken.
    pub(super) fn wait(&mut self, first: Duration, dice: u64) -> Duration {
        let XdsBackoff { longest, growth, spread, .. } = self.options;
        let exponent = self.failures.min(DOUBLINGS_MAX);
        self.failures = self.failures.saturating_add(1);
        let whole = (first.as_secs_f64() * growth.powi(exponent.cast_signed())).min(longest.as_secs_f64());
        // 53 bits are what a fraction between 0 and 1 holds.
        let chance = (dice >> 11) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64(whole * (1.0 - spread * chance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(10);

    fn backoff(growth: f64, spread: f64) -> Backoff {
        Backoff::new(XdsBackoff { initial: FIRST, longest: Duration::from_secs(60), growth, spread })
    }

    #[test]
    fn waits_double_up_to_their_bound_and_begin_anew_once_the_server_has_served() {
        let mut backoff = backoff(2.0, 0.0);
        let mut waits = |n| (0..n).map(|_| backoff.wait(FIRST, u64::MAX).as_secs()).collect::<Vec<_>>();
        assert_eq!(waits(5), [10, 20, 40, 60, 60]);
        assert_eq!(waits(100).last(), Some(&60));
        backoff.reset();
        assert_eq!(backoff.wait(FIRST, 0), FIRST);
    }

    #[test]
    fn chance_shortens_a_wait_by_its_share_at_most_and_never_lengthens_it() {
        assert_eq!(backoff(2.0, 0.5).wait(FIRST, 0), FIRST);
        let shortest = backoff(2.0, 0.5).wait(FIRST, u64::MAX);
        assert!(shortest >= FIRST / 2 && shortest < FIRST / 2 + Duration::from_micros(1), "{shortest:?}");
        assert!(backoff(2.0, 1.0).wait(FIRST, u64::MAX) < Duration::from_micros(1));
    }

    #[test]
    fn a_failure_in_a_row_of_billions_is_as_the_one_before() {
        let mut backoff = backoff(100.0, 0.0);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.wait(FIRST, 0), Duration::from_secs(60));
        assert_eq!(backoff.wait(FIRST, 0), Duration::from_secs(60));
    }
}
