//! The embedded default: nothing to install. (to be written)

use std::time::Duration;

use super::{ShardHealth, Store, StoreError};
use crate::{
    clock::Clock,
    limit::{Charge, Decision},
};

/// Keeps budgets in this process.
#[derive(Debug)]
pub struct MemoryStore<C> {
    _clock: C,
}

impl<C: Clock> MemoryStore<C> {
    /// Holds at most `keys_max` keys.
    pub fn new(clock: C, _keys_max: usize) -> Self {
        Self { _clock: clock }
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    async fn spend(&self, _charges: &[Charge], _within: Duration) -> Result<Decision, StoreError> {
        unimplemented!()
    }

    fn health(&self) -> Vec<ShardHealth> {
        Vec::new()
    }
}
