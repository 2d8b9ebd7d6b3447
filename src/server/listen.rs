//! Ports, and who gets which connection.

use std::{
    io,
    net::{self, SocketAddr},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, sync::oneshot};

use super::{Failure, worker::Dealer};
use crate::settings::{Endpoint, Prometheus, Settings};

/// Connections that the kernel keeps until they are accepted: all Envoys of a large mesh, returning at once.
const BACKLOG: i32 = 4096;

/// How long a failed accept waits. Out of file descriptors is the usual reason, and trying at once would burn a core
/// until one is given back.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// The ports, open.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) grpc: TcpListener,
    pub(super) http: TcpListener,
    pub(super) debug: TcpListener,
    /// Where USE_PROMETHEUS asks for it.
    pub(super) prometheus: Option<TcpListener>,
}

impl Listeners {
    /// Opens all ports, and tells their addresses.
    ///
    /// # Errors
    /// The first that cannot be opened.
    pub(super) fn bind(settings: &Settings) -> Result<Self, Failure> {
        let (listen, prometheus) = (&settings.listen, &settings.stats.prometheus);
        let open_prometheus =
            |prometheus: &Prometheus| open("prometheus", "PROMETHEUS_ADDR", prometheus.listen);
        Ok(Self {
            grpc: open("grpc", "GRPC_PORT", listen.grpc)?,
            http: open("http", "PORT", listen.http)?,
            debug: open("debug", "DEBUG_PORT", listen.debug)?,
            prometheus: prometheus.as_ref().map(open_prometheus).transpose()?,
        })
    }
}

fn open(what: &str, setting: &str, endpoint: Endpoint) -> Result<TcpListener, Failure> {
    let listener = bind(SocketAddr::new(endpoint.host, endpoint.port)).map_err(|error| {
        Failure::machine(format!(
            "cannot listen on {endpoint} for {what}: {error}; {setting} sets another port"
        ))
    })?;
    // Port 0 is any: this line is where the real one can be read.
    match listener.local_addr() {
        Ok(address) => tracing::info!("{what} listening on {address}"),
        Err(error) => tracing::warn!("{what} listening on {endpoint}, or so ({error})"),
    }
    Ok(listener)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of the process before this one may still be in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // `::` means every interface, those with IPv4 addresses too, whatever the system's default is.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(net::TcpListener::from(socket))
}

/// Deals connections to the threads until it is told to stop; then closes the port.
pub(super) async fn deal(listener: TcpListener, mut dealer: Dealer, mut stop: oneshot::Receiver<()>) {
    loop {
        let connection = tokio::select! {
            _ = &mut stop => break,
            connection = accept(&listener) => connection,
        };
        dealer.deal(connection.into_std()).await;
    }
    // The kernel has told these clients that they are connected; closing the port would reset what they have sent.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((connection, _)) = listener.accept() {
        dealer.deal(connection.set_nonblocking(true).map(|()| connection)).await;
    }
}

/// The next connection. Nothing that can go wrong with one is a reason to stop accepting others.
pub(super) async fn accept(listener: &TcpListener) -> tokio::net::TcpStream {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // Answers are small, and waiting to fill a packet would cost 40 ms.
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!("a connection without TCP_NODELAY: {error}");
                }
                return connection;
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Whether an error of accept(2) is about a connection that is already gone, rather than about this process.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
