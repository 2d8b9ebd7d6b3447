//! `envoy.service.ratelimit.v3.RateLimitService`: from gRPC to a question, and from an answer to gRPC.
//!
//! Nothing is decided here. Keys and values of entries stay slices of the message they came in; what is wrong with a
//! question, the limiter says; and errors become gRPC statuses in one table ([`status`]).
//!
//! A caller's `grpc-timeout` bounds the wait: an answer that comes after its caller has gone is work for nothing, and a
//! charge that nobody hears of. The store is given a little less than that, so that what the rules say about a lost
//! store is said in time, instead of a timeout that Envoy would read as "let it pass".

pub mod headers;

mod deadline;
mod in_flight;
mod decode;
mod encode;
pub(crate) mod metadata;
pub(crate) mod unary;
pub(crate) mod wire;

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use prost_types::Struct;
use tonic::{Code, Status};

pub use deadline::Deadline;
pub use in_flight::{InFlight, Place};

use crate::{
    clock::Clock,
    limiter::{Answer, AskError, Begun, Limiter, Loaded, Pending, Question},
    metrics::Metrics,
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    service::headers::Header,
    settings::Answers,
    store::Store,
    telemetry::spans::{Asked, Spans},
};

/// The largest request that is read: 4 MiB, what gRPC implementations take by default. Envoy copies header values into
/// descriptors; long ones are hashed and limited, since refusing them would let them pass.
pub const MESSAGE_MAX_BYTES: usize = 4 << 20;

/// What is said to whom no place in flight became free for in time.
pub const BUSY: &str = "too many requests in flight: see IN_FLIGHT_MAX";

/// Answers Envoy. A clone is the same service.
#[derive(Debug)]
pub struct Service<C, S> {
    shared: Arc<Shared<C, S>>,
}

#[derive(Debug)]
struct Shared<C, S> {
    clock: C,
    limiter: Arc<Limiter<C, S>>,
    answers: Answers,
    metrics: Arc<Metrics>,
    spans: Option<Spans>,
    dice: Dice,
}

/// A call whose message may be on its way yet.
#[derive(Debug)]
pub struct Call {
    arrived: Instant,
    deadline: Deadline,
    /// Boxed, since it is large, mostly not there, and moved with the call.
    span: Option<Box<Asked>>,
}

impl Call {
    /// Until when its caller waits.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }
}

impl<C: Clock, S: Store> Service<C, S> {
    /// Answers with `limiter`, and with headers and metadata as `answers` says; what comes over gRPC is told to `spans`.
    pub fn new(
        clock: C,
        limiter: Arc<Limiter<C, S>>,
        answers: Answers,
        metrics: Arc<Metrics>,
        spans: Option<Spans>,
    ) -> Self {
        Self { shared: Arc::new(Shared { clock, limiter, answers, metrics, spans, dice: Dice::default() }) }
    }

    /// What decides.
    pub fn limiter(&self) -> &Arc<Limiter<C, S>> {
        &self.shared.limiter
    }

    /// One question's way: rules, limiter, headers. Also the way of `/json`.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn answer(
        &self,
        request: RateLimitRequest,
        deadline: Deadline,
    ) -> Result<RateLimitResponse, AskError> {
        self.ask(&wire::question(request), deadline, |answer, headers, metadata| RateLimitResponse {
            dynamic_metadata: metadata,
            ..wire::response(answer, headers)
        })
        .await
    }

    /// Answers a question, in the words of `tell`.
    async fn ask<T>(
        &self,
        question: &Question,
        deadline: Deadline,
        tell: impl FnOnce(&Answer<'_>, &[Header<'_>], Option<Struct>) -> T,
    ) -> Result<T, AskError> {
        let Shared { clock, limiter, metrics, .. } = &*self.shared;
        let loaded = limiter.in_force();
        let (pending, tell) = match self.begun(loaded.as_deref(), question, tell) {
            Ok(pending) => pending,
            Err(told) => return told,
        };
        let left = deadline.left(clock.instant());
        let told = limiter.finish(pending, left, |answer| self.told(question, &answer, tell)).await;
        told.map_err(|error| failed(metrics, error))
    }

    /// As far as nobody waits: what has to be asked of the store, or as an error, all of it. A function of its own, so
    /// that the future of a question has no room for an answer.
    fn begun<'r, T, F: FnOnce(&Answer<'_>, &[Header<'_>], Option<Struct>) -> T>(
        &self,
        loaded: Option<&'r Loaded>,
        question: &Question,
        tell: F,
    ) -> Result<(Pending<'r>, F), Result<T, AskError>> {
        let Shared { limiter, metrics, .. } = &*self.shared;
        let begun = match loaded {
            Some(loaded) => limiter.begin(loaded, question),
            None => Err(AskError::NoRules),
        };
        match begun {
            Ok(Begun::Pending(pending)) => Ok((pending, tell)),
            Ok(Begun::Answered(answer)) => Err(Ok(self.told(question, &answer, tell))),
            Err(error) => Err(Err(failed(metrics, error))),
        }
    }

    fn told<T>(
        &self,
        question: &Question,
        answer: &Answer<'_>,
        tell: impl FnOnce(&Answer<'_>, &[Header<'_>], Option<Struct>) -> T,
    ) -> T {
        let Shared { clock, answers, metrics, dice, .. } = &*self.shared;
        let counter = if answer.refused { &metrics.answered.over_limit } else { &metrics.answered.ok };
        counter.inc();
        let headers = headers::headers(answer, &answers.headers, || clock.now(), || dice.roll());
        tell(answer, &headers, metadata::of(answers.dynamic_metadata.then_some(question), answer))
    }
}

impl<C: Clock, S: Store> Clone for Service<C, S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C: Clock, S: Store> Service<C, S> {
    /// What is known of a call before its message is.
    pub fn call(&self, headers: &HeaderMap) -> Call {
        let arrived = self.shared.clock.instant();
        let span = self.shared.spans.as_ref().and_then(|spans| spans.begin(headers)).map(Box::new);
        Call { arrived, deadline: Deadline::of(headers, arrived), span }
    }

    /// ShouldRateLimit: from the bytes of a message to those of a frame.
    ///
    /// # Errors
    /// When the bytes are no message, and those of [`status`].
    pub async fn should_rate_limit(&self, message: Bytes, call: Call) -> Result<Bytes, Status> {
        let Call { arrived, deadline, mut span } = call;
        let question = question(message)?;
        if let Some(span) = &mut span {
            span.about(&String::from_utf8_lossy(&question.domain), question.descriptors.len());
        }
        let asked = self.ask(&question, deadline, |answer, headers, metadata| {
            (answer.refused, encode::framed(answer, headers, metadata.as_ref()))
        });
        let asked = asked.await;
        if let Some(reference) = &self.shared.metrics.reference {
            reference.called(self.shared.clock.instant().duration_since(arrived));
        }
        let answer = asked.map_err(|error| status(&error));
        if let Some(span) = span {
            match &answer {
                Ok((refused, _)) => span.answered(*refused),
                Err(status) => span.failed(status.code(), status.message()),
            }
        }
        answer.map(|(_, frame)| frame)
    }

    /// Whether [`Service::should_rate_limit`] waits for nobody: its future is ready when it is polled first.
    pub fn is_here(&self) -> bool {
        self.shared.limiter.store().is_here()
    }
}

/// The one table from errors to gRPC statuses. Envoy lets a request pass on any of them unless `failure_mode_deny` is
/// set, so only what a configuration can cause, and what the rules ask for, may end here.
pub fn status(error: &AskError) -> Status {
    let code = match error {
        // The caller's configuration is wrong; asking again will not help.
        AskError::Invalid(_) => Code::InvalidArgument,
        // Bad rules at start: may be mended at any moment.
        AskError::NoRules => Code::Unavailable,
        // `on_store_failure: error`. One code for all kinds, also for a timeout: Envoy treats them alike, and who
        // retries must know that the charge may have been spent, which UNAVAILABLE does not promise against.
        AskError::Store(_) => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// Counts a question that has no answer.
fn failed(metrics: &Metrics, error: AskError) -> AskError {
    match error {
        AskError::Invalid(_) => metrics.answered.invalid.inc(),
        AskError::NoRules | AskError::Store(_) => metrics.answered.unavailable.inc(),
    };
    if let (Some(reference), AskError::Invalid(_) | AskError::NoRules) = (&metrics.reference, &error) {
        reference.not_asked();
    }
    error
}

/// What the bytes of a request ask.
fn question(message: Bytes) -> Result<Question, Status> {
    if let Some(question) = decode::question(&message) {
        return Ok(question);
    }
    let request = RateLimitRequest::decode(message).map_err(|error| Status::internal(error.to_string()))?;
    Ok(wire::question(request))
}

/// Numbers that differ between clients and processes; nobody's security hangs on them.
#[derive(Debug, Default)]
struct Dice {
    seed: RandomState,
    rolled: AtomicU64,
}

impl Dice {
    fn roll(&self) -> u64 {
        self.seed.hash_one(self.rolled.fetch_add(1, Ordering::Relaxed))
    }
}
