//! What a million keys in memory cost: bytes a key, and how much longer a decision takes than among a thousand.
//!
//! A decision among a million keys finds its counter in memory that no cache holds, and no table can change that. So beside
//! the store there is the floor: one that reads and writes as many lines of memory, each found through the one before,
//! and decides nothing. What is asked in life is the ratio of a whole answer, from the bytes of a request to those of a
//! response.
//!
//! Each decision is timed alone, and all contestants take turns, so that what else the machine does meets them all.
//!
//! `cargo bench --bench keys`. Memory is what the kernel says is resident, so it needs Linux.

use std::{
    collections::BTreeMap,
    env, fs,
    hint::black_box,
    num::NonZeroU64,
    pin::pin,
    process::Command,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use tollgate::{
    clock::{Clock, SystemClock},
    key::Key,
    limit::{Algorithm, Charge, Cost, Limit, OnRefusal, Role},
    limiter::Limiter,
    metrics::Metrics,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    rules::{Dialect, compile},
    service::Service,
    settings::{RawSettings, Settings},
    store::memory::MemoryStore,
};

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;

/// More than there are keys, for they do not spread evenly over the store's shards.
const KEYS_MAX: usize = 1_200_000;

/// Decisions that are timed of each contestant.
const DECISIONS: usize = 1_000_000;

/// How many of them in turn.
const TURN: usize = 10_000;

/// Never reached, and a hit comes back after minutes, so that all keys are still there when the bench ends.
const RULES: &str = "\
domain: bench
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 100000, algorithm: token_bucket } }
";

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow];

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, bytes, of, key_bytes] = &arguments[..]
        && bytes == "bytes"
    {
        let algorithm = ALGORITHMS.into_iter().find(|algorithm| algorithm.as_str() == of);
        let algorithm = algorithm.expect("the name of an algorithm");
        println!("{:.1}", bytes_a_key(algorithm, key_bytes.parse().expect("a length")));
        return;
    }
    println!("bytes a key, {MANY} keys such as {}", key(&limit(Algorithm::TokenBucket), 0));
    for algorithm in ALGORITHMS {
        println!("  {:<30} {:>6}", algorithm.as_str(), in_a_process_of_its_own(algorithm, 0));
    }
    let long = in_a_process_of_its_own(Algorithm::TokenBucket, 160);
    println!("  {:<30} {long:>6}", "keys of 160 bytes");
    times();
}

/// What is freed stays with a process, so each figure needs its own.
fn in_a_process_of_its_own(algorithm: Algorithm, key_bytes: usize) -> String {
    let own = env::current_exe().expect("this is a program");
    let output = Command::new(own).args(["bytes", algorithm.as_str(), &key_bytes.to_string()]).output();
    String::from_utf8(output.expect("it starts again").stdout).expect("a number").trim().to_owned()
}

fn times() {
    let mut contestants = [
        Contestant::new("answer", FEW, answer(FEW)),
        Contestant::new("answer", MANY, answer(MANY)),
        Contestant::new("store alone", FEW, store(FEW)),
        Contestant::new("store alone", MANY, store(MANY)),
        Contestant::new("floor: two lines of memory", FEW, floor(FEW)),
        Contestant::new("floor: two lines of memory", MANY, floor(MANY)),
    ];
    for _ in 0..DECISIONS / TURN {
        contestants.iter_mut().for_each(Contestant::turn);
    }
    println!("\nns a decision, timed one by one ({} ns of it is the clock)", clock_ns());
    println!("{:<30} {:>9} {:>7} {:>7} {:>7}", "", "keys", "p50", "p99", "p999");
    for pair in contestants.chunks_exact_mut(2) {
        for contestant in &mut *pair {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| contestant.quantile(part));
            println!("{:<30} {:>9} {p50:>7} {p99:>7} {p999:>7}", contestant.name, contestant.keys);
        }
        let [p50, p99] = [0.5, 0.99].map(|part| {
            let [few, many] = [0, 1].map(|index| f64::from(pair[index].quantile(part)));
            many / few
        });
        println!("{:<30} {:>9} {p50:>7.2} {p99:>7.2}", "", "ratio");
        let [p50, p99] = [0.5, 0.99].map(|part| {
            let [few, many] = [0, 1].map(|index| i64::from(pair[index].quantile(part)));
            many - few
        });
        println!("{:<30} {:>9} {p50:>7} {p99:>7}", "", "added");
    }
}

struct Contestant {
    name: &'static str,
    keys: usize,
    /// Decides about a key, from 0.
    decide: Box<dyn FnMut(usize)>,
    random: u64,
    ns: Vec<u32>,
}

impl Contestant {
    /// Has every key asked for once.
    fn new(name: &'static str, keys: usize, mut decide: impl FnMut(usize) + 'static) -> Self {
        (0..keys).for_each(&mut decide);
        Self { name, keys, decide: Box::new(decide), random: 1, ns: Vec::with_capacity(DECISIONS) }
    }

    fn turn(&mut self) {
        // Warms what the others have cooled; as much of it as is warm in life.
        for timed in [false, true] {
            for _ in 0..TURN {
                self.random = self
                    .random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let key = (self.random >> 33) as usize % self.keys;
                let began = SystemClock.instant();
                (self.decide)(key);
                let ns = SystemClock.instant().duration_since(began).as_nanos();
                if timed {
                    self.ns.push(u32::try_from(ns).unwrap_or(u32::MAX));
                }
            }
        }
    }

    fn quantile(&mut self, part: f64) -> u32 {
        let index = (part * self.ns.len() as f64) as usize;
        *self.ns.select_nth_unstable(index).1
    }
}

fn clock_ns() -> u128 {
    let began = SystemClock.instant();
    (0..TURN).for_each(|_| {
        black_box(SystemClock.instant());
    });
    SystemClock.instant().duration_since(began).as_nanos() / TURN as u128
}

// === Contestants ===

fn answer(keys: usize) -> impl FnMut(usize) {
    let settings = Settings::compile(&RawSettings::default()).expect("the defaults are settings");
    let files = BTreeMap::from([("bench.yaml".to_owned(), RULES.as_bytes().to_vec())]);
    let rules = compile(&files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}")).rules;
    let stores = [KEYS_MAX, 1].map(|keys_max| MemoryStore::new(SystemClock, keys_max));
    let [store, local] = stores;
    let limiter = Limiter::new(SystemClock, store, local, (&settings).into(), Metrics::new());
    limiter.load(Arc::new(rules));
    let service =
        Service::new(SystemClock, Arc::new(limiter), settings.answers.clone(), Metrics::new(), None);
    // As they come from a socket: all at once, so that the messages of a million keys are no part of what is cold.
    let mut message = request(0).encode_to_vec();
    let digits = message.len() - DIGITS..message.len();
    let headers = HeaderMap::new();
    assert!(keys <= 10_usize.pow(DIGITS as u32));
    move |key| {
        write_digits(key, &mut message[digits.clone()]);
        let asked = service.should_rate_limit(Bytes::copy_from_slice(&message), service.call(&headers));
        match pin!(asked).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(frame)) => drop(black_box(frame)),
            other => panic!("{other:?}"),
        }
    }
}

fn store(keys: usize) -> impl FnMut(usize) {
    let store = MemoryStore::new(SystemClock, KEYS_MAX);
    let limit = limit(Algorithm::TokenBucket);
    // In life, too, a caller has just written the key that he asks for.
    let mut text = key(&limit, keys - 1).to_string();
    let start = text.find('=').expect("a value follows") + 1;
    let mut charge = charge(Key::from_text(&text), limit);
    move |user| {
        let mut digits = [0; DIGITS];
        write_digits(user, &mut digits);
        text.replace_range(start..start + DIGITS, str::from_utf8(&digits).expect("digits are text"));
        charge.key = Key::from_text(&text);
        black_box(store.decide(std::slice::from_ref(&charge)));
    }
}

/// Four bytes that say where 64 others are, which are written, as if there were one table without a shard.
fn floor(keys: usize) -> impl FnMut(usize) {
    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct Line([u64; 8]);
    // Any odd factor permutes numbers below a power of two.
    let room = (2 * keys).next_power_of_two();
    let heads: Vec<u32> = (0..room).map(|chain| (chain.wrapping_mul(0x9e37_79b1) % keys) as u32).collect();
    let mut lines = vec![Line([1; 8]); keys];
    move |key| {
        let line = &mut lines[heads[key.wrapping_mul(0x85eb_ca6b) % room] as usize];
        line.0[0] += line.0[7];
        black_box(line.0[0]);
    }
}

// === Keys ===

const DIGITS: usize = 6;

fn write_digits(mut number: usize, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn request(user: usize) -> RateLimitRequest {
    let entry = Entry { key: "user".into(), value: format!("{user:0DIGITS$}").into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 0 }
}

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, 100_000, 365 * 86_400_000_000, None).expect("100,000 a year is a limit")
}

fn key(limit: &Limit, user: usize) -> Key {
    let value = format!("{user:0DIGITS$}");
    Key::new(None, b"bench", |parts| parts.entry(b"user", value.as_bytes()), None, limit)
}

fn charge(key: Key, limit: Limit) -> Charge {
    let cost = Cost::Spend(NonZeroU64::MIN);
    Charge { key, limit, cost, role: Role::Enforce, on_refusal: OnRefusal::Keep }
}

/// Keys are at least so long.
fn bytes_a_key(algorithm: Algorithm, key_bytes: usize) -> f64 {
    let limit = limit(algorithm);
    let before = resident();
    let store = MemoryStore::new(SystemClock, KEYS_MAX);
    for user in 0..MANY {
        let key = Key::from_text(&format!("{:x>key_bytes$}", key(&limit, user).to_string()));
        store.decide(&[charge(key, limit)]);
    }
    assert_eq!((store.len(), store.evictions()), (MANY, 0), "all keys are there");
    (resident() - before) as f64 / MANY as f64
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages =
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages");
    pages * rustix::param::page_size() as u64
}
