//! Group commit: who shares a call, who waits, and who is never sent.

use std::{pin::pin, sync::atomic::Ordering, task::Poll, time::Duration};

use tokio::task::JoinSet;
use tollgate::{
    limit::Algorithm,
    store::{
        Store, StoreError,
        redis::{RedisConfig, RedisStore},
    },
};

use crate::{
    PATIENT, charge, command_calls, config, connected, eventually,
    fake::{FakeRedis, Treatment},
    spend,
    support::redis::RedisServer,
};

/// Spends of as many callers as there are keys, who come at the same moment.
async fn at_once(store: &std::sync::Arc<RedisStore>, keys: Vec<String>) -> Vec<Result<bool, StoreError>> {
    let mut tasks = JoinSet::new();
    for (n, key) in keys.into_iter().enumerate() {
        let store = store.clone();
        tasks.spawn(async move { (n, spend(&store, &key, 1000).await) });
    }
    let mut outcomes = tasks.join_all().await;
    outcomes.sort_by_key(|(n, _)| *n);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn keys(number: usize) -> Vec<String> {
    (0..number).map(|n| format!("tg:{n}")).collect()
}

#[tokio::test]
async fn who_comes_alone_is_sent_at_once_and_who_comes_together_shares_calls() {
    let server = RedisServer::start(&[]);
    let store = std::sync::Arc::new(connected(&config(server.address())).await);
    for _ in 0..10 {
        assert_eq!(spend(&store, "tg:alone", 1000).await, Ok(true));
    }
    assert_eq!(command_calls(&server, "evalsha"), 10);
    assert!(at_once(&store, keys(500)).await.iter().all(|outcome| *outcome == Ok(true)));
    assert_eq!(command_calls(&server, "evalsha"), 12, "500 charges are two calls of at most 256");
    assert_eq!(command_calls(&server, "set"), 510);
}

#[tokio::test]
async fn equal_charges_at_the_same_moment_cost_redis_one_read_and_one_write() {
    let server = RedisServer::start(&[]);
    let store = std::sync::Arc::new(connected(&config(server.address())).await);
    assert!(at_once(&store, vec!["tg:hot".to_owned(); 200]).await.iter().all(|outcome| *outcome == Ok(true)));
    assert_eq!(command_calls(&server, "evalsha"), 1);
    assert_eq!((command_calls(&server, "get"), command_calls(&server, "set")), (1, 1));
    let decision = store.spend(&[charge(Algorithm::TokenBucket, "tg:hot", 1000)], PATIENT).await.unwrap();
    assert_eq!(decision.verdicts[0].remaining, 799);
}

#[tokio::test]
async fn a_broken_key_is_its_own_callers_loss_and_not_that_of_those_who_share_his_call() {
    let server = RedisServer::start(&[]);
    server.command(&["SET", "tg:2", "surprise"]);
    let store = std::sync::Arc::new(connected(&config(server.address())).await);
    let outcomes = at_once(&store, keys(5)).await;
    assert_eq!(command_calls(&server, "evalsha"), 1);
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(granted) => assert!(granted && n != 2),
            Err(error) => assert!(n == 2 && matches!(error, StoreError::Corrupt { .. }), "{error}"),
        }
    }
    assert_eq!(store.health()[0].state, Ok(()), "the server is well");
}

#[tokio::test]
async fn a_caller_who_goes_away_while_he_waits_is_never_sent() {
    let fake = FakeRedis::start(Treatment::Silence);
    let store = connected(&config(fake.address())).await;
    for key in ["tg:a", "tg:b", "tg:c"] {
        let charge = [charge(Algorithm::Gcra, key, 10)];
        let mut gone = pin!(store.spend(&charge, PATIENT));
        // He is in line after one poll, and away before anybody else had a turn.
        std::future::poll_fn(|context| {
            assert!(gone.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    let later = store.spend(&[charge(Algorithm::Gcra, "tg:d", 10)], Duration::from_millis(20)).await;
    assert!(matches!(later, Err(StoreError::Timeout { .. })));
    eventually("the later one arrives", async || fake.spends.load(Ordering::SeqCst) > 0).await;
    assert_eq!(fake.spends.load(Ordering::SeqCst), 1);
    let arguments = fake.last.lock().unwrap().join(" ");
    assert!(arguments.contains("tg:d") && !arguments.contains("tg:a"), "{arguments}");
}

#[tokio::test]
async fn a_request_that_is_late_before_its_turn_is_never_sent() {
    let fake = FakeRedis::start(Treatment::Silence);
    let store = std::sync::Arc::new(connected(&config(fake.address())).await);
    // As many calls as may be in flight on a connection.
    let mut tasks = JoinSet::new();
    for sent in 1..=4 {
        let store = store.clone();
        tasks.spawn(async move { spend(&store, "tg:a", 10).await });
        eventually("it has arrived", async || fake.spends.load(Ordering::SeqCst) == sent).await;
    }
    for _ in 0..20 {
        let late = store.spend(&[charge(Algorithm::Gcra, "tg:b", 10)], Duration::from_millis(2)).await;
        assert!(matches!(late, Err(StoreError::Timeout { .. })), "{late:?}");
    }
    assert_eq!(fake.spends.load(Ordering::SeqCst), 4);
    tasks.abort_all();
}

#[tokio::test]
async fn what_a_server_that_hung_spends_when_it_wakes_is_what_was_in_flight() {
    let server = RedisServer::start(&[]);
    let config = RedisConfig { timeout: Duration::from_millis(20), ..config(server.address()) };
    let store = std::sync::Arc::new(connected(&config).await);
    server.hang();
    let mut errors = 0;
    for round in 0..30 {
        let outcomes = at_once(&store, vec![format!("tg:{round}"); 10]).await;
        errors += outcomes.iter().filter(|outcome| outcome.is_err()).count();
    }
    assert_eq!(errors, 300);
    server.go_on();
    eventually("spends are granted again", async || spend(&store, "tg:again", 1000).await.is_ok()).await;
    // What is left of a bucket, as it is stored.
    let left = "local state = redis.call('GET', KEYS[1])
        return state and string.format('%.0f', (select(2, struct.unpack('<Bd', state)))) or '1000'";
    let belated: usize = (0..30)
        .map(|round| {
            server.command(&["EVAL", left, "1", &format!("tg:{round}")]).trim().parse::<usize>().unwrap()
        })
        .map(|left| 1000 - left)
        .sum();
    assert!(belated >= 1, "what was in flight is spent");
    assert!(belated <= 4 * 10, "{belated} were spent, in at most four calls of ten");
}
