//! Rules from the directory, or a management server, to the limiter, at start and whenever they change.

use std::{
    convert::Infallible,
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, watch};

use super::{Failure, Served};
use crate::{
    metrics::Metrics,
    rules::{
        Compiled, Dialect,
        watch::{self as rules_watch, Dir, First, Options, Watching},
        xds::{self, News},
    },
    settings::{Settings, Source, Xds},
};

/// # Errors
/// When the rule directory does not exist, or a file for TLS to the management server. Asked before any port is opened:
/// it is a mistake in the settings. A directory that vanishes later is one in the rules.
pub(super) fn check(settings: &Settings) -> Result<(), Failure> {
    if let Source::Xds(xds) = &settings.rules.source {
        return xds::check(xds).map_err(Failure::usage);
    }
    let dir = &settings.rules.dir;
    if dir.is_dir() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "there is no rule directory {}: make it, or name another with --rules DIR (TOLLGATE_RULES, or RUNTIME_ROOT and \
         RUNTIME_SUBDIRECTORY)",
        dir.display()
    )))
}

/// Takes rules from their watcher to the limiter. A clone takes them to the same one.
#[derive(Clone)]
pub(super) struct Loader {
    limiter: Arc<Served>,
    metrics: Arc<Metrics>,
    /// Health, which may follow from the rules.
    changed: Arc<Notify>,
    /// Why what is in the directory now is not in force; `None` when it is.
    refused: watch::Sender<Option<String>>,
    /// The first rules and the watcher's come from two threads; a late first must not replace a second.
    turn: Arc<Mutex<()>>,
}

impl Loader {
    pub(super) fn new(limiter: &Arc<Served>, metrics: &Arc<Metrics>, changed: Arc<Notify>) -> Self {
        Self {
            limiter: Arc::clone(limiter),
            metrics: Arc::clone(metrics),
            changed,
            refused: watch::Sender::new(None),
            turn: Arc::default(),
        }
    }

    /// Why the last change of the rules is not in force, if it is not.
    pub(super) fn refused(&self) -> watch::Receiver<Option<String>> {
        self.refused.subscribe()
    }

    /// Loads the rules, and again whenever they change, as long as what it returns is kept. Blocks while it reads and
    /// compiles. Mistakes are no failure: all are told, and the rules before them, if any, stay in force.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(self, settings: &Settings) -> Result<Watching, Failure> {
        let dir = Dir::new(&settings.rules.dir).with(settings.rules.which);
        let options = Options { poll: settings.rules.poll, may_empty: settings.compat, ..Options::default() };
        let (dialect, later) = (settings.dialect(), self.clone());
        let turn = self.turn();
        let First { rules, watching } = rules_watch::rules(dir, dialect, options, move |change| {
            let _turn = later.turn();
            later.take(change);
        })
        .map_err(|error| Failure::machine(format!("no thread to watch the rules: {error}")))?;
        if let Err(why) = &rules {
            // Later ones are logged by the watcher.
            tracing::error!("there are no rules yet: {why}");
        }
        self.take(rules);
        drop(turn);
        Ok(watching)
    }

    /// Takes the rules of a management server, for ever.
    pub(super) async fn follow(self, xds: &Xds, dialect: Dialect) -> Infallible {
        let take = |news| match news {
            News::Found => self.metrics.management_server(&xds.server, true),
            News::Lost => self.metrics.management_server(&xds.server, false),
            News::Rules(rules) => self.take::<Infallible>(Ok(rules)),
            News::Refused(why) => self.take(Err(why)),
        };
        xds::follow(xds, dialect, take).await
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take<E: Display>(&self, change: Result<Compiled, E>) {
        self.metrics.reloaded(change.is_ok());
        self.refused.send_replace(change.as_ref().err().map(ToString::to_string));
        let Ok(Compiled { rules, warnings }) = change else {
            self.changed.notify_one();
            return;
        };
        if !warnings.is_empty() {
            tracing::warn!("about the rules:\n{warnings}");
        }
        let counts = rules.counts();
        let gauges = &self.metrics.loaded;
        for (gauge, count) in [
            (&gauges.domains, counts.domains),
            (&gauges.limits, counts.limits),
            (&gauges.tenants, counts.tenants),
        ] {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let (revision, version) = (rules.revision(), rules.version().unwrap_or("-"));
        tracing::info!(
            revision,
            version,
            "rules in force: {} domains, {} limits, {} tenants",
            counts.domains,
            counts.limits,
            counts.tenants
        );
        if counts.domains == 0 {
            tracing::warn!("no domains in the rules: every request passes");
        }
        self.limiter.load(Arc::new(rules));
        self.changed.notify_one();
    }
}
