//! The fixed window: one counter that starts anew at each multiple of the window's length since the Unix epoch.
//!
//! People understand it and calendars agree with it, but around a window's edge twice the limit can pass in a moment.
//! It is what rules in the reference's form mean that name no algorithm.

use std::fmt;

use super::{Budget, window_start};
use crate::{
    clock::Micros,
    limit::{COUNT_MAX, Limit},
};

/// What was counted since a window began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    start: Micros,
    /// At most `COUNT_MAX`; beyond the limit through charges that count always.
    count: u64,
}

impl FixedWindow {
    pub(super) fn of(start: u64, count: u64) -> Self {
        Self { start: Micros(start), count }
    }

    pub(super) fn words(self) -> [u64; 4] {
        [self.start.0, self.count, 0, 0]
    }
}

impl Budget for FixedWindow {
    fn at(before: Option<Self>, limit: &Limit, now: Micros) -> Self {
        match before {
            Some(window) if now.0.saturating_sub(window.start.0) < limit.window_us() => window,
            _ => Self { start: window_start(limit, now), count: 0 },
        }
    }

    fn left(&self, limit: &Limit, _: Micros) -> i64 {
        i64::from(limit.requests()) - self.count as i64
    }

    fn take(&mut self, hits: u64, _: &Limit) {
        self.count = (self.count + hits).min(COUNT_MAX);
    }

    fn give(&mut self, hits: u64, _: &Limit) {
        self.count = self.count.saturating_sub(hits);
    }

    fn give_back(&mut self, hits: u64, since: Micros, limit: &Limit) -> bool {
        let same = self.start == since;
        if same {
            self.give(hits, limit);
        }
        same
    }

    fn since(&self) -> Micros {
        self.start
    }

    fn until(&self, _: u64, limit: &Limit, now: Micros) -> u64 {
        limit.window_us() - now.0.saturating_sub(self.start.0)
    }

    fn until_whole(&self, limit: &Limit, now: Micros) -> u64 {
        if self.count == 0 { 0 } else { self.until(0, limit, now) }
    }
}

/// Its numbers, for a person.
impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f {} {}", self.start.0, self.count)
    }
}
