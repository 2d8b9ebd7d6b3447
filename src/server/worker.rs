//! The threads that answer: each one runtime, its own connections, and nothing shared but what has to be.

use std::{
    future, io,
    net::TcpStream as StdTcpStream,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    net::TcpStream,
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{service::Routes, transport::Server};
use tonic_health::{pb::health_server::HealthServer, server::HealthService};

use super::{
    Failure, Served, backend::Backend, connection::Connection, front::Front, health::Health, tls::Tls,
};
use crate::{
    clock::SystemClock,
    metrics::Metrics,
    proto::{self, envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer},
    service::{InFlight, MESSAGE_MAX_BYTES, Service},
    settings::Settings,
};

/// Connections that wait for their thread: as many as arrive while it is at work for a moment.
const CONNECTIONS_WAITING_MAX: usize = 256;

/// Requests on one connection at a time. An Envoy has a connection for each of its threads and opens no second one
/// before this is reached; hyper's default of 200 would make it queue.
const STREAMS_MAX: u32 = 4096;

/// A connection that is idle for so long is asked whether it still lives; proxies between cut idle ones without a word.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(60);

/// How long it has to answer.
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(20);

/// The service that each thread serves.
type Asked = RateLimitServiceServer<Service<SystemClock, Backend>>;

/// The threads, at work.
#[derive(Debug)]
pub(super) struct Workers {
    threads: usize,
    /// Why each one ended.
    ended: mpsc::Receiver<String>,
}

impl Workers {
    /// Starts them. They end when the dealer is dropped and their connections have ended.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(
        settings: &Settings,
        service: &Service<SystemClock, Backend>,
        limiter: &Arc<Served>,
        metrics: &Arc<Metrics>,
        health: &Health,
        in_flight: &InFlight,
        tls: Option<&Tls>,
    ) -> Result<(Self, Dealer), Failure> {
        let threads = settings.threads.get();
        let asked = RateLimitServiceServer::new(service.clone()).max_decoding_message_size(MESSAGE_MAX_BYTES);
        let (send_ended, ended) = mpsc::channel(threads);
        let open = watch::Sender::new(());
        let mut queues = Vec::with_capacity(threads);
        for number in 0..threads {
            let (queue, connections) = mpsc::channel(CONNECTIONS_WAITING_MAX);
            let front = Front::new(asked.clone(), others(health)?, in_flight.clone(), Arc::clone(metrics));
            let (send_ended, limiter, open) = (send_ended.clone(), Arc::clone(limiter), open.subscribe());
            let tls = tls.cloned();
            let work = move || {
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    work(&limiter, connections, &open, tls.as_ref(), front)
                }));
                let why = match ended {
                    Ok(Ok(())) => format!("thread {number} has drained"),
                    Ok(Err(error)) => format!("thread {number} ended: {error}"),
                    Err(_) => format!("thread {number} ended by a defect; the log says where"),
                };
                let _ = send_ended.try_send(why);
            };
            thread::Builder::new()
                .name(format!("answers-{number}"))
                .spawn(work)
                .map_err(|error| Failure::machine(format!("no thread: {error}; THREADS sets how many")))?;
            queues.push(queue);
        }
        Ok((Self { threads, ended }, Dealer { queues, next: 0, _open: open }))
    }

    /// Waits until one has ended, and says why. While nobody stops them this is a failure.
    pub(super) async fn ended_one(&mut self) -> String {
        let ended = self.ended.recv().await;
        self.threads = self.threads.saturating_sub(1);
        ended.unwrap_or_else(|| "no thread is left".to_owned())
    }

    /// Waits until all have ended.
    pub(super) async fn ended_all(&mut self) {
        while self.threads > 0 {
            let why = self.ended_one().await;
            tracing::debug!("{why}");
        }
    }
}

/// What is served besides: health and reflection.
fn others(health: &Health) -> Result<Routes, Failure> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| Failure::machine(format!("no reflection: {error}")))?;
    let health = HealthServer::new(HealthService::from_health_reporter(health.reporter()));
    Ok(Routes::new(health).add_service(reflection).prepare())
}

/// One thread's life.
fn work(
    limiter: &Served,
    connections: mpsc::Receiver<StdTcpStream>,
    open: &watch::Receiver<()>,
    tls: Option<&Tls>,
    front: Front<Asked>,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let incoming = ReceiverStream::new(connections).map(|connection| {
        Ok::<_, io::Error>(Connection::new(
            TcpStream::from_std(connection)?,
            tls.map(Tls::acceptor),
            open.clone(),
        ))
    });
    let server = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN));
    // The end of `incoming` is the sign to drain. That a signal is given at all makes tonic send GOAWAYs then.
    let never = future::pending::<()>();
    runtime
        .block_on(async {
            limiter.store().join();
            server.serve_with_incoming_shutdown(front, incoming, never).await
        })
        .map_err(|error| error.to_string())
}

/// Deals connections round robin.
#[derive(Debug)]
pub(super) struct Dealer {
    queues: Vec<mpsc::Sender<StdTcpStream>>,
    next: usize,
    /// Dropped with the dealer, which is what connections without a word wait for.
    _open: watch::Sender<()>,
}

impl Dealer {
    /// Gives a connection to the next thread that takes it; waits while all are busy. A connection that broke on the
    /// way here is nobody's.
    pub(super) async fn deal(&mut self, connection: io::Result<StdTcpStream>) {
        let Ok(mut connection) = connection else { return };
        for _ in 0..self.queues.len() {
            match self.turn().try_send(connection) {
                Ok(()) => return,
                Err(TrySendError::Full(back) | TrySendError::Closed(back)) => connection = back,
            }
        }
        let _ = self.turn().send(connection).await;
    }

    fn turn(&mut self) -> &mpsc::Sender<StdTcpStream> {
        let queues = NonZeroUsize::new(self.queues.len()).expect("THREADS is at least 1");
        self.next = (self.next + 1) % queues;
        &self.queues[self.next]
    }
}
