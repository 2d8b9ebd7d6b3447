//! The store that the settings choose.

use std::time::Duration;

use super::Failure;
use crate::{
    clock::SystemClock,
    limit::{Charge, Decision},
    settings::{self, Settings},
    store::{ShardHealth, Store, StoreError, memory::MemoryStore},
};

/// One of the stores. An enum, since a trait object would box the future of each call.
#[derive(Debug)]
pub(super) enum Backend {
    Memory(MemoryStore<SystemClock>),
}

impl Backend {
    /// # Errors
    /// When settings contradict each other, which needs no connection to find out.
    pub(super) fn new(settings: &Settings) -> Result<Self, Failure> {
        match &settings.backend {
            settings::Backend::Memory { keys_max } => {
                Ok(Self::Memory(MemoryStore::new(SystemClock, keys_max.get())))
            }
            settings::Backend::Redis(_) => Err(Failure::usage("REDIS_URL: Redis is not available yet")),
        }
    }
}

impl Store for Backend {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.spend(charges, within).await,
        }
    }

    fn health(&self) -> Vec<ShardHealth> {
        match self {
            Self::Memory(store) => store.health(),
        }
    }
}
