//! Whether this process should be asked: `grpc.health.v1`, `/healthcheck` and `/ready`.
//!
//! NOT_SERVING until rules are loaded and the store was reached once. Afterwards it stays SERVING also without a store:
//! failure modes do answer, and a health check that fails on all replicas at the same moment takes the whole service
//! away, which is the outage that rate limiting must not become. `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true` makes it
//! follow the store, as in the reference. An ending process is NOT_SERVING.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};
use tonic_health::{ServingStatus, server::HealthReporter};

use super::Served;
use crate::{
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

/// Tells all who ask. A clone tells the same.
#[derive(Clone, Debug)]
pub(super) struct Health {
    follows: Follows,
    reporter: HealthReporter,
    serving: Arc<watch::Sender<bool>>,
    changed: Arc<Notify>,
}

impl Health {
    /// NOT_SERVING at first.
    pub(super) async fn new(follows: Follows) -> Self {
        let reporter = HealthReporter::new();
        let serving = Arc::new(watch::Sender::new(false));
        let health = Self { follows, reporter, serving, changed: Arc::default() };
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
    pub(super) async fn follow(self, limiter: Arc<Served>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.changed.notified() => {}
            }
            self.look(&limiter).await;
        }
    }

    /// Looks once, and tells what has changed.
    pub(super) async fn look(&self, limiter: &Served) {
        let before = *self.serving.borrow();
        let rules = limiter.loaded().is_some();
        let store = limiter.store().health().iter().all(|shard| shard.state.is_ok());
        let now = serving(before, rules, store, self.follows);
        if now != before {
            self.report(now).await;
            tracing::info!("health: {}", if now { "SERVING" } else { "NOT_SERVING" });
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
        Follows::Nothing => before || (rules && store),
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
