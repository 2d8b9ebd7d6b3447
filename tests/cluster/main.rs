//! The Redis store on several servers: real clusters, sentinels, and two servers side by side.
//!
//! What a client notices of faults is the lab's (`tests/lab`); here is what the store does: where keys go, that requests
//! over several servers are all or nothing, and that it follows what changes. Timeouts are long, since the machine may be
//! busy.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/pki.rs"]
mod pki;
#[path = "../support/sentinel.rs"]
mod sentinel;

mod across;
mod topology;
mod trio;

use std::time::{Duration, Instant};

use tollgate::{
    key::Key,
    limit::{Algorithm, Charge, Cost, Limit, OnRefusal, Role, WINDOW_MAX_US},
    store::{
        Store, StoreError,
        redis::{RedisConfig, RedisStore},
    },
};

/// How long a test waits for what must happen at last.
const EVENTUALLY: Duration = Duration::from_secs(30);

/// Longer than any healthy answer takes on a busy machine, and a failover by hand.
const PATIENT: Duration = Duration::from_secs(20);

fn config(url: impl Into<String>) -> RedisConfig {
    RedisConfig { timeout: PATIENT, ..RedisConfig::new(url) }
}

/// A store that knows all shards and is connected to them, on this runtime.
async fn connected(config: &RedisConfig) -> RedisStore {
    let store = RedisStore::new(config).expect("good settings");
    store.connect_here();
    eventually("all shards are connected", async || is_whole(&store)).await;
    store
}

fn is_whole(store: &RedisStore) -> bool {
    store.reach().borrow().now && store.health().iter().all(|shard| shard.state.is_ok())
}

/// One hit of a limit that does not refill while a test runs.
fn charge(algorithm: Algorithm, key: &str, requests: u32) -> Charge {
    Charge {
        key: Key::from_text(key),
        limit: Limit::new(algorithm, requests, WINDOW_MAX_US, None).expect("a good limit"),
        cost: Cost::Spend(1.try_into().expect("1 is not 0")),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

/// Whether one hit was granted.
async fn spend(store: &RedisStore, key: &str, requests: u32) -> Result<bool, StoreError> {
    let decision = store.spend(&[charge(Algorithm::TokenBucket, key, requests)], PATIENT).await?;
    Ok(!decision.refused)
}

/// Polls until `holds` is true.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    let deadline = Instant::now() + EVENTUALLY;
    while !holds().await {
        #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
        let now = Instant::now();
        assert!(now < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
