//! What a counter costs Redis in memory, for each algorithm, beside the form of envoyproxy/ratelimit.
//!
//! A real service counts one hit of each of many users, with rules that differ in nothing but their algorithm; then Redis is
//! asked for the bytes of each key (`MEMORY USAGE`: key, value and entry) and for all that it has used since (`used_memory`:
//! tables and expiry besides). `KEY_FORMAT=reference` writes the reference's own keys, so its row is what that costs.
//!
//! `cargo bench --bench redis_keys`. Needs redis-server. It is about bytes, so a debug build says the same:
//! `cargo test --bench redis_keys`.

#![expect(clippy::unwrap_used, reason = "a bench that cannot go on stops")]

#[path = "../tests/support/mod.rs"]
mod support;

use support::{redis::RedisServer, tollgate::Served};
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
};

/// Counters a row. Redis' tables are as full as they become then: just below a power of two.
const USERS: usize = 16_000;

/// What is asked for and how; each row with a Redis of its own.
struct Row {
    name: &'static str,
    algorithm: &'static str,
    format: &'static str,
    /// Of a user's name, in bytes.
    name_bytes: usize,
}

const fn row(name: &'static str, algorithm: &'static str, format: &'static str, name_bytes: usize) -> Row {
    Row { name, algorithm, format, name_bytes }
}

const ROWS: [Row; 8] = [
    row("token_bucket", "token_bucket", "tollgate", 12),
    row("gcra", "gcra", "tollgate", 12),
    row("sliding_window", "sliding_window", "tollgate", 12),
    row("fixed_window", "fixed_window", "tollgate", 12),
    row("envoyproxy/ratelimit's form", "fixed_window", "reference", 12),
    row("token_bucket, names of 300 bytes", "token_bucket", "tollgate", 300),
    row("fixed_window, names of 300 bytes", "fixed_window", "tollgate", 300),
    row("envoyproxy/ratelimit's form, names of 300 bytes", "fixed_window", "reference", 300),
];

fn main() {
    println!("{USERS} users of one limit of a year, a hit each; names of 12 bytes; bytes a key\n");
    println!("| | `MEMORY USAGE` | `used_memory` | a key |");
    println!("|---|---|---|---|");
    for row in ROWS {
        let Bytes { usage, used, example } = measure(&row);
        let shown = if example.len() > 80 { format!("{}…", &example[..40]) } else { example };
        println!("| {} | {usage:.0} | {used:.0} | `{shown}` |", row.name);
    }
}

/// A key, on the average.
struct Bytes {
    usage: f64,
    used: f64,
    example: String,
}

fn measure(row: &Row) -> Bytes {
    let redis = RedisServer::start(&[]);
    let rules = tempfile::tempdir().unwrap();
    let limit = format!("{{unit: year, requests_per_unit: 1000, algorithm: {}}}", row.algorithm);
    let text = format!("domain: shop\ndescriptors:\n- {{key: user, rate_limit: {limit}}}\n");
    std::fs::write(rules.path().join("shop.yaml"), text).unwrap();
    let address = redis.address();
    let settings = [("REDIS_URL", &*address), ("KEY_FORMAT", row.format), ("STORE_TIMEOUT", "10s")];
    let mut served = Served::start(rules.path(), &settings);
    let grpc = served.address("grpc");
    served.line("health: SERVING");
    let before = used_memory(&redis);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(hit_each(&grpc, row.name_bytes));
    let after = used_memory(&redis);
    let keys = redis.command(&["KEYS", "*"]);
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!(keys.len(), USERS, "a counter for each user");
    let usage = |key: &&str| redis.command(&["MEMORY", "USAGE", key]).parse::<f64>().unwrap();
    // They differ by their expiry at most, and each question is a connection.
    let asked = keys.iter().take(200);
    let usage = asked.clone().map(usage).sum::<f64>() / asked.len() as f64;
    Bytes { usage, used: (after - before) / USERS as f64, example: keys[0].to_owned() }
}

async fn hit_each(grpc: &str, name_bytes: usize) {
    let channel = tonic::transport::Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = RateLimitServiceClient::new(channel.connect().await.unwrap());
    for i in 0..USERS {
        let name = format!("{i:0>name_bytes$}");
        let entry = Entry { key: "user".into(), value: name.into_bytes().into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let request =
            RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor], hits_addend: 1 };
        client.should_rate_limit(request).await.unwrap();
    }
}

fn used_memory(redis: &RedisServer) -> f64 {
    let info = redis.command(&["INFO", "memory"]);
    info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().parse().unwrap()
}
