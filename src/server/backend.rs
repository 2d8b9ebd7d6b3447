//! The store that the settings choose.

use std::time::Duration;

use super::Failure;
use crate::{
    clock::SystemClock,
    limit::{Charge, Decision},
    metrics::{Counted, Metrics},
    settings::{self, Settings},
    store::{
        ShardHealth, Store, StoreError,
        memory::MemoryStore,
        redis::{Auth, Hostname, RedisConfig, RedisStore, RedisTls},
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
    /// When a setting is wrong, which needs no connection to find out.
    pub(super) fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, Failure> {
        match &settings.backend {
            // Nobody could share a budget through this process' memory, which is all that this format is for.
            settings::Backend::Memory { .. } if settings.keys.reference.is_some() => Err(Failure::usage(
                "KEY_FORMAT (--key-format): `reference` shares budgets through Redis: set REDIS_URL, or take KEY_FORMAT away",
            )),
            settings::Backend::Memory { keys_max } => {
                Ok(Self::Memory(MemoryStore::new(SystemClock, keys_max.get())))
            }
            settings::Backend::Redis(redis) => {
                let store = RedisStore::new(&RedisConfig {
                    give_backs_lost: metrics.give_backs_lost.clone(),
                    ..redis_config(redis, settings.store.timeout)
                });
                Ok(Self::Redis(store.map_err(|error| Failure::usage(error.to_string()))?))
            }
        }
    }

    /// Gives this thread's runtime what it needs. To be called on it, once.
    pub(super) fn join(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.connect_here(),
        }
    }
}

/// The settings in the store's words.
pub(crate) fn redis_config(redis: &settings::Redis, timeout: Duration) -> RedisConfig {
    let per_second = redis.per_second.as_ref().map(|server| Box::new(server_config(server, timeout)));
    RedisConfig { per_second, ..server_config(&redis.main, timeout) }
}

fn server_config(server: &settings::RedisServer, timeout: Duration) -> RedisConfig {
    let auth = |auth: &settings::RedisAuth| match auth {
        settings::RedisAuth::Text(text) => Auth::Text(text.clone()),
        settings::RedisAuth::File(path) => Auth::File(path.clone()),
    };
    RedisConfig {
        url: server.url.clone(),
        kind: server.kind,
        socket: server.socket,
        auth: server.auth.as_ref().map(auth),
        sentinel_auth: server.sentinel_auth.as_ref().map(auth),
        tls: server.tls.as_ref().map(|tls| RedisTls {
            ca: tls.ca.clone(),
            client_cert: tls.client.as_ref().map(|(cert, _)| cert.clone()),
            client_key: tls.client.as_ref().map(|(_, key)| key.clone()),
            hostname: if tls.skip_hostname { Hostname::Skipped } else { Hostname::Verified },
            server_name: tls.server_name.clone(),
        }),
        timeout,
        connect_timeout: server.connect_timeout,
        connections: RedisConfig::CONNECTIONS,
        per_second: None,
        give_backs_lost: Counted::default(),
    }
}

impl Store for Backend {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.spend(charges, within).await,
            // Its future is large: in a box it makes that of a request small, which is moved several times.
            Self::Redis(store) => Box::pin(store.spend(charges, within)).await,
        }
    }

    fn decide_here(&self, charges: &[Charge]) -> Option<Decision> {
        match self {
            Self::Memory(store) => store.decide_here(charges),
            Self::Redis(store) => store.decide_here(charges),
        }
    }

    fn is_here(&self) -> bool {
        match self {
            Self::Memory(store) => store.is_here(),
            Self::Redis(store) => store.is_here(),
        }
    }

    fn health(&self) -> Vec<ShardHealth> {
        match self {
            Self::Memory(store) => store.health(),
            Self::Redis(store) => store.health(),
        }
    }
}
