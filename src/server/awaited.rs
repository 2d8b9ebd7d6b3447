//! A request that waits for its answer.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use h2::server::SendResponse;
use pin_project_lite::pin_project;
use tonic::Status;

use super::{exchange, front::defect, held::Bounds, http2::Waiting};

pin_project! {
    /// A request that waits, and its answer when it is there, or INTERNAL in place of a panic.
    ///
    /// Written out, since nested async functions keep what they are given beside what they make of it: the same as three
    /// of them took 23 kB a request, most of the time of which went into moving and freeing it.
    pub(super) struct Awaited<F> {
        #[pin]
        answer: F,
        respond: Option<SendResponse<Bytes>>,
        bounds: Bounds,
        // What sends an answer that is too large for one piece.
        sending: Option<Waiting>,
    }
}

impl<F> Awaited<F>
where
    F: Future<Output = Result<Bytes, Status>> + Send + 'static,
{
    /// Boxed, as others are who wait.
    pub(super) fn boxed(answer: F, respond: SendResponse<Bytes>, bounds: Bounds) -> Waiting {
        Box::pin(Self { answer, respond: Some(respond), bounds, sending: None })
    }
}

impl<F: Future<Output = Result<Bytes, Status>>> Future for Awaited<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if let Some(respond) = this.respond {
            let polled = catch_unwind(AssertUnwindSafe(|| this.answer.poll(cx)));
            let Poll::Ready(answer) = polled.unwrap_or_else(|_| Poll::Ready(Err(defect()))) else {
                // Ready when the client has reset its request.
                return respond.poll_reset(cx).map(drop);
            };
            if let Some(respond) = this.respond.take() {
                *this.sending = exchange::answer(respond, answer, this.bounds);
            }
        }
        match this.sending {
            Some(sending) => sending.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}
