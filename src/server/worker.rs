//! The threads that answer: each one runtime, its own connections, and nothing shared but what has to be.

use std::{
    future,
    hash::{BuildHasher, Hasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Context,
    thread,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tonic::service::Routes;
use tonic_health::{pb::health_server::HealthServer, server::HealthService};

use super::{
    Failure, Served,
    backend::Backend,
    connection::Connection,
    deal::{Carried, Dealer, Dealt},
    front::{self, Front},
    health::Health,
    held::Bounds,
    http2,
    socket::Socket,
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
        let (told, bounds) = (open.subscribe(), Bounds::new());
        let mut dealer = Dealer::new(open);
        for number in 0..threads {
            let connections = dealer.thread();
            let others = others(health)?;
            let front =
                Front::new(service.clone(), others, in_flight.clone(), Arc::clone(metrics), bounds.another());
            let (send_ended, limiter) = (send_ended.clone(), Arc::clone(limiter));
            let shared =
                Shared { open: told.clone(), tls: tls.cloned(), age: settings.listen.grpc_age, front };
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
        }
        Ok((Self { threads, ended }, dealer))
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
    mut connections: mpsc::Receiver<Dealt>,
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
                    Some((connection, carried)) => match connection.here() {
                        Ok(connection) => drop(served.spawn(shared.serve(connection, carried))),
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
    fn serve(&self, connection: Socket, mut carried: Carried) -> impl Future<Output = ()> + Send + use<> {
        let told = self.age.told.map(|age| jittered(age, RandomState::new().build_hasher().finish()));
        let cut = told.and_then(|told| Some(told + self.age.grace?));
        let tls = self.tls.as_ref().map(Tls::acceptor);
        let connection = Connection::new(connection, tls, self.open.clone()).cut_after(cut);
        let (mut open, mut front) = (self.open.clone(), self.front.another());
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
            let answer = move |asked: http2::Asked, cx: &mut Context<'_>| {
                carried.asks(|| front::is_for_limits(&asked.0));
                front.answer(asked, cx)
            };
            let served = http2::serve(connection, answer, told);
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
