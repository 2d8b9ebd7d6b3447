//! What a gRPC connection runs over: TCP, or a Unix socket.

use std::{
    fmt, io,
    net::TcpStream as StdTcpStream,
    os::unix::net::UnixStream as StdUnixStream,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

/// A connection on its way from the thread that accepted it to the one that serves it.
#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
}

/// A connection on its thread.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepted {
    /// Registers it with the runtime of this thread.
    pub(super) fn here(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(stream) => Socket::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => Socket::Unix(UnixStream::from_std(stream)?),
        })
    }
}

impl Socket {
    /// Who is at the other end, as far as the kernel can tell.
    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Tcp(stream) => Peer::Tcp(stream.peer_addr().ok()),
            Self::Unix(stream) => Peer::Unix(stream.peer_cred().ok().and_then(|of| of.pid())),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy)]
pub(super) enum Peer {
    Tcp(Option<std::net::SocketAddr>),
    /// The process that connected.
    Unix(Option<i32>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(Some(address)) => address.fmt(f),
            Self::Unix(Some(pid)) => write!(f, "process {pid}"),
            Self::Tcp(None) | Self::Unix(None) => f.write_str("a client that is gone"),
        }
    }
}

/// Calls the same on whichever it is.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        either!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
