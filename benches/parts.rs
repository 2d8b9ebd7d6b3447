//! What the parts of a decision cost, alone: time by criterion, and how often each allocates.
//!
//! Nothing here waits, so a change of some percent shows, which it does not in a whole server. What a part is worth can be
//! read off against the whole: `cargo bench --bench decision`.
//!
//! `cargo bench --bench parts`; `-- --save-baseline before`, and after a change `-- --baseline before`.

#[path = "support/allocations.rs"]
mod allocations;

use std::{
    collections::BTreeMap,
    hint::black_box,
    num::NonZeroU64,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocations::CALLS;
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::HeaderMap;
use prost::Message;
use tollgate::{
    algorithm::{Counter, State, Write, decide},
    clock::{Clock, Micros, SystemClock},
    key::Key,
    limit::{Algorithm, Charge, Cost, Entry, Limit, OnRefusal, Role},
    limiter::Limiter,
    metrics::Metrics,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
    rules::{Dialect, RuleSet, compile},
    service::{Deadline, Service},
    settings::{RawSettings, Settings},
    store::memory::MemoryStore,
};

/// The limits are never reached, so that all calls take the same way.
const RULES: &str = "\
domain: api
tenant: tenant
route: route
default_tier: free
tiers:
  free: { rate: 4294967295/s, burst: 4294967295, routes: { search: { rate: 4294967295/s } } }
tenants:
  acme: { tier: free }
";

/// Calls that allocations are counted over, after as many that fill tables.
const COUNTED: usize = 1_000;

criterion_group! {
    name = parts;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = algorithms, find, keys, decode, encode, answer
}
criterion_main!(parts);

/// Times a part, and says how often a call of it allocates.
fn part(criterion: &mut Criterion, name: &str, mut call: impl FnMut()) {
    (0..COUNTED).for_each(|_| call());
    let before = CALLS.load(Relaxed);
    (0..COUNTED).for_each(|_| call());
    let calls = (CALLS.load(Relaxed) - before) as f64 / COUNTED as f64;
    println!("{name:<40} allocations a call: {calls}");
    criterion.bench_function(name, |bencher| bencher.iter(&mut call));
}

/// One charge on one counter, again and again, a microsecond apart.
fn algorithms(criterion: &mut Criterion) {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow]
    {
        let limit = Limit::new(algorithm, 1_000_000, 1_000_000, None).expect("a million a second is a limit");
        let charge = charge(limit);
        let (mut now, mut state) = (Micros(1_800_000_000_000_000), None::<State>);
        part(criterion, &format!("decide/{}", algorithm.as_str()), || {
            now.0 += 1;
            let mut counters = [Counter::new(state)];
            black_box(decide(now, black_box(std::slice::from_ref(&charge)), &mut counters, |_| 0));
            match counters[0].write() {
                Write::Put(after, _) => state = Some(after),
                Write::Delete => state = None,
                Write::Nothing => {}
            }
        });
    }
}

fn charge(limit: Limit) -> Charge {
    Charge {
        key: Key::new(None, b"api", |parts| parts.entry(b"user", b"ann"), None, &limit),
        limit,
        cost: Cost::Spend(NonZeroU64::MIN),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

fn find(criterion: &mut Criterion) {
    let rules = rules();
    let domain = rules.domain(b"api").expect("the domain is named");
    let entries = [entry("tenant", "acme"), entry("route", "search")];
    part(criterion, "find/tenant and route", || {
        black_box(domain.find(black_box(&entries)).rules().next());
    });
}

fn keys(criterion: &mut Criterion) {
    let limit = Limit::new(Algorithm::TokenBucket, 1, 1_000_000, None).expect("one a second is a limit");
    let long = [b'x'; 4_096];
    for (name, tenant, value) in [
        ("key/readable", None, &b"ann"[..]),
        ("key/of a tenant", Some(&b"acme"[..]), b"ann"),
        ("key/of 4 KiB, hashed", None, &long),
    ] {
        part(criterion, name, || {
            black_box(Key::new(tenant, b"api", |parts| parts.entry(b"user", black_box(value)), None, &limit));
        });
    }
}

/// By prost, which sees only what is not plain; the service's own way is part of `answer`.
fn decode(criterion: &mut Criterion) {
    for descriptors in [1, 3] {
        let bytes = Bytes::from(request(descriptors).encode_to_vec());
        part(criterion, &format!("decode/descriptors {descriptors}, by prost"), || {
            black_box(RateLimitRequest::decode(black_box(bytes.clone())).expect("it was just encoded"));
        });
    }
}

/// What the service itself answers, so that it is as long as in life; by prost, as it is not any more.
fn encode(criterion: &mut Criterion) {
    let service = service();
    for descriptors in [1, 3] {
        let response = at_once(&service, request(descriptors));
        let mut buffer = Vec::with_capacity(1_024);
        part(criterion, &format!("encode/statuses {descriptors}, by prost"), || {
            buffer.clear();
            black_box(&response).encode(&mut buffer).expect("a vector grows");
        });
    }
}

/// All that a request costs beside HTTP/2, from the bytes of a message to those of a frame.
fn answer(criterion: &mut Criterion) {
    let service = service();
    let headers = HeaderMap::new();
    for descriptors in [1, 3] {
        let message = Bytes::from(request(descriptors).encode_to_vec());
        part(criterion, &format!("answer/descriptors {descriptors}, memory store"), || {
            let answer = pin!(service.should_rate_limit(message.clone(), service.call(&headers)));
            match answer.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(frame)) => drop(black_box(frame)),
                other => panic!("{other:?}"),
            }
        });
    }
}

type Answering = Service<SystemClock, MemoryStore<SystemClock>>;

fn service() -> Answering {
    let settings = Settings::compile(&RawSettings::default()).expect("the defaults are settings");
    let store = || MemoryStore::new(SystemClock, 100_000);
    let limiter = Limiter::new(SystemClock, store(), store(), (&settings).into(), Metrics::new());
    limiter.load(Arc::new(rules()));
    Service::new(SystemClock, Arc::new(limiter), settings.answers.clone(), Metrics::new(), None)
}

/// The memory store never waits.
fn at_once(service: &Answering, request: RateLimitRequest) -> RateLimitResponse {
    let deadline = Deadline::after(Duration::from_secs(1), SystemClock.instant());
    let answer = pin!(service.answer(request, deadline));
    match answer.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response,
        other => panic!("{other:?}"),
    }
}

fn rules() -> RuleSet {
    let files = BTreeMap::from([("api.yaml".to_owned(), RULES.as_bytes().to_vec())]);
    compile(&files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}")).rules
}

/// About so many tenants; one of them has a row of its own.
fn request(descriptors: usize) -> RateLimitRequest {
    let entry = |key: &str, value: &str| rate_limit_descriptor::Entry {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    let descriptor = |tenant: &&str| RateLimitDescriptor {
        entries: vec![entry("tenant", tenant), entry("route", "search")],
        ..RateLimitDescriptor::default()
    };
    let tenants = ["acme", "globex", "initech"];
    RateLimitRequest {
        domain: "api".into(),
        descriptors: tenants[..descriptors].iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

fn entry(key: &'static str, value: &'static str) -> Entry {
    Entry { key: Bytes::from_static(key.as_bytes()), value: Bytes::from_static(value.as_bytes()) }
}
