//! When a spend gives up.

use std::time::{Duration, Instant};

use crate::{
    clock::{Clock, SystemClock},
    store::StoreError,
};

/// When a spend gives up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    whole: Duration,
}

impl Deadline {
    pub(super) fn after(whole: Duration) -> Self {
        // A caller who grants more than the clock can count grants for ever, and the shard's timeout bounds that.
        let now = SystemClock.instant();
        Self { at: now.checked_add(whole).unwrap_or(now), whole }
    }

    /// What is told to whom it has passed.
    pub(super) fn passed(&self, shard: &str) -> StoreError {
        StoreError::Timeout { shard: shard.to_owned(), after: self.whole }
    }
}
