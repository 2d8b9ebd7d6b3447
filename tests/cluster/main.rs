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
#[path = "../support/store.rs"]
mod store;

mod across;
mod split;
mod topology;
mod trio;

use tollgate::store::{
    Store,
    redis::{RedisConfig, RedisStore},
};

use store::{PATIENT, charge, config, eventually, spend};

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
