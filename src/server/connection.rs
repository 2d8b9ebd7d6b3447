//! A gRPC connection that has to say something.
//!
//! Below HTTP/2 a connection can be open and silent for ever: before the client's preface hyper has no timeout, no
//! keepalive and no way to end gracefully. So a client who connects and says nothing would keep a file descriptor as
//! long as it likes, and a process from ending. Here it has [`PREFACE_WITHIN`] for the preface, and less when the process
//! ends. Afterwards HTTP/2's own keepalive watches over it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::watch,
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How long a client may take to send its preface: a handshake over the slowest network, several times.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);

/// `PRI * HTTP/2.0 …` of RFC 9113, 3.4.
const PREFACE_BYTES: usize = 24;

/// A connection as tonic takes it.
pub(super) struct Connection {
    stream: TcpStream,
    /// `None` as soon as the preface is there.
    silence: Option<Silence>,
}

struct Silence {
    heard: usize,
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Connection {
    /// `open` closes when the process ends.
    pub(super) fn new(stream: TcpStream, mut open: watch::Receiver<()>) -> Self {
        let ends = async move {
            tokio::select! {
                () = tokio::time::sleep(PREFACE_WITHIN) => {}
                _ = open.changed() => {}
            }
        };
        Self { stream, silence: Some(Silence { heard: 0, ends: Box::pin(ends) }) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(silence) = &mut self.silence else { return read };
        silence.heard += buf.filled().len() - before;
        if silence.heard >= PREFACE_BYTES {
            self.silence = None;
            return read;
        }
        match read {
            Poll::Pending => silence.ends.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            read => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}
