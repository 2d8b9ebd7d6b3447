//! Clients who begin and never end: what they hold is bounded, and nobody else notices.

use std::{future::poll_fn, time::Duration};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, client::SendRequest};
use http::{Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, Status};

use crate::client::{Service, until};

const LIMITS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Streams that the service takes on one connection.
const STREAMS: usize = 4096;

/// Places in flight, by default.
const PLACES: usize = 16_384;

/// The largest message, in bytes.
const MESSAGE_MAX: usize = 4 << 20;

/// A connection that does only what it is told.
async fn connect(service: &Service) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(&service.grpc).await.unwrap();
    let mut builder = h2::client::Builder::new();
    // What the service allows it has not said yet.
    builder.initial_max_send_streams(STREAMS);
    let (client, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// A request whose message is announced as `length` bytes, of which none has come.
async fn begin(client: &mut SendRequest<Bytes>, path: &str, length: usize) -> Open {
    begin_within(client, path, length, "1H").await
}

/// The same of a caller who waits for so long.
async fn begin_within(client: &mut SendRequest<Bytes>, path: &str, length: usize, timeout: &str) -> Open {
    *client = client.clone().ready().await.unwrap();
    let request = Request::post(format!("http://tollgate{path}")).header("grpc-timeout", timeout);
    let request = request.body(()).unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    let mut head = vec![0];
    head.extend(u32::try_from(length).unwrap().to_be_bytes());
    body.send_data(head.into(), false).unwrap();
    Open { answer: tokio::spawn(answer), body }
}

struct Open {
    answer: tokio::task::JoinHandle<Result<Response<RecvStream>, h2::Error>>,
    body: SendStream<Bytes>,
}

impl Open {
    /// Sends so many bytes more, as the service lets it.
    async fn send(&mut self, mut bytes: usize) -> Result<(), h2::Error> {
        while bytes > 0 {
            self.body.reserve_capacity(bytes);
            let Some(capacity) = poll_fn(|cx| self.body.poll_capacity(cx)).await else {
                return Err(Reason::STREAM_CLOSED.into());
            };
            let piece = capacity?.min(bytes);
            self.body.send_data(vec![0; piece].into(), false)?;
            bytes -= piece;
        }
        Ok(())
    }

    /// What becomes of it.
    async fn status(self) -> Result<Status, h2::Error> {
        let answer = self.answer.await.unwrap()?;
        if let Some(status) = Status::from_header_map(answer.headers()) {
            return Ok(status);
        }
        let mut body = answer.into_body();
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data?.len()).unwrap();
        }
        Ok(Status::from_header_map(&body.trailers().await?.unwrap()).unwrap())
    }
}

/// Resident memory, in bytes.
fn memory(service: &Service) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", service.served.pid())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// What a metric says.
fn metric(service: &Service, name: &str) -> String {
    let text = service.get("/metrics").1;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_messages_on_four_connections_keep_no_place_in_flight_from_others() {
    let service = Service::ready(&[]).await;
    let mut half = Vec::new();
    for _ in 0..PLACES / STREAMS {
        let mut client = connect(&service).await;
        for _ in 1..STREAMS {
            half.push(begin(&mut client, LIMITS, 100).await);
        }
        // In the end each is told that its time is over; this one does not have to wait for 10 s.
        let hurried = begin_within(&mut client, LIMITS, 100, "50m").await;
        assert_eq!(hurried.status().await.unwrap().code(), Code::Cancelled);
    }
    let asked = tokio::time::timeout(Duration::from_secs(5), service.ask("robot", "r2"));
    asked.await.expect("an answer while they are open").unwrap();
    assert_eq!(metric(&service, "tollgate_in_flight"), "0");
    assert!(half.iter().any(|half| !half.answer.is_finished()), "half messages while that was answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_messages_that_come_and_go_leave_no_memory_behind() {
    let service = Service::ready(&[]).await;
    let mut client = connect(&service).await;
    let mut used = Vec::new();
    for _ in 0..6 {
        let mut half = Vec::new();
        for _ in 0..STREAMS - 1 {
            let mut one = begin(&mut client, LIMITS, 200).await;
            one.send(100).await.unwrap();
            half.push(one);
        }
        // The last one is answered, so all of them have come.
        let mut asked = begin(&mut client, LIMITS, 0).await;
        asked.body.send_data(Bytes::new(), true).unwrap();
        asked.status().await.unwrap();
        used.push(memory(&service));
        half.iter_mut().for_each(|half| half.body.send_reset(Reason::CANCEL));
        drop(half);
    }
    // The first ones have grown the tables that the others use.
    let (before, after) = (used[2], used[5]);
    assert!(after < before + (5 << 20), "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_half_messages_hold_is_bounded_and_the_largest_message_of_another_connection_is_read() {
    let service = Service::ready(&[]).await;
    let mut client = connect(&service).await;
    let before = memory(&service);
    let mut half = Vec::new();
    // Each could be whole; all together they are more than a connection may hold.
    for _ in 0..16 {
        let mut one = begin(&mut client, LIMITS, MESSAGE_MAX).await;
        let refused = one.send(MESSAGE_MAX / 4).await.is_err();
        half.push(one);
        if refused {
            break;
        }
    }
    let ended = |half: &Vec<Open>| half.iter().position(|half| half.answer.is_finished());
    until("one that does not fit", async || ended(&half).is_some()).await;
    let status = half.swap_remove(ended(&half).unwrap()).status().await.unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("6 MiB of a connection"), "{status:?}");
    let grown = memory(&service).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown}");

    let mut another = connect(&service).await;
    let mut whole = begin(&mut another, LIMITS, MESSAGE_MAX).await;
    whole.send(MESSAGE_MAX).await.unwrap();
    whole.body.send_data(Bytes::new(), true).unwrap();
    // Zeros are no message, which is said of one that was read.
    assert_eq!(whole.status().await.unwrap().code(), Code::Internal);
    service.ask("robot", "r2").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_so_many_health_watches_and_is_asked_for_limits_all_the_same() {
    let service = Service::ready(&[]).await;
    let mut client = connect(&service).await;
    let mut watches = Vec::new();
    for _ in 0..64 {
        watches.push(begin(&mut client, WATCH, 0).await);
    }
    let one_more = begin(&mut client, WATCH, 0).await.status().await.unwrap_err();
    assert_eq!(one_more.reason(), Some(Reason::REFUSED_STREAM));
    let mut asked = begin(&mut client, LIMITS, 0).await;
    asked.body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(asked.status().await.unwrap().code(), Code::InvalidArgument);
    // Who leaves makes room.
    watches.pop().unwrap().body.send_reset(Reason::CANCEL);
    until("room for another watch", async || {
        let another = begin(&mut client, WATCH, 0).await;
        let refused = tokio::time::timeout(Duration::from_millis(50), another.answer).await;
        !matches!(refused, Ok(Ok(Err(error))) if error.reason() == Some(Reason::REFUSED_STREAM))
    })
    .await;
}

// === Frames of our own ===

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a request in HPACK: POST, http, a path and an authority, without Huffman's code.
fn head() -> Vec<u8> {
    let mut head = vec![0x83, 0x86, 0x04, u8::try_from(LIMITS.len()).unwrap()];
    head.extend(LIMITS.as_bytes());
    head.extend([0x01, 8]);
    head.extend(b"tollgate");
    head
}

async fn raw(service: &Service) -> TcpStream {
    let mut stream = TcpStream::connect(&service.grpc).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    stream
}

/// Reads until a frame of this kind comes, or the end.
async fn next(stream: &mut TcpStream, kind: u8) -> Option<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.ok()?;
        if head[3] == kind {
            return Some(payload);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_gives_up_on_hundreds_at_once_keeps_its_connection() {
    let service = Service::ready(&[]).await;
    let mut stream = raw(&service).await;
    let mut burst = Vec::new();
    for i in 0..500 {
        burst.extend(frame(HEADERS, END_HEADERS, 2 * i + 1, &head()));
        burst.extend(frame(RST_STREAM, 0, 2 * i + 1, &8_u32.to_be_bytes()));
    }
    // The one that it still waits for.
    burst.extend(frame(HEADERS, END_HEADERS | 1, 1001, &head()));
    stream.write_all(&burst).await.unwrap();
    assert!(next(&mut stream, HEADERS).await.is_some(), "an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_without_an_end_ends_its_connection() {
    let service = Service::ready(&[]).await;
    let mut stream = raw(&service).await;
    stream.write_all(&frame(HEADERS, 0, 1, &head())).await.unwrap();
    let before = memory(&service);
    // A header that no table keeps, again and again. Writing fails once the service has hung up.
    let more = frame(CONTINUATION, 0, 1, &[&[0x10, 1, b'a', 0x7f, 0x81, 0x7f][..], &[b'b'; 16_256]].concat());
    for _ in 0..1000 {
        if stream.write_all(&more).await.is_err() {
            break;
        }
    }
    // A GOAWAY, unless the hang-up overtook it.
    while next(&mut stream, GOAWAY).await.is_some() {}
    assert!(memory(&service).saturating_sub(before) < 5 << 20);
    service.ask("robot", "r2").await.unwrap();
}
