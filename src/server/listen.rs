//! Where we listen, and who gets which connection.

use std::{
    io,
    net::{self, SocketAddr},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use super::{Failure, deal::Dealer, socket::Accepted, unix::Unix};
use crate::settings::{Endpoint, GrpcAt, Prometheus, Settings};

/// Connections that the kernel keeps until they are accepted: all Envoys of a large mesh, returning at once.
pub(super) const BACKLOG: i32 = 4096;

/// How long a failed accept waits. Out of file descriptors is the usual reason, and trying at once would burn a core
/// until one is given back.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// The ports, open.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) grpc: Grpc,
    pub(super) http: TcpListener,
    pub(super) debug: TcpListener,
    /// Where USE_PROMETHEUS asks for it.
    pub(super) prometheus: Option<TcpListener>,
}

/// Where gRPC is accepted.
#[derive(Debug)]
pub(super) enum Grpc {
    Tcp(TcpListener),
    Unix(Unix),
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
            grpc: open_grpc(&listen.grpc)?,
            http: open("http", "PORT", listen.http)?,
            debug: open("debug", "DEBUG_PORT", listen.debug)?,
            prometheus: prometheus.as_ref().map(open_prometheus).transpose()?,
        })
    }
}

fn open_grpc(at: &GrpcAt) -> Result<Grpc, Failure> {
    match at {
        GrpcAt::Tcp(endpoint) => Ok(Grpc::Tcp(open("grpc", "GRPC_PORT", *endpoint)?)),
        GrpcAt::Unix { path, mode } => {
            let unix = Unix::bind(path, *mode)?;
            tracing::info!("grpc listening on {at}");
            Ok(Grpc::Unix(unix))
        }
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
pub(super) async fn deal(listener: Grpc, mut dealer: Dealer, mut stop: oneshot::Receiver<()>) {
    loop {
        let connection = tokio::select! {
            _ = &mut stop => break,
            connection = listener.accept() => connection,
        };
        dealer.deal(connection).await;
    }
    // The kernel has told these clients that they are connected; closing the port would reset what they have sent.
    match listener {
        Grpc::Tcp(listener) => {
            let Ok(listener) = listener.into_std() else { return };
            while let Ok((connection, _)) = listener.accept() {
                let connection = connection.set_nonblocking(true).map(|()| Accepted::Tcp(connection));
                dealer.deal(connection).await;
            }
        }
        Grpc::Unix(Unix { listener, file }) => {
            // First, so that nobody else comes.
            drop(file);
            let Ok(listener) = listener.into_std() else { return };
            while let Ok((connection, _)) = listener.accept() {
                let connection = connection.set_nonblocking(true).map(|()| Accepted::Unix(connection));
                dealer.deal(connection).await;
            }
        }
    }
}

impl Grpc {
    /// The next connection. Nothing that can go wrong with one is a reason to stop accepting others.
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => accept(listener).await.into_std().map(Accepted::Tcp),
            Self::Unix(unix) => loop {
                match unix.listener.accept().await {
                    Ok((connection, _)) => return connection.into_std().map(Accepted::Unix),
                    Err(error) => pause(error).await,
                }
            },
        }
    }
}

/// The next connection to a port.
pub(super) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // Answers are small, and waiting to fill a packet would cost 40 ms.
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!("a connection without TCP_NODELAY: {error}");
                }
                return connection;
            }
            Err(error) => pause(error).await,
        }
    }
}

/// What comes before the next accept when one has failed.
async fn pause(error: io::Error) {
    if !is_the_clients(&error) {
        tracing::warn!("cannot accept a connection: {error}");
        tokio::time::sleep(ACCEPT_AGAIN).await;
    }
}

/// Whether an error of accept(2) is about a connection that is already gone, rather than about this process.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
