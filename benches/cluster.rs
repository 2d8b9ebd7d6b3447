//! A decision in a cluster: CPU of the client and of Redis, for our store and for the naive way.
//!
//! The naive way is what one writes first: the client library's own cluster client, one EVALSHA for each decision. (It
//! does somewhat less here: what follows from a reply is not worked out.) Both run the same script on the same cluster of
//! three shards, in turns, with as many decisions in flight; the medians count. CPU is what the kernel has charged to this
//! process (`utime + stime`) and what each Redis says of itself.
//!
//! Then one hot key, through the whole limiter: as one counter, and with `shards: 8`. What counts there is the share of the
//! busiest server, which is where a cluster ends that has cores enough: decisions a second follow where each server has a
//! core of its own, which is not so where all of them share two.
//!
//! How often our store allocates for a request is counted besides: of one charge, and of three on three shards.
//!
//! `cargo bench --bench cluster`. Needs redis-server.

mod support {
    #[path = "../../tests/support/redis.rs"]
    pub(crate) mod redis;
}
#[path = "support/allocations.rs"]
mod allocations;
#[path = "../tests/support/cluster.rs"]
mod cluster;

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use cluster::{Cluster, Plan, slot_of};
use fred::{
    clients::Client,
    interfaces::{ClientLike, LuaInterface},
    types::{
        Value,
        config::{Config, ServerConfig},
    },
};
use tokio::task::LocalSet;
use tollgate::{
    clock::{Clock, SystemClock},
    key::{Format, Key},
    limit::{Algorithm, Charge, Cost, Entry, Limit, OnRefusal, Role},
    limiter::{Descriptor, Limiter, Options, Question},
    metrics::Metrics,
    rules::{Dialect, FailureMode, compile},
    store::{
        Store,
        memory::MemoryStore,
        redis::{RedisConfig, RedisStore},
        script::{Call, Keys, SPEND},
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Of one turn.
const DECISIONS: usize = 60_000;
const TURNS: usize = 5;
const KEYS: usize = 10_000;
const HOT_IN_FLIGHT: usize = 256;
/// Longer than a busy machine takes.
const PATIENT: Duration = Duration::from_secs(10);

/// `USER_HZ`, the unit of `/proc/self/stat`.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() -> Result<()> {
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{DECISIONS} decisions a turn on three shards, {KEYS} keys, the median of {TURNS} turns");
    println!(
        "{:>10}  {:>22}  {:>22}  {:>13}",
        "in flight", "naive: here, in Redis", "ours: here, in Redis", "ours / naive"
    );
    for in_flight in [1, 16, 256] {
        let [naive, ours] = LocalSet::new().block_on(&runtime, measure(&cluster, in_flight))?;
        let ratio = (ours.0 + ours.1) / (naive.0 + naive.1);
        let us = |(here, there): (f64, f64)| format!("{here:.1} µs, {there:.1} µs");
        println!("{in_flight:>10}  {:>22}  {:>22}  {ratio:>13.2}", us(naive), us(ours));
    }
    println!("\none hot key, {HOT_IN_FLIGHT} in flight, the median of {TURNS} turns");
    println!(
        "{:>10}  {:>12}  {:>12}  {:>34}",
        "shards", "a second", "CPU here", "CPU of each Redis a decision"
    );
    for shards in [1, 2, 8] {
        let hot = LocalSet::new().block_on(&runtime, hot_key(&cluster, shards))?;
        println!("{shards:>10}  {hot}");
    }
    for shards in [1, 3] {
        let calls = LocalSet::new().block_on(&runtime, allocations(&cluster, shards))?;
        println!("{calls:.1} allocations a request of {shards} charges on {shards} shards, 16 in flight");
    }
    Ok(())
}

/// One key through the limiter, far from its limit.
async fn hot_key(cluster: &Cluster, shards: u8) -> Result<String> {
    let store = connected(cluster).await?;
    let options = Options {
        compat: false,
        shadow_mode: false,
        quota_mode: false,
        on_store_failure: FailureMode::Error,
        stop_counting: false,
        fleet_size: 1,
        near_bytes: 1 << 20,
        lease_above: 0,
        keys: Format::OWN,
    };
    let limiter =
        Limiter::new(SystemClock, store, MemoryStore::new(SystemClock, 10), options, Metrics::new());
    let text = format!(
        "domain: d\ntenant: t\ndefault_tier: all\ntiers: {{all: {{rate: 4000000000/s, shards: {shards}}}}}\n"
    );
    let files = BTreeMap::from([("d.yaml".to_owned(), text.into_bytes())]);
    limiter.load(Arc::new(compile(&files, Dialect::default()).map_err(|told| told.to_string())?.rules));
    let limiter = Arc::new(limiter);
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let (before, began) = (cpu_of_each(cluster), SystemClock.instant());
        let limiter = limiter.clone();
        each(HOT_IN_FLIGHT, move |_| {
            let limiter = limiter.clone();
            async move {
                let entries = vec![Entry { key: "t".into(), value: "hot".into() }];
                let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
                let question = Question { domain: "d".into(), descriptors, hits: 0 };
                let loaded = limiter.loaded().expect("rules were loaded");
                let answer = limiter.ask(&loaded, &question, PATIENT).await.expect("the cluster answers");
                assert!(!answer.refused);
            }
        })
        .await;
        let took = SystemClock.instant().duration_since(began).as_secs_f64();
        let us = |(after, before): (f64, f64)| (after - before) * 1e6 / DECISIONS as f64;
        let each: Vec<f64> = cpu_of_each(cluster).into_iter().zip(before).map(us).collect();
        turns.push((DECISIONS as f64 / took, each));
    }
    turns.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (a_second, each) = &turns[TURNS / 2];
    let mut redis = each[1..].to_vec();
    redis.sort_by(f64::total_cmp);
    let [a, b, c] = redis[..] else { return Err("a cluster of three".into()) };
    let busiest = c / (a + b + c) * 100.0;
    Ok(format!(
        "{a_second:>12.0}  {:>9.1} µs  {a:.1} µs, {b:.1} µs, {c:.1} µs: {busiest:.0}% by one",
        each[0]
    ))
}

/// How often a request allocates, what receives its answers included.
async fn allocations(cluster: &Cluster, shards: usize) -> Result<f64> {
    let store = Arc::new(connected(cluster).await?);
    let request: Vec<Charge> = (0..shards)
        .filter_map(|shard| {
            let mut all = (0..).map(charge);
            all.find(|charge| cluster.owner(slot_of(charge.key.as_bytes())) == Some(shard))
        })
        .collect();
    let request: Arc<[Charge]> = request.into();
    let before = allocations::CALLS.load(Relaxed);
    each(16, |_| async {}).await;
    let between = allocations::CALLS.load(Relaxed);
    each(16, move |_| {
        let (store, request) = (store.clone(), request.clone());
        async move {
            assert!(!store.spend(&request, PATIENT).await.expect("the cluster answers").refused);
        }
    })
    .await;
    let after = allocations::CALLS.load(Relaxed);
    Ok(((after - between) as f64 - (between - before) as f64) / DECISIONS as f64)
}

async fn connected(cluster: &Cluster) -> Result<RedisStore> {
    let url = format!("redis-cluster://{}", cluster.nodes[0].address());
    let store = RedisStore::new(&RedisConfig { timeout: PATIENT, ..RedisConfig::new(url) })?;
    store.connect_here();
    store.reach().wait_for(|reach| reach.now).await?;
    Ok(store)
}

/// CPU a decision in microseconds, here and in Redis: of the naive way and of ours.
async fn measure(cluster: &Cluster, in_flight: usize) -> Result<[(f64, f64); 2]> {
    let store = Arc::new(connected(cluster).await?);

    let hosts: Vec<(String, u16)> = cluster.nodes.iter().map(|n| ("127.0.0.1".to_owned(), n.port)).collect();
    let config = Config { server: ServerConfig::new_clustered(hosts), ..Config::default() };
    let naive = Client::new(config, None, None, None);
    naive.init().await?;
    let mut hash = None;
    for node in &cluster.nodes {
        hash = Some(node.command(&["SCRIPT", "LOAD", SPEND]));
    }
    let hash = hash.ok_or("a cluster has nodes")?;

    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let before = cpu(cluster);
        let (naive, hash) = (naive.clone(), hash.clone());
        each(in_flight, move |charge| {
            let (naive, hash) = (naive.clone(), hash.clone());
            async move {
                let call = Call::new([&charge[..]], Keys::Declared, None);
                let words = call.words().map(|word| Value::Bytes(Bytes::copy_from_slice(word)));
                let (mut keys, mut args) = (Vec::new(), words.collect::<Vec<_>>());
                keys.extend(args.drain(..call.keys_declared()).filter_map(|key| key.into_bytes()));
                let reply = naive.evalsha::<Value, _, _, _>(hash, keys, args).await;
                let reply = reply.expect("the cluster answers");
                assert!(reply.is_array());
            }
        })
        .await;
        let between = cpu(cluster);
        let store = store.clone();
        each(in_flight, move |charge| {
            let store = store.clone();
            async move {
                let decision = store.spend(&charge, PATIENT).await.expect("the cluster answers");
                assert!(!decision.refused);
            }
        })
        .await;
        let after = cpu(cluster);
        theirs.push((between.0 - before.0, between.1 - before.1));
        ours.push((after.0 - between.0, after.1 - between.1));
    }
    Ok([theirs, ours].map(median))
}

/// All decisions of a turn, so many at a time.
async fn each<F: Future<Output = ()> + 'static>(
    in_flight: usize,
    decide: impl Fn([Charge; 1]) -> F + 'static,
) {
    let decide = Arc::new(decide);
    let tasks = (0..in_flight).map(|task| {
        let decide = decide.clone();
        tokio::task::spawn_local(async move {
            for i in (task..DECISIONS).step_by(in_flight) {
                decide([charge(i)]).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.expect("no decision fails");
    }
}

/// A hit of a limit that is never reached.
fn charge(i: usize) -> Charge {
    let limit = Limit::new(Algorithm::TokenBucket, u32::MAX, 1_000_000, None).expect("a valid limit");
    Charge {
        // Steps that meet all keys, and no two alike close to each other.
        key: Key::from_text(&format!("tg:bench:user=u{}", i * 7919 % KEYS)),
        limit,
        cost: Cost::Spend(1.try_into().expect("1 is not 0")),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

/// In seconds: of this process, and of all nodes.
fn cpu(cluster: &Cluster) -> (f64, f64) {
    let each = cpu_of_each(cluster);
    (each[0], each[1..].iter().sum())
}

/// In seconds: of this process, and of each node.
fn cpu_of_each(cluster: &Cluster) -> Vec<f64> {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks = |i: usize| fields[i].parse::<f64>().expect("a number");
    let nodes = cluster.nodes.iter().map(|node| {
        let info = node.command(&["INFO", "cpu"]);
        let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        value("used_cpu_sys:").unwrap_or(0.0) + value("used_cpu_user:").unwrap_or(0.0)
    });
    std::iter::once((ticks(11) + ticks(12)) / TICKS_PER_SECOND).chain(nodes).collect()
}

fn median(mut turns: Vec<(f64, f64)>) -> (f64, f64) {
    turns.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
    let (here, there) = turns[turns.len() / 2];
    let us = |seconds: f64| seconds * 1e6 / DECISIONS as f64;
    (us(here), us(there))
}
