//! The threads that answer: each one runtime, its own connections, and nothing shared but what has to be.

use std::{
    future,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    task::JoinSet,
};
use tonic::service::Routes;
use tonic_health::{pb::health_server::HealthServer, server::HealthService};

use super::{
    Failure, Served,
    backend::Backend,
    connection::Connection,
    front::Front,
    health::Health,
    http2,
    socket::{Accepted, Socket},
    tls::Tls,
};
use crate::{
    clock::SystemClock,
    metrics::Metrics,
    proto,
    service::{InFlight, Service},
    settings::{GrpcAge, Settings},
    store::Store,
};

/// Connections that wait for their thread: as many as arrive while it is at work for a moment.
const CONNECTIONS_WAITING_MAX: usize = 256;

/// How often leases are looked at: a tenth of their life.
const LEASES_EVERY: Duration = Duration::from_millis(100);

/// The service that each thread serves.
type Limits = Service<SystemClock, Backend>;

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
        let (send_ended, ended) = mpsc::channel(threads);
        let open = watch::Sender::new(());
        let mut queues = Vec::with_capacity(threads);
        for number in 0..threads {
            let (queue, connections) = mpsc::channel(CONNECTIONS_WAITING_MAX);
            let front = Front::new(service.clone(), others(health)?, in_flight.clone(), Arc::clone(metrics));
            let (send_ended, limiter) = (send_ended.clone(), Arc::clone(limiter));
            let shared =
                Shared { open: open.subscribe(), tls: tls.cloned(), age: settings.listen.grpc_age, front };
            let work = move || {
                let ended = catch_unwind(AssertUnwindSafe(|| work(&limiter, connections, &shared)));
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

/// What a thread's connections have in common.
struct Shared {
    /// Closes when the process ends.
    open: watch::Receiver<()>,
    tls: Option<Tls>,
    age: GrpcAge,
    front: Front<Limits>,
}

/// One thread's life.
fn work(
    limiter: &Arc<Served>,
    mut connections: mpsc::Receiver<Accepted>,
    shared: &Shared,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        limiter.store().join();
        let leases = tokio::spawn(keep_leases(Arc::clone(limiter)));
        let mut served = JoinSet::new();
        loop {
            tokio::select! {
                connection = connections.recv() => match connection {
                    Some(connection) => match connection.here() {
                        Ok(connection) => drop(served.spawn(shared.serve(connection))),
                        Err(error) => tracing::warn!("a connection is lost: {error}"),
                    },
                    None => break,
                },
                Some(_) = served.join_next() => {}
            }
        }
        while served.join_next().await.is_some() {}
        leases.abort();
        // While this thread's connections to the store are there. Another may take some after that, and does the same.
        limiter.give_back_leases(true).await;
    });
    Ok(())
}

/// Gives back what leases have not spent in time.
async fn keep_leases(limiter: Arc<Served>) {
    if limiter.store().is_here() {
        return;
    }
    loop {
        tokio::time::sleep(LEASES_EVERY).await;
        limiter.give_back_leases(false).await;
    }
}

impl Shared {
    /// Serves a connection until it is gone.
    fn serve(&self, connection: Socket) -> impl Future<Output = ()> + Send + use<> {
        let told = self.age.told.map(|age| jittered(age, RandomState::new().build_hasher().finish()));
        let cut = told.and_then(|told| Some(told + self.age.grace?));
        let tls = self.tls.as_ref().map(Tls::acceptor);
        let connection = Connection::new(connection, tls, self.open.clone()).cut_after(cut);
        let (mut open, mut front) = (self.open.clone(), self.front.clone());
        let told = async move {
            let age = async {
                match told {
                    Some(told) => tokio::time::sleep(told).await,
                    None => future::pending().await,
                }
            };
            tokio::select! {
                _ = open.changed() => {}
                () = age => {}
            }
        };
        async move {
            let served = http2::serve(connection, move |asked, cx| front.answer(asked, cx), told);
            if let Err(error) = served.await {
                tracing::debug!("a connection ended: {error}");
            }
        }
    }
}

/// An age, give or take a tenth by chance: clients that came together do not return together.
fn jittered(age: Duration, dice: u64) -> Duration {
    // 53 bits are what a float has.
    let part = (dice >> 11) as f64 / (1_u64 << 53) as f64;
    age.mul_f64(0.9 + 0.2 * part)
}

/// Deals connections round robin.
#[derive(Debug)]
pub(super) struct Dealer {
    queues: Vec<mpsc::Sender<Accepted>>,
    next: usize,
    /// Dropped with the dealer, which is what connections without a word wait for.
    _open: watch::Sender<()>,
}

impl Dealer {
    /// Gives a connection to the next thread that takes it; waits while all are busy. A connection that broke on the
    /// way here is nobody's.
    pub(super) async fn deal(&mut self, connection: io::Result<Accepted>) {
        let Ok(mut connection) = connection else { return };
        for _ in 0..self.queues.len() {
            match self.turn().try_send(connection) {
                Ok(()) => return,
                Err(TrySendError::Full(back) | TrySendError::Closed(back)) => connection = back,
            }
        }
        let _ = self.turn().send(connection).await;
    }

    fn turn(&mut self) -> &mpsc::Sender<Accepted> {
        let queues = NonZeroUsize::new(self.queues.len()).expect("THREADS is at least 1");
        self.next = (self.next + 1) % queues;
        &self.queues[self.next]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_moved_by_a_tenth_at_most_in_both_directions() {
        let age = Duration::from_secs(1000);
        let ages = [0, u64::MAX / 2, u64::MAX].map(|dice| jittered(age, dice).as_secs_f64().round());
        assert_eq!(ages, [900.0, 1000.0, 1100.0]);
    }
}
