//! The plain count: a fixed window whose counter is the reference's, for a rolling upgrade from it.
//!
//! Its key names the window (see [`Format`](crate::key::Format)), so all that is stored is the count, as text that Redis'
//! own `INCRBY` understands: others may count on while we do. When the window ends was decided by whoever made the key,
//! and no other clock is asked.

use super::Budget;
use crate::{
    clock::Micros,
    key::Plain,
    limit::{COUNT_MAX, Limit},
};

/// A count in the window that the key names.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainCount {
    /// At most `COUNT_MAX`.
    pub(super) count: u64,
    pub(super) window: Plain,
}

impl Budget for PlainCount {
    /// Never without a state: the key brings its window along.
    fn at(before: Option<Self>, limit: &Limit, _: Micros) -> Self {
        before.unwrap_or_else(|| {
            let us = limit.window_us().try_into().expect("a window lasts");
            Self { count: 0, window: Plain { ends_in_us: us, kept_us: us } }
        })
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

    /// Another window has another key.
    fn give_back(&mut self, hits: u64, _: Micros, limit: &Limit) -> bool {
        self.give(hits, limit);
        true
    }

    fn since(&self) -> Micros {
        Micros(0)
    }

    fn until(&self, _: u64, _: &Limit, _: Micros) -> u64 {
        self.window.ends_in_us.get()
    }

    fn until_whole(&self, limit: &Limit, now: Micros) -> u64 {
        if self.count == 0 { 0 } else { self.until(0, limit, now) }
    }

    fn kept(&self, _: u64) -> u64 {
        self.window.kept_us.get()
    }
}
