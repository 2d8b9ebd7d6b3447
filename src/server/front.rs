//! What every request passes first: a bound on what is in flight, and a net under defects.
//!
//! **In flight.** The rate limit service has a bound, see [`InFlight`]. Health and reflection do not wait for it, or a
//! busy process would look like a dead one.
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
use tonic::{Status, body::Body, service::Routes};
use tower::Service;

use crate::{
    clock::{Clock, SystemClock},
    metrics::Metrics,
    service::{BUSY, Deadline, InFlight},
};

/// The path of every method of the rate limit service.
const ASKED: &str = "/envoy.service.ratelimit.v3.RateLimitService/";

/// The rate limit service `I` with its bound, and other services without.
#[derive(Clone, Debug)]
pub(super) struct Front<I> {
    asked: I,
    others: Routes,
    in_flight: InFlight,
    metrics: Arc<Metrics>,
}

impl<I> Front<I> {
    /// `in_flight` is shared by all threads, and by `/json`.
    pub(super) fn new(asked: I, others: Routes, in_flight: InFlight, metrics: Arc<Metrics>) -> Self {
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

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if !request.uri().path().starts_with(ASKED) {
            let answer = self.others.call(request);
            return Box::pin(caught(answer));
        }
        // From here on, and not from when the message was read and its turn has come.
        let deadline = Deadline::of(request.headers(), SystemClock.instant());
        request.extensions_mut().insert(deadline);
        let mut asked = self.asked.clone();
        match self.in_flight.try_enter() {
            Some(place) => Box::pin(async move {
                let answer = caught(asked.call(request)).await;
                drop(place);
                answer
            }),
            None => {
                let (in_flight, metrics) = (self.in_flight.clone(), Arc::clone(&self.metrics));
                Box::pin(waited(asked, request, deadline, in_flight, metrics))
            }
        }
    }
}

/// Waits for others to end, as long as the caller waits.
async fn waited<I>(
    mut asked: I,
    request: Request<Body>,
    deadline: Deadline,
    in_flight: InFlight,
    metrics: Arc<Metrics>,
) -> Result<Response<Body>, Infallible>
where
    I: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let left = deadline.left(SystemClock.instant());
    let Some(place) = in_flight.enter(left).await else {
        metrics.answered.unavailable.inc();
        return Ok(Status::unavailable(BUSY).into_http());
    };
    let answer = caught(asked.call(request)).await;
    drop(place);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;
    use tokio::sync::{mpsc, oneshot};
    use tonic::Code;

    /// Answers when its test says so. To be dropped without a word is a defect.
    #[derive(Clone)]
    struct Told(mpsc::UnboundedSender<oneshot::Sender<()>>);

    impl Service<Request<Body>> for Told {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let (answer, told) = oneshot::channel();
            self.0.send(answer).unwrap();
            Box::pin(async move {
                told.await.expect("this test wants a panic");
                Ok(Status::ok("").into_http())
            })
        }
    }

    fn front(in_flight_max: usize) -> (Front<Told>, mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
        let (send, asked) = mpsc::unbounded_channel();
        let bound = InFlight::new(NonZeroUsize::new(in_flight_max).unwrap());
        (Front::new(Told(send), Routes::default().prepare(), bound, Metrics::new()), asked)
    }

    fn request(path: &str, timeout: &str) -> Request<Body> {
        let request = Request::builder().uri(path).header("grpc-timeout", timeout);
        request.body(Body::empty()).unwrap()
    }

    fn ask(front: &mut Front<Told>, timeout: &str) -> tokio::task::JoinHandle<Code> {
        let answer = front.call(request(&format!("{ASKED}ShouldRateLimit"), timeout));
        tokio::spawn(async { code(&answer.await.unwrap()) })
    }

    fn code(response: &Response<Body>) -> Code {
        Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code())
    }

    #[tokio::test]
    async fn a_panic_ends_its_request_with_internal_and_gives_its_place_back() {
        let (mut front, mut asked) = front(1);
        let first = ask(&mut front, "10S");
        drop(asked.recv().await.unwrap());
        assert_eq!(first.await.unwrap(), Code::Internal);

        let second = ask(&mut front, "10S");
        asked.recv().await.unwrap().send(()).unwrap();
        assert_eq!(second.await.unwrap(), Code::Ok);
    }

    #[tokio::test]
    async fn beyond_the_bound_requests_wait_for_their_turn_and_not_past_their_deadline() {
        let (mut front, mut asked) = front(1);
        let first = ask(&mut front, "10S");
        let first_told = asked.recv().await.unwrap();
        let patient = ask(&mut front, "10S");
        let hurried = ask(&mut front, "1m");
        assert_eq!(hurried.await.unwrap(), Code::Unavailable);
        assert!(asked.try_recv().is_err(), "the patient one waits");

        first_told.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Code::Ok);
        asked.recv().await.unwrap().send(()).unwrap();
        assert_eq!(patient.await.unwrap(), Code::Ok);
        assert_eq!(front.metrics.answered.unavailable.get(), 1);
    }

    #[tokio::test]
    async fn health_does_not_wait_behind_requests() {
        let (mut front, mut asked) = front(1);
        let _first = ask(&mut front, "10S");
        let _told = asked.recv().await.unwrap();
        let health = front.call(request("/grpc.health.v1.Health/Check", "10S")).await.unwrap();
        // Nobody serves it in this test; what counts is that it was answered.
        assert_eq!(code(&health), Code::Unimplemented);
    }

    #[tokio::test]
    async fn a_caller_who_goes_away_gives_the_place_back() {
        let (mut front, mut asked) = front(1);
        let gone = front.call(request(&format!("{ASKED}ShouldRateLimit"), "10S"));
        drop(gone);
        let next = ask(&mut front, "10S");
        asked.recv().await.unwrap().send(()).unwrap();
        assert_eq!(next.await.unwrap(), Code::Ok);
    }
}
