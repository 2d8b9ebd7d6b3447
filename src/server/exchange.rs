//! One request and its answer, as h2 moves them.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{Error, Reason, RecvStream, SendStream, server::SendResponse};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use tonic::{Status, body::Body};

use super::{
    held::{Bounds, Held},
    http2::Waiting,
};
use crate::service::unary::{self, Frames};

/// What is said to whose unfinished requests are too large together.
pub(super) const TOO_MUCH: &str =
    "unfinished requests hold too many bytes: 6 MiB of a connection, 96 MiB of all";

/// The message of a request, which may be on its way yet.
pub(super) struct Message {
    frames: Frames,
    body: RecvStream,
    /// What came of it in pieces.
    held: Option<Held>,
}

/// A message that is whole, with what its client waits for.
pub(super) struct Whole<B = RecvStream> {
    pub(super) message: Bytes,
    /// Its last piece, nearly always all of it, still takes of the windows. So whoever waits for a place in flight, whole
    /// messages in hand, bounds what the client may send.
    pub(super) window: B,
    pub(super) held: Option<Held>,
}

impl Message {
    /// # Errors
    /// When it is compressed.
    pub(super) fn of(request: Request<RecvStream>) -> Result<Self, Status> {
        Ok(Self { frames: Frames::of(request.headers())?, body: request.into_body(), held: None })
    }

    /// Ready, once, when the client has ended its request, or when that is no message. What comes before its end is held
    /// within `bounds`.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, bounds: &Bounds) -> Poll<Result<Bytes, Status>> {
        while let Some(piece) = ready!(self.body.poll_data(cx)) {
            // Nobody hears this: the request was reset, or the connection is gone.
            let piece = piece.map_err(|error| Status::cancelled(error.to_string()))?;
            let length = piece.len();
            self.frames.push(piece)?;
            if self.body.is_end_stream() {
                break;
            }
            if !self.held.get_or_insert_with(|| bounds.nothing()).grow(length) {
                return Poll::Ready(Err(Status::unavailable(TOO_MUCH)));
            }
            let _ = self.body.flow_control().release_capacity(length);
        }
        Poll::Ready(std::mem::take(&mut self.frames).message())
    }

    /// With what [`Message::poll`] has told.
    pub(super) fn whole(self, message: Bytes) -> Whole {
        Whole { message, window: self.body, held: self.held }
    }

    /// The message, when it is whole.
    pub(super) async fn arrived(mut self, bounds: Bounds) -> Result<Whole, Status> {
        let message = poll_fn(|cx| self.poll(cx, &bounds)).await?;
        Ok(self.whole(message))
    }
}

/// Answers up to this length are left to h2, read or not: nearly all of them. A client who reads none of his may have so
/// many streams open.
const SMALL_MAX_BYTES: usize = 4 << 10;

/// How long a client may take to read a larger one.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Sends the one message of an answer, or why there is none. An answer that cannot be sent has lost its client.
pub(super) fn answer(
    mut respond: SendResponse<Bytes>,
    answer: Result<Bytes, Status>,
    bounds: &Bounds,
) -> Option<Waiting> {
    let sent = match answer {
        Ok(frame) if frame.len() > SMALL_MAX_BYTES => return large(respond, frame, bounds),
        Ok(frame) => respond.send_response(unary::head(), false).and_then(|mut stream| {
            stream.send_data(frame, false)?;
            stream.send_trailers(unary::trailers())
        }),
        Err(status) => respond.send_response(status.into_http(), true).map(drop),
    };
    if let Err(error) = sent {
        tracing::debug!("an answer is lost: {error}");
    }
    None
}

/// As fast as the client reads it, and not for ever.
fn large(mut respond: SendResponse<Bytes>, frame: Bytes, bounds: &Bounds) -> Option<Waiting> {
    let mut held = bounds.nothing();
    if !held.grow(frame.len()) {
        respond.send_reset(Reason::ENHANCE_YOUR_CALM);
        return None;
    }
    Some(Box::pin(async move {
        let _held = held;
        let mut stream = match respond.send_response(unary::head(), false) {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!("an answer is lost: {error}"),
        };
        let read = match tokio::time::timeout(READ_WITHIN, pass_data(&mut stream, frame)).await {
            Ok(passed) => passed.and_then(|()| stream.send_trailers(unary::trailers())),
            Err(_) => {
                stream.send_reset(Reason::CANCEL);
                return;
            }
        };
        if let Err(error) = read {
            tracing::debug!("an answer is lost: {error}");
        }
    }))
}

/// The answer, or `None` when its client resets the request before it is there.
pub(super) async fn unless_reset<T>(
    respond: &mut SendResponse<Bytes>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = pin!(answer);
    poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => respond.poll_reset(cx).map(|_| None),
    })
    .await
}

/// Sends an answer of any length, as fast as its client reads it.
pub(super) async fn pass_on(respond: &mut SendResponse<Bytes>, response: Response<Body>) {
    let (head, body) = response.into_parts();
    let head = Response::from_parts(head, ());
    let passed = match body.is_end_stream() {
        true => respond.send_response(head, true).map(drop),
        false => match respond.send_response(head, false) {
            Ok(mut stream) => pass_body(&mut stream, body).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = passed {
        tracing::debug!("an answer is lost: {error}");
    }
}

async fn pass_body(stream: &mut SendStream<Bytes>, mut body: Body) -> Result<(), Error> {
    loop {
        let frame = poll_fn(|cx| match Pin::new(&mut body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            // Nobody reads what a health watch would say next.
            Poll::Pending => {
                stream.poll_reset(cx).map(|reason| Err(reason.map_or_else(Into::into, Error::from)))
            }
        });
        let frame = match frame.await? {
            Some(Ok(frame)) => frame,
            Some(Err(status)) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                tracing::debug!("an answer is cut off: {status}");
                return Ok(());
            }
            None => return stream.send_data(Bytes::new(), true),
        };
        match frame.into_data() {
            Ok(data) => pass_data(stream, data).await?,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return stream.send_trailers(trailers);
                }
            }
        }
    }
}

/// No more than the client's window at a time, so that what is not read is not kept here.
async fn pass_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let Some(capacity) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return Err(Reason::STREAM_CLOSED.into());
        };
        stream.send_data(data.split_to(capacity?.min(data.len())), false)?;
    }
    Ok(())
}

/// The body of a request, as tonic reads it.
pub(super) struct Received(pub(super) RecvStream);

impl HttpBody for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Poll::Ready(match ready!(self.0.poll_data(cx)) {
            Some(Ok(data)) => {
                let _ = self.0.flow_control().release_capacity(data.len());
                Some(Ok(Frame::data(data)))
            }
            Some(Err(error)) => Some(Err(error)),
            None => ready!(self.0.poll_trailers(cx))?.map(|trailers| Ok(Frame::trailers(trailers))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::{super::held::CONNECTION_MAX_BYTES, super::http2, *};

    /// How much is read of each of so many answers, a MiB each, by a client who reads them all or none; why it was reset.
    async fn asked(questions: usize, reads: bool) -> Vec<Result<usize, Option<Reason>>> {
        let (client, server) = tokio::io::duplex(1 << 16);
        let bounds = Bounds::new();
        let large = move |(_, respond): http2::Asked, _: &mut Context<'_>| {
            answer(respond, Ok(Bytes::from(vec![0; 1 << 20])), &bounds)
        };
        tokio::spawn(http2::serve(server, large, pending()));
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(if reads { 1 << 20 } else { 0 });
        let (client, connection) = builder.handshake::<_, Bytes>(client).await.unwrap();
        tokio::spawn(connection);
        let (mut read, mut unread) = (Vec::new(), Vec::new());
        for _ in 0..questions {
            let request = Request::post("http://tollgate/").body(()).unwrap();
            let mut client = client.clone().ready().await.unwrap();
            let (answer, _) = client.send_request(request, true).unwrap();
            let mut body = match answer.await {
                Ok(answer) => answer.into_body(),
                Err(error) => {
                    read.push(Err(error.reason()));
                    continue;
                }
            };
            let mut length = 0;
            while reads && let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                length += data.len();
            }
            read.push(Ok(length));
            unread.push(body);
        }
        read
    }

    #[tokio::test]
    async fn who_reads_is_answered_at_any_length() {
        assert_eq!(asked(20, true).await, vec![Ok(1 << 20); 20]);
    }

    #[tokio::test]
    async fn large_answers_that_nobody_reads_are_held_up_to_the_bound_and_further_ones_are_cut() {
        let held = CONNECTION_MAX_BYTES >> 20;
        let cut = vec![Err(Some(Reason::ENHANCE_YOUR_CALM)); 20 - held];
        assert_eq!(asked(20, false).await, [vec![Ok(0); held], cut].concat());
    }
}
