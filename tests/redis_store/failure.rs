//! What happens once: a refusal, a broken connection, a wait that is over. Nothing is sent twice, nothing is kept.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tollgate::{
    limit::Algorithm,
    store::{
        Store, StoreError,
        redis::{QUEUE_CHARGES_MAX, RedisConfig},
    },
};

use crate::{
    PATIENT, charge, command_calls, config, connected, eventually,
    fake::{FakeRedis, Treatment},
    spend,
    support::redis::RedisServer,
};

#[tokio::test]
async fn a_spend_that_was_in_flight_when_the_connection_broke_is_never_sent_again() {
    let fake = FakeRedis::start(Treatment::HangUp);
    let store = connected(&config(fake.address())).await;
    for sent in 1..=3 {
        let error = spend(&store, "tg:a", 10).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        // With the next connection up, whatever was kept for it would be on its way.
        eventually("a new connection is up", async || {
            fake.connections.load(Ordering::SeqCst) > sent && store.reach().borrow().now
        })
        .await;
        assert_eq!(fake.spends.load(Ordering::SeqCst), sent);
    }
}

#[tokio::test]
async fn a_spend_without_a_connection_fails_at_once_and_is_not_kept_for_later() {
    let mut server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    server.kill();
    eventually("the loss is noticed", async || !store.reach().borrow().now).await;
    for _ in 0..100 {
        let error = spend(&store, "tg:a", 1000).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    }
    server.restart();
    eventually("it is connected again", async || store.reach().borrow().now).await;
    assert_eq!(spend(&store, "tg:a", 1000).await, Ok(true));
    assert_eq!(command_calls(&server, "evalsha"), 1, "only the last spend was ever sent");
}

#[tokio::test]
async fn a_timed_out_spend_is_never_sent_again() {
    let fake = FakeRedis::start(Treatment::Silence);
    let store = connected(&RedisConfig { timeout: Duration::from_millis(5), ..config(fake.address()) }).await;
    let mut sent = 0;
    for _ in 0..20 {
        match spend(&store, "tg:a", 10).await.unwrap_err() {
            StoreError::Timeout { .. } => sent += 1,
            // The breaker is open.
            error => assert!(error.to_string().contains("no answer in time"), "{error}"),
        }
    }
    assert!((1..20).contains(&sent), "{sent}");
    eventually("all have arrived", async || fake.spends.load(Ordering::SeqCst) >= sent).await;
    assert_eq!(fake.spends.load(Ordering::SeqCst), sent);
}

#[tokio::test]
async fn the_lesser_of_the_callers_deadline_and_the_settings_bounds_the_wait() {
    let fake = FakeRedis::start(Treatment::Silence);
    let charge = charge(Algorithm::Gcra, "tg:a", 10);
    for (setting, within) in [(PATIENT, Duration::from_millis(20)), (Duration::from_millis(20), PATIENT)] {
        let store = connected(&RedisConfig { timeout: setting, ..config(fake.address()) }).await;
        let error = store.spend(std::slice::from_ref(&charge), within).await.unwrap_err();
        let after = Duration::from_millis(20);
        assert_eq!(error, StoreError::Timeout { shard: fake.address(), after });
    }
}

#[tokio::test]
async fn a_caller_without_any_time_left_sends_nothing() {
    let fake = FakeRedis::start(Treatment::Silence);
    let store = connected(&config(fake.address())).await;
    let error = store.spend(&[charge(Algorithm::Gcra, "tg:a", 10)], Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    // Whatever was sent is answered before this one, on the same connection.
    let later = store.spend(&[charge(Algorithm::Gcra, "tg:b", 10)], Duration::from_millis(20)).await;
    assert!(later.is_err());
    eventually("the later one arrives", async || fake.spends.load(Ordering::SeqCst) > 0).await;
    assert_eq!(fake.spends.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_forgets_the_script_for_ever_is_asked_twice_and_no_more() {
    let fake = FakeRedis::start(Treatment::Forget);
    let store = connected(&config(fake.address())).await;
    let error = spend(&store, "tg:a", 10).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { why, .. } if why.contains("NOSCRIPT")), "{error}");
    assert_eq!(fake.spends.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_answer_that_is_none_of_the_scripts_is_corrupt_and_ends_the_connection() {
    for answer in [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*0\r\n",
        "*3\r\n:0\r\n:1\r\n:1\r\n",
        // A grant of more charges, of less keys, and of a bucket that is empty.
        "*3\r\n:100\r\n$2\r\n\u{1}\u{1}\r\n$0\r\n\r\n",
        "*3\r\n:100\r\n$1\r\n\u{1}\r\n$1\r\n\n\r\n",
        "*3\r\n:100\r\n$1\r\n\u{1}\r\n$26\r\nb 0 0 31536000000000000 100\r\n",
    ] {
        let fake = FakeRedis::start(Treatment::Say(answer));
        let store = connected(&config(fake.address())).await;
        let error = spend(&store, "tg:a", 10).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{answer:?}: {error}");
        assert_eq!(fake.spends.load(Ordering::SeqCst), 1, "{answer:?}");
        eventually("a new connection", async || fake.connections.load(Ordering::SeqCst) == 2).await;
    }
}

#[tokio::test]
async fn a_server_that_wants_keys_declared_is_told_them() {
    let fake = FakeRedis::start(Treatment::WantKeys);
    let store = connected(&config(fake.address())).await;
    for sent in [2, 3, 4] {
        assert_eq!(spend(&store, "tg:a", 10).await, Ok(true));
        assert_eq!(fake.spends.load(Ordering::SeqCst), sent, "one is refused, and nothing was done for it");
    }
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_named_and_left_alone() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    server.command(&["SET", "tg:text", "surprise"]);
    server.command(&["RPUSH", "tg:list", "a"]);
    for key in ["tg:text", "tg:list"] {
        let error = spend(&store, key, 10).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }
    let error = spend(&store, "tg:text", 10).await.unwrap_err().to_string();
    assert!(error.contains("tg:text"), "{error}");
    assert_eq!(server.command(&["GET", "tg:text"]), "surprise");
    assert_eq!(spend(&store, "tg:other", 10).await, Ok(true));
}

#[tokio::test]
async fn a_read_only_replica_refuses_in_its_own_words() {
    let primary = RedisServer::start(&[]);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    let store = connected(&config(replica.address())).await;
    let error = spend(&store, "tg:a", 10).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { why, .. } if why.contains("READONLY")), "{error}");
    assert_eq!(store.health()[0].state, Err(error.to_string()));
}

#[tokio::test]
async fn a_server_that_has_become_a_replica_is_looked_up_anew() {
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let store = connected(&config(old.address())).await;
    assert_eq!(spend(&store, "tg:a", 10).await, Ok(true));
    old.command(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]);
    let ids = || old.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    let before = ids();
    let ours = before.split_once("id=").and_then(|(_, rest)| rest.split(' ').next()).unwrap().to_owned();
    eventually("it connects anew", async || {
        let _ = spend(&store, "tg:a", 10).await;
        !ids().lines().any(|line| line.starts_with(&format!("id={ours} ")))
    })
    .await;
    old.command(&["REPLICAOF", "NO", "ONE"]);
    eventually("it spends again", async || spend(&store, "tg:a", 10).await == Ok(true)).await;
}

#[tokio::test]
async fn a_full_server_refuses_in_its_own_words() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = spend(&store, "tg:a", 10).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused { why, .. } if why.contains("OOM")), "{error}");
    assert_eq!(store.health()[0].state, Err(error.to_string()));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(spend(&store, "tg:a", 10).await, Ok(true));
    assert_eq!(store.health()[0].state, Ok(()));
}

#[tokio::test]
async fn what_waits_for_a_hung_server_is_bounded_and_all_of_it_is_given_back() {
    let server = RedisServer::start(&[]);
    let config = RedisConfig {
        // Longer than a busy machine may take between two steps of one spend, for who is late already sends nothing.
        timeout: Duration::from_secs(1),
        connections: 1.try_into().unwrap(),
        ..config(server.address())
    };
    let store = Arc::new(connected(&config).await);
    server.hang();
    // Each is polled once, in this order, before any of them can time out.
    let waiting: Vec<_> = (0..QUEUE_CHARGES_MAX).map(|_| spend(&store, "tg:a", 1_000_000)).collect();
    let one_more = spend(&store, "tg:a", 1_000_000);
    let (waited, refused) = futures_join(waiting, one_more).await;
    assert!(waited.iter().all(Result::is_err));
    assert!(matches!(&refused, Err(StoreError::Overload { .. })), "{refused:?}");
    server.go_on();
    eventually("spends are granted again", async || spend(&store, "tg:a", 1_000_000).await.is_ok()).await;
    eventually("there is room for as many again", async || {
        let all: Vec<_> = (0..QUEUE_CHARGES_MAX).map(|_| spend(&store, "tg:a", 1_000_000)).collect();
        let (all, _) = futures_join(all, async { Ok(true) }).await;
        !all.iter().any(|result| matches!(result, Err(StoreError::Overload { .. })))
    })
    .await;
}

/// Polls all in order, then the last one, until all have ended.
async fn futures_join<T>(all: Vec<impl Future<Output = T>>, last: impl Future<Output = T>) -> (Vec<T>, T) {
    let mut all: Vec<_> = all.into_iter().map(|future| (Box::pin(future), None)).collect();
    let mut last = (Box::pin(last), None);
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, output) in &mut all {
            pending |= poll_into(future.as_mut(), output, context);
        }
        pending |= poll_into(last.0.as_mut(), &mut last.1, context);
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    let all = all.into_iter().map(|(_, output)| output.expect("it has ended")).collect();
    (all, last.1.expect("it has ended"))
}

/// Whether it is still pending.
fn poll_into<F: Future>(
    future: std::pin::Pin<&mut F>,
    output: &mut Option<F::Output>,
    context: &mut std::task::Context<'_>,
) -> bool {
    if output.is_none()
        && let std::task::Poll::Ready(ready) = future.poll(context)
    {
        *output = Some(ready);
    }
    output.is_none()
}
