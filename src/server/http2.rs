//! A connection of HTTP/2, on one thread from its first byte to its last, in one task.
//!
//! hyper makes a task of each request, since an answer may take any time. Here most answers are there as soon as they are
//! asked for, and what costs is the way around them: a task, its wake-ups, boxes for bodies. So a connection goes in
//! rounds, on h2 itself, which is also below hyper:
//!
//! ```text
//! what has arrived, all of it ──> what can be answered is ──> all answers in one write
//!                            └──> what waits joins the others that wait, in the same task
//! ```
//!
//! The rest is what hyper did: a GOAWAY that lets open requests end, a ping for who is silent, and a request that its
//! client has reset is dropped.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::{
    Ping, PingPong, RecvStream,
    server::{Builder, Connection, SendResponse},
};
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Sleep, sleep},
};

/// Requests on one connection at a time. An Envoy has a connection for each of its threads and opens no second one
/// before this is reached; hyper's default of 200 would make it queue.
const STREAMS_MAX: u32 = 4096;

/// Requests that are answered before what was answered is written: a few hundred microseconds of work at most.
const ROUND_MAX: usize = 64;

/// Rounds in a row; then other connections of this thread have their turn, whatever this one sends.
const ROUNDS_MAX: usize = 8;

/// Requests that their client has reset before we came to accept them. An Envoy gives up after 20 ms by default, so one
/// that was kept waiting for a moment may give up on hundreds at once; h2's own bound of 20 would end its connection, and
/// all other requests on it. Each is accepted at once, so this bounds a moment's memory: 16 MiB of headers at worst.
const RESET_EARLY_MAX: usize = 1024;

/// What h2 lets small pieces of messages cost in memory, at 256 bytes each, while they wait to be read: two for each
/// request that may be open. By itself it would hang up on 2,048, which clients that end a request in a frame of its own
/// send at once after a moment's wait.
const PIECES_MAX_BYTES: usize = 2 * STREAMS_MAX as usize * 256;

/// What a client may send before it is read, of one request and of all: 1 MiB, as with hyper and Envoy's own server side.
const WINDOW_BYTES: u32 = 1 << 20;

/// All headers of one request together: 16 KiB, as with hyper; Envoy sends some hundred bytes.
const HEADERS_MAX_BYTES: u32 = 16 << 10;

/// A connection that is idle for so long is asked whether it still lives; proxies between cut idle ones without a word.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(60);

/// How long it has to answer.
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(20);

/// A request, and where its answer goes.
pub(super) type Asked = (Request<RecvStream>, SendResponse<Bytes>);

/// What will have answered when it is done. Boxed, since it is large and mostly not needed.
pub(super) type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves a connection until it is gone. `answer` answers a request, or returns what will have answered it when it is
/// done. When `told` is ready the client gets a GOAWAY, and the connection ends when its requests are answered.
///
/// # Errors
/// What the client or the network did wrong.
pub(super) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl FnMut(Asked, &mut Context<'_>) -> Option<Waiting>,
    told: impl Future<Output = ()>,
) -> Result<(), h2::Error> {
    watched(io, answer, told, (KEEPALIVE_EVERY, KEEPALIVE_WITHIN)).await
}

async fn watched(
    io: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl FnMut(Asked, &mut Context<'_>) -> Option<Waiting>,
    told: impl Future<Output = ()>,
    (every, within): (Duration, Duration),
) -> Result<(), h2::Error> {
    let mut connection = Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEADERS_MAX_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_EARLY_MAX)
        .data_frame_budget(PIECES_MAX_BYTES)
        .handshake(io)
        .await?;
    let keepalive = connection.ping_pong().map(|pings| Keepalive::new(pings, every, within));
    let mut serving =
        Serving { connection, answer, round: Vec::new(), waiting: FuturesUnordered::new(), keepalive };
    let mut told = std::pin::pin!(told);
    let mut is_told = false;
    std::future::poll_fn(|cx| {
        if !is_told && told.as_mut().poll(cx).is_ready() {
            is_told = true;
            serving.connection.graceful_shutdown();
        }
        serving.poll(cx)
    })
    .await
}

struct Serving<T, A> {
    connection: Connection<T, Bytes>,
    answer: A,
    /// What has arrived and is not answered yet; empty between polls.
    round: Vec<Asked>,
    /// What waits: for the rest of its message, a store, a place in flight.
    waiting: FuturesUnordered<Waiting>,
    keepalive: Option<Keepalive>,
}

impl<T, A> Serving<T, A>
where
    T: AsyncRead + AsyncWrite + Unpin,
    A: FnMut(Asked, &mut Context<'_>) -> Option<Waiting>,
{
    /// Ready when the connection is gone.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let mut heard = false;
        for round in 1.. {
            let mut all = false;
            while self.round.len() < ROUND_MAX && !all {
                match self.connection.poll_accept(cx) {
                    Poll::Ready(Some(asked)) => self.round.push(asked?),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => all = true,
                }
            }
            heard |= !self.round.is_empty();
            for asked in self.round.drain(..) {
                if let Some(waiting) = (self.answer)(asked, cx) {
                    self.waiting.push(waiting);
                }
            }
            while let Poll::Ready(Some(())) = self.waiting.poll_next_unpin(cx) {}
            // Where all was accepted, h2 knows our waker and has woken us if anything was answered: the next poll writes.
            if all {
                break;
            }
            if round == ROUNDS_MAX {
                cx.waker().wake_by_ref();
                break;
            }
        }
        match &mut self.keepalive {
            Some(keepalive) => keepalive.poll(heard, cx),
            None => Poll::Pending,
        }
    }
}

/// Asks who is silent whether he lives.
struct Keepalive {
    pings: PingPong,
    every: Duration,
    within: Duration,
    /// Fires when a ping is due, or its answer.
    timer: Pin<Box<Sleep>>,
    /// Something came since the timer was set.
    heard: bool,
    asked: bool,
}

impl Keepalive {
    fn new(pings: PingPong, every: Duration, within: Duration) -> Self {
        Self { pings, every, within, timer: Box::pin(sleep(every)), heard: false, asked: false }
    }

    /// Ready when there was no answer. Only requests are `heard`: who sends nothing else has to prove that he reads.
    fn poll(&mut self, heard: bool, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        self.heard |= heard;
        if self.asked
            && let Poll::Ready(answer) = self.pings.poll_pong(cx)
        {
            answer?;
            self.asked = false;
            let asked_at = self.timer.deadline() - self.within;
            self.timer.as_mut().reset(asked_at + self.every);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.asked {
                return Poll::Ready(Err(h2::Reason::NO_ERROR.into()));
            }
            self.asked = !std::mem::take(&mut self.heard);
            let next = self.timer.deadline() + if self.asked { self.within } else { self.every };
            self.timer.as_mut().reset(next);
            if self.asked {
                self.pings.send_ping(Ping::opaque())?;
                // Its answer cannot be there; this registers for it.
                let _ = self.pings.poll_pong(cx)?;
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const PING: u8 = 6;
    const ACK: u8 = 1;

    /// The payload of the next ping; other frames are passed over.
    async fn ping(client: &mut DuplexStream) -> [u8; 8] {
        loop {
            let mut head = [0; 9];
            client.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            client.read_exact(&mut payload).await.unwrap();
            if head[3] == PING && head[4] != ACK {
                return payload.try_into().unwrap();
            }
        }
    }

    #[tokio::test]
    async fn who_is_silent_is_asked_again_and_again_and_cut_when_he_does_not_answer() {
        let (mut client, server) = tokio::io::duplex(1 << 12);
        let times = (Duration::from_millis(5), Duration::from_secs(3));
        let served = tokio::spawn(watched(server, |_, _| None, pending(), times));
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        client.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        for _ in 0..3 {
            let payload = ping(&mut client).await;
            client.write_all(&[0, 0, 8, PING, ACK, 0, 0, 0, 0]).await.unwrap();
            client.write_all(&payload).await.unwrap();
        }
        ping(&mut client).await;
        let ended = tokio::time::timeout(Duration::from_secs(30), served).await.expect("it is cut");
        assert!(ended.unwrap().is_err());
    }
}
