//! What every request passes first: a bound on what is in flight, and a net under defects.
//!
//! **In flight.** The rate limit service has a bound, see [`InFlight`]. A place is taken when a request's message is
//! whole, so that half messages, which their client may never end, keep no place from anybody; what these hold has bounds
//! of its own, see [`super::held`]. Health and reflection do not wait for a place, or a busy process would look like a dead
//! one.
//!
//! **Defects.** A panic ends its request with INTERNAL, and neither its connection nor the others on it.
//!
//! The one method that matters is recognised here by its path and answered without a router. Where it waits for nothing
//! (its message has come, a place is free, budgets are in this process) it is answered on the spot.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{HeaderMap, Request};
use tonic::{Code, Status, body::Body, service::Routes};
use tower::Service as _;

use super::{
    awaited::Awaited,
    backend::Backend,
    exchange::{self, Message, Received, Whole},
    held::Bounds,
    http2::{Asked, Waiting},
};
use crate::{
    clock::{Clock, SystemClock},
    metrics::Metrics,
    service::{BUSY, Call, Deadline, InFlight, Place, Service},
};

/// The path of the one method that matters.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Requests for other services on one connection at a time. A prober has one, who watches health keeps one open.
const OTHERS_MAX: usize = 64;

/// Whether a request is for that method.
pub(super) fn is_for_limits<T>(request: &Request<T>) -> bool {
    request.uri().path() == SHOULD_RATE_LIMIT
}

/// What answers ShouldRateLimit.
pub(super) trait Limits: Send + Sync + 'static {
    /// What is known of a call before its message is.
    type Call: Send;

    /// A call with these headers arrives.
    fn call(&self, headers: &HeaderMap) -> (Self::Call, Deadline);

    /// From the bytes of a message to those of a frame.
    fn ask(&self, message: Bytes, call: Self::Call) -> impl Future<Output = Result<Bytes, Status>> + Send;

    /// Whether [`Limits::ask`] waits for nobody: its future is ready when it is polled first.
    fn is_here(&self) -> bool;
}

impl Limits for Service<SystemClock, Backend> {
    type Call = Call;

    fn call(&self, headers: &HeaderMap) -> (Call, Deadline) {
        let call = self.call(headers);
        let deadline = call.deadline();
        (call, deadline)
    }

    fn ask(&self, message: Bytes, call: Call) -> impl Future<Output = Result<Bytes, Status>> + Send {
        self.should_rate_limit(message, call)
    }

    fn is_here(&self) -> bool {
        self.is_here()
    }
}

/// Limits with their bound, and other services without.
#[derive(Debug)]
pub(super) struct Front<L> {
    bounded: Arc<Bounded<L>>,
    others: Routes,
    /// How many of these are open: as many as there are clones.
    others_open: Arc<()>,
    bounds: Bounds,
}

#[derive(Debug)]
struct Bounded<L> {
    limits: L,
    in_flight: InFlight,
    metrics: Arc<Metrics>,
}

impl<L: Limits> Front<L> {
    /// `in_flight` is shared by all threads, and by `/json`; `bounds` by all connections.
    pub(super) fn new(
        limits: L,
        others: Routes,
        in_flight: InFlight,
        metrics: Arc<Metrics>,
        bounds: Bounds,
    ) -> Self {
        let bounded = Arc::new(Bounded { limits, in_flight, metrics });
        Self { bounded, others, others_open: Arc::default(), bounds }
    }

    /// The same for another connection.
    pub(super) fn another(&self) -> Self {
        Self {
            bounded: Arc::clone(&self.bounded),
            others: self.others.clone(),
            others_open: Arc::default(),
            bounds: self.bounds.another(),
        }
    }

    /// Answers, or returns what will have answered when it is done.
    pub(super) fn answer(&mut self, (request, respond): Asked, cx: &mut Context<'_>) -> Option<Waiting> {
        if is_for_limits(&request) { self.limit(request, respond, cx) } else { self.other(request, respond) }
    }

    fn other(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Option<Waiting> {
        if Arc::strong_count(&self.others_open) > OTHERS_MAX {
            respond.send_reset(Reason::REFUSED_STREAM);
            return None;
        }
        let open = Arc::clone(&self.others_open);
        let answer = self.others.call(request.map(|body| Body::new(Received(body))));
        let answer = caught(async { answer.await.map_err(|never| match never {}) });
        Some(Box::pin(async move {
            if let Some(answer) = exchange::unless_reset(&mut respond, answer).await {
                exchange::pass_on(&mut respond, answer.unwrap_or_else(Status::into_http)).await;
            }
            drop(open);
        }))
    }

    fn limit(
        &self,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    ) -> Option<Waiting> {
        // From here on, and not from when the message was read and its turn has come.
        let (call, deadline) = self.bounded.limits.call(request.headers());
        let mut message = match Message::of(request) {
            Ok(message) => message,
            Err(status) => return exchange::answer(respond, Err(status), &self.bounds),
        };
        match message.poll(cx, &self.bounds) {
            Poll::Ready(Err(status)) => {
                exchange::answer(respond, Err(self.bounded.counted(status)), &self.bounds)
            }
            Poll::Ready(Ok(bytes)) => {
                let place = self.bounded.in_flight.try_enter();
                if place.is_some() && self.bounded.limits.is_here() {
                    let answer = at_once(|| self.bounded.limits.ask(bytes, call));
                    return exchange::answer(respond, answer, &self.bounds);
                }
                let answer = Arc::clone(&self.bounded).limit(place, message.whole(bytes), call, deadline);
                Some(Awaited::boxed(answer, respond, self.bounds.clone()))
            }
            Poll::Pending => {
                let message = message.arrived(self.bounds.clone());
                let answer = Arc::clone(&self.bounded).limit_half(message, call, deadline);
                Some(Awaited::boxed(answer, respond, self.bounds.clone()))
            }
        }
    }
}

impl<L: Limits> Bounded<L> {
    /// Waits for the message, which takes no place before it is whole: clients who never end one starve nobody.
    async fn limit_half<B: Send>(
        self: Arc<Self>,
        message: impl Future<Output = Result<Whole<B>, Status>>,
        call: L::Call,
        deadline: Deadline,
    ) -> Result<Bytes, Status> {
        let whole = tokio::time::timeout(deadline.left(SystemClock.instant()), message).await;
        let whole = whole.map_err(|_| Status::cancelled("Timeout expired"))?;
        let whole = whole.map_err(|status| self.counted(status))?;
        // Boxed, so that a half message does not hold what only a whole one needs.
        let place = self.in_flight.try_enter();
        Box::pin(self.limit(place, whole, call, deadline)).await
    }

    /// Waits for a place where there is none, and for the answer: as long as the caller waits.
    async fn limit<B: Send>(
        self: Arc<Self>,
        place: Option<Place>,
        whole: Whole<B>,
        call: L::Call,
        deadline: Deadline,
    ) -> Result<Bytes, Status> {
        let Whole { message, window, held: _held } = whole;
        let place = match place {
            Some(place) => Some(place),
            None => self.in_flight.enter(deadline.left(SystemClock.instant())).await,
        };
        let Some(_place) = place else { return Err(self.counted(Status::unavailable(BUSY))) };
        drop(window);
        self.limits.ask(message, call).await
    }

    /// Why a request that never came to be decided was not.
    fn counted(&self, status: Status) -> Status {
        if status.code() == Code::Unavailable {
            self.metrics.answered.unavailable.inc();
        }
        status
    }
}

/// What is ready when it is polled first, or INTERNAL in place of a panic.
fn at_once<F>(answer: impl FnOnce() -> F) -> Result<Bytes, Status>
where
    F: Future<Output = Result<Bytes, Status>>,
{
    let polled =
        catch_unwind(AssertUnwindSafe(|| pin!(answer()).poll(&mut Context::from_waker(Waker::noop()))));
    match polled {
        Ok(Poll::Ready(answer)) => answer,
        Ok(Poll::Pending) | Err(_) => Err(defect()),
    }
}

/// The answer, or INTERNAL in place of a panic. Whatever the panicking code held is dropped with it; shared state is
/// behind locks that decide themselves what a panic means to them.
async fn caught<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let mut answer = pin!(answer);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(defect())))
    })
    .await
}

/// What a request is told that a panic has ended.
pub(super) fn defect() -> Status {
    Status::internal("a defect ended this request; the log of the rate limit service says where")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::{pending, ready},
        num::NonZeroUsize,
        time::Duration,
    };
    use tokio::sync::{mpsc, oneshot};

    use super::super::http2;

    /// Answers when its test says so. To be dropped without a word is a defect.
    struct Told(mpsc::UnboundedSender<oneshot::Sender<()>>);

    impl Limits for Told {
        type Call = ();

        fn call(&self, headers: &HeaderMap) -> ((), Deadline) {
            ((), Deadline::of(headers, SystemClock.instant()))
        }

        async fn ask(&self, message: Bytes, (): ()) -> Result<Bytes, Status> {
            let (answer, told) = oneshot::channel();
            self.0.send(answer).unwrap();
            told.await.expect("this test wants a panic");
            Ok(message)
        }

        fn is_here(&self) -> bool {
            false
        }
    }

    fn front(in_flight_max: usize) -> (Arc<Bounded<Told>>, mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
        let (send, asked) = mpsc::unbounded_channel();
        let in_flight = InFlight::new(NonZeroUsize::new(in_flight_max).unwrap());
        (Arc::new(Bounded { limits: Told(send), in_flight, metrics: Metrics::new() }), asked)
    }

    fn ask(front: &Arc<Bounded<Told>>, timeout: Duration) -> tokio::task::JoinHandle<Code> {
        let front = Arc::clone(front);
        let deadline = Deadline::after(timeout, SystemClock.instant());
        let place = front.in_flight.try_enter();
        tokio::spawn(async move {
            let whole = Whole { message: Bytes::new(), window: (), held: None };
            let answer = front.limit(place, whole, (), deadline);
            caught(answer).await.map_or_else(|status| status.code(), |_| Code::Ok)
        })
    }

    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_panic_ends_its_request_with_internal_and_gives_its_place_back() {
        let (front, mut asked) = front(1);
        let first = ask(&front, LONG);
        drop(asked.recv().await.unwrap());
        assert_eq!(first.await.unwrap(), Code::Internal);

        let second = ask(&front, LONG);
        asked.recv().await.unwrap().send(()).unwrap();
        assert_eq!(second.await.unwrap(), Code::Ok);
    }

    #[test]
    fn a_panic_on_the_spot_is_internal_too() {
        let panics = || async { panic!("this test wants a panic") };
        assert_eq!(at_once(panics).unwrap_err().code(), Code::Internal);
        assert_eq!(at_once(|| ready(Ok(Bytes::from_static(b"answer")))).unwrap(), "answer");
    }

    #[tokio::test]
    async fn beyond_the_bound_requests_wait_for_their_turn_and_not_past_their_deadline() {
        let (front, mut asked) = front(1);
        let first = ask(&front, LONG);
        let first_told = asked.recv().await.unwrap();
        let patient = ask(&front, LONG);
        let hurried = ask(&front, Duration::from_millis(1));
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
        let (bounded, mut asked) = front(1);
        let mut front = Front {
            bounded,
            others: Routes::default().prepare(),
            others_open: Arc::default(),
            bounds: Bounds::new(),
        };
        let (client, server) = tokio::io::duplex(1 << 16);
        tokio::spawn(http2::serve(server, move |asked, cx| front.answer(asked, cx), pending()));
        let (mut client, connection) = h2::client::handshake(client).await.unwrap();
        tokio::spawn(connection);
        let mut ask = |path: &str| {
            let request = Request::post(format!("http://tollgate{path}")).body(()).unwrap();
            let (answer, mut body) = client.send_request(request, false).unwrap();
            body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
            answer
        };
        let first = ask(SHOULD_RATE_LIMIT);
        let told = asked.recv().await.unwrap();
        let second = ask(SHOULD_RATE_LIMIT);
        // Nobody serves it in this test; what counts is that it was answered.
        let health = ask("/grpc.health.v1.Health/Check").await.unwrap();
        assert_eq!(Status::from_header_map(health.headers()).unwrap().code(), Code::Unimplemented);
        assert!(asked.try_recv().is_err(), "the second one waits");
        told.send(()).unwrap();
        assert_eq!(first.await.unwrap().headers()["content-type"], "application/grpc");
        asked.recv().await.unwrap().send(()).unwrap();
        assert!(second.await.is_ok());
    }

    #[tokio::test]
    async fn a_caller_who_goes_away_gives_the_place_back() {
        let (front, mut asked) = front(1);
        let gone = ask(&front, LONG);
        let _told = asked.recv().await.unwrap();
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let next = ask(&front, LONG);
        asked.recv().await.unwrap().send(()).unwrap();
        assert_eq!(next.await.unwrap(), Code::Ok);
    }
}
