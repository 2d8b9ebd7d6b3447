//! Budgets in Redis: one server, one script call for each request.
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
//! [`StoreError::Timeout`]. The command cannot be taken back from the wire, so its answer is still to come, or never
//! comes. What waits so is bounded by [`IN_FLIGHT_MAX`]: above it a spend is refused at once, and a Redis that hangs for
//! an hour has, when it wakes, at most that many old spends to run and costs us no more memory than them. While there is
//! no connection, a spend fails at once and nothing is kept for later.
//!
//! # Threads
//!
//! A fred client is a task on the runtime that connected it, and a spend from elsewhere wakes that runtime's thread:
//! two wake-ups across cores, dearer than the spend itself. Tollgate runs a single-threaded runtime on each core, so
//! each calls [`RedisStore::connect_here`] once when it starts; the first ones get a connection of their own, up to the
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
mod link;
mod dial;
mod tls;
mod error;

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fred::types::{Resp3Frame, Value};
use tokio::sync::watch;

pub use config::{Hostname, RedisConfig, RedisConfigError, RedisTls};

use crate::{
    clock::{Clock, SystemClock},
    limit::{Charge, Decision},
    store::{ShardHealth, Store, StoreError, script},
};
use config::Target;
use dial::Dial;
use link::{Link, Live};

/// The most spends that wait for an answer of one shard, over all connections of this process, those counted whose
/// callers have given up. At 100,000 spends a second it is 40 ms of answers, eight deadlines: who comes on top of that
/// would not be answered in time either.
pub const IN_FLIGHT_MAX: usize = 4096;

/// Budgets in one Redis server. Shared by all runtimes; dropping it closes its connections.
#[derive(Debug)]
pub struct RedisStore {
    shard: Arc<Shard>,
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
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let target = Target::parse(config)?;
        let dial = Dial::new(&target, config)?;
        let connections = config.connections.get();
        let shard = Shard {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            address: target.address.to_string(),
            timeout: config.timeout,
            links: (0..connections).map(|_| Link::default()).collect(),
            in_flight_max: (IN_FLIGHT_MAX / connections).max(1),
            reach: watch::Sender::new(Reach::default()),
            closing: watch::Sender::new(()),
            next: AtomicU64::new(0),
            dial,
        };
        Ok(Self { shard: Arc::new(shard) })
    }

    /// Gives this thread a connection: a new one on the runtime that is current, which keeps it up from now on, or
    /// where the bound is reached, a share of another's. Each runtime of the service calls this once, from its own
    /// thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn connect_here(&self) {
        let index = match self.shard.links.iter().position(Link::claim) {
            Some(index) => {
                tokio::spawn(link::keep(self.shard.clone(), index));
                index
            }
            None => {
                let next = self.shard.next.fetch_add(1, Ordering::Relaxed);
                usize::try_from(next).unwrap_or(0) % self.shard.links.len()
            }
        };
        HERE.set((self.shard.id, index));
    }

    /// Whether Redis was and is there; changes can be waited for.
    pub fn reach(&self) -> watch::Receiver<Reach> {
        self.shard.reach.subscribe()
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shard.closing.send_replace(());
    }
}

impl Store for RedisStore {
    async fn spend(&self, charges: &[Charge], within: Duration) -> Result<Decision, StoreError> {
        let shard = &*self.shard;
        let deadline = Deadline::after(within.min(shard.timeout));
        let call = script::Call::new(charges, None);
        let live = shard.live()?;
        let loads = live.loads();
        let mut reply = live.evalsha(shard, &call, deadline).await?;
        if is_noscript(&reply) {
            live.load_again(shard, loads, deadline).await?;
            reply = live.evalsha(shard, &call, deadline).await?;
        }
        shard.decide(&reply)
    }

    fn health(&self) -> Vec<ShardHealth> {
        let shard = &*self.shard;
        let state = shard.live().map(|_| ()).map_err(|e| e.to_string());
        vec![ShardHealth { shard: shard.address.clone(), state }]
    }
}

thread_local! {
    /// Which connection this thread takes: the shard's number and the connection's. Most processes have one store; a
    /// second one on the same thread would find the first one's number here and take its own first connection.
    static HERE: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// One server and the connections to it.
#[derive(Debug)]
struct Shard {
    id: u64,
    address: String,
    timeout: Duration,
    links: Box<[Link]>,
    /// Of one connection.
    in_flight_max: usize,
    reach: watch::Sender<Reach>,
    closing: watch::Sender<()>,
    /// Deals connections to runtimes that own none.
    next: AtomicU64,
    dial: Dial,
}

impl Shard {
    /// This thread's connection, or while it is down any other that is up; else what is wrong with this thread's.
    fn live(&self) -> Result<Arc<Live>, StoreError> {
        let here = match HERE.get() {
            (id, index) if id == self.id => index,
            _ => 0,
        };
        if let Some(live) = self.links[here].live() {
            return Ok(live);
        }
        match self.links.iter().find_map(Link::live) {
            Some(live) => Ok(live),
            None => Err(self.links[here].why_down(&self.address)),
        }
    }

    fn decide(&self, reply: &Resp3Frame) -> Result<Decision, StoreError> {
        if let Some(text) = error_text(reply) {
            return Err(error::from_reply(&self.address, &text));
        }
        let numbers = match reply {
            Resp3Frame::Array { data, .. } => data
                .iter()
                .map(|element| match element {
                    Resp3Frame::Number { data, .. } => Some(*data),
                    _ => None,
                })
                .collect::<Option<Vec<i64>>>(),
            _ => None,
        };
        numbers.and_then(|numbers| script::decode(&numbers)).ok_or_else(|| StoreError::Refused {
            shard: self.address.clone(),
            why: "it answered the script in a form that is not the script's".to_owned(),
        })
    }

    fn timed_out(&self, deadline: Deadline) -> StoreError {
        StoreError::Timeout { shard: self.address.clone(), after: deadline.whole }
    }
}

/// When a spend gives up.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    whole: Duration,
}

impl Deadline {
    fn after(whole: Duration) -> Self {
        // A caller who grants more than the clock can count grants for ever, and the shard's timeout bounds that.
        let now = SystemClock.instant();
        Self { at: now.checked_add(whole).unwrap_or(now), whole }
    }

    /// What is left; `None` when nothing is.
    fn left(&self) -> Option<Duration> {
        self.at.checked_duration_since(SystemClock.instant()).filter(|left| !left.is_zero())
    }
}

fn is_noscript(reply: &Resp3Frame) -> bool {
    error_text(reply).is_some_and(|text| text.starts_with("NOSCRIPT"))
}

/// The text of an error reply.
fn error_text(reply: &Resp3Frame) -> Option<std::borrow::Cow<'_, str>> {
    match reply {
        Resp3Frame::SimpleError { data, .. } => Some((&**data).into()),
        Resp3Frame::BlobError { data, .. } => Some(String::from_utf8_lossy(data)),
        _ => None,
    }
}

/// The arguments of one `EVALSHA`; the script's hash goes before them.
fn arguments(hash: Value, call: &script::Call) -> Vec<Value> {
    let mut all = Vec::with_capacity(2 + call.keys.len() + call.args.len());
    all.push(hash);
    all.push(Value::Integer(i64::try_from(call.keys.len()).unwrap_or(i64::MAX)));
    all.extend(call.keys.iter().chain(&call.args).map(|bytes| Value::Bytes(bytes.clone())));
    all
}
