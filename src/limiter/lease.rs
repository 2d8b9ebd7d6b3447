//! Spending of what is held: see [`crate::lease`] for what may be, and why it is exact.

use std::{
    slice,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use smallvec::smallvec;

use super::{Limiter, plan::Plan};
use crate::{
    clock::Clock,
    lease::{GIVE_BACK_WITHIN, Giving, Leases, Next},
    limit::{Charge, Decision, Verdict},
    store::{Store, StoreError},
};

/// How many give back at the same time.
const GIVE_BACK_AT_ONCE: usize = 256;

/// A request's one charge that is leased.
pub(super) struct Leased<'p> {
    leases: &'p Leases,
    charge: &'p Charge,
    size: u64,
}

impl<C: Clock, S: Store> Limiter<C, S> {
    /// The charge of a plan, where it is to be leased.
    pub(super) fn leased<'p>(&'p self, plan: &'p Plan<'_>, now: Instant) -> Option<Leased<'p>> {
        let leases = self.leases.as_ref()?;
        let ([charge], [charged]) = (&plan.charges[..], &plan.charged[..]) else { return None };
        let own = charged.rule.filter(|_| !charged.overridden);
        let size = leases.size(charge, own.and_then(|rule| rule.lease), now);
        (size > 0).then_some(Leased { leases, charge, size })
    }

    /// The same of a plan that has moved; `size` is [`Leased::size`].
    pub(super) fn leased_again<'p>(&'p self, plan: &'p Plan<'_>, size: u64) -> Option<Leased<'p>> {
        Some(Leased { leases: self.leases.as_ref()?, charge: plan.charges.first()?, size })
    }

    /// Decides a charge that nothing or too little is held for.
    pub(super) async fn spend_leased(
        &self,
        leased: &Leased<'_>,
        began: Instant,
        within: Duration,
    ) -> Result<Decision, StoreError> {
        let &Leased { leases, charge, size } = leased;
        let mut next = leases.next(charge, size, began);
        loop {
            let now = self.clock.instant();
            let left = within.saturating_sub(now.duration_since(began));
            match next {
                Next::Here(verdict) => return Ok(granted(verdict)),
                Next::Ask => {
                    let decision = self.ask_store(slice::from_ref(charge), now, left).await?;
                    leases.learn(charge, &decision.verdicts[0], now);
                    return Ok(decision);
                }
                Next::Take(taking) => {
                    let decision = self.ask_store(slice::from_ref(taking.charge()), now, left).await?;
                    match taking.answered(&decision.verdicts[0], self.clock.instant()) {
                        Some(verdict) => return Ok(granted(verdict)),
                        None => next = Next::Ask,
                    }
                    continue;
                }
                Next::GiveBack(giving) => self.give_back(giving, left).await,
                Next::Wait(turn) => {
                    if !turn.came(left).await {
                        let shard = "(waiting for a lease)".to_owned();
                        return Err(StoreError::Timeout { shard, after: within });
                    }
                }
            }
            next = leases.next(charge, size, self.clock.instant());
        }
    }

    /// Gives back what was taken ahead and not spent in time, or `all` that is held. To be called a few times a second,
    /// and with `all` before the process ends.
    pub async fn give_back_leases(&self, all: bool) {
        let Some(leases) = &self.leases else { return };
        let mut due = leases.due(all, self.clock.instant());
        while !due.is_empty() {
            let some = due.split_off(due.len().saturating_sub(GIVE_BACK_AT_ONCE));
            join_all(some.into_iter().map(|giving| self.give_back(giving, GIVE_BACK_WITHIN))).await;
        }
    }

    async fn give_back(&self, giving: Giving<'_>, within: Duration) {
        let asked = self.clock.instant();
        let within = within.min(GIVE_BACK_WITHIN);
        if let Ok(decision) = self.ask_store(slice::from_ref(giving.charge()), asked, within).await {
            giving.given(&decision.verdicts[0], asked);
        }
    }
}

impl Leased<'_> {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Decides it of what is held.
    pub(super) fn spend_held(&self, now: Instant) -> Option<Decision> {
        self.leases.spend(self.charge, now).map(granted)
    }
}

fn granted(verdict: Verdict) -> Decision {
    Decision { refused: false, verdicts: smallvec![verdict] }
}
