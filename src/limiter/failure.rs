//! What is answered when the store gives no answer: `on_store_failure`.
//!
//! Of several rules in a request the strictest mode wins: deny, then error, then local, then allow. Nothing is tried
//! again, since a spend that timed out may have happened.
//!
//! A limit of 0 blocks without a store as well: there is nothing to ask.
//!
//! **`local`** spends from a part of each limit in this process: its rate and burst divided by FLEET_SIZE, never below 1. Each
//! key has one state there for all outages, and what this process grants through the store is taken from it too. So an outage
//! begins with what its callers have not used of their part, and a store that goes and comes each second hands out nothing
//! twice. The bounds, for any pattern of up and down over a time T and any limit:
//!
//! - `local` grants at most what the part alone grants in T (of a bucket: burst/fleet + rate/fleet·T; of a window: the part in
//!   each), on top of what the store grants within the limit;
//! - it grants nothing while this process has granted the part or more through the store and the part has not come back;
//! - of a fleet no larger than FLEET_SIZE, all parts together are no more than the limit, where it can be divided;
//! - a key that had to leave the bounded memory of all parts, since others were nearer to their limit, begins anew.
//!
//! What never refuses does not begin to when the store is lost: a limit on trial counts as `allow` here (but for the
//! reference, which knows no answer without its store), and `deny` lets a refund pass, though nothing is given back.

use super::{
    AskError, Limiter, answer, answer::Answer, answer::Degraded, answer::Status, plan::Plan, spend::Decided,
};
use crate::{
    clock::Clock,
    limit::{Charge, Cost, Decision, Few, Limit, OnRefusal, Role},
    rules::FailureMode,
    store::{Store, StoreError},
};

/// What `deny` says in Retry-After: long enough for a failover to make progress, short enough to come back soon.
const DENIED_RETRY_US: u64 = 1_000_000;

impl<C: Clock, S: Store> Limiter<C, S> {
    /// # Errors
    /// The store's own error, where a rule says `error`.
    pub(super) fn without_store<'r>(
        &self,
        plan: &Plan<'r>,
        error: StoreError,
    ) -> Result<Answer<'r>, AskError> {
        let cause = error.kind();
        let blocked = plan.charges.iter().any(blocks) && !self.options.compat;
        let mode = match plan.failure_mode(self.options.compat).unwrap_or(self.options.on_store_failure) {
            _ if blocked => FailureMode::Deny,
            mode => mode,
        };
        self.metrics.store_failed(cause);
        self.metrics.fell_back(mode.as_str(), cause);
        self.tell(&error);
        let answer = match mode {
            FailureMode::Error => return Err(error.into()),
            FailureMode::Deny if blocked => plan.answer_unasked(blocks, None),
            FailureMode::Deny => plan.answer_unasked(is_refusable, Some(DENIED_RETRY_US)),
            FailureMode::Allow => plan.answer_unasked(|_| false, None),
            FailureMode::Local => {
                let shares: Few<Charge> =
                    plan.charges.iter().map(|charge| share(charge, self.options.fleet_size)).collect();
                let decided = Decided::by_store(self.local.decide(&shares));
                plan.answer(decided, &self.options, self.clock.now())
            }
        };
        Ok(Answer { degraded: Some(Degraded { mode, cause }), ..answer })
    }

    /// What the store granted is granted of this process's part as well.
    pub(super) fn spend_locally(&self, plan: &Plan<'_>, decision: &Decision) {
        let local = || plan.failure_mode(self.options.compat) == Some(FailureMode::Local);
        if self.store.is_here() || decision.refused || !local() {
            return;
        }
        let granted = plan.charges.iter().zip(&decision.verdicts);
        let granted =
            granted.filter(|(charge, verdict)| verdict.fits && !matches!(charge.cost, Cost::Look(_)));
        let shares: Few<Charge> = granted
            .map(|(charge, _)| Charge {
                // What the store granted beyond the part uses it up, and leaves no debt that outlasts it.
                on_refusal: OnRefusal::Drain,
                role: Role::Shadow,
                ..share(charge, self.options.fleet_size)
            })
            .collect();
        self.local.decide(&shares);
    }

    /// At most one line a second and cause.
    fn tell(&self, error: &StoreError) {
        match self.troubles.note(error, self.clock.instant()) {
            None => {}
            Some(0) => tracing::warn!("on_store_failure answers: {error}"),
            Some(more) => {
                tracing::warn!("on_store_failure answers: {error} ({more} more {} since)", error.kind());
            }
        }
    }
}

impl<'r> Plan<'r> {
    /// The strictest of all charges; `None` where there is none.
    fn failure_mode(&self, compat: bool) -> Option<FailureMode> {
        let modes = self.charges.iter().zip(&self.charged).map(|(charge, charged)| {
            match (charge.role, charged.on_store_failure) {
                (Role::Shadow, FailureMode::Deny | FailureMode::Error) if !compat => FailureMode::Allow,
                (_, mode) => mode,
            }
        });
        modes.max()
    }

    /// An answer that no store stands behind: nothing is known of what is left, so nothing is said of it but the limit.
    fn answer_unasked(&self, refuses: impl Fn(&Charge) -> bool, retry_us: Option<u64>) -> Answer<'r> {
        let mut unasked = self.answer_without_charges();
        for (charge, charged) in self.charges.iter().zip(&self.charged) {
            let status = &mut unasked.statuses[charged.descriptor];
            let over = status.over || refuses(charge);
            unasked.refused |= over;
            *status = Status { over, limit: Some(answer::shown(charged)), remaining: 0, reset_us: None };
        }
        unasked.retry_us = retry_us.filter(|_| unasked.refused);
        unasked
    }
}

/// Whether `deny` may refuse it.
fn is_refusable(charge: &Charge) -> bool {
    charge.role != Role::Shadow && !charge.cost.gives()
}

/// Whether it refuses its request whatever a store would say.
fn blocks(charge: &Charge) -> bool {
    charge.limit.requests() == 0 && charge.role == Role::Enforce && is_refusable(charge)
}

/// This process's part of a limit: at least 1 where the limit grants anything at all.
fn share(charge: &Charge, fleet_size: u32) -> Charge {
    let fleet = fleet_size.max(1);
    let part = |whole: u32| if whole == 0 { 0 } else { (whole / fleet).max(1) };
    let limit = &charge.limit;
    let burst = (!limit.algorithm().has_window() && limit.requests() > 0).then(|| part(limit.burst()));
    let limit = Limit::new(limit.algorithm(), part(limit.requests()), limit.window_us(), burst)
        .expect("a part of a limit keeps its window, and a burst only where there was one");
    Charge { limit, ..charge.clone() }
}
