//! Callers who ask at a steady rate whatever the answers are, and the book of all answers.
//!
//! The load is open: a request is sent when its time has come, not when the last one was answered, since that is what
//! users do and what makes queues grow. It runs on a thread of its own, so a test reads as a list of what happens.

use std::{
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

/// A load that goes on until it is [ended](Self::end).
pub(crate) struct Load {
    began: Instant,
    book: Arc<Mutex<Vec<Asked>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// All counters in turn, so many a second.
    pub(crate) fn start(service: &Service, rate: u32) -> Self {
        let (book, ended) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::<AtomicBool>::default());
        let began = SystemClock.instant();
        let load =
            run(service.grpc.clone(), service.counters.clone(), rate, began, book.clone(), ended.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = thread::spawn(move || runtime.block_on(load));
        let load = Self { began, book, ended, thread: Some(thread) };
        until("the load begins", || !load.book().is_empty());
        load
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
    pub(crate) fn end(mut self) -> Vec<Asked> {
        self.stop();
        let mut book = self.book();
        book.sort_by_key(|asked| asked.at);
        book
    }

    fn stop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load does not panic");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

async fn run(
    grpc: String,
    counters: Vec<Counter>,
    rate: u32,
    began: Instant,
    book: Arc<Mutex<Vec<Asked>>>,
    ended: Arc<AtomicBool>,
) {
    let client = connect(&grpc).await;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asking = JoinSet::new();
    let mut next = 0;
    while !ended.load(Ordering::SeqCst) {
        ticks.tick().await;
        while asking.len() >= WAITING_MAX {
            asking.join_next().await;
        }
        let counter = next % counters.len();
        next += 1;
        let (mut client, request, book) = (client.clone(), request(&counters[counter]), book.clone());
        asking.spawn(async move {
            let at = SystemClock.instant();
            let answer = ask(&mut client, request).await;
            let took = SystemClock.instant() - at;
            book.lock().unwrap().push(Asked { at: at - began, took, counter, answer });
        });
        while asking.try_join_next().is_some() {}
    }
    asking.join_all().await;
}

/// Asks each counter until it refuses, and says how often each granted. Failures are asked again: what a drain cannot
/// learn it cannot judge.
pub(crate) fn drain(service: &Service) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect(&service.grpc).await;
        let mut granted = vec![0; service.counters.len()];
        let mut left: Vec<usize> = (0..granted.len()).collect();
        let mut drainers = JoinSet::new();
        while !left.is_empty() || !drainers.is_empty() {
            while drainers.len() < DRAINERS
                && let Some(i) = left.pop()
            {
                let (mut client, counter) = (client.clone(), service.counters[i].clone());
                drainers.spawn(async move {
                    let (mut grants, mut failures) = (0, 0);
                    loop {
                        match ask(&mut client, request(&counter)).await {
                            Answer::Granted => grants += 1,
                            Answer::Refused => return (i, grants),
                            other if failures < 100 => {
                                failures += 1;
                                let _ = other;
                                tokio::time::sleep(Duration::from_millis(10)).await;
                            }
                            other => panic!("{counter:?} still answers {other:?}"),
                        }
                    }
                });
            }
            if let Some(drained) = drainers.join_next().await {
                let (i, grants) = drained.unwrap();
                granted[i] = grants;
            }
        }
        granted
    })
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

pub(crate) async fn ask(client: &mut Client, request: RateLimitRequest) -> Answer {
    match tokio::time::timeout(PATIENCE, client.should_rate_limit(request)).await {
        Ok(Ok(answer)) => judged(answer.get_ref()),
        Ok(Err(_)) | Err(_) => Answer::Failed,
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
