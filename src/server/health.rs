//! Whether this process should be asked: `grpc.health.v1`, `/healthcheck` and `/ready`.
//!
//! NOT_SERVING until rules are loaded (in compat: until they were tried; with FORCE_START_WITHOUT_INITIAL_CONFIG: not even
//! that) and the store was reached once, of a cluster more than half of the shards. With HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED it is also NOT_SERVING whenever
//! there is no domain. Afterwards it stays SERVING also without a store: failure modes do answer, and a health check that
//! fails on all replicas at the same moment takes the whole service away, which is the outage that rate limiting must
//! not become. `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true` makes it follow the store, as in the reference. An ending
//! process is NOT_SERVING.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};
use tonic_health::{ServingStatus, server::HealthReporter};

use super::Served;
use crate::{
    rules::RuleSet,
    settings::{Backend, Settings},
    store::Store,
};

/// How often one looks: a probe's period is ten times as long at least.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The names that the health service knows: the server as a whole, and what the reference calls itself.
const NAMES: [&str; 2] = ["", "ratelimit"];

/// What health follows after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// Nothing: once SERVING, always SERVING.
    Nothing,
    /// Whether the store can be reached.
    Store,
}

pub(super) fn follows(settings: &Settings) -> Follows {
    match &settings.backend {
        Backend::Redis(redis) if redis.health_follows => Follows::Store,
        Backend::Redis(_) | Backend::Memory { .. } => Follows::Nothing,
    }
}

/// Which rules there must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Good ones, if only an empty directory.
    Rules,
    /// None: bad ones do as well, as in the reference (golden case `bad-rules-at-start`).
    Nothing,
    /// None, and none have to be tried.
    Unawaited,
    /// At least one domain, at every moment.
    Domain,
}

pub(super) fn needs(settings: &Settings) -> Needs {
    match &settings.rules {
        rules if rules.needed_for_health => Needs::Domain,
        rules if !rules.awaited => Needs::Unawaited,
        _ if settings.compat => Needs::Nothing,
        _ => Needs::Rules,
    }
}

impl Needs {
    /// `tried`: the rules were read, and may have been refused.
    fn are_met(self, loaded: Option<&RuleSet>, tried: bool) -> bool {
        match self {
            Self::Rules => loaded.is_some(),
            Self::Nothing => loaded.is_some() || tried,
            Self::Unawaited => true,
            Self::Domain => loaded.is_some_and(|rules| !rules.domains().is_empty()),
        }
    }
}

/// Tells all who ask. A clone tells the same.
#[derive(Clone, Debug)]
pub(super) struct Health {
    follows: Follows,
    needs: Needs,
    reporter: HealthReporter,
    serving: Arc<watch::Sender<bool>>,
    changed: Arc<Notify>,
    /// It was told that the store is what is waited for.
    told_waiting: Arc<AtomicBool>,
}

impl Health {
    /// NOT_SERVING at first.
    pub(super) async fn new(follows: Follows, needs: Needs) -> Self {
        let reporter = HealthReporter::new();
        let serving = Arc::new(watch::Sender::new(false));
        let health =
            Self { follows, needs, reporter, serving, changed: Arc::default(), told_waiting: Arc::default() };
        health.report(false).await;
        health
    }

    /// For the gRPC service.
    pub(super) fn reporter(&self) -> HealthReporter {
        self.reporter.clone()
    }

    /// For HTTP.
    pub(super) fn told(&self) -> watch::Receiver<bool> {
        self.serving.subscribe()
    }

    /// Whom to notify when something may have changed that should show at once.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Looks for ever.
    pub(super) async fn follow(self, limiter: Arc<Served>, refused: watch::Receiver<Option<String>>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.changed.notified() => {}
            }
            let refused = refused.borrow().is_some();
            self.look(&limiter, refused).await;
        }
    }

    /// Looks once, and tells what has changed.
    async fn look(&self, limiter: &Served, refused: bool) {
        let before = *self.serving.borrow();
        let loaded = limiter.loaded();
        let rules = self.needs.are_met(loaded.as_ref().map(|loaded| &*loaded.rules), refused);
        let shards = limiter.store().health();
        // What is lost of a cluster has its failure modes; a start in the middle of an outage serves the rest.
        let store = shards.iter().filter(|shard| shard.state.is_ok()).count() * 2 > shards.len();
        let lost = shards.into_iter().find_map(|shard| shard.state.err());
        let now = serving(before, rules, store, self.follows);
        if now != before {
            self.report(now).await;
            tracing::info!("health: {}", if now { "SERVING" } else { "NOT_SERVING" });
        }
        // Else the log would fall silent after the rules, and nobody know what the start waits for.
        if let Some(why) = lost.filter(|_| !now && rules && !self.told_waiting.swap(true, Ordering::Relaxed))
        {
            tracing::warn!("health: NOT_SERVING until the store was reached: {why}");
        }
    }

    /// NOT_SERVING for good.
    pub(super) async fn stop(&self) {
        self.report(false).await;
    }

    /// Ends open watches: they would keep their connections, and the process, until the timeout.
    pub(super) async fn end_watches(&self) {
        let mut reporter = self.reporter.clone();
        for name in NAMES {
            reporter.clear_service_status(name).await;
        }
    }

    async fn report(&self, serving: bool) {
        self.serving.send_replace(serving);
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

fn serving(before: bool, rules: bool, store: bool, follows: Follows) -> bool {
    match follows {
        Follows::Nothing => rules && (before || store),
        Follows::Store => rules && store,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_store_changes_health_only_where_health_follows_it() {
        use Follows::{Nothing, Store};
        for (before, rules, store, follows, want) in [
            (false, false, true, Nothing, false),
            (false, true, false, Nothing, false),
            (false, true, true, Nothing, true),
            (true, true, false, Nothing, true),
            (false, true, true, Store, true),
            (true, true, false, Store, false),
            (false, false, true, Store, false),
        ] {
            assert_eq!(serving(before, rules, store, follows), want, "{before} {rules} {store} {follows:?}");
        }
    }
}
