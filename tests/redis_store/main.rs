//! The Redis store against real servers, and where a server must misbehave, against one that does.
//!
//! Each test has a server of its own. Timeouts of the store are long here, since the machine may be busy; where a test
//! is about a timeout, it is short and what is asserted is which error comes, never how fast.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/store.rs"]
mod store;
#[path = "../support/chaos.rs"]
mod chaos;

mod access;
mod budget;
mod commit;
mod failure;
mod hostile;
mod fake;
mod lease;
mod outage;
mod stuck;

use tollgate::store::{
    Store,
    redis::{RedisConfig, RedisStore},
};

use store::{EVENTUALLY, PATIENT, charge, config, eventually, spend};

/// A store whose connection, on this runtime, is up.
async fn connected(config: &RedisConfig) -> RedisStore {
    let store = RedisStore::new(config).expect("good settings");
    store.connect_here();
    let mut reach = store.reach();
    let up = tokio::time::timeout(EVENTUALLY, reach.wait_for(|reach| reach.now)).await;
    assert!(up.is_ok_and(|up| up.is_ok()), "no connection: {:?}", store.health());
    store
}

/// A number of `INFO commandstats`, such as `calls` of `evalsha`; 0 for a command that never ran.
fn command_calls(server: &support::redis::RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}
