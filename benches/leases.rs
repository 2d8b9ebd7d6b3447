//! What leases spare Redis, and what they cost callers: decisions of Redis a request and the share that is granted, with
//! leases and without.
//!
//! Two Tollgates in this process, before one Redis of their own, are asked at a steady rate for keys by Zipf's law (1.1 over
//! 1,000,000), which is what a few hot clients among many look like. Each row is the same requests twice: with
//! `LEASE_ABOVE=0` and with `LEASE_ABOVE=10`. The last rows are one hot key, saturated: its limit far away, and to its end.
//!
//! `cargo bench --bench leases`. Needs redis-server. On a machine that does nothing else.

#[path = "../tests/support/redis.rs"]
mod redis;
mod support {
    pub(crate) use super::redis;
}

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, Zipf};
use support::redis::RedisServer;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::{
    clock::SystemClock,
    key::Format,
    limit::Entry,
    limiter::{Descriptor, Limiter, Options, Question},
    metrics::Metrics,
    rules::{Dialect, FailureMode, compile},
    store::{
        memory::MemoryStore,
        redis::{RedisConfig, RedisStore},
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Tollgate = Limiter<SystemClock, RedisStore>;

const KEYS: f64 = 1_000_000.0;
const EXPONENT: f64 = 1.1;
const TOLLGATES: usize = 2;
/// Requests a second of each Tollgate, and for how long.
const RATE: u64 = 500;
const SECONDS: u64 = 10;
const PATIENT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "Zipf {EXPONENT} over {KEYS} keys, {TOLLGATES} Tollgates, {RATE} requests a second each, for {SECONDS} s"
    );
    println!(
        "{:>14} {:>12} {:>10} {:>22} {:>14}",
        "limit a key", "LEASE_ABOVE", "granted", "decisions a request", "calls a request"
    );
    for limit in ["1000/s", "20/s"] {
        for lease_above in [0, 10] {
            let told = runtime.block_on(zipf(limit, lease_above))?;
            println!("{limit:>14} {lease_above:>12} {told}");
        }
    }
    println!("\none hot key, saturated by 64 callers of each of {TOLLGATES} Tollgates");
    println!(
        "{:>14} {:>12} {:>10} {:>22} {:>14}",
        "limit", "lease", "granted", "decisions a request", "calls a request"
    );
    for (limit, lease) in [("1000000000/y", "0"), ("1000000000/y", "50"), ("20000/y", "50"), ("100/y", "50")]
    {
        let told = runtime.block_on(hot(limit, lease))?;
        println!("{limit:>14} {lease:>12} {told}");
    }
    Ok(())
}

/// What came of some requests.
struct Told {
    requests: u64,
    /// Requests that were not answered here.
    decisions: u64,
    calls: u64,
    granted: String,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |part: u64| part as f64 / self.requests as f64;
        write!(
            f,
            "{:>10} {:>22.3} {:>14.3}  {} requests",
            self.granted,
            of(self.decisions),
            of(self.calls),
            self.requests
        )
    }
}

async fn zipf(limit: &str, lease_above: u32) -> Result<Told> {
    let world = World::new(&format!("{{rate: {limit}}}"), lease_above).await?;
    let granted = AtomicU64::new(0);
    let asked = world.tollgates.iter().zip(1..).map(|(tollgate, seed)| {
        let granted = &granted;
        async move {
            let (law, mut dice) =
                (Zipf::new(KEYS, EXPONENT).expect("a law"), Xoshiro256PlusPlus::seed_from_u64(seed));
            let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut under_way = tokio::task::JoinSet::new();
            for _ in 0..RATE * SECONDS {
                ticks.tick().await;
                let (tollgate, key) = (tollgate.clone(), law.sample(&mut dice) as u64);
                under_way.spawn(async move { ask(&tollgate, key).await });
                while let Some(done) = under_way.try_join_next() {
                    granted.fetch_add(u64::from(done.expect("no task panics")), Relaxed);
                }
            }
            while let Some(done) = under_way.join_next().await {
                granted.fetch_add(u64::from(done.expect("no task panics")), Relaxed);
            }
        }
    });
    let keeping = async {
        // As the service does.
        let mut ticks = interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            for tollgate in &world.tollgates {
                tollgate.give_back_leases(false).await;
            }
        }
    };
    tokio::select! {
        _ = join_all(asked) => {}
        () = keeping => {}
    }
    let requests = TOLLGATES as u64 * RATE * SECONDS;
    let granted = granted.into_inner();
    Ok(world.told(requests, format!("{:.1}%", granted as f64 / requests as f64 * 100.0)))
}

/// Until it is over, or for as long as that takes.
async fn hot(limit: &str, lease: &str) -> Result<Told> {
    const REQUESTS: u64 = 400_000;
    let world = World::new(&format!("{{rate: {limit}, lease: {lease}}}"), 0).await?;
    let (granted, asked) = (AtomicU64::new(0), AtomicU64::new(0));
    let callers =
        world.tollgates.iter().flat_map(|tollgate| std::iter::repeat_n(tollgate, 64)).map(|tollgate| async {
            while asked.fetch_add(1, Relaxed) < REQUESTS && ask(tollgate, 0).await {
                granted.fetch_add(1, Relaxed);
            }
        });
    join_all(callers).await;
    let (granted, asked) = (granted.into_inner(), asked.into_inner().min(REQUESTS));
    let most = limit.split('/').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(asked);
    Ok(world.told(asked, format!("{:.1}%", granted as f64 / most.min(asked) as f64 * 100.0)))
}

struct World {
    redis: RedisServer,
    tollgates: Vec<Arc<Tollgate>>,
    metrics: Vec<Arc<Metrics>>,
}

impl World {
    async fn new(tier: &str, lease_above: u32) -> Result<Self> {
        let redis = RedisServer::start(&[]);
        let text = format!("domain: d\ntenant: user\ndefault_tier: all\ntiers:\n  all: {tier}\n");
        let files = BTreeMap::from([("d.yaml".to_owned(), text.into_bytes())]);
        let compiled = compile(&files, Dialect::default()).map_err(|mistakes| mistakes.to_string())?;
        let rules = Arc::new(compiled.rules);
        let (mut tollgates, mut metrics) = (Vec::new(), Vec::new());
        for _ in 0..TOLLGATES {
            let config = RedisConfig { timeout: PATIENT, ..RedisConfig::new(redis.address()) };
            let store = RedisStore::new(&config)?;
            store.connect_here();
            store.reach().wait_for(|reach| reach.now).await?;
            let options = Options {
                compat: false,
                shadow_mode: false,
                quota_mode: false,
                on_store_failure: FailureMode::Error,
                stop_counting: false,
                fleet_size: TOLLGATES as u32,
                near_bytes: 1 << 20,
                lease_above,
                keys: Format::OWN,
            };
            let local = MemoryStore::new(SystemClock, 10);
            metrics.push(Metrics::new());
            let counted = Arc::clone(&metrics[metrics.len() - 1]);
            let tollgate = Limiter::new(SystemClock, store, local, options, counted);
            tollgate.load(rules.clone());
            tollgates.push(Arc::new(tollgate));
        }
        Ok(Self { redis, tollgates, metrics })
    }

    fn told(&self, requests: u64, granted: String) -> Told {
        let stats = self.redis.command(&["INFO", "commandstats"]);
        let calls = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok());
        let here = self.metrics.iter().map(|of| of.near_answers.get() + of.leases.answers.get()).sum::<u64>();
        Told { requests, decisions: requests - here, calls: calls.unwrap_or(0), granted }
    }
}

async fn ask(tollgate: &Tollgate, key: u64) -> bool {
    let entries = vec![Entry { key: "user".into(), value: key.to_string().into() }];
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    let question = Question { domain: "d".into(), descriptors, hits: 0 };
    let loaded = tollgate.loaded().expect("rules were loaded");
    !tollgate.ask(&loaded, &question, PATIENT).await.expect("Redis answers").refused
}
