//! The Redis store against real servers, and where a server must misbehave, against one that does.
//!
//! Each test has a server of its own. Timeouts of the store are long here, since the machine may be busy; where a test
//! is about a timeout, it is short and what is asserted is which error comes, never how fast.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod budget;
mod commit;
mod failure;
mod fake;
mod lease;
mod outage;

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

/// Longer than any healthy answer takes on a busy machine.
const PATIENT: Duration = Duration::from_secs(20);

fn config(address: impl Into<String>) -> RedisConfig {
    RedisConfig { timeout: PATIENT, ..RedisConfig::new(address) }
}

/// A store whose connection, on this runtime, is up.
async fn connected(config: &RedisConfig) -> RedisStore {
    let store = RedisStore::new(config).expect("good settings");
    store.connect_here();
    let mut reach = store.reach();
    let up = tokio::time::timeout(EVENTUALLY, reach.wait_for(|reach| reach.now)).await;
    assert!(up.is_ok_and(|up| up.is_ok()), "no connection: {:?}", store.health());
    store
}

/// One hit of a limit that does not refill while a test runs: all of it is there, or is gone, for ten years.
fn charge(algorithm: Algorithm, key: &str, requests: u32) -> Charge {
    Charge {
        key: Key::from_text(key),
        limit: Limit::new(algorithm, requests, WINDOW_MAX_US, None).expect("a good limit"),
        cost: Cost::Spend(1.try_into().expect("1 is not 0")),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

/// Whether one hit of a token bucket was granted.
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

/// A number of `INFO commandstats`, such as `calls` of `evalsha`; 0 for a command that never ran.
fn command_calls(server: &support::redis::RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}
