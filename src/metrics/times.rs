//! Durations of calls, as the reference tells them: in whole milliseconds.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Longer ones are counted as so many milliseconds: no call may take longer than a few seconds.
const LONGEST_MS: usize = 10_001;

/// How often each duration was seen. It costs 160 KB, and loses nothing that the reference tells.
#[derive(Debug)]
pub struct Times {
    seen: Box<[AtomicU64]>,
    /// How many of them were sent; only the sender looks.
    sent: Box<[AtomicU64]>,
}

impl Default for Times {
    fn default() -> Self {
        let zeros = || (0..=LONGEST_MS).map(|_| AtomicU64::new(0)).collect();
        Self { seen: zeros(), sent: zeros() }
    }
}

impl Times {
    pub(super) fn add(&self, took: Duration) {
        let ms = usize::try_from(took.as_millis()).map_or(LONGEST_MS, |ms| ms.min(LONGEST_MS));
        self.seen[ms].fetch_add(1, Relaxed);
    }

    /// Milliseconds and how often they were seen, in ascending order.
    pub fn seen(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..).zip(&self.seen).map(|(ms, seen)| (ms, seen.load(Relaxed))).filter(|(_, seen)| *seen > 0)
    }

    /// The same of those that were not sent yet.
    pub fn unsent(&self) -> Vec<(u64, u64)> {
        let unsent = |ms: u64, seen: u64| seen.saturating_sub(self.sent[ms as usize].load(Relaxed));
        self.seen().map(|(ms, seen)| (ms, unsent(ms, seen))).filter(|(_, unsent)| *unsent > 0).collect()
    }

    /// Remembers that so many were sent.
    pub fn sent(&self, ms: u64, count: u64) {
        self.sent[ms as usize].fetch_add(count, Relaxed);
    }
}
