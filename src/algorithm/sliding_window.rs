//! The sliding window: the count of this window, and of the last one the share that a window ending now still covers.
//!
//! It takes two counters where a log takes an entry a hit, and smooths the fixed window's edge: whoever used up the last
//! window gets in again as fast as it slides out. The share is rounded up, so the weighted count never exceeds the limit.
//! What the estimate cannot know is *when* in the last window its hits came: if all came at its end, up to `2·limit - 1`
//! pass in a window of the worst position, one less than with a fixed window, and close to `limit` in practice.

use std::fmt;

use super::{Budget, arith::muldiv, window_start};
use crate::{
    clock::Micros,
    limit::{COUNT_MAX, Limit},
};

/// What was counted since a window began, and in the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    start: Micros,
    /// Both at most `COUNT_MAX`.
    this: u64,
    last: u64,
}

impl Budget for SlidingWindow {
    fn at(before: Option<Self>, limit: &Limit, now: Micros) -> Self {
        let fresh = Self { start: window_start(limit, now), this: 0, last: 0 };
        let Some(before) = before else { return fresh };
        let (since, window) = (now.0.saturating_sub(before.start.0), limit.window_us());
        if since < window {
            before
        } else if since < 2 * window {
            Self { last: before.this, ..fresh }
        } else {
            fresh
        }
    }

    fn left(&self, limit: &Limit, now: Micros) -> i64 {
        let window = limit.window_us();
        let (share, rest) = muldiv(self.last, window - self.elapsed(now), window);
        i64::from(limit.requests()) - (self.this + share + u64::from(rest > 0)) as i64
    }

    fn take(&mut self, hits: u64, _: &Limit) {
        self.this = (self.this + hits).min(COUNT_MAX);
    }

    fn give(&mut self, hits: u64, _: &Limit) {
        self.this = self.this.saturating_sub(hits);
    }

    fn give_back(&mut self, hits: u64, since: Micros, limit: &Limit) -> bool {
        if self.start == since {
            self.give(hits, limit);
        } else if self.start.0.checked_sub(limit.window_us()) == Some(since.0) {
            self.last = self.last.saturating_sub(hits);
        } else {
            return false;
        }
        true
    }

    fn since(&self) -> Micros {
        self.start
    }

    fn until(&self, hits: u64, limit: &Limit, now: Micros) -> u64 {
        let (window, elapsed) = (limit.window_us(), self.elapsed(now));
        let to_end = window - elapsed;
        // What the shares of the last window may be at most: in this window, and in the next, where this is the last.
        let next_room = u64::from(limit.requests()) - hits;
        match next_room.checked_sub(self.this) {
            Some(room) => to_end.saturating_sub(covered(room, self.last, window)),
            None => to_end + (window - covered(next_room, self.this, window)),
        }
    }

    fn until_whole(&self, limit: &Limit, now: Micros) -> u64 {
        let window = limit.window_us();
        match (self.this, self.last) {
            (0, 0) => 0,
            (0, _) => window - self.elapsed(now),
            _ => 2 * window - self.elapsed(now),
        }
    }
}

impl SlidingWindow {
    pub(super) fn of(start: u64, this: u64, last: u64) -> Self {
        Self { start: Micros(start), this, last }
    }

    pub(super) fn words(self) -> [u64; 4] {
        [self.start.0, self.this, self.last, 0]
    }

    fn elapsed(&self, now: Micros) -> u64 {
        now.0.saturating_sub(self.start.0)
    }
}

/// For how long at the end of a window the share of `last` hits of the window before is at most `room`. 0 where that is
/// too much in its last microsecond still: then the next window has to begin.
fn covered(room: u64, last: u64, window: u64) -> u64 {
    if last <= room { window } else { muldiv(room, window, last).0 }
}

/// Its numbers, for a person.
impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s {} {} {}", self.start.0, self.this, self.last)
    }
}
