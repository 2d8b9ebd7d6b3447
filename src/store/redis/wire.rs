//! A connection and its two buffers: commands that are to go out, replies that have come in.
//!
//! A wire has no task, no queue and no timer of its own. Who holds it writes commands into its output, lets it flush, and
//! takes replies in the order of the commands; it is dropped when it is no good any more, with all that was in flight. So
//! there is nothing here that could send something twice.
//!
//! # Memory
//!
//! What arrives is read into one buffer, which grows no further than the bounds of the reply that is arriving, since more
//! is read only while that is incomplete. Both buffers shrink again after a large reply or command.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    resp::{self, Bounds, Frame, Malformed, Scanner, Value},
    stream::Stream,
};

/// The room for replies at first, in bytes: a call's of 256 charges is about as large.
const INPUT_MIN: usize = 16 * 1024;

/// The largest buffer that is kept while nothing is in it, in bytes.
const KEPT_MAX: usize = 64 * 1024;

/// Why a connection is no good any more.
#[derive(Debug)]
pub(super) enum Lost {
    /// The other end closed it.
    Closed,
    Io(io::Error),
    /// What came is no reply.
    Malformed(Malformed),
    /// What came is a reply, and none to this.
    Other(&'static str),
    /// There is no reply in time.
    Late(Duration),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Malformed> for Lost {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    input: Input,
    output: Vec<u8>,
    /// How much of the output has gone out.
    written: usize,
    /// Whether errors may quote what came.
    quotes: bool,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, input: Input::default(), output: Vec::new(), written: 0, quotes: true }
    }

    /// From now on no error quotes what came. For who sends a password: a proxy may say it at any later time.
    pub(super) fn quote_nothing(&mut self) {
        self.quotes = false;
    }

    /// Where commands are appended that are to go out.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether there is something that has not gone out.
    pub(super) fn is_full(&self) -> bool {
        self.written < self.output.len()
    }

    /// Sends what is in the output, as far as the network takes it.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        while self.is_full() {
            let rest = &self.output[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(Lost::Closed)),
                written => self.written += written,
            }
        }
        // With TLS what was written may not have gone out.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.written = 0;
        self.output.clear();
        self.output.shrink_to(KEPT_MAX);
        Poll::Ready(Ok(()))
    }

    /// Reads what has arrived. Ready when something has.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let mut space = ReadBuf::new(self.input.space());
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut space))?;
        match space.filled().len() {
            0 => Poll::Ready(Err(Lost::Closed)),
            length => {
                self.input.end += length;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// The length of the next reply, as soon as all of it is there.
    ///
    /// # Errors
    /// When it is none, or one beyond these bounds.
    pub(super) fn arrived(&mut self, bounds: &Bounds) -> Result<Option<usize>, Malformed> {
        let arrived = self.input.scanner.scan(&self.input.bytes[self.input.start..self.input.end], bounds);
        arrived.map_err(|why| if self.quotes { why } else { why.unquoted() })
    }

    /// Whether anything has arrived that was not taken.
    pub(super) fn has_input(&self) -> bool {
        self.input.start < self.input.end
    }

    /// The next reply, which is so long.
    pub(super) fn frame(&self, length: usize) -> Frame<'_> {
        Frame::new(&self.input.bytes[self.input.start..][..length])
    }

    /// Takes the next reply away.
    pub(super) fn take(&mut self, length: usize) {
        self.input.take(length);
    }

    /// Sends what is in the output and waits until the next reply is all there; its length. After an error the wire is no
    /// good any more, as after those of all that follows; but where there was no reply in time, it may be waited for again.
    pub(super) async fn wait(&mut self, bounds: Bounds, within: Duration) -> Result<usize, Lost> {
        let arrived = poll_fn(|cx| {
            // Either of the two wakes us: that there is room for more, and that something has arrived.
            let _ = self.poll_flush(cx)?;
            loop {
                if let Some(length) = self.arrived(&bounds)? {
                    return Poll::Ready(Ok::<_, Lost>(length));
                }
                ready!(self.poll_read(cx))?;
            }
        });
        tokio::time::timeout(within, arrived).await.unwrap_or(Err(Lost::Late(within)))
    }

    /// The next reply.
    pub(super) async fn reply(&mut self, bounds: Bounds, within: Duration) -> Result<Value, Lost> {
        let length = self.wait(bounds, within).await?;
        let value = self.frame(length).to_value();
        self.take(length);
        Ok(value)
    }

    /// One command's reply.
    pub(super) async fn ask(
        &mut self,
        words: &[&str],
        bounds: Bounds,
        within: Duration,
    ) -> Result<Value, Lost> {
        resp::words(&mut self.output, words);
        self.reply(bounds, within).await
    }
}

/// What has arrived.
#[derive(Debug)]
struct Input {
    /// What was read, from `start` to `end`; room for more behind it.
    bytes: Vec<u8>,
    /// Where the next reply begins.
    start: usize,
    end: usize,
    scanner: Scanner,
}

impl Default for Input {
    fn default() -> Self {
        Self { bytes: vec![0; INPUT_MIN], start: 0, end: 0, scanner: Scanner::default() }
    }
}

impl Input {
    /// Room to read into, which is not empty.
    fn space(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            } else {
                self.bytes.resize(2 * self.bytes.len(), 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    fn take(&mut self, length: usize) {
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT_MAX {
                self.bytes = vec![0; INPUT_MIN];
            }
        }
    }
}
