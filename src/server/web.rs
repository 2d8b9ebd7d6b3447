//! The HTTP ports: hyper below the routes of `admin`, with the bounds that `axum::serve` does not have.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, watch},
    task::JoinHandle,
};
use tower::Service;

use super::listen;

/// Connections to one port at a time. Probes and scrapes need a handful, clients of `/json` keep theirs. Where there are
/// more, the oldest that has asked nothing yet has to leave, so that who opens many and says nothing keeps no probe from
/// being answered; where all have asked something, a new one waits.
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
        let mut silent = Silent::default();
        loop {
            let connection = listen::accept(&listener).await;
            if room.available_permits() == 0 {
                silent.send_one_away();
            }
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let (routes, stop, guest) = (routes.clone(), each_stop.clone(), silent.welcome());
            tokio::spawn(async move {
                serve(connection, routes, stop, guest).await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accept_all => {}
        _ = stop.changed() => {}
    }
}

/// One connection, as far as it can be asked to leave.
#[derive(Default)]
struct Guest {
    has_asked: AtomicBool,
    leave: Notify,
}

/// Connections that have asked nothing yet, the oldest first.
#[derive(Default)]
struct Silent(VecDeque<Weak<Guest>>);

impl Silent {
    fn welcome(&mut self) -> Arc<Guest> {
        // Those that are gone or have asked are forgotten now and then, so that it stays short.
        if self.0.len() >= 2 * CONNECTIONS_MAX {
            self.0.retain(|guest| is_silent(guest).is_some());
        }
        let guest = Arc::new(Guest::default());
        self.0.push_back(Arc::downgrade(&guest));
        guest
    }

    fn send_one_away(&mut self) {
        while let Some(guest) = self.0.pop_front() {
            if let Some(guest) = is_silent(&guest) {
                guest.leave.notify_one();
                return;
            }
        }
    }
}

fn is_silent(guest: &Weak<Guest>) -> Option<Arc<Guest>> {
    guest.upgrade().filter(|guest| !guest.has_asked.load(Ordering::Relaxed))
}

async fn serve<R, B>(connection: TcpStream, routes: R, mut stop: watch::Receiver<()>, guest: Arc<Guest>)
where
    R: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    R::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let routes = TowerToHyperService::new(routes);
    let asking = Arc::clone(&guest);
    let routes = service_fn(move |request| {
        asking.has_asked.store(true, Ordering::Relaxed);
        hyper::service::Service::call(&routes, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(connection), routes);
    let mut connection = std::pin::pin!(connection);
    let stopped = tokio::select! {
        _ = &mut connection => false,
        _ = stop.changed() => true,
        () = guest.leave.notified() => false,
        () = tokio::time::sleep(CONNECTION_MAX) => false,
    };
    if stopped {
        connection.as_mut().graceful_shutdown();
        // Bounded by SHUTDOWN_TIMEOUT.
        let _ = connection.await;
    }
}
