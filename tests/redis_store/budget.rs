//! What is granted when all is well.

use std::sync::{
    Arc, Barrier,
    atomic::{AtomicU32, Ordering},
};

use tollgate::{
    limit::Algorithm,
    store::{
        Store,
        redis::{RedisConfig, RedisStore},
    },
};

use crate::{
    PATIENT, charge, command_calls, config, connected, eventually, spend, support::redis::RedisServer,
};

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow];

#[tokio::test]
async fn a_limit_is_granted_to_the_last_hit_and_no_further() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    for (n, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let charge = charge(algorithm, &format!("tg:{n}"), 3);
        for left in [2, 1, 0] {
            let decision = store.spend(std::slice::from_ref(&charge), PATIENT).await.unwrap();
            assert_eq!((decision.refused, decision.verdicts[0].remaining), (false, left), "{algorithm:?}");
        }
        let refused = store.spend(&[charge], PATIENT).await.unwrap();
        assert!(refused.refused, "{algorithm:?}");
        assert!(refused.verdicts[0].retry_us.is_some_and(|us| us > 0), "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_request_with_two_limits_spends_on_both_or_on_none() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    let wide = charge(Algorithm::TokenBucket, "tg:wide", 10);
    let narrow = charge(Algorithm::FixedWindow, "tg:narrow", 1);
    let both = [wide.clone(), narrow];
    assert!(!store.spend(&both, PATIENT).await.unwrap().refused);
    assert!(store.spend(&both, PATIENT).await.unwrap().refused);
    let decision = store.spend(&[wide], PATIENT).await.unwrap();
    assert_eq!(decision.verdicts[0].remaining, 8, "the refused request spent nothing");
}

#[test]
fn sixty_four_clients_of_four_tollgates_are_granted_exactly_the_limit() {
    const LIMIT: u32 = 500;
    const TOLLGATES: usize = 4;
    const CLIENTS: usize = 16;
    const TRIES: usize = 12; // 64 · 12 = 768 hits for 500
    let server = RedisServer::start(&[]);
    let granted: Arc<[AtomicU32; 4]> = Arc::default();
    let all_connected = Barrier::new(TOLLGATES);
    std::thread::scope(|threads| {
        for _ in 0..TOLLGATES {
            threads.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let store = Arc::new(connected(&config(server.address())).await);
                    all_connected.wait();
                    let mut clients = tokio::task::JoinSet::new();
                    for _ in 0..CLIENTS {
                        clients.spawn(ask_for_all(store.clone(), granted.clone(), TRIES, LIMIT));
                    }
                    clients.join_all().await;
                });
            });
        }
    });
    for (algorithm, granted) in ALGORITHMS.iter().zip(&*granted) {
        assert_eq!(granted.load(Ordering::SeqCst), LIMIT, "{algorithm:?}");
    }
}

async fn ask_for_all(store: Arc<RedisStore>, granted: Arc<[AtomicU32; 4]>, tries: usize, limit: u32) {
    for _ in 0..tries {
        for (n, algorithm) in ALGORITHMS.into_iter().enumerate() {
            let decision = store
                .spend(&[charge(algorithm, &format!("tg:{n}"), limit)], PATIENT)
                .await
                .expect("a healthy store");
            if !decision.refused {
                granted[n].fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[test]
fn runtimes_beyond_the_bound_share_connections() {
    const RUNTIMES: usize = 5;
    let server = RedisServer::start(&[]);
    let config = RedisConfig { connections: 2.try_into().unwrap(), ..config(server.address()) };
    let store = RedisStore::new(&config).unwrap();
    // Whoever owns a connection keeps its runtime turning until the others have spent and all was looked at.
    let (spent, looked_at) = (tokio::sync::Barrier::new(RUNTIMES), tokio::sync::Barrier::new(RUNTIMES));
    std::thread::scope(|threads| {
        for n in 0..RUNTIMES {
            let (store, server, spent, looked_at) = (&store, &server, &spent, &looked_at);
            threads.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    store.connect_here();
                    eventually("a spend is granted", async || spend(store, "tg:a", 100_000).await.is_ok())
                        .await;
                    spent.wait().await;
                    if n == 0 {
                        assert_eq!(connections(server), 2);
                    }
                    looked_at.wait().await;
                });
            });
        }
    });
}

/// Of others than the one that asks.
fn connections(server: &RedisServer) -> usize {
    server.command(&["CLIENT", "LIST"]).lines().filter(|line| !line.is_empty()).count() - 1
}

#[tokio::test]
async fn a_flushed_script_is_loaded_again_once_and_nobody_notices() {
    let server = RedisServer::start(&[]);
    let store = Arc::new(connected(&config(server.address())).await);
    assert_eq!(command_calls(&server, "script|load"), 1);
    assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let store = store.clone();
        tasks.spawn(async move { spend(&store, "tg:a", 20).await.unwrap() });
    }
    let granted = tasks.join_all().await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 20);
    assert_eq!(command_calls(&server, "script|load"), 2);
}

#[tokio::test]
async fn a_thread_without_a_connection_uses_anothers() {
    let server = RedisServer::start(&[]);
    let store = Arc::new(connected(&config(server.address())).await);
    let elsewhere = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(spend(&store, "tg:a", 1))
    });
    assert_eq!(elsewhere.await.unwrap(), Ok(true));
}

#[tokio::test]
async fn a_dropped_store_closes_its_connections() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(server.address())).await;
    assert_eq!(connections(&server), 1);
    drop(store);
    eventually("the connection is closed", async || connections(&server) == 0).await;
}
