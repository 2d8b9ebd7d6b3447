//! What every request passes first: a bound on what is in flight, and a net under defects.
//!
//! **In flight.** Beyond IN_FLIGHT_MAX requests wait, before their message is read, so that what they hold is bounded
//! too. They wait as long as their deadline lets them: an error at once would be read by Envoy as "let it pass", and a
//! service that is asked too much would limit nothing. Health and reflection do not wait, or a busy process would look
//! like a dead one. How many wait is bounded by connections and their streams.
//!
//! **Defects.** A panic ends its request with INTERNAL, and neither its connection nor the others on it.
//!
//! The one method that matters is recognised here by its path, without a router.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tokio::sync::Semaphore;
use tonic::{Status, body::Body, service::Routes};
use tower::Service;

use crate::{
    clock::{Clock, SystemClock},
    metrics::Metrics,
    service::Deadline,
};

/// The path of every method of the rate limit service.
const ASKED: &str = "/envoy.service.ratelimit.v3.RateLimitService/";

/// The rate limit service `I` with its bound, and other services without.
#[derive(Clone, Debug)]
pub(super) struct Front<I> {
    asked: I,
    others: Routes,
    in_flight: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl<I> Front<I> {
    /// `in_flight` is shared by all threads.
    pub(super) fn new(asked: I, others: Routes, in_flight: Arc<Semaphore>, metrics: Arc<Metrics>) -> Self {
        Self { asked, others, in_flight, metrics }
    }
}

impl<I> Service<Request<Body>> for Front<I>
where
    I: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    I::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both services behind are ready always: generated ones by construction, a router likewise.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !request.uri().path().starts_with(ASKED) {
            let answer = self.others.call(request);
            return Box::pin(caught(answer));
        }
        let (asked, in_flight) = (self.asked.clone(), Arc::clone(&self.in_flight));
        match in_flight.clone().try_acquire_owned() {
            Ok(permit) => {
                let mut asked = asked;
                Box::pin(async move {
                    let answer = caught(asked.call(request)).await;
                    drop(permit);
                    answer
                })
            }
            Err(_) => Box::pin(waited(asked, request, in_flight, Arc::clone(&self.metrics))),
        }
    }
}

/// Waits for others to end, as long as the caller waits.
async fn waited<I>(
    mut asked: I,
    mut request: Request<Body>,
    in_flight: Arc<Semaphore>,
    metrics: Arc<Metrics>,
) -> Result<Response<Body>, Infallible>
where
    I: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let clock = SystemClock;
    let deadline = Deadline::of(request.headers(), clock.instant());
    let Ok(permit) = tokio::time::timeout(deadline.left(clock.instant()), in_flight.acquire()).await else {
        metrics.answered.unavailable.inc();
        return Ok(Status::unavailable("too many requests in flight: see IN_FLIGHT_MAX").into_http());
    };
    // What is left of the deadline, not a new one.
    request.extensions_mut().insert(deadline);
    let answer = caught(asked.call(request)).await;
    drop(permit);
    answer
}

/// The answer, or INTERNAL in place of a panic. Whatever the panicking code held is dropped with it; shared state is
/// behind locks that decide themselves what a panic means to them.
async fn caught(
    answer: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let mut answer = pin!(answer);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            let status =
                Status::internal("a defect ended this request; the log of the rate limit service says where");
            Poll::Ready(Ok(status.into_http()))
        })
    })
    .await
}
