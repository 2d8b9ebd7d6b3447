//! Requests over several servers are decided as if on one, all or nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tollgate::{
    algorithm::{Counter, State, Write, decide},
    clock::{Clock, SystemClock},
    key::Key,
    limit::{Algorithm, Charge, Cost, Decision, Limit, OnRefusal, Role, WINDOW_MAX_US},
    store::{
        Store,
        redis::{RedisConfig, RedisStore},
    },
};

use crate::{
    PATIENT, charge,
    cluster::{Cluster, Plan, slot_of},
    config, connected, eventually, spend,
    support::redis::RedisServer,
};

fn three_shards() -> Cluster {
    Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() })
}

/// A key of each shard, such as `tg:a`.
fn key_of_each(cluster: &Cluster, name: &str) -> Vec<String> {
    (0..cluster.nodes.len())
        .map(|shard| {
            let of_it = |key: &String| cluster.owner(slot_of(key.as_bytes())) == Some(shard);
            (0..).map(|i| format!("tg:{name}{i}")).find(of_it).unwrap()
        })
        .collect()
}

fn all_of(keys: &[String], requests: u32) -> Vec<Charge> {
    keys.iter().map(|key| charge(Algorithm::FixedWindow, key, requests)).collect()
}

/// How many hits are left of each key.
async fn left(store: &RedisStore, charges: &[Charge]) -> Vec<u64> {
    let mut all = Vec::new();
    for charge in charges {
        let look = Charge { cost: Cost::Look(0), role: Role::Shadow, ..charge.clone() };
        all.push(store.spend(&[look], PATIENT).await.unwrap().verdicts[0].remaining);
    }
    all
}

#[tokio::test]
async fn what_one_shard_refuses_is_spent_on_no_other() {
    let cluster = three_shards();
    let config = config(cluster.addresses());
    let store = connected(&config).await;
    let keys = key_of_each(&cluster, "a");
    let charges = all_of(&keys, 10);
    let decision = store.spend(&charges, PATIENT).await.unwrap();
    assert!(!decision.refused);
    assert_eq!(decision.verdicts.iter().map(|verdict| verdict.remaining).collect::<Vec<_>>(), [9, 9, 9]);
    // One shard's limit is used up.
    for _ in 0..9 {
        assert!(!store.spend(&charges[1..2], PATIENT).await.unwrap().refused);
    }
    for _ in 0..5 {
        let decision = store.spend(&charges, PATIENT).await.unwrap();
        assert!(decision.refused);
        let told: Vec<_> =
            decision.verdicts.iter().map(|verdict| (verdict.fits, verdict.remaining)).collect();
        assert_eq!(told, [(true, 9), (false, 0), (true, 9)]);
        eventually("all is given back", async || left(&store, &charges).await == [9, 0, 9]).await;
    }
    assert_eq!(config.give_backs_lost.so_far(), 0);
}

#[tokio::test]
async fn a_lost_shard_fails_the_request_and_costs_the_others_nothing() {
    let mut cluster = three_shards();
    let store = connected(&config(cluster.addresses())).await;
    let charges = all_of(&key_of_each(&cluster, "a"), 10);
    cluster.kill(1);
    for _ in 0..5 {
        let error = store.spend(&charges, PATIENT).await.unwrap_err();
        assert!(error.to_string().contains(&cluster.nodes[1].address()), "{error}");
    }
    let others = [charges[0].clone(), charges[2].clone()];
    eventually("all is given back", async || left(&store, &others).await == [10, 10]).await;
    assert!(!store.spend(&others, PATIENT).await.unwrap().refused);
    assert_eq!(left(&store, &others).await, [9, 9]);
}

#[tokio::test]
async fn refunds_wait_for_the_others_and_are_not_made_when_these_refuse() {
    let cluster = three_shards();
    let store = connected(&config(cluster.addresses())).await;
    let mut charges = all_of(&key_of_each(&cluster, "a"), 10);
    assert!(!store.spend(&charges, PATIENT).await.unwrap().refused);
    charges[0].cost = Cost::Refund(1);
    charges[1].cost = Cost::Spend(20.try_into().unwrap());
    let decision = store.spend(&charges, PATIENT).await.unwrap();
    assert!(decision.refused);
    assert_eq!(decision.verdicts.iter().map(|verdict| verdict.remaining).collect::<Vec<_>>(), [9, 9, 9]);
    eventually("all is given back", async || left(&store, &charges).await == [9, 9, 9]).await;
    charges[1].cost = Cost::Spend(2.try_into().unwrap());
    let decision = store.spend(&charges, PATIENT).await.unwrap();
    assert!(!decision.refused);
    assert_eq!(left(&store, &charges).await, [10, 7, 8]);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_a_whole_request_behind_and_never_a_part_of_one() {
    let cluster = three_shards();
    let store = connected(&config(cluster.addresses())).await;
    let charges = all_of(&key_of_each(&cluster, "a"), 10);
    let goes_away = async |charges: &[Charge]| {
        tokio::select! {
            biased;
            _ = store.spend(charges, PATIENT) => panic!("no server answers at once"),
            () = std::future::ready(()) => {}
        }
    };
    goes_away(&charges).await;
    eventually("it is spent on all shards", async || left(&store, &charges).await == [9, 9, 9]).await;
    // One shard refuses, so nothing may stay on the others.
    let full = Charge { cost: Cost::Spend(10.try_into().unwrap()), ..charges[1].clone() };
    for _ in 0..10 {
        goes_away(&[charges[0].clone(), full.clone(), charges[2].clone()]).await;
    }
    // Who looks now is behind them in line.
    eventually("all is given back", async || left(&store, &charges).await == [9, 9, 9]).await;
}

#[tokio::test]
async fn many_clients_over_all_shards_never_get_more_than_the_limit() {
    const LIMIT: u32 = 300;
    let cluster = three_shards();
    let store = Arc::new(connected(&config(cluster.addresses())).await);
    let keys = key_of_each(&cluster, "a");
    // The second shard grants least; what is refused there must come back on the others.
    let charges: Vec<Charge> = keys
        .iter()
        .zip([LIMIT, LIMIT / 3, LIMIT])
        .map(|(key, limit)| charge(Algorithm::TokenBucket, key, limit))
        .collect();
    let granted = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let (store, charges, granted) = (store.clone(), charges.clone(), granted.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    if !store.spend(&charges, PATIENT).await.unwrap().refused {
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let granted = granted.load(Ordering::Relaxed);
    assert_eq!(granted, u64::from(LIMIT / 3));
    let want = [u64::from(LIMIT) - granted, 0, u64::from(LIMIT) - granted];
    eventually("all is given back", async || left(&store, &charges).await == want).await;
}

#[tokio::test]
async fn limits_of_a_second_are_kept_in_a_redis_of_their_own() {
    let (main, second) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let per_second = Some(Box::new(config(second.address())));
    let store = connected(&RedisConfig { per_second, ..config(main.address()) }).await;
    let per = |key: &str, us: u64, requests| Charge {
        limit: Limit::new(Algorithm::TokenBucket, requests, us, None).unwrap(),
        ..charge(Algorithm::TokenBucket, key, 1)
    };
    let both = [per("tg:short", 1_000_000, 1_000_000), per("tg:long", WINDOW_MAX_US, 1)];
    assert!(!store.spend(&both, PATIENT).await.unwrap().refused);
    assert_eq!(main.command(&["KEYS", "*"]), "tg:long");
    assert!(store.spend(&both, PATIENT).await.unwrap().refused);
    assert_eq!(main.command(&["KEYS", "*"]), "tg:long");
    let two: Vec<String> = store.health().into_iter().map(|shard| shard.shard).collect();
    assert_eq!(two, [main.address(), second.address()]);
    let only = [per("tg:other", 1_000_001, 5)];
    assert!(!store.spend(&only, PATIENT).await.unwrap().refused);
    assert_eq!(main.command(&["EXISTS", "tg:other"]), "1");
}

/// The states of all keys, decided in this process.
#[derive(Default)]
struct Oracle(HashMap<Vec<u8>, State>);

impl Oracle {
    fn decide(&mut self, charges: &[Charge]) -> Decision {
        let mut keys: Vec<&Key> = Vec::new();
        let of: Vec<usize> = charges
            .iter()
            .map(|charge| {
                keys.iter().position(|key| **key == charge.key).unwrap_or_else(|| {
                    keys.push(&charge.key);
                    keys.len() - 1
                })
            })
            .collect();
        let mut counters: Vec<Counter> =
            keys.iter().map(|key| Counter::new(self.0.get(key.as_bytes()).copied())).collect();
        let decision = decide(SystemClock.now(), charges, &mut counters, |i| of[i]);
        for (key, counter) in keys.iter().zip(&counters) {
            match counter.write() {
                Write::Nothing => {}
                Write::Put(state, _) => drop(self.0.insert(key.as_bytes().to_vec(), state)),
                Write::Delete => drop(self.0.remove(key.as_bytes())),
            }
        }
        decision
    }
}

/// A charge on one of few keys, each of which has one limit.
fn any_charge() -> impl Strategy<Value = Charge> {
    let cost = prop_oneof![
        6 => (1_u64..4).prop_map(|hits| Cost::Spend(hits.try_into().unwrap())),
        1 => (0_u64..3).prop_map(Cost::Look),
        1 => (1_u64..3).prop_map(Cost::Refund),
    ];
    let role = prop_oneof![4 => Just(Role::Enforce), 1 => Just(Role::Shadow), 2 => Just(Role::Quota)];
    let on_refusal =
        prop_oneof![4 => Just(OnRefusal::Keep), 2 => Just(OnRefusal::Drain), 1 => Just(OnRefusal::Count)];
    (prop_oneof![0_usize..12, 0_usize..4], cost, role, on_refusal).prop_map(
        |(key, cost, role, on_refusal)| {
            let one = limit_of(key);
            let counts = one.limit.algorithm() != Algorithm::Gcra || key == OVERDRAWN_GCRA;
            let on_refusal = if counts { on_refusal } else { OnRefusal::Drain };
            Charge { cost, role, on_refusal, ..one }
        },
    )
}

/// What is not exact across servers: takes that need a refund before them on their own key, on several keys, since one
/// refund is made before another key refuses; and several charges of a counter that is overdrawn where GCRA does not say
/// how far.
fn is_exact(charges: &[Charge]) -> bool {
    let twins = |i: usize| charges[..i].iter().filter(move |other| other.key == charges[i].key);
    let needs = |i: &usize| {
        let takes = charges[*i].role != Role::Shadow && !charges[*i].cost.gives();
        takes && twins(*i).any(|other| other.cost.gives())
    };
    let needing: HashSet<&[u8]> =
        (0..charges.len()).filter(needs).map(|i| charges[i].key.as_bytes()).collect();
    let overdrawn = |i: usize| charges[i].key == limit_of(OVERDRAWN_GCRA).key && twins(i).next().is_some();
    needing.len() <= 1 && !(0..charges.len()).any(overdrawn)
}

/// Of the keys that GCRA counts, the one that may be overdrawn.
const OVERDRAWN_GCRA: usize = 1;

#[test]
fn requests_over_three_shards_are_decided_as_if_on_one() {
    let cluster = three_shards();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(connected(&config(cluster.addresses())));
    let request = prop::collection::vec(any_charge(), 1..6).prop_filter("exact", |charges| is_exact(charges));
    let requests = prop::collection::vec(request, 1..12);
    let mut runner = TestRunner::new(Config { cases: 150, ..Config::default() });
    let outcome = runner.run(&requests, |requests| {
        cluster.nodes.iter().for_each(|node| drop(node.command(&["FLUSHALL"])));
        let mut oracle = Oracle::default();
        for charges in requests {
            let want = oracle.decide(&charges);
            let got = runtime.block_on(store.spend(&charges, PATIENT)).unwrap();
            prop_assert_eq!(got.refused, want.refused, "{:?}", charges);
            for ((got, want), charge) in got.verdicts.iter().zip(&want.verdicts).zip(&charges) {
                prop_assert_eq!(
                    (got.fits, got.remaining, got.beyond),
                    (want.fits, want.remaining, want.beyond),
                    "{:?} of {:?}",
                    charge,
                    &charges
                );
                prop_assert_eq!(got.retry_us.is_some(), want.retry_us.is_some(), "{:?}", charge);
            }
            // What is given back is on its way.
            let looks: Vec<Charge> = (0..12)
                .map(|key| Charge { cost: Cost::Look(0), role: Role::Shadow, ..limit_of(key) })
                .collect();
            let want: Vec<u64> = looks
                .iter()
                .map(|look| oracle.decide(std::slice::from_ref(look)).verdicts[0].remaining)
                .collect();
            let looks = &looks;
            runtime.block_on(eventually("the states are equal", async || left(&store, looks).await == want));
        }
        Ok(())
    });
    if let Err(why) = outcome {
        panic!("{why}");
    }
    assert_eq!(runtime.block_on(async { spend(&store, "tg:last", 1).await }), Ok(true));
}

fn limit_of(key: usize) -> Charge {
    let algorithms =
        [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow];
    charge(algorithms[key % 4], &format!("tg:k{key}"), 3 + key as u32)
}
