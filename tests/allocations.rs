//! What an answer allocates: in the limiter nothing, as long as a request has a few descriptors and its keys are known, in
//! all the lists of the question and the bytes of the answer.
//!
//! The process counts what it allocates, so this is one test: others beside it would be counted, too.

#[path = "../benches/support/allocations.rs"]
mod allocations;

use std::{
    collections::BTreeMap,
    fmt::Write,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocations::CALLS;
use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use tollgate::{
    clock::{Clock, SystemClock},
    limit::{Charge, Decision, Entry},
    limiter::{Answer, Begun, Descriptor, Limiter, Loaded, Question},
    metrics::Metrics,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::RateLimitRequest,
    },
    rules::{Dialect, compile},
    service::{Service, headers},
    settings::{RawSettings, Settings},
    store::{ShardHealth, Store, StoreError, memory::MemoryStore},
};

const RULES: &str = "\
domain: api
descriptors:
- key: user
  rate_limit: { unit: hour, requests_per_unit: 1000000 }
- key: address
  rate_limit: { unit: hour, requests_per_unit: 1000000, algorithm: token_bucket, burst: 1000000 }
- key: path
  rate_limits:
  - { unit: minute, requests_per_unit: 1000000, algorithm: sliding_window }
  - { unit: hour, requests_per_unit: 1000000, algorithm: gcra, name: hourly }
- key: full
  rate_limit: { unit: year, requests_per_unit: 1 }
- key: trial
  shadow_mode: true
  rate_limit: { unit: year, requests_per_unit: 1 }
";

#[test]
fn an_answer_of_a_few_descriptors_allocates_nothing_in_the_limiter() {
    let here = limiter(MemoryStore::new(SystemClock, 1_000));
    let elsewhere = limiter(Elsewhere(MemoryStore::new(SystemClock, 1_000)));
    let three: &[&str] = &["user=ann", "address=203.0.113.7", "path=/v1/orders"];
    let mut told = String::new();
    for (what, descriptors, refused) in [
        ("one descriptor, passed", &["user=ann"][..], false),
        ("three descriptors of four limits, passed", three, false),
        ("one descriptor, refused", &["full=ann"], true),
        ("three descriptors, one of them refused", &["user=ann", "full=ann", "address=203.0.113.7"], true),
        ("a limit on trial that is over", &["trial=ann"], false),
        ("a domain's descriptor without a rule beside one with", &["trial=ann", "user=ann"], false),
    ] {
        let allocated = in_limiter(&here, descriptors, refused);
        writeln!(told, "allocations of a decision in the limiter: {allocated} ({what})").unwrap();
    }
    let allocated = in_limiter(&elsewhere, &["full=ann"], true);
    writeln!(told, "allocations of a decision in the limiter: {allocated} (a near answer)").unwrap();
    let allocated = in_limiter(&elsewhere, &["full=ann", "full=bob", "full=eve"], true);
    writeln!(told, "allocations of a decision in the limiter: {allocated} (three near answers)").unwrap();

    let service = Service::new(SystemClock, Arc::new(here), settings().answers.clone(), Metrics::new(), None);
    for (descriptors, most) in [(&["user=ann"][..], 3), (three, 5)] {
        let allocated = in_all(&service, descriptors);
        writeln!(told, "allocations of an answer in all: {allocated} ({} descriptors)", descriptors.len())
            .unwrap();
        assert!(allocated <= most, "{told}");
    }
    println!("{told}");
    let in_limiter = told.lines().filter(|line| line.contains("in the limiter"));
    assert!(
        in_limiter.clone().count() == 8 && in_limiter.clone().all(|line| line.contains(": 0 ")),
        "{told}"
    );
}

/// A store that is elsewhere as far as the limiter knows, so that near answers stand before it.
struct Elsewhere(MemoryStore<SystemClock>);

impl Store for Elsewhere {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        self.0.spend(charges, within).await
    }

    fn health(&self) -> Vec<ShardHealth> {
        self.0.health()
    }
}

/// From the question to the answer's headers, when its keys are known.
fn in_limiter<S: Store>(limiter: &Limiter<SystemClock, S>, descriptors: &[&str], refused: bool) -> usize {
    let entry = |(key, value): (&str, &str)| Entry {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    let descriptor = |text: &&str| Descriptor {
        entries: text.split_once('=').map(entry).into_iter().collect(),
        ..Descriptor::default()
    };
    let question = Question {
        domain: Bytes::from_static(b"api"),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits: 0,
    };
    let loaded = limiter.loaded().expect("rules were loaded");
    let ask = |question: &Question| {
        at_once(limiter.ask(&loaded, question, Duration::from_secs(1))).expect("an answer");
    };
    // The first time a key is made, the second time it is learned that it is over; of each alone, since a request spends all
    // or nothing.
    for descriptor in &question.descriptors {
        let alone = Question { descriptors: vec![descriptor.clone()], ..question.clone() };
        (0..2).for_each(|_| ask(&alone));
    }
    ask(&question);
    let style = settings().answers.headers;
    counted(|| {
        let answer = begun(limiter, &loaded, &question);
        assert_eq!(answer.refused, refused, "{descriptors:?}");
        let headers = headers::headers(&answer, &style, || SystemClock.now(), || 0);
        assert!(headers.len() >= 2 || descriptors == ["trial=ann"], "{headers:?}");
    })
}

fn begun<'r, S: Store>(
    limiter: &Limiter<SystemClock, S>,
    loaded: &'r Loaded,
    question: &Question,
) -> Answer<'r> {
    match limiter.begin(loaded, question) {
        Ok(Begun::Answered(answer)) => answer,
        other => panic!("the store is asked, or there is no answer: {other:?}"),
    }
}

/// From the bytes of a message to those of a frame.
fn in_all(service: &Service<SystemClock, MemoryStore<SystemClock>>, descriptors: &[&str]) -> usize {
    let entry = |(key, value): (&str, &str)| rate_limit_descriptor::Entry {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    let descriptor = |text: &&str| RateLimitDescriptor {
        entries: text.split_once('=').map(entry).into_iter().collect(),
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    let request = RateLimitRequest { domain: "api".into(), descriptors, hits_addend: 0 };
    // As it comes from a socket: its bytes are shared with those of other messages.
    let message = Bytes::from(request.encode_to_vec());
    let _other = message.clone();
    let headers = HeaderMap::new();
    counted(|| {
        let call = service.call(&headers);
        at_once(service.should_rate_limit(message.clone(), call)).expect("an answer");
    })
}

/// How often something is allocated.
fn counted(call: impl FnOnce()) -> usize {
    let before = CALLS.load(Relaxed);
    call();
    CALLS.load(Relaxed) - before
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("memory never waits"),
    }
}

fn settings() -> Settings {
    Settings::compile(&RawSettings::default()).expect("the defaults are settings")
}

fn limiter<S: Store>(store: S) -> Limiter<SystemClock, S> {
    let files = BTreeMap::from([("api.yaml".to_owned(), RULES.as_bytes().to_vec())]);
    let rules = compile(&files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}")).rules;
    let local = MemoryStore::new(SystemClock, 10);
    let limiter = Limiter::new(SystemClock, store, local, (&settings()).into(), Metrics::new());
    limiter.load(Arc::new(rules));
    limiter
}
