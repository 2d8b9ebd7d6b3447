//! What is held of one key, and how much of it is still good.

use std::time::Instant;

use crate::{
    algorithm::{arith::muldiv, untaken},
    clock::Micros,
    limit::{Algorithm, Cost, Limit, Verdict},
};

/// Hits that were taken ahead.
#[derive(Debug)]
pub(super) struct Held {
    taken: u64,
    spent: u64,
    /// What is neither spent nor void. It never grows again.
    left: u64,
    /// How much the bucket may fill before what is held and what is there exceed the burst.
    slack: u64,
    /// What the store said when it had given them.
    said: Verdict,
    /// Before the store was asked.
    asked: Instant,
    /// After it has answered.
    heard: Instant,
    ends: Instant,
}

impl Held {
    /// What was taken to be held, and what its request took besides and has spent. `others`: the most that other
    /// Tollgates may hold of the key.
    pub(super) fn new(
        (taken, hits): (u64, u64),
        limit: &Limit,
        said: Verdict,
        others: u64,
        (asked, heard): (Instant, Instant),
        ends: Instant,
    ) -> Self {
        let whole = said.remaining.saturating_add(1).saturating_add(taken).saturating_add(others);
        let slack = u64::from(limit.burst()).saturating_sub(whole).max(hits);
        Self { taken, spent: 0, left: taken, slack, said, asked, heard, ends }
    }

    /// What was not spent, void or not.
    pub(super) fn unspent(&self) -> u64 {
        self.taken - self.spent
    }

    pub(super) fn left_in_store(&self) -> u64 {
        self.said.remaining
    }

    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// Nothing is spent of it from now on.
    pub(super) fn end(&mut self, now: Instant) {
        self.ends = self.ends.min(now);
    }

    /// Spends hits if so many are still good.
    pub(super) fn spend(&mut self, hits: u64, limit: &Limit, now: Instant) -> Option<Verdict> {
        let good = self.good(limit, now);
        if now >= self.ends || good < hits {
            return None;
        }
        self.spent += hits;
        self.left = good - hits;
        Some(self.verdict(limit, now))
    }

    /// How much of it may come to the store by then.
    pub(super) fn to_give_back(&self, limit: &Limit, by: Instant) -> u64 {
        let window_ends = || self.asked + std::time::Duration::from_micros(self.said.reset_us);
        // It would be missing in the next window's count.
        if limit.algorithm() == Algorithm::FixedWindow && by >= window_ends() {
            return 0;
        }
        self.good(limit, by)
    }

    /// The cost of giving back so much of it, which was good by then: should the store come to it later, less of it is.
    pub(super) fn giving_back(&self, hits: u64, limit: &Limit, by: Instant) -> Cost {
        let late = if limit.algorithm().has_window() { 0 } else { us(self.heard, by) };
        Cost::GiveBack { hits, since: Micros(self.said.since.0.saturating_add(late)) }
    }

    /// The store's verdict, as if what is left here had not been taken, counted down by the time since.
    pub(super) fn verdict(&self, limit: &Limit, now: Instant) -> Verdict {
        let since = us(self.asked, now);
        let verdict = untaken(limit, self.said, self.left as i64);
        let later = |us: u64| if us == 0 { 0 } else { us.saturating_sub(since).max(1) };
        Verdict {
            fits: true,
            reset_us: later(verdict.reset_us),
            next_us: later(verdict.next_us),
            retry_us: Some(0),
            ..verdict
        }
    }

    /// See the module's argument.
    fn good(&self, limit: &Limit, now: Instant) -> u64 {
        if limit.algorithm().has_window() {
            return self.left;
        }
        let (tokens, period_us) = limit.reduced();
        let (whole, part) = muldiv(us(self.asked, now), tokens, period_us);
        let refilled = whole + u64::from(part > 0);
        self.left.min(self.taken.saturating_sub(refilled.saturating_sub(self.slack)))
    }
}

fn us(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}
