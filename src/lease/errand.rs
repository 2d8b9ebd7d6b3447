//! What is under way between a key here and the store: a lease that is taken, or what goes back.
//!
//! Both know what to do when their request goes away before the store has answered.

use std::{
    num::NonZeroU64,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{BARRED, GIVE_BACK_WITHIN, Held, Leases, State, good_until};
use crate::{
    key::Key,
    limit::{Charge, Cost, Limit, OnRefusal, Role, Verdict},
};

/// A lease on its way from the store. Dropped without an answer, there is none.
#[derive(Debug)]
pub struct Taking<'l> {
    leases: &'l Leases,
    charge: Charge,
    /// What its request takes at once.
    hits: u64,
    hold: u64,
    /// What it would have been with enough left.
    size: u64,
    asked: Instant,
    answered: bool,
}

impl<'l> Taking<'l> {
    /// For a charge of `hits`, and to hold so many besides.
    pub(super) fn new(
        leases: &'l Leases,
        charge: &Charge,
        hits: u64,
        hold: u64,
        size: u64,
        asked: Instant,
    ) -> Self {
        let cost = Cost::Spend(NonZeroU64::MIN.saturating_add(hits + hold - 1));
        // All or nothing: what is left of a drained limit would be another size.
        let charge = Charge { cost, on_refusal: OnRefusal::Keep, ..charge.clone() };
        Self { leases, charge, hits, hold, size, asked, answered: false }
    }

    /// What to ask the store.
    pub fn charge(&self) -> &Charge {
        &self.charge
    }

    /// What the request is told; `None` when the store has too little left for a lease, and is to be asked for the
    /// request alone.
    pub fn answered(mut self, verdict: &Verdict, now: Instant) -> Option<Verdict> {
        self.answered = true;
        let limit = &self.charge.limit;
        let until = good_until(limit, verdict, self.asked);
        if !verdict.fits {
            self.leases.set(&self.charge.key, State::Known(verdict.remaining, until));
            return None;
        }
        let fleet = self.leases.fleet;
        let most = (u64::from(limit.burst()) * (fleet - 1)).div_ceil(2 * fleet);
        let others = self.size.saturating_mul(fleet - 1).min(most);
        let held = Held::new((self.hold, self.hits), limit, *verdict, others, (self.asked, now), until);
        let told = held.verdict(limit, now);
        self.leases.counters.taken.inc();
        self.leases.counters.tokens.inc_by(self.hold);
        self.leases.set(&self.charge.key, State::Held(held));
        Some(told)
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.leases.set(&self.charge.key, State::Known(0, self.asked));
        }
    }
}

/// What goes back to the store. Dropped without an answer, it may be back or not, and the key has no lease for a while.
#[derive(Debug)]
pub struct Giving<'l> {
    leases: &'l Leases,
    charge: Charge,
    back: u64,
    /// `None` until the store has answered; then what it has left.
    left: Option<(u64, Instant)>,
    made: Instant,
}

impl<'l> Giving<'l> {
    /// `back` hits of what is held of a key.
    pub(super) fn new(
        leases: &'l Leases,
        key: &Key,
        limit: Limit,
        (held, back): (&Held, u64),
        now: Instant,
    ) -> Self {
        let cost = held.giving_back(back, &limit, now + GIVE_BACK_WITHIN);
        let (role, on_refusal) = (Role::Shadow, OnRefusal::Keep);
        let charge = Charge { key: key.clone(), limit, cost, role, on_refusal };
        Self { leases, charge, back, left: None, made: now }
    }

    /// What to ask the store.
    pub fn charge(&self) -> &Charge {
        &self.charge
    }

    /// It is back, as of a question at `asked`.
    pub fn given(mut self, verdict: &Verdict, asked: Instant) {
        self.leases.counters.given_back.inc_by(self.back);
        self.left = Some((verdict.remaining, good_until(&self.charge.limit, verdict, asked)));
    }
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        let state = match self.left {
            Some((left, until)) => State::Known(left, until),
            None => {
                self.leases.counters.lost.inc_by(self.back);
                State::Barred(self.made + BARRED)
            }
        };
        self.leases.set(&self.charge.key, state);
    }
}

/// A place among those who wait for a lease.
#[derive(Debug)]
pub struct Turn(watch::Receiver<()>);

impl Turn {
    pub(super) fn new(taking: watch::Receiver<()>) -> Self {
        Self(taking)
    }

    /// Whether the lease came, or failed to, within this time.
    pub async fn came(mut self, within: Duration) -> bool {
        // The sender says nothing; it goes away.
        tokio::time::timeout(within, self.0.changed()).await.is_ok()
    }
}
