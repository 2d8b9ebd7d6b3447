//! Deciding a plan's charges: near answers first, then what is held of a lease, then the store, of which one learns.
//! What needs no wait is decided at once ([`Limiter::decide_here`]), and all is where the store is in this process.
//!
//! What is counted besides: how long the store took, and what near answers spared it. What the store grants is taken from
//! this process's part of `local` limits, too.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::smallvec;

use super::{Limiter, plan::Plan};
use crate::{
    algorithm::refuses,
    clock::Clock,
    limit::{Charge, Cost, Decision, Few, Verdict},
    metrics::gauges::Measured,
    near_cache::{Counts, Known, NearCache},
    store::{Store, StoreError},
};

/// What was decided, and who said it.
pub(super) struct Decided {
    pub(super) decision: Decision,
    /// Whether a verdict was known here, for each charge; empty where none was.
    pub(super) near: Few<bool>,
}

impl Decided {
    /// Nothing was known before.
    pub(super) fn by_store(decision: Decision) -> Self {
        Self { decision, near: Few::new() }
    }
}

/// What comes of a plan before anybody waits.
pub(super) enum Here {
    Decided(Decided),
    /// The store is to be asked.
    Ask(Asking),
}

/// What is known of a plan that the store is to be asked about.
#[derive(Debug)]
pub(super) struct Asking {
    /// One for each charge, where some are known to be over.
    known: Option<Few<Option<Verdict>>>,
    /// How many hits to take ahead, where its one charge is to be leased.
    lease: Option<u64>,
    began: Instant,
}

/// As the reference measures its local cache. How long a look takes is not measured here.
pub(super) fn gauges(near: Arc<NearCache>) -> impl Fn() -> Measured + Send + Sync {
    move || {
        let Counts { keys, hits, misses, overwritten, evicted, expired } = near.counts();
        vec![
            ("ratelimit.localcache.evacuateCount", evicted),
            ("ratelimit.localcache.expiredCount", expired),
            ("ratelimit.localcache.entryCount", keys),
            ("ratelimit.localcache.averageAccessTime", 0),
            ("ratelimit.localcache.hitCount", hits),
            ("ratelimit.localcache.missCount", misses),
            ("ratelimit.localcache.lookupCount", hits + misses),
            ("ratelimit.localcache.overwriteCount", overwritten),
        ]
    }
}

impl<C: Clock, S: Store> Limiter<C, S> {
    /// Decides what needs no wait.
    pub(super) fn decide_here(&self, plan: &Plan<'_>) -> Here {
        if let Some(decision) = self.spend_here(plan) {
            return Here::Decided(Decided::by_store(decision));
        }
        let began = self.clock.instant();
        let known = match self.near.as_ref().map_or(Known::Nothing, |near| near.look(&plan.charges, began)) {
            Known::All(decision) => {
                self.metrics.near_answers.inc();
                return Here::Decided(Decided { near: smallvec![true; plan.charges.len()], decision });
            }
            Known::Some(known) => Some(known),
            Known::Nothing => None,
        };
        let leased = if known.is_none() { self.leased(plan, began) } else { None };
        if let Some(decision) = leased.as_ref().and_then(|leased| leased.spend_held(began)) {
            self.spend_locally(plan, &decision);
            return Here::Decided(Decided::by_store(decision));
        }
        Here::Ask(Asking { known, lease: leased.map(|leased| leased.size()), began })
    }

    /// Asks the store.
    ///
    /// # Errors
    /// The store's. What was known here does not matter then: the request has one answer.
    pub(super) async fn decide_there(
        &self,
        plan: &Plan<'_>,
        asking: &mut Asking,
        within: Duration,
    ) -> Result<Decided, StoreError> {
        let (known, began) = (asking.known.take(), asking.began);
        let leased = asking.lease.and_then(|size| self.leased_again(plan, size));
        let decided = match (known, leased) {
            (Some(known), _) => self.spend_others(plan, known, began, within).await,
            (None, Some(leased)) => self.spend_leased(&leased, began, within).await.map(Decided::by_store),
            (None, None) => self.spend(plan, began, within).await.map(Decided::by_store),
        };
        let took = self.clock.instant().duration_since(began);
        self.metrics.store_seconds.observe(took.as_secs_f64());
        if let Ok(decided) = &decided {
            self.spend_locally(plan, &decided.decision);
        }
        decided
    }

    /// What [`Limiter::spend`] does, where the store is in this process. A split key takes several calls, there too.
    fn spend_here(&self, plan: &Plan<'_>) -> Option<Decision> {
        if has_split(&plan.charges) {
            return None;
        }
        if self.asks_once(plan) {
            return self.store.decide_here(&plan.charges);
        }
        let seen = self.store.decide_here(&plan.looks())?;
        if seen.refused {
            self.store.decide_here(&plan.only_over(&seen))
        } else {
            self.store.decide_here(&plan.charges)
        }
    }

    async fn spend(&self, plan: &Plan<'_>, began: Instant, within: Duration) -> Result<Decision, StoreError> {
        if self.asks_once(plan) {
            return self.ask_store(&plan.charges, began, within).await;
        }
        // The reference, too, reads first and writes afterwards, and others may come between the two.
        let seen = self.store.spend(&plan.looks(), within).await?;
        let now = self.clock.instant();
        let left = within.saturating_sub(now.duration_since(began));
        if !seen.refused {
            return self.ask_store(&plan.charges, now, left).await;
        }
        self.ask_store(&plan.only_over(&seen), now, left).await
    }

    /// As the reference: what its local cache refuses is not asked and not counted, and the others are.
    async fn spend_others(
        &self,
        plan: &Plan<'_>,
        known: Few<Option<Verdict>>,
        began: Instant,
        within: Duration,
    ) -> Result<Decided, StoreError> {
        let others = plan.charges.iter().zip(&known).filter(|(_, known)| known.is_none());
        let others: Few<Charge> = others
            .map(|(charge, _)| match charge.cost {
                // Golden case `local-cache-and-stop-counting`.
                Cost::Spend(_) if self.stops_counting() => Charge { cost: Cost::Look(0), ..charge.clone() },
                _ => charge.clone(),
            })
            .collect();
        let asked = self.ask_store(&others, began, within).await?;
        let near = known.iter().map(Option::is_some).collect();
        let mut asked = asked.verdicts.into_iter();
        let verdicts: Few<Verdict> =
            known.into_iter().filter_map(|known| known.or_else(|| asked.next())).collect();
        Ok(Decided { decision: Decision { refused: refuses(&plan.charges, &verdicts), verdicts }, near })
    }

    /// One call, of which one learns.
    pub(super) async fn ask_store(
        &self,
        charges: &[Charge],
        began: Instant,
        within: Duration,
    ) -> Result<Decision, StoreError> {
        // Who waits no more would be charged for an answer that nobody hears.
        if within.is_zero() && !self.store.is_here() {
            let shard = "(not asked, since the caller waits no longer)".to_owned();
            return Err(StoreError::Timeout { shard, after: within });
        }
        let decided = if has_split(charges) {
            Box::pin(self.spend_split(charges, within)).await
        } else {
            self.store.spend(charges, within).await
        };
        if let Some(near) = &self.near {
            let heard = self.clock.instant();
            if let Ok(decision) = &decided {
                near.learn(charges, decision, began, heard);
            }
            // Without an answer it may have been given back all the same.
            near.refunded(charges, heard);
        }
        decided
    }

    /// A limit alone counts what it refuses, also there (golden case `stop-counting-one-limit`).
    fn asks_once(&self, plan: &Plan<'_>) -> bool {
        !self.stops_counting() || plan.charges.len() == 1
    }

    fn stops_counting(&self) -> bool {
        self.options.compat && self.options.stop_counting
    }
}

fn has_split(charges: &[Charge]) -> bool {
    charges.iter().any(|charge| charge.key.shards().is_some())
}
