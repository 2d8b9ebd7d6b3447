//! One connection: dialled, watched, given up, dialled again.
//!
//! A [`Link`] is the place of a connection, a [`Live`] the connection itself. A task for each ([`keep`]) turns one into
//! the other for as long as the store lives:
//!
//! ```text
//!         dial: TCP, TLS, password, database, SCRIPT LOAD
//! down ─────────────────────────────────────────────────> live
//!   ^                                                       │ the socket ends, or PING stays unanswered
//!   └── wait: 50 ms, doubled up to 1 s, with jitter <───────┘
//! ```
//!
//! The heartbeat is there for connections that are dead without having ended: a host that lost its power sends no FIN,
//! and the kernel would resend our spends for a quarter of an hour before it gives up. It also finds a hung server when
//! nobody spends, so that health is true. Two seconds of silence end a connection, which turns timeouts into errors
//! without a wait.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use fred::{
    clients::Client,
    error::ErrorKind,
    interfaces::ClientLike,
    types::{ClusterHash, ConnectHandle, CustomCommand, Resp3Frame, Value},
};

use super::{
    dial::{load, once},
    error,
    node::{Deadline, Node, Sign, arguments},
};
use crate::store::{StoreError, script};

/// How often an idle or busy connection is asked whether it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A server that has not answered PING for so long is given up. Far above any timeout of a spend, since connecting
/// again costs a busy server more than a late answer; short enough that a failed-over address is found soon.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The wait before the first new attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// The longest wait between attempts: a Redis that is back is in use a second later.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The place of a connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    live: ArcSwapOption<Live>,
    /// Why there is none; `None` before the first attempt has failed.
    why_down: Mutex<Option<StoreError>>,
    /// A runtime keeps it up.
    claimed: AtomicBool,
}

impl Link {
    /// Takes the place, unless another runtime has it.
    pub(super) fn claim(&self) -> bool {
        self.claimed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The connection, where it is up.
    pub(super) fn live(&self) -> Option<Arc<Live>> {
        self.live.load_full()
    }

    /// Whether there is one.
    pub(super) fn is_up(&self) -> bool {
        self.live.load().is_some()
    }

    /// What is wrong, where it is down.
    pub(super) fn why_down(&self, shard: &str) -> StoreError {
        let why = self.why_down.lock().unwrap_or_else(PoisonError::into_inner).clone();
        why.unwrap_or_else(|| {
            let why = if self.claimed.load(Ordering::Relaxed) {
                "still connecting"
            } else {
                "nobody asked to connect"
            };
            unavailable(shard, why)
        })
    }

    fn up(&self, live: Live) {
        self.live.store(Some(Arc::new(live)));
        *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn down(&self, why: StoreError) {
        *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.live.store(None);
    }
}

/// A connection that is up, with the script loaded.
#[derive(Debug)]
pub(super) struct Live {
    client: Client,
    /// The script's SHA-1 in hexadecimal, as Redis itself computed it.
    hash: Bytes,
    in_flight: Arc<AtomicUsize>,
    /// How often the script was loaded again.
    loads: AtomicU64,
    loading: tokio::sync::Mutex<()>,
}

impl Live {
    pub(super) fn new(client: Client, hash: Bytes) -> Self {
        let (in_flight, loads, loading) = Default::default();
        Self { client, hash, in_flight, loads, loading }
    }

    /// To be read before a spend is sent, for [`load_again`](Self::load_again).
    pub(super) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }

    /// Runs the script once. `Ok` is any reply, an error reply included.
    pub(super) async fn evalsha(
        &self,
        node: &Node,
        call: &script::Call,
        deadline: Deadline,
    ) -> Result<Resp3Frame, StoreError> {
        let place = self.enter(node)?;
        let left = deadline.left().ok_or_else(|| node.timed_out(deadline))?;
        let arguments = arguments(Value::Bytes(Bytes::from_owner(place)), call);
        let command = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        let sent = self.client.with_options(&once(left)).custom_raw(command, arguments).await;
        sent.map_err(|e| error::from_client(&node.address, &e, deadline.whole))
    }

    /// Loads the script again after `NOSCRIPT` (a `SCRIPT FLUSH`), once however many spends find it missing: who saw
    /// the count `seen` before he sent his and finds it raised now, has only to run again.
    pub(super) async fn load_again(
        &self,
        node: &Node,
        seen: u64,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let late = || node.timed_out(deadline);
        let left = deadline.left().ok_or_else(late)?;
        let _one = tokio::time::timeout(left, self.loading.lock()).await.map_err(|_| late())?;
        if self.loads() != seen {
            return Ok(());
        }
        let left = deadline.left().ok_or_else(late)?;
        let loaded = load(&self.client, left).await;
        loaded.map_err(|e| error::from_client(&node.address, &e, deadline.whole))?;
        self.loads.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn enter(&self, node: &Node) -> Result<Place, StoreError> {
        let waiting = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let place = Place { hash: self.hash.clone(), in_flight: self.in_flight.clone() };
        if waiting >= node.in_flight_max {
            return Err(unavailable(&node.address, "too many spends wait for its answer"));
        }
        Ok(place)
    }
}

/// A place among the spends in flight.
///
/// It is the owner of the bytes of the command's first argument. So it is given back exactly when the client forgets
/// the command: when it is answered, when its connection ends, or when it was never sent; whether its caller still
/// waits, has timed out or was cancelled makes no difference.
struct Place {
    hash: Bytes,
    in_flight: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Place {
    fn as_ref(&self) -> &[u8] {
        &self.hash
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps the connection of one place up until the store is dropped or this runtime ends.
pub(super) async fn keep(node: Arc<Node>, index: usize) {
    let place = Claimed { node: &node, index };
    let mut failures = 0;
    loop {
        let why = tokio::select! {
            why = place.connect_and_watch(&mut failures) => why,
            () = node.closed() => return,
        };
        place.down(why);
        tokio::select! {
            () = tokio::time::sleep(backoff(failures, RandomState::new().build_hasher().finish())) => {}
            () = node.closed() => return,
        }
        failures = failures.saturating_add(1);
    }
}

/// A place that this task holds. When the task ends, of itself or with its runtime, another may take it.
struct Claimed<'n> {
    node: &'n Node,
    index: usize,
}

impl Claimed<'_> {
    /// One life of the connection; returns why it ended.
    async fn connect_and_watch(&self, failures: &mut u32) -> StoreError {
        let address = &self.node.address;
        let (live, task) = match self.node.dial.dial(address).await {
            Ok(connected) => connected,
            Err(why) => return why,
        };
        // Ends the connection with all that is in flight, also when this future is dropped.
        let mut task = AbortOnDrop(task);
        let client = live.client.clone();
        *failures = 0;
        tracing::info!(store = %address, connection = self.index, "connected");
        self.link().up(live);
        self.node.tell(Sign::Up);
        loop {
            tokio::select! {
                ended = &mut task.0 => {
                    let why = match ended {
                        Ok(Err(e)) => return error::from_client(address, &e, SILENCE_MAX),
                        _ => "the connection was closed",
                    };
                    return unavailable(address, why);
                }
                () = tokio::time::sleep(HEARTBEAT) => {
                    let ping = CustomCommand::new_static("PING", ClusterHash::Random, false);
                    let reply = client.with_options(&once(SILENCE_MAX)).custom_raw(ping, Vec::<Value>::new()).await;
                    // Any reply will do, and "not permitted" is one.
                    if reply.is_err_and(|e| *e.kind() == ErrorKind::Timeout) {
                        return unavailable(address, "no sign of life, connecting anew");
                    }
                }
            }
        }
    }

    fn link(&self) -> &Link {
        &self.node.links[self.index]
    }

    fn down(&self, why: StoreError) {
        let link = self.link();
        // Said once, not at each attempt.
        if link.live().is_some() || link.why_down(&self.node.address) != why {
            tracing::warn!(connection = self.index, "{why}");
        }
        link.down(why);
        self.node.tell(Sign::Down);
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.link().down(unavailable(&self.node.address, "the runtime of this connection has ended"));
        self.link().claimed.store(false, Ordering::Release);
        self.node.tell(Sign::Down);
    }
}

struct AbortOnDrop(ConnectHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn unavailable(shard: &str, why: &str) -> StoreError {
    StoreError::Unavailable { shard: shard.to_owned(), why: why.to_owned() }
}

/// The wait after so many failures in a row: doubled from [`BACKOFF_MIN`] to [`BACKOFF_MAX`], of which a random half is
/// taken off, lest a fleet that lost its Redis at one moment comes back at one moment.
fn backoff(failures: u32, random: u64) -> Duration {
    let whole = BACKOFF_MIN.saturating_mul(2_u32.saturating_pow(failures)).min(BACKOFF_MAX);
    let half = whole / 2;
    half + half.mul_f64(random as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_but_never_rarer_than_once_a_second() {
        assert_eq!(backoff(0, 0), BACKOFF_MIN / 2);
        assert_eq!(backoff(0, u64::MAX), BACKOFF_MIN);
        for failures in [5, 31, 32, u32::MAX] {
            assert_eq!(backoff(failures, 0), BACKOFF_MAX / 2);
            assert_eq!(backoff(failures, u64::MAX), BACKOFF_MAX);
        }
    }
}
