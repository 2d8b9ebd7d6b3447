//! The store that the settings choose.

use std::time::Duration;

use super::Failure;
use crate::{
    clock::SystemClock,
    limit::{Charge, Decision},
    settings::{self, Settings},
    store::{
        ShardHealth, Store, StoreError,
        memory::MemoryStore,
        redis::{self, RedisConfig, RedisStore},
    },
};

/// One of the stores. An enum, since a trait object would box the future of each call.
#[derive(Debug)]
pub(super) enum Backend {
    Memory(MemoryStore<SystemClock>),
    Redis(RedisStore),
}

impl Backend {
    /// # Errors
    /// When settings contradict each other, which needs no connection to find out.
    pub(super) fn new(settings: &Settings) -> Result<Self, Failure> {
        match &settings.backend {
            settings::Backend::Memory { keys_max } => {
                Ok(Self::Memory(MemoryStore::new(SystemClock, keys_max.get())))
            }
            settings::Backend::Redis(redis) => {
                let store = RedisStore::new(&redis_config(redis, settings.store.timeout));
                store.map(Self::Redis).map_err(|error| Failure::usage(error.to_string()))
            }
        }
    }

    /// Each thread that answers calls this once, in its runtime: it gets a connection of its own.
    pub(super) fn connect_here(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.connect_here(),
        }
    }
}

impl Store for Backend {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.spend(charges, within).await,
            Self::Redis(store) => store.spend(charges, within).await,
        }
    }

    fn health(&self) -> Vec<ShardHealth> {
        match self {
            Self::Memory(store) => store.health(),
            Self::Redis(store) => store.health(),
        }
    }
}

/// The settings in the words of the store, which knows no environment.
fn redis_config(redis: &settings::Redis, timeout: Duration) -> RedisConfig {
    let secret = |secret: &settings::Secret| redis::Secret::new(secret.expose());
    RedisConfig {
        url: secret(&redis.url),
        socket: Some(match redis.socket {
            settings::Socket::Tcp => redis::Socket::Tcp,
            settings::Socket::Unix => redis::Socket::Unix,
        }),
        auth: redis.auth.as_ref().map(secret),
        tls: redis.tls.as_ref().map(|tls| redis::RedisTls {
            ca: tls.ca.clone(),
            client_cert: tls.client.as_ref().map(|(cert, _)| cert.clone()),
            client_key: tls.client.as_ref().map(|(_, key)| key.clone()),
            hostname: if tls.skip_hostname { redis::Hostname::Skipped } else { redis::Hostname::Verified },
        }),
        timeout,
        connect_timeout: redis.connect_timeout,
        connections: RedisConfig::CONNECTIONS,
    }
}
