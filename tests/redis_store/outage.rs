//! Redis that is not there, or is there and does not answer; and that it is used again when it does.

use std::time::Duration;

use tollgate::store::{
    Store, StoreError,
    redis::{Reach, RedisConfig, RedisStore},
};

use crate::{
    command_calls, config, connected, eventually,
    fake::{FakeRedis, Treatment},
    spend,
    support::redis::RedisServer,
};

#[tokio::test]
async fn without_redis_a_store_starts_says_what_is_wrong_and_recovers_alone() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let store = RedisStore::new(&config(server.address())).unwrap();
    assert_eq!(store.health()[0].state.as_ref().map_err(String::len), Err(store_says(&store).len()));
    assert!(store_says(&store).contains("nobody asked to connect"), "{}", store_says(&store));
    store.connect_here();
    eventually("it says what is wrong", async || store_says(&store).contains("refused")).await;
    assert_eq!(*store.reach().borrow(), Reach { once: false, now: false });
    server.restart();
    let mut reach = store.reach();
    reach.wait_for(|reach| reach.once && reach.now).await.unwrap();
    assert_eq!(store.health()[0].state, Ok(()));
    assert_eq!(spend(&store, "tg:a", 10).await, Ok(true));
}

#[tokio::test]
async fn a_dead_server_is_noticed_and_used_again_once_it_is_back() {
    let mut server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    for _ in 0..3 {
        assert_eq!(spend(&store, "tg:a", 10).await, Ok(true));
        server.kill();
        eventually("the loss is noticed", async || store.health()[0].state.is_err()).await;
        assert_eq!(*store.reach().borrow(), Reach { once: true, now: false });
        server.restart();
        eventually("it is connected again", async || store.health()[0].state.is_ok()).await;
    }
}

#[tokio::test]
async fn a_hung_server_costs_some_callers_their_deadline_and_the_others_nothing() {
    let server = RedisServer::start(&[]);
    let store =
        connected(&RedisConfig { timeout: Duration::from_millis(5), ..config(server.address()) }).await;
    server.hang();
    assert!(matches!(spend(&store, "tg:a", 1000).await, Err(StoreError::Timeout { .. })));
    // Callers are told at once then, and health is true long before the connection is given up.
    eventually("the breaker opens", async || {
        let error = spend(&store, "tg:a", 1000).await.unwrap_err();
        matches!(error, StoreError::Unavailable { .. })
    })
    .await;
    assert!(store_says(&store).contains("no answer in time"), "{}", store_says(&store));
    server.go_on();
    eventually("spends are granted again", async || spend(&store, "tg:a", 1000).await.is_ok()).await;
    eventually("health says so", async || store.health()[0].state.is_ok()).await;
}

#[tokio::test]
async fn a_server_that_hangs_on_is_given_up_even_when_nobody_spends() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    server.hang();
    eventually("health says so", async || store.health()[0].state.is_err()).await;
    let error = spend(&store, "tg:a", 1000).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    server.go_on();
    eventually("it is connected again", async || store.health()[0].state.is_ok()).await;
    assert_eq!(spend(&store, "tg:a", 1000).await, Ok(true));
    assert_eq!(command_calls(&server, "evalsha"), 1);
}

#[tokio::test]
async fn one_lost_connection_of_several_is_nobodys_loss() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    store.connect_here();
    let clients = || server.command(&["CLIENT", "LIST"]);
    eventually("both are connected", async || clients().lines().count() == 3).await;
    // This thread's own connection is the second one; it is killed by its number.
    let number =
        |line: &str| line.split_once("id=").and_then(|(_, rest)| rest.split(' ').next()).map(str::to_owned);
    let mut numbers: Vec<u64> = clients().lines().filter_map(number).filter_map(|n| n.parse().ok()).collect();
    numbers.sort_unstable();
    for _ in 0..5 {
        server.command(&["CLIENT", "KILL", "ID", &numbers[1].to_string()]);
        // What was sent into the breaking connection may be lost, whatever comes after it is not.
        let _ = spend(&store, "tg:a", 1000).await;
        assert_eq!(spend(&store, "tg:a", 1000).await, Ok(true));
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_on_every_spend_is_not_dialled_in_a_busy_loop() {
    let fake = FakeRedis::start(Treatment::HangUp);
    let store = connected(&config(fake.address())).await;
    assert!(spend(&store, "tg:a", 10).await.is_err());
    eventually("the loss is noticed", async || {
        fake.connections.load(std::sync::atomic::Ordering::SeqCst) == 2
    })
    .await;
}

fn store_says(store: &RedisStore) -> String {
    store.health()[0].state.clone().expect_err("it is down")
}
