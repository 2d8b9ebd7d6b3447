//! Budgets in Redis: one server, a cluster, or what sentinels name; and another one for limits of a second.
//!
//! # A spend is sent once
//!
//! A spend that got no answer may have happened, so sending it again could take twice what the client asked once. Redis
//! clients are built for the opposite: they queue what is sent while disconnected, replay what was in flight when a
//! connection broke, and call that resilience. So the connection here is our own (`redis/wire.rs`): it has no policy of
//! connecting again, one attempt a command, and ends with its socket together with all that was in flight
//! (`redis/link.rs`); connecting again makes a new one, which inherits nothing. One refusal is followed: `NOSCRIPT` proves
//! that nothing ran, so the script is loaded and run again, within the same deadline.
//!
//! # What comes back is bounded
//!
//! Who answers may be no Redis, or a broken one. What a reply announces is held against a bound when it is announced
//! (`redis/resp.rs`); beyond it, as with anything that is no reply, the connection ends, which is a
//! [`StoreError::Corrupt`], and is made anew with growing waits.
//!
//! # A slow Redis is a failed Redis
//!
//! Each spend waits for the lesser of what its caller grants and `STORE_TIMEOUT`, then it is a
//! [`StoreError::Timeout`]. While it waits for its turn (`redis/queue.rs`) it is taken out then and never sent. Once it is
//! sent it cannot be taken back, so its answer is still to come, or never comes: what is out so is bounded by
//! [`IN_FLIGHT_MAX`] (`redis/commit.rs`), and a Redis that hangs for an hour has, when it wakes, at most that many old
//! spends to run and costs us no more memory than them. A server that gives no answers is soon not asked any more
//! (`redis/breaker.rs`). While there is no connection, a spend fails at once and nothing is kept for later.
//!
//! # Threads
//!
//! A connection is a task on the runtime that dialled it, and a spend from elsewhere wakes that runtime's thread: two
//! wake-ups across cores, dearer than the spend itself. Tollgate runs a single-threaded runtime on each core, so
//! each calls [`RedisStore::connect_here`] once when it starts; the first ones get connections of their own, up to the
//! bound of the settings, and the others share these round robin. A spend takes the connection of its thread, or while
//! that one is down, any other that is up. Connections dial, fail and recover by themselves, from the moment they are
//! asked for; making the store touches no network, so Tollgate starts without Redis and says what is wrong.
//!
//! # Several servers
//!
//! Clients for clusters tend to stall every shard while one node is down. So each server is a node of its own here
//! (`redis/node.rs`), we keep the map of slots (`redis/deployment.rs`), follow redirections (`redis/route.rs`), and make
//! requests over several servers all or nothing (`redis/across.rs`). Nodes share no queue, lock or wait.
//!
//! # What Redis must allow
//!
//! Redis 6.2 or later. An ACL user needs `~tg:* +evalsha +script|load +time +get +set +del`, in a cluster also
//! `+cluster|info +cluster|shards +cluster|slots`, behind sentinels `+role`.
//! With CACHE_KEY_PREFIX the prefix stands before `tg:`, and KEY_FORMAT=reference needs the keys of the domains, too.

mod config;
mod address;
mod url;
mod deployment;
mod look;
mod map;
mod slots;
mod cluster;
mod sentinel;
mod across;
mod parts;
mod route;
mod seats;
mod node;
mod sign;
mod deadline;
mod link;
mod commit;
mod queue;
mod request;
mod flight;
mod alarm;
mod heart;
mod reply;
mod breaker;
mod dial;
mod wire;
mod resp;
mod stream;
mod tls;
mod error;
pub mod doctor;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::watch;

pub use commit::IN_FLIGHT_MAX;
pub use config::{Auth, Hostname, RedisConfig, RedisConfigError, RedisTls};
pub use queue::{QUEUE_BYTES_MAX, QUEUE_CHARGES_MAX};

use crate::{
    limit::{Charge, Decision},
    metrics::Counted,
    store::{ShardHealth, Store, StoreError},
};
use address::Target;
use config::Names;
use deadline::Deadline;
use deployment::{Changed, Deployment};
use seats::Seats;

/// Budgets in Redis. Shared by all runtimes; dropping it closes its connections.
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// Whether Redis was and is there, for readiness. There means: it is known which servers there are, and more than half of
/// those that have keys are connected, with the password accepted and the script loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// It was at least once.
    pub once: bool,
    /// It is now.
    pub now: bool,
}

impl RedisStore {
    /// Checks the settings and reads the files that they name. Connects to nothing: see
    /// [`connect_here`](Self::connect_here).
    ///
    /// # Errors
    /// When a setting is wrong, with the setting's name and how to mend it.
    pub fn new(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let main = Target::parse(config, &Names::MAIN)?;
        let second = config.per_second.as_ref();
        let second = second.map(|config| Target::parse(config, &Names::PER_SECOND)).transpose()?;
        let connections = config.connections.get();
        let mut problem = None;
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let deployment = |target: &Target| {
                let shared = shared.clone();
                let changed = Changed(Arc::new(move || {
                    if let Some(shared) = shared.upgrade() {
                        shared.publish_reach();
                    }
                }));
                Deployment::new(target, connections, config.timeout, changed)
            };
            let mut made: Vec<Arc<Deployment>> = Vec::new();
            for target in std::iter::once(&main).chain(&second) {
                match deployment(target) {
                    Ok(deployment) => made.push(deployment),
                    Err(error) => problem = problem.take().or(Some(error)),
                }
            }
            Shared {
                timeout: config.timeout,
                seats: Arc::new(Seats::new(connections)),
                deployments: made,
                reach: watch::Sender::new(Reach::default()),
                give_backs_lost: config.give_backs_lost.clone(),
            }
        });
        problem.map_or(Ok(Self { shared }), Err)
    }

    /// Gives this thread its connections: new ones on the runtime that is current, which keeps them up from now on, or
    /// where the bound is reached, a share of another's. Each runtime of the service calls this once, from its own
    /// thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn connect_here(&self) {
        if let Some(seat) = self.shared.seats.sit_down().map(Arc::new) {
            for deployment in &self.shared.deployments {
                tokio::spawn(deployment.clone().serve(seat.clone()));
            }
        }
    }

    /// Whether Redis was and is there; changes can be waited for.
    pub fn reach(&self) -> watch::Receiver<Reach> {
        self.shared.reach.subscribe()
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.deployments.iter().for_each(|deployment| deployment.close());
    }
}

impl Store for RedisStore {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        let deadline = Deadline::after(within.min(self.shared.timeout));
        across::spend(&self.shared, charges, deadline).await
    }

    fn health(&self) -> Vec<ShardHealth> {
        let seat = self.shared.seats.here();
        self.shared.deployments.iter().flat_map(|deployment| deployment.health(seat)).collect()
    }
}

/// What requests under way may need longer than the store lives.
#[derive(Debug)]
struct Shared {
    timeout: Duration,
    seats: Arc<Seats>,
    /// The main one, and then the one for limits of a second and less, where there is one.
    deployments: Vec<Arc<Deployment>>,
    reach: watch::Sender<Reach>,
    give_backs_lost: Counted,
}

/// The longest window of a limit that is kept in the second Redis: the reference's unit `second`.
const PER_SECOND_MAX_US: u64 = 1_000_000;

impl Shared {
    /// Where a charge's key is.
    fn deployment(&self, charge: &Charge) -> &Arc<Deployment> {
        let second = usize::from(charge.limit.window_us() <= PER_SECOND_MAX_US);
        &self.deployments[second.min(self.deployments.len() - 1)]
    }

    fn publish_reach(&self) {
        let now = self.deployments.iter().all(|deployment| deployment.map().is_reached());
        self.reach.send_if_modified(|reach| {
            let before = std::mem::replace(reach, Reach { once: reach.once || now, now });
            before != *reach
        });
    }
}
