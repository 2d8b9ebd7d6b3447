//! Budgets in Redis: one server, and a script that decides the requests that have come meanwhile.
//!
//! # A spend is sent once
//!
//! A spend that got no answer may have happened, so sending it again could take twice what the client asked once. Redis
//! clients are built for the opposite: they queue what is sent while disconnected, replay what was in flight when a
//! connection broke, and call that resilience. So a fred client lives here exactly as long as its connection. It has no
//! reconnect policy, one attempt a command, and dies with its socket together with all that was in flight
//! (`redis/link.rs`); connecting again makes a new client, which inherits nothing. One refusal is followed: `NOSCRIPT` proves
//! that nothing ran, so the script is loaded and run again, within the same deadline.
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
//! A fred client is a task on the runtime that connected it, and a spend from elsewhere wakes that runtime's thread:
//! two wake-ups across cores, dearer than the spend itself. Tollgate runs a single-threaded runtime on each core, so
//! each calls [`RedisStore::connect_here`] once when it starts; the first ones get connections of their own, up to the
//! bound of the settings, and the others share these round robin. A spend takes the connection of its thread, or while
//! that one is down, any other that is up. Connections dial, fail and recover by themselves, from the moment they are
//! asked for; making the store touches no network, so Tollgate starts without Redis and says what is wrong.
//!
//! # What Redis must allow
//!
//! Redis 6.2 or later. An ACL user needs `~tg:* +evalsha +script|load +time +get +set +del`; `+info` spares us a
//! warning at each connection. With CACHE_KEY_PREFIX the prefix stands before `tg:`, and KEY_FORMAT=reference needs the
//! keys of the domains, too.

mod config;
mod seats;
mod node;
mod link;
mod commit;
mod queue;
mod reply;
mod breaker;
mod dial;
mod tls;
mod error;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet};

pub use commit::IN_FLIGHT_MAX;
pub use config::{Hostname, RedisConfig, RedisConfigError, RedisTls};
pub use queue::{QUEUE_BYTES_MAX, QUEUE_CHARGES_MAX};

use crate::{
    limit::{Charge, Decision},
    store::{ShardHealth, Store, StoreError},
};
use config::Target;
use dial::Dial;
use node::{Deadline, Hears, Node, NodeError};
use seats::{Seat, Seats};

/// Budgets in Redis. Shared by all runtimes; dropping it closes its connections.
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// Whether Redis was and is there, for readiness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// A connection was up at least once, with the password accepted and the script loaded.
    pub once: bool,
    /// A connection is up now.
    pub now: bool,
}

impl RedisStore {
    /// Checks the settings and reads the TLS files. Connects to nothing: see [`connect_here`](Self::connect_here).
    ///
    /// # Errors
    /// When a setting is wrong, with the setting's name and how to mend it.
    pub fn new(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let target = Target::parse(config)?;
        let dial = Dial::new(&target, config)?;
        let connections = config.connections.get();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let shared = shared.clone();
            let hears = Hears(Arc::new(move |_| {
                if let Some(shared) = shared.upgrade() {
                    shared.publish_reach();
                }
            }));
            let node = Node::new(target.address.to_string(), dial, connections, config.timeout, hears);
            Shared {
                timeout: config.timeout,
                seats: Arc::new(Seats::new(connections)),
                nodes: watch::Sender::new([Arc::new(node)].into()),
                reach: watch::Sender::new(Reach::default()),
            }
        });
        Ok(Self { shared })
    }

    /// Gives this thread its connections: new ones on the runtime that is current, which keeps them up from now on, or
    /// where the bound is reached, a share of another's. Each runtime of the service calls this once, from its own
    /// thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn connect_here(&self) {
        if let Some(seat) = self.shared.seats.sit_down() {
            tokio::spawn(connect(seat, self.shared.nodes.subscribe()));
        }
    }

    /// Whether Redis was and is there; changes can be waited for.
    pub fn reach(&self) -> watch::Receiver<Reach> {
        self.shared.reach.subscribe()
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.nodes.borrow().iter().for_each(|node| node.close());
    }
}

impl Store for RedisStore {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        let shared = &*self.shared;
        let deadline = Deadline::after(within.min(shared.timeout));
        let node = shared.nodes.borrow()[0].clone();
        let mut outcome = node.spend(shared.seats.here(), charges, deadline).await;
        if outcome == Err(NodeError::NotHere) {
            outcome = node.spend_alone(shared.seats.here(), charges, deadline, false).await;
        }
        outcome.map_err(|error| match error {
            NodeError::Store(error) => error,
            elsewhere => {
                let why =
                    format!("it is a node of a cluster, which REDIS_TYPE=single cannot use ({elsewhere:?})");
                StoreError::Refused { shard: node.address.clone(), why }
            }
        })
    }

    fn health(&self) -> Vec<ShardHealth> {
        let seat = self.shared.seats.here();
        self.shared.nodes.borrow().iter().map(|node| node.health(seat)).collect()
    }
}

/// What tasks may outlive the store for.
#[derive(Debug)]
struct Shared {
    timeout: Duration,
    seats: Arc<Seats>,
    /// The nodes in use.
    nodes: watch::Sender<Arc<[Arc<Node>]>>,
    reach: watch::Sender<Reach>,
}

impl Shared {
    fn publish_reach(&self) {
        let now = self.nodes.borrow().iter().any(|node| node.is_up());
        self.reach.send_if_modified(|reach| {
            let before = std::mem::replace(reach, Reach { once: reach.once || now, now });
            before != *reach
        });
    }
}

/// Keeps the connections of one seat up: to the nodes that there are, and to those that come. One that is not wanted any
/// more is closed by who took it out.
async fn connect(seat: Seat, mut nodes: watch::Receiver<Arc<[Arc<Node>]>>) {
    let mut known: Arc<[Arc<Node>]> = [].into();
    let mut kept = JoinSet::new();
    loop {
        let now = nodes.borrow_and_update().clone();
        for node in now.iter().filter(|node| !known.iter().any(|known| Arc::ptr_eq(known, node))) {
            kept.spawn(node.clone().keep(seat.index));
        }
        known = now;
        tokio::select! {
            changed = nodes.changed() => if changed.is_err() { break },
            // Else the results of closed nodes would pile up.
            Some(_) = kept.join_next() => {}
        }
    }
    // The store was dropped, and closed its nodes; what they keep ends by itself.
    while kept.join_next().await.is_some() {}
}
