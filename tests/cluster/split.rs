//! Split keys on a real cluster: the hits of a hot key are the work of all servers, and are granted to the last one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering},
    },
};

use tollgate::{
    clock::SystemClock,
    key::{Format, slot},
    limit::Entry,
    limiter::{Descriptor, Limiter, Options, Question},
    metrics::Metrics,
    rules::{Dialect, FailureMode, compile},
    store::{memory::MemoryStore, redis::RedisStore},
};

use crate::{
    PATIENT,
    cluster::{Cluster, Plan},
    config, connected, eventually,
};

type Tollgate = Limiter<SystemClock, RedisStore>;

async fn tollgate(cluster: &Cluster, rate_limit: &str) -> Tollgate {
    let store = connected(&config(cluster.addresses())).await;
    let options = Options {
        compat: false,
        shadow_mode: false,
        quota_mode: false,
        on_store_failure: FailureMode::Error,
        stop_counting: false,
        fleet_size: 4,
        near_bytes: 1 << 20,
        lease_above: 0,
        keys: Format::OWN,
    };
    let tollgate =
        Limiter::new(SystemClock, store, MemoryStore::new(SystemClock, 10), options, Metrics::new());
    let text = format!("domain: d\ndescriptors:\n- {{key: k, rate_limit: {{{rate_limit}}}}}\n");
    let files = BTreeMap::from([("d.yaml".to_owned(), text.into_bytes())]);
    tollgate.load(Arc::new(compile(&files, Dialect::default()).unwrap().rules));
    tollgate
}

fn question(hits: Option<u64>, refund: bool) -> Question {
    let entries = vec![Entry { key: "k".into(), value: "hot".into() }];
    let descriptors = vec![Descriptor { entries, hits, refund, ..Descriptor::default() }];
    Question { domain: "d".into(), descriptors, hits: 0 }
}

async fn ask(tollgate: &Tollgate, question: &Question) -> (bool, u32) {
    let loaded = tollgate.loaded().unwrap();
    let answer = tollgate.ask(&loaded, question, PATIENT).await.expect("a healthy store");
    (!answer.refused, answer.statuses[0].remaining)
}

fn calls_of_each(cluster: &Cluster) -> Vec<u64> {
    let calls = |text: String| {
        text.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok())
    };
    cluster.nodes.iter().map(|node| calls(node.command(&["INFO", "commandstats"])).unwrap_or(0)).collect()
}

#[test]
fn the_hits_of_a_hot_key_are_the_work_of_all_servers_and_are_granted_to_the_last_one() {
    const LIMIT: u32 = 4_000;
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    for algorithm in ["token_bucket", "gcra", "fixed_window", "sliding_window"] {
        let before = calls_of_each(&cluster);
        let rule = format!(
            "unit: year, requests_per_unit: {LIMIT}, algorithm: {algorithm}, mode: enforce, shards: 8"
        );
        let granted = AtomicU32::new(0);
        let all_connected = Barrier::new(2);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let tollgate = tollgate(&cluster, &rule).await;
                        all_connected.wait();
                        let clients = (0..8).map(|client| {
                            let (tollgate, granted) = (&tollgate, &granted);
                            async move {
                                let hits = 1 + client % 3;
                                let question = question(Some(hits), false);
                                while ask(tollgate, &question).await.0 {
                                    granted.fetch_add(hits as u32, Ordering::Relaxed);
                                }
                            }
                        });
                        futures_util::future::join_all(clients).await;
                    });
                });
            }
        });
        let calls: Vec<u64> =
            calls_of_each(&cluster).into_iter().zip(before).map(|(after, before)| after - before).collect();
        let (granted, sum) = (granted.into_inner(), calls.iter().sum::<u64>());
        println!("{algorithm}: {granted} of {LIMIT} granted, by {calls:?} calls of the three servers");
        assert!((LIMIT - 50..=LIMIT).contains(&granted), "{algorithm}: {granted}");
        // While a refused cost of several parts is on its way back, others may find too little.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (tollgate, mut all) = (tollgate(&cluster, &rule).await, granted);
            eventually("the rest is granted", async || {
                while ask(&tollgate, &question(None, false)).await.0 {
                    all += 1;
                }
                assert!(all <= LIMIT, "{algorithm}: {all}");
                all == LIMIT
            })
            .await;
        });
        // Of eight parts each server has two or three.
        assert!(calls.iter().all(|calls| calls * 6 > sum), "{algorithm}: {calls:?}");
    }
}

#[tokio::test]
async fn what_one_tollgate_gives_back_to_a_split_key_another_may_spend() {
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    let rule = "unit: year, requests_per_unit: 100, mode: enforce, shards: 8";
    let (one, other) = (tollgate(&cluster, rule).await, tollgate(&cluster, rule).await);
    assert_eq!(ask(&one, &question(Some(70), false)).await, (true, 30));
    assert_eq!(ask(&other, &question(Some(31), false)).await, (false, 30), "all parts were asked");
    assert_eq!(ask(&other, &question(Some(30), false)).await, (true, 0));
    assert_eq!(ask(&one, &question(None, false)).await, (false, 0));
    assert_eq!(ask(&other, &question(Some(50), true)).await, (true, 50));
    eventually("near answers have ended", async || ask(&one, &question(Some(50), false)).await == (true, 0))
        .await;
}

#[tokio::test]
async fn each_part_is_in_a_slot_of_its_own_as_the_cluster_counts_them() {
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    let tollgate = tollgate(&cluster, "unit: year, requests_per_unit: 100, shards: 8").await;
    let planned =
        tollgate.plan(&tollgate.loaded().unwrap(), &question(None, false)).unwrap()[0].charge.key.clone();
    assert_eq!(ask(&tollgate, &question(Some(100), false)).await, (true, 0));
    let mut servers = [0; 3];
    for part in 0..8 {
        let key = planned.shard(part).to_string();
        let told = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &key]);
        assert_eq!(told, slot(key.as_bytes()).to_string(), "{key}");
        let server = cluster.owner(slot(key.as_bytes())).expect("all slots are served");
        assert_eq!(cluster.nodes[server].command(&["EXISTS", &key]), "1", "{key}");
        servers[server] += 1;
    }
    servers.sort_unstable();
    assert_eq!(servers, [2, 3, 3]);
}
