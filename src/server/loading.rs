//! Rules from the directory to the limiter, at start and whenever they change.

use std::sync::Arc;

use super::{Failure, Served};
use crate::{metrics::Metrics, settings::Settings};

/// # Errors
/// When the rule directory does not exist.
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

/// Loads the rules and watches them. (The watcher has not landed yet.)
pub(super) fn start(_: &Settings, _: &Arc<Served>, _: &Arc<Metrics>) -> Result<(), Failure> {
    tracing::error!("rules are not read yet");
    Ok(())
}
