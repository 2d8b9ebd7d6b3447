//! One request and its answer, as h2 moves them.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Error, Reason, RecvStream, SendStream, server::SendResponse};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use tonic::{Status, body::Body};

use crate::service::unary::{self, Frames};

/// The message of a request, which may be on its way yet.
pub(super) struct Message {
    frames: Frames,
    body: RecvStream,
}

impl Message {
    /// # Errors
    /// When it is compressed.
    pub(super) fn of(request: Request<RecvStream>) -> Result<Self, Status> {
        Ok(Self { frames: Frames::of(request.headers())?, body: request.into_body() })
    }

    /// Ready, once, when the client has ended its request, or when that is no message.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while let Some(piece) = ready!(self.body.poll_data(cx)) {
            // Nobody hears this: the request was reset, or the connection is gone.
            let piece = piece.map_err(|error| Status::cancelled(error.to_string()))?;
            let length = piece.len();
            self.frames.push(piece)?;
            // What the last piece took of the windows comes back when the body is dropped.
            if self.body.is_end_stream() {
                break;
            }
            let _ = self.body.flow_control().release_capacity(length);
        }
        Poll::Ready(std::mem::take(&mut self.frames).message())
    }

    /// The message, when it is there.
    pub(super) async fn whole(mut self) -> Result<Bytes, Status> {
        poll_fn(|cx| self.poll(cx)).await
    }
}

/// Sends the one message of an answer, or why there is none. An answer that cannot be sent has lost its client.
pub(super) fn answer(respond: &mut SendResponse<Bytes>, answer: Result<Bytes, Status>) {
    let sent = match answer {
        Ok(frame) => respond.send_response(unary::head(), false).and_then(|mut stream| {
            stream.send_data(frame, false)?;
            stream.send_trailers(unary::trailers())
        }),
        Err(status) => respond.send_response(status.into_http(), true).map(drop),
    };
    if let Err(error) = sent {
        tracing::debug!("an answer is lost: {error}");
    }
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
