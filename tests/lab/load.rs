//! Callers who ask at a steady rate whatever the answers are, and the book of all answers.
//!
//! The load is open: a request is sent when its time has come, not when the last one was answered, since that is what
//! users do and what makes queues grow. It runs on a thread of its own, so a test reads as a list of what happens.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::MissedTickBehavior};
use tollgate::{
    clock::{Clock, SystemClock},
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
            rate_limit_service_client::RateLimitServiceClient,
        },
    },
};
use tonic::transport::Channel;

use crate::{
    service::{Counter, Service},
    wait::until,
};

/// What "500 requests a second over 300 keys" says.
pub(crate) const RATE: u32 = 500;

/// So long a caller waits at most; nothing of ours may take it.
const PATIENCE: Duration = Duration::from_secs(10);

/// So many wait for an answer at most: a machine that is too busy to serve a thousand a second would otherwise show that,
/// and not the fault.
const WAITING_MAX: usize = 1000;

/// How many drain at a time.
const DRAINERS: usize = 16;

/// One request and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Since the load began, as [`Load::now`] has it.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// Its counter's place in [`Service::counters`].
    pub(crate) counter: usize,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// By the store.
    Granted,
    Refused,
    /// By the failure mode: `allow`, `deny` or `local`.
    Degraded {
        granted: bool,
    },
    /// By the failure mode `error`, or by nobody.
    Failed,
}

impl Answer {
    /// Whether the store stands behind it.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Granted | Self::Refused)
    }
}

/// Failures in the service's words, and how many.
type Words = BTreeMap<String, usize>;

/// A load that goes on until it is [ended](Self::end).
pub(crate) struct Load {
    began: Instant,
    book: Arc<Mutex<Vec<Asked>>>,
    words: Arc<Mutex<Words>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// All counters in turn, so many a second.
    pub(crate) fn start(service: &Service, rate: u32) -> Self {
        let began = SystemClock.instant();
        let mut load =
            Self { began, book: Arc::default(), words: Arc::default(), ended: Arc::default(), thread: None };
        let run = run(service.grpc.clone(), service.counters.clone(), rate, load.shared());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        load.thread = Some(thread::spawn(move || runtime.block_on(run)));
        until("the load begins", || !load.book().is_empty());
        load
    }

    /// The same without the thread.
    fn shared(&self) -> Self {
        let (book, words, ended) = (self.book.clone(), self.words.clone(), self.ended.clone());
        Self { began: self.began, book, words, ended, thread: None }
    }

    /// Since it began.
    pub(crate) fn now(&self) -> Duration {
        SystemClock.instant() - self.began
    }

    /// All that was answered so far.
    pub(crate) fn book(&self) -> Vec<Asked> {
        self.book.lock().unwrap().clone()
    }

    /// Lets it go on for so long.
    pub(crate) fn go_on(&self, span: Duration) -> Duration {
        let end = self.now() + span;
        until("time passes", || self.now() >= end);
        self.now()
    }

    /// Waits until those that are counted here have whole answers again, `n` in a row, and says when the first of these
    /// was asked.
    pub(crate) fn until_whole(&self, n: usize, counts: impl Fn(&Asked) -> bool) -> Duration {
        let since = self.now();
        let mut first = Duration::ZERO;
        until("the service is whole again", || {
            let book = self.book.lock().unwrap();
            let mut row: Vec<&Asked> =
                book.iter().filter(|asked| asked.at >= since && counts(asked)).collect();
            row.sort_by_key(|asked| asked.at);
            let bad = row.iter().rposition(|asked| !asked.answer.is_whole()).map_or(0, |last| last + 1);
            first = row.get(bad).map_or(first, |asked| asked.at);
            row.len() - bad >= n
        });
        first
    }

    /// Stops asking, waits for what is still to be answered, and gives the whole book, in the order of asking.
    ///
    /// Failures are printed: a test that wanted none says only how many there were.
    pub(crate) fn end(mut self) -> Vec<Asked> {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load does not panic");
        }
        for (words, n) in self.words.lock().unwrap().iter() {
            println!("{n} x {words}");
        }
        let mut book = self.book();
        book.sort_by_key(|asked| asked.at);
        book
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // A handle of the running load's own is none of the test's.
        if self.thread.is_some() {
            self.ended.store(true, Ordering::SeqCst);
        }
    }
}

async fn run(grpc: String, counters: Vec<Counter>, rate: u32, load: Load) {
    let (client, load) = (connect(&grpc).await, Arc::new(load));
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asking = JoinSet::new();
    let mut next = 0;
    while !load.ended.load(Ordering::SeqCst) {
        ticks.tick().await;
        while asking.len() >= WAITING_MAX {
            asking.join_next().await;
        }
        let counter = next % counters.len();
        next += 1;
        let (mut client, request, load) = (client.clone(), request(&counters[counter]), load.clone());
        asking.spawn(async move {
            let at = SystemClock.instant();
            let answer = ask(&mut client, request).await;
            let took = SystemClock.instant() - at;
            let answer = answer.unwrap_or_else(|why| {
                *load.words.lock().unwrap().entry(why).or_default() += 1;
                Answer::Failed
            });
            load.book.lock().unwrap().push(Asked { at: at - load.began, took, counter, answer });
        });
        while asking.try_join_next().is_some() {}
    }
    asking.join_all().await;
}

/// What a drain has learned of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    pub(crate) granted: u32,
    /// Had no answer of the store; each may have been spent.
    pub(crate) unknown: u32,
}

/// Asks each of these counters until it refuses, in three requests: one hit, all that is said to be left, and one more.
/// Failures are asked again: what a drain cannot learn it cannot judge.
pub(crate) fn drain(service: &Service, counters: impl Fn(&Counter) -> bool) -> Vec<Drained> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&service.grpc).await;
        let mut all = vec![Drained::default(); service.counters.len()];
        let mut left: Vec<usize> = (0..all.len()).filter(|&i| counters(&service.counters[i])).collect();
        let mut drainers = JoinSet::new();
        while !left.is_empty() || !drainers.is_empty() {
            while drainers.len() < DRAINERS
                && let Some(i) = left.pop()
            {
                let (client, counter) = (client.clone(), service.counters[i].clone());
                drainers.spawn(async move { (i, drain_one(client, counter).await) });
            }
            if let Some(drained) = drainers.join_next().await {
                let (i, drained) = drained.unwrap();
                all[i] = drained;
            }
        }
        all
    })
}

async fn drain_one(mut client: Client, counter: Counter) -> Drained {
    let mut drained = Drained::default();
    let mut hits = 1;
    loop {
        let question = RateLimitRequest { hits_addend: hits, ..request(&counter) };
        match answered(&mut client, question).await.map(|answer| (judged(&answer), answer)) {
            Ok((Answer::Granted, answer)) => {
                drained.granted += hits;
                hits = answer.statuses[0].limit_remaining.max(1);
            }
            Ok((Answer::Refused, _)) => {
                assert_eq!(hits, 1, "{counter:?} refuses what it said was left");
                return drained;
            }
            other => {
                let other = other.map(|(answer, _)| answer);
                drained.unknown += hits;
                hits = 1;
                assert!(drained.unknown < 100_000, "{counter:?} still answers {other:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

pub(crate) type Client = RateLimitServiceClient<Channel>;

pub(crate) async fn connect(grpc: &str) -> Client {
    let endpoint = Channel::from_shared(format!("http://{grpc}")).unwrap().tcp_nodelay(true);
    RateLimitServiceClient::new(endpoint.connect().await.unwrap())
}

/// One hit.
fn request(counter: &Counter) -> RateLimitRequest {
    request_of(&[counter])
}

/// One hit on each, in one request.
pub(crate) fn request_of(counters: &[&Counter]) -> RateLimitRequest {
    let descriptor = |counter: &&Counter| {
        let entry =
            Entry { key: counter.rule.as_bytes().into(), value: counter.value.clone().into_bytes().into() };
        RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
    };
    let descriptors = counters.iter().map(descriptor).collect();
    RateLimitRequest { domain: "lab".to_owned(), descriptors, hits_addend: 0 }
}

/// # Errors
/// Without an answer, in the service's words.
pub(crate) async fn ask(client: &mut Client, request: RateLimitRequest) -> Result<Answer, String> {
    answered(client, request).await.map(|answer| judged(&answer))
}

async fn answered(client: &mut Client, request: RateLimitRequest) -> Result<RateLimitResponse, String> {
    match tokio::time::timeout(PATIENCE, client.should_rate_limit(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("nothing within {PATIENCE:?}")),
    }
}

/// Who stands behind an answer, and what it says.
pub(crate) fn judged(answer: &RateLimitResponse) -> Answer {
    let granted = answer.overall_code() == Code::Ok;
    match &answer.dynamic_metadata {
        Some(metadata) if metadata.fields.contains_key("store") => Answer::Degraded { granted },
        _ if granted => Answer::Granted,
        _ => Answer::Refused,
    }
}
