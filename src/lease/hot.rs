//! Which keys are hot: requests a second in this process, counted in a fixed table.
//!
//! Keys that share a cell are counted together, so a cold one may be taken for hot. It has a lease then, which is exact
//! all the same.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use crate::{algorithm::arith::muldiv, limit::Limit};

/// Half a megabyte, and with a million keys of which a thousand are hot, few share a cell with one of these.
const CELLS: usize = 65_536;

/// A lease is what this process asks for in a tenth of a second.
const LEASES_A_SECOND: u64 = 10;

const COUNT_BITS: u32 = 22;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Counts by key.
#[derive(Debug)]
pub(super) struct Hot {
    above: u64,
    began: Instant,
    /// The second, and the counts of the one before and of this one. Two threads at once may lose a count.
    cells: Box<[AtomicU64]>,
}

impl Hot {
    pub(super) fn new(above: u32, now: Instant) -> Self {
        Self { above: above.into(), began: now, cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a request of a key, and says how much of it to take ahead; 0 when it is not hot.
    ///
    /// A bucket that is nearly full voids a lease at the limit's own rate, so that much is taken besides: else hot keys that
    /// are far from their limit, which most are, would hardly have a use of it.
    pub(super) fn size(&self, hash: u64, limit: &Limit, now: Instant) -> u64 {
        // The upper bits, since the lower ones have chosen the shard.
        let cell = &self.cells[(hash >> 32) as usize % CELLS];
        let second = now.saturating_duration_since(self.began).as_secs() & ((1 << 20) - 1);
        let old = cell.load(Relaxed);
        let (then, last, count) = (old >> (2 * COUNT_BITS), (old >> COUNT_BITS) & COUNT_MAX, old & COUNT_MAX);
        let (last, count) = match second.wrapping_sub(then) {
            0 => (last, (count + 1).min(COUNT_MAX)),
            1 => (count, 1),
            _ => (0, 1),
        };
        cell.store(second << (2 * COUNT_BITS) | last << COUNT_BITS | count, Relaxed);
        let rate = last.max(count);
        if rate <= self.above {
            return 0;
        }
        let (tokens, us) = limit.reduced();
        let refill = if limit.algorithm().has_window() { 0 } else { muldiv(tokens, 1_000_000, us).0 };
        (rate + refill).div_ceil(LEASES_A_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        clock::{Clock, SystemClock},
        limit::Algorithm,
    };

    fn of(algorithm: Algorithm, requests: u32, window_us: u64) -> Limit {
        Limit::new(algorithm, requests, window_us, None).unwrap()
    }

    #[test]
    fn a_key_is_hot_above_a_rate_and_cold_again_two_seconds_later() {
        let hot = Hot::new(100, SystemClock.instant());
        let began = SystemClock.instant();
        let window = of(Algorithm::FixedWindow, 1000, 1_000_000);
        let sizes: Vec<u64> = (0..200).map(|_| hot.size(7 << 32, &window, began)).collect();
        assert_eq!((sizes[99], sizes[100], sizes[199]), (0, 11, 20));
        assert_eq!(hot.size(8 << 32, &window, began), 0, "another one");
        assert_eq!(hot.size(7 << 32, &window, began + Duration::from_millis(1500)), 20);
        let bucket = of(Algorithm::TokenBucket, 1000, 1_000_000);
        assert_eq!(hot.size(7 << 32, &bucket, began + Duration::from_millis(1500)), 120, "and what is void");
        assert_eq!(hot.size(7 << 32, &window, began + Duration::from_millis(3500)), 0);
    }
}
