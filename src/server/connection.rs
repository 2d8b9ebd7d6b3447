//! A gRPC connection that has to say something.
//!
//! Below HTTP/2 a connection can be open and silent for ever: before the client's preface h2 has no timeout, no
//! keepalive and no way to end gracefully. So a client who connects and says nothing would keep a file descriptor as
//! long as it likes, and a process from ending. Here it has [`PREFACE_WITHIN`] for the preface, and less when the process
//! ends. Afterwards HTTP/2's own keepalive watches over it.
//!
//! A connection may also be told to end in time (see [`Connection::cut_after`]), whatever its client does.
//!
//! The handshake of TLS, where that is spoken, is a part of that time, and of the connection's own task: it happens
//! below the first read or write, so one that takes long holds up nobody else.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::Sleep,
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

use super::socket::{Peer, Socket};

/// How long a client may take to send its preface: a handshake over the slowest network, several times.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);

/// `PRI * HTTP/2.0 …` of RFC 9113, 3.4.
const PREFACE_BYTES: usize = 24;

/// A connection, from its handshake to its end.
pub(super) struct Connection {
    stream: Stream,
    peer: Peer,
    /// `None` as soon as the preface is there.
    silence: Option<Silence>,
    /// When it is cut.
    cut: Option<Pin<Box<Sleep>>>,
}

enum Stream {
    Plain(Socket),
    Handshake(Box<Accept<Socket>>),
    Tls(Box<TlsStream<Socket>>),
}

/// What a connection is read from and written to.
trait Bytes: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Bytes for T {}

struct Silence {
    heard: usize,
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Connection {
    /// `open` closes when the process ends.
    pub(super) fn new(socket: Socket, tls: Option<TlsAcceptor>, mut open: watch::Receiver<()>) -> Self {
        let ends = async move {
            tokio::select! {
                () = tokio::time::sleep(PREFACE_WITHIN) => {}
                _ = open.changed() => {}
            }
        };
        let peer = socket.peer();
        let stream = match tls {
            Some(tls) => Stream::Handshake(Box::new(tls.accept(socket))),
            None => Stream::Plain(socket),
        };
        Self { stream, peer, silence: Some(Silence { heard: 0, ends: Box::pin(ends) }), cut: None }
    }

    /// From then on reading and writing fail instead of waiting.
    #[must_use]
    pub(super) fn cut_after(mut self, age: Option<Duration>) -> Self {
        self.cut = age.map(|age| Box::pin(tokio::time::sleep(age)));
        self
    }

    /// What is waited for is waited for until the cut.
    fn until_cut<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match (&mut self.cut, done) {
            (Some(cut), Poll::Pending) => cut.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            (_, done) => done,
        }
    }

    /// The stream, once its handshake is done.
    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Bytes>>> {
        if let Stream::Handshake(accept) = &mut self.stream {
            match Pin::new(accept).poll(cx) {
                Poll::Ready(Ok(stream)) => self.stream = Stream::Tls(Box::new(stream)),
                Poll::Ready(Err(error)) => {
                    tracing::debug!("{}: no TLS: {error}", self.peer);
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {
                    ready!(self.poll_silence(cx));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        match &mut self.stream {
            Stream::Plain(Socket::Tcp(stream)) => Poll::Ready(Ok(Pin::new(stream))),
            Stream::Plain(Socket::Unix(stream)) => Poll::Ready(Ok(Pin::new(stream))),
            Stream::Tls(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
            // Once ready it is one of the others.
            Stream::Handshake(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Ready when it was silent for too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.silence {
            Some(silence) => silence.ends.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(self.poll_stream(cx))?.poll_read(cx, buf);
        let Some(silence) = &mut self.silence else { return self.until_cut(cx, read) };
        silence.heard += buf.filled().len() - before;
        if silence.heard >= PREFACE_BYTES {
            self.silence = None;
            return read;
        }
        match read {
            Poll::Pending => self.poll_silence(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            read => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(self.poll_stream(cx))?.poll_write(cx, buf);
        self.until_cut(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.poll_stream(cx))?.poll_write_vectored(cx, bufs);
        self.until_cut(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            // What rustls will say; asked once, before the handshake.
            Stream::Handshake(_) => true,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.poll_stream(cx))?.poll_flush(cx);
        self.until_cut(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            // Nobody to say goodbye to: the socket closes when this is dropped.
            Stream::Handshake(_) => Poll::Ready(Ok(())),
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
