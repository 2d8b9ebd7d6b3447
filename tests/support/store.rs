//! What tests of the Redis store ask of it, and how they wait.

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
pub(crate) const EVENTUALLY: Duration = Duration::from_secs(30);

/// Longer than any healthy answer takes on a busy machine, and a failover by hand.
pub(crate) const PATIENT: Duration = Duration::from_secs(20);

pub(crate) fn config(url: impl Into<String>) -> RedisConfig {
    RedisConfig { timeout: PATIENT, ..RedisConfig::new(url) }
}

/// One hit of a limit that does not refill while a test runs: all of it is there, or is gone, for ten years.
pub(crate) fn charge(algorithm: Algorithm, key: &str, requests: u32) -> Charge {
    Charge {
        key: Key::from_text(key),
        limit: Limit::new(algorithm, requests, WINDOW_MAX_US, None).expect("a good limit"),
        cost: Cost::Spend(1.try_into().expect("1 is not 0")),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

/// Whether one hit of a token bucket was granted.
pub(crate) async fn spend(store: &RedisStore, key: &str, requests: u32) -> Result<bool, StoreError> {
    let decision = store.spend(&[charge(Algorithm::TokenBucket, key, requests)], PATIENT).await?;
    Ok(!decision.refused)
}

/// Polls until `holds` is true.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    let deadline = Instant::now() + EVENTUALLY;
    while !holds().await {
        #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
        let now = Instant::now();
        assert!(now < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
