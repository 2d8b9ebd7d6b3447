//! A connection that carries many requests at a time, with as little as HTTP/2 allows between them and the socket.
//!
//! tonic's own channel is made for callers with a few requests: a queue, a task and several layers for each, which costs
//! more than the services that are measured here. So this speaks HTTP/2 itself, from one thread. What ends a connection
//! in peace (a service that restarts, or wants its clients to connect anew) is no fault: what was not taken goes over the
//! next connection, as with any gRPC client.

use std::{
    cell::RefCell,
    future::poll_fn,
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::{
    Ping, Reason, RecvStream,
    client::{Builder, SendRequest},
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header};
use prost::Message;
use tokio::{sync::Mutex, task::spawn_local, time::Sleep};
use tonic::{Code as Grpc, Status};

use super::{
    super::terminal::human,
    question::PREFIX_BYTES,
    tally::{Answer, Fault, Kind},
    target::Target,
};
use crate::{
    clock::{Clock, SystemClock},
    proto::envoy::service::ratelimit::v3::rate_limit_response::Code,
};

/// The method that is called.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What a service may send unasked: never the bound, so that nothing but the service is measured.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 26;

/// How often a request is sent at most: once more when the first connection did not take it.
const TRIES: u32 = 2;

/// A connection to a service, made anew when it ends.
pub(super) struct Connection {
    target: Target,
    timeout: Duration,
    /// What stands before each request.
    head: Request<()>,
    link: RefCell<Option<Link>>,
    /// One slot connects, the others wait for it.
    connecting: Mutex<()>,
}

/// What a connection is at present. Later ones have higher numbers.
#[derive(Clone, Debug)]
struct Link {
    sender: SendRequest<Bytes>,
    number: u64,
}

impl Connection {
    /// `timeout` is what a request may take, and what connecting may.
    ///
    /// # Errors
    /// An address that no request can name.
    pub(super) fn new(target: &Target, timeout: Duration) -> Result<Self, String> {
        let mut head = Request::new(());
        *head.version_mut() = Version::HTTP_2;
        *head.method_mut() = Method::POST;
        *head.uri_mut() = format!("{}{PATH}", target.origin).parse().map_err(|why| format!("{why}"))?;
        let headers = head.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        // As Envoy does: the service is told, too, how long it may take.
        headers.insert("grpc-timeout", grpc_timeout(timeout));
        let (link, connecting) = (RefCell::new(None), Mutex::new(()));
        Ok(Self { target: target.clone(), timeout, head, link, connecting })
    }

    /// Connects, and hears the service's first words, so that requests do not pay for it.
    ///
    /// # Errors
    /// Why it is no connection.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        self.link(None).await.map(|_| ())
    }

    /// The present link, or a new one where it is no later than one that was found broken.
    async fn link(&self, broken: Option<u64>) -> Result<Link, Fault> {
        let _turn = self.connecting.lock().await;
        let present = self.link.borrow().clone();
        match present {
            Some(link) if broken.is_none_or(|broken| link.number > broken) => Ok(link),
            _ => {
                let sender = self.connect().await?;
                let link = Link { sender, number: broken.map_or(0, |broken| broken + 1) };
                *self.link.borrow_mut() = Some(link.clone());
                Ok(link)
            }
        }
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, Fault> {
        let service = &self.target.service;
        let fault = |told| Fault { kind: Kind::NoConnection, told };
        let connecting = async {
            let stream = self.target.dial().await.map_err(fault)?;
            let no_grpc = |why: h2::Error| {
                let cut = why.get_io().and_then(|why| service.cut(why));
                fault(cut.unwrap_or_else(|| service.no_grpc(&why)))
            };
            let (sender, mut connection) = Builder::new()
                .initial_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .enable_push(false)
                .handshake(stream)
                .await
                .map_err(no_grpc)?;
            let mut pings = connection.ping_pong();
            // It ends with its last request, or tells them why it cannot go on.
            spawn_local(connection);
            if let Some(pings) = &mut pings {
                pings.ping(Ping::opaque()).await.map_err(no_grpc)?;
            }
            Ok(sender)
        };
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(fault(service.silent(self.timeout))),
        }
    }
}

/// A place for one request at a time on a connection.
pub(super) struct Slot {
    connection: Rc<Connection>,
    link: Option<Link>,
    patience: Patience,
}

impl Slot {
    pub(super) fn new(connection: Rc<Connection>) -> Self {
        Self { connection, link: None, patience: Patience::new() }
    }

    /// One request, already framed. Deadlines must not go back from one to the next.
    ///
    /// # Errors
    /// Why there is no answer until then.
    pub(super) async fn ask(&mut self, question: &Bytes, deadline: Instant) -> Result<Answer, Fault> {
        let Self { connection, link, patience } = self;
        let timeout = connection.timeout;
        let asked = patience.until(deadline, ask(connection, link, question)).await;
        asked.unwrap_or_else(|| {
            Err(Fault { kind: Kind::Late, told: format!("no answer within {}", human(timeout)) })
        })
    }
}

async fn ask(connection: &Connection, own: &mut Option<Link>, question: &Bytes) -> Result<Answer, Fault> {
    let mut tries = 0;
    let mut broken = None;
    loop {
        tries += 1;
        let link = match own {
            Some(link) => link,
            None => own.insert(connection.link(broken).await?),
        };
        let number = link.number;
        let why = match once(link, &connection.head, question).await {
            Ok(response) => return judge(response),
            Err(why) => why,
        };
        if !why.ended {
            return Err(Fault { kind: Kind::StreamReset, told: why.told });
        }
        *own = None;
        broken = Some(number);
        if !why.untouched || tries == TRIES {
            return Err(Fault { kind: Kind::ConnectionLost, told: why.told });
        }
    }
}

/// Why a request brought no response.
struct Broken {
    told: String,
    /// Whether no other request will fare better on this connection.
    ended: bool,
    /// Whether the service says, or we know, that it saw nothing of the request.
    untouched: bool,
}

impl Broken {
    fn of(why: &h2::Error, sent: bool) -> Self {
        let goes = why.is_go_away() && why.is_remote() && why.reason() == Some(Reason::NO_ERROR);
        Self { told: why.to_string(), ended: !why.is_reset(), untouched: !sent || goes }
    }
}

/// What came back: the status of the call, and a message where it is OK.
struct Response {
    http: StatusCode,
    headers: HeaderMap,
    message: Bytes,
    trailers: Option<HeaderMap>,
}

async fn once(link: &mut Link, head: &Request<()>, question: &Bytes) -> Result<Response, Broken> {
    let unsent = |why: h2::Error| Broken::of(&why, false);
    let broken = |why: h2::Error| Broken::of(&why, true);
    poll_fn(|cx| link.sender.poll_ready(cx)).await.map_err(unsent)?;
    let (response, mut stream) = link.sender.send_request(head.clone(), false).map_err(unsent)?;
    stream.send_data(question.clone(), true).map_err(broken)?;
    let (parts, mut body) = response.await.map_err(broken)?.into_parts();
    let message = message(&mut body).await.map_err(broken)?;
    let trailers = body.trailers().await.map_err(broken)?;
    Ok(Response { http: parts.status, headers: parts.headers, message, trailers })
}

/// All of a body, which nearly always comes in one piece.
async fn message(body: &mut RecvStream) -> Result<Bytes, h2::Error> {
    let mut message = Bytes::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        message = if message.is_empty() { piece } else { [&message[..], &piece].concat().into() };
    }
    Ok(message)
}

/// What all answers begin with; prost passes over the rest.
#[derive(Clone, PartialEq, Message)]
struct Overall {
    #[prost(enumeration = "Code", tag = "1")]
    overall_code: i32,
}

fn judge(response: Response) -> Result<Answer, Fault> {
    if response.http != StatusCode::OK {
        let told = format!("HTTP {}, where gRPC answers 200: is it the gRPC port?", response.http);
        return Err(Fault { kind: Kind::Http(response.http.as_u16()), told });
    }
    // A call that fails at once has its status in the headers.
    let status = response.trailers.as_ref().unwrap_or(&response.headers);
    if status.get("grpc-status").is_none_or(|code| code != "0") {
        return Err(match Status::from_header_map(status) {
            Some(status) if status.code() != Grpc::Ok => {
                Fault { kind: Kind::Status(status.code() as i32), told: status.message().to_owned() }
            }
            _ => garbled("the answer has no grpc-status"),
        });
    }
    let message = response.message.get(PREFIX_BYTES..).filter(|_| response.message[0] == 0);
    let Some(message) = message else { return Err(garbled("the answer is compressed, or has no message")) };
    match Overall::decode(message).map(|overall| overall.overall_code()) {
        Ok(Code::Ok) => Ok(Answer::Granted),
        Ok(Code::OverLimit) => Ok(Answer::Refused),
        Ok(Code::Unknown) => Err(garbled("the answer is neither OK nor OVER_LIMIT")),
        Err(why) => Err(garbled(&why.to_string())),
    }
}

fn garbled(told: &str) -> Fault {
    Fault { kind: Kind::Garbled, told: told.to_owned() }
}

/// At most eight digits and a unit, as gRPC has it.
fn grpc_timeout(timeout: Duration) -> HeaderValue {
    const DIGITS_MAX: u128 = 99_999_999;
    let (number, unit) = [(timeout.as_micros(), 'u'), (timeout.as_millis(), 'm')]
        .into_iter()
        .find(|(number, _)| *number <= DIGITS_MAX)
        .unwrap_or((u128::from(timeout.as_secs()).min(DIGITS_MAX), 'S'));
    HeaderValue::try_from(format!("{number}{unit}")).expect("digits and a letter are a header's value")
}

/// A timeout for one request after the other. A timer that is set for each costs more than a tenth of a request; this one
/// is set anew only when it went off, for whatever is being waited for by then.
#[derive(Debug)]
struct Patience {
    timer: Pin<Box<Sleep>>,
}

impl Patience {
    fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }

    /// `None` when the work is not done by then. Deadlines must not go back from one call to the next.
    async fn until<T>(&mut self, deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                if SystemClock.instant() >= deadline {
                    return Poll::Ready(None);
                }
                self.timer.as_mut().reset(deadline.into());
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_told_in_at_most_eight_digits() {
        for (timeout, told) in [
            (Duration::from_millis(20), "20000u"),
            (Duration::from_secs(99), "99000000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(1_000_000), "1000000S"),
            (Duration::MAX, "99999999S"),
        ] {
            assert_eq!(grpc_timeout(timeout), told);
        }
    }

    fn response(status: Option<&'static str>, message: &'static [u8]) -> Response {
        let mut trailers = HeaderMap::new();
        if let Some(status) = status {
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            trailers.insert("grpc-message", HeaderValue::from_static("not%20now"));
        }
        let message = Bytes::from_static(message);
        Response { http: StatusCode::OK, headers: HeaderMap::new(), message, trailers: Some(trailers) }
    }

    #[test]
    fn an_answer_is_what_its_overall_code_says() {
        // Field 1 is the overall code; another field, before or after, is passed over.
        for (message, answer) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], Ok(Answer::Granted)),
            (&[0, 0, 0, 0, 2, 8, 2], Ok(Answer::Refused)),
            (&[0, 0, 0, 0, 5, 0x12, 1, 0, 8, 2], Ok(Answer::Refused)),
            (&[0, 0, 0, 0, 0], Err("neither OK nor OVER_LIMIT")),
            (&[0, 0, 0, 0, 2, 8, 9], Err("neither OK nor OVER_LIMIT")),
            (&[1, 0, 0, 0, 2, 8, 1], Err("compressed")),
            (&[0, 0], Err("no message")),
            (&[], Err("no message")),
            (&[0, 0, 0, 0, 1, 8], Err("")),
        ] {
            match (judge(response(Some("0"), message)), answer) {
                (Ok(answer), expected) => assert_eq!(Ok(answer), expected, "{message:?}"),
                (Err(fault), Err(told)) => {
                    assert!(fault.kind == Kind::Garbled && fault.told.contains(told), "{fault:?}");
                }
                (Err(fault), Ok(_)) => panic!("{message:?}: {fault:?}"),
            }
        }
    }

    #[test]
    fn a_status_other_than_ok_is_no_answer() {
        let fault = judge(response(Some("14"), &[])).unwrap_err();
        assert_eq!((fault.kind, &*fault.told), (Kind::Status(14), "not now"));
        assert_eq!(fault.kind.to_string(), "gRPC Unavailable");
        assert_eq!(judge(response(None, &[])).unwrap_err().kind, Kind::Garbled);
        let not_found = Response { http: StatusCode::NOT_FOUND, ..response(None, &[]) };
        assert_eq!(judge(not_found).unwrap_err().kind, Kind::Http(404));
    }
}
