//! The HTTP ports: hyper below the routes of `admin`, with the bounds that `axum::serve` does not have.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::http1,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
};
use tower::Service;

use super::listen;

/// Connections to one port at a time; more wait to be accepted. Probes and scrapes need a handful, clients of `/json`
/// keep theirs.
const CONNECTIONS_MAX: usize = 512;

/// How long a client may take to send a request's head; also how long a connection may idle between two.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// After so long a connection is closed, whatever it does: nobody may hold one by reading slowly.
const CONNECTION_MAX: Duration = Duration::from_secs(600);

/// The ports, being served.
#[derive(Debug)]
pub(super) struct Web {
    stop: watch::Sender<()>,
    ports: Vec<JoinHandle<()>>,
}

impl Web {
    /// Serves nothing yet.
    pub(super) fn new() -> Self {
        Self { stop: watch::Sender::new(()), ports: Vec::new() }
    }

    /// Serves `routes` on a port.
    pub(super) fn serve<R, B>(&mut self, listener: TcpListener, routes: R)
    where
        R: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        R::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.ports.push(tokio::spawn(accept(listener, routes, self.stop.subscribe())));
    }

    /// Closes the ports, and waits until what was asked is answered.
    pub(super) async fn close(self) {
        self.stop.send_replace(());
        for port in self.ports {
            let _ = port.await;
        }
        // Each connection holds a receiver.
        self.stop.closed().await;
    }
}

async fn accept<R, B>(listener: TcpListener, routes: R, mut stop: watch::Receiver<()>)
where
    R: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    R::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let each_stop = stop.clone();
    let accept_all = async move {
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let connection = listen::accept(&listener).await;
            let (routes, stop) = (routes.clone(), each_stop.clone());
            tokio::spawn(async move {
                serve(connection, routes, stop).await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accept_all => {}
        _ = stop.changed() => {}
    }
}

async fn serve<R, B>(connection: TcpStream, routes: R, mut stop: watch::Receiver<()>)
where
    R: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    R::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes));
    let mut connection = std::pin::pin!(connection);
    let stopped = tokio::select! {
        _ = &mut connection => false,
        _ = stop.changed() => true,
        () = tokio::time::sleep(CONNECTION_MAX) => false,
    };
    if stopped {
        connection.as_mut().graceful_shutdown();
        // Bounded by SHUTDOWN_TIMEOUT.
        let _ = connection.await;
    }
}
