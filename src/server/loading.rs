//! Rules from the directory to the limiter, at start and whenever they change.

use std::sync::Arc;

use super::{Failure, Served};
use crate::{
    metrics::Metrics,
    rules::{
        Compiled, Mistakes,
        watch::{self, Dir, First, Watching},
    },
    settings::Settings,
};

/// # Errors
/// When the rule directory does not exist. Asked before any port is opened: it is a mistake in the settings. A directory
/// that vanishes later is one in the rules.
pub(super) fn check(settings: &Settings) -> Result<(), Failure> {
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

/// Loads the rules, and again whenever they change, as long as what it returns is kept. Blocks while it reads and
/// compiles. Mistakes are no failure: all are told, and the rules before them, if any, stay in force.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn start(
    settings: &Settings,
    limiter: Arc<Served>,
    metrics: Arc<Metrics>,
) -> Result<Watching, Failure> {
    let loader = Loader { limiter, metrics };
    let first = loader.clone();
    let dir = Dir::new(&settings.rules.dir);
    let options = watch::Options { poll: settings.rules.poll, ..watch::Options::default() };
    let First { rules, watching } =
        watch::rules(dir, settings.dialect(), options, move |change| loader.take(change))
            .map_err(|error| Failure::machine(format!("no thread to watch the rules: {error}")))?;
    if let Err(why) = &rules {
        tracing::error!("there are no rules yet: {why}");
    }
    first.take(rules);
    Ok(watching)
}

#[derive(Clone)]
struct Loader {
    limiter: Arc<Served>,
    metrics: Arc<Metrics>,
}

impl Loader {
    fn take(&self, change: Result<Compiled, watch::Failure<Mistakes>>) {
        self.metrics.reloaded(change.is_ok());
        // What is wrong was logged, and the watcher keeps it.
        let Ok(Compiled { rules, warnings }) = change else { return };
        if !warnings.is_empty() {
            tracing::warn!("the rules are in force, and:\n{warnings}");
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
            tracing::warn!("no rule files: every request passes");
        }
        self.limiter.load(Arc::new(rules));
    }
}
