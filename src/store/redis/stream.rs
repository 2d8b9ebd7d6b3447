//! What bytes go over: TCP, TCP with TLS, or a unix socket.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::address::Address;

/// An open connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// Opens one. `tls` comes with the name that the server's certificate must have; without it, that is the host.
    ///
    /// # Errors
    /// When nobody answers there, or does not speak TLS as we want it.
    pub(super) async fn open(
        address: &Address,
        tls: Option<(Arc<ClientConfig>, Option<&str>)>,
    ) -> io::Result<Self> {
        let endpoint = match address {
            Address::Tcp(endpoint) => endpoint,
            Address::Unix(path) => return UnixStream::connect(path).await.map(Self::Unix),
        };
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        // Nagle's algorithm would hold a small call back until the last one is acknowledged.
        stream.set_nodelay(true)?;
        let Some((config, name)) = tls else { return Ok(Self::Tcp(stream)) };
        let name = name.unwrap_or(&endpoint.host);
        let name = ServerName::try_from(name.to_owned()).map_err(|e| {
            io::Error::other(format!("no certificate can be for {name} ({e}): see REDIS_TLS_SERVER_NAME"))
        })?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Self::Tls(Box::new(stream)))
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
