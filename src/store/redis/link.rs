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
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::ClientLike,
    types::{ClusterHash, ConnectHandle, CustomCommand, Resp3Frame, Value},
};

use super::{
    commit,
    dial::{ask, once},
    error,
    node::Node,
    queue::{Bounds, Queue},
    sign::Sign,
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

    fn up(&self, live: Arc<Live>) {
        self.live.store(Some(live));
        *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn down(&self, why: StoreError) {
        *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        if let Some(live) = self.live.swap(None) {
            live.queue.close(&why);
        }
    }
}

/// A connection that is up, with the script loaded.
#[derive(Debug)]
pub(super) struct Live {
    client: Client,
    /// The script's SHA-1 in hexadecimal, as Redis itself computed it.
    hash: Bytes,
    pub(super) queue: Queue,
}

impl Live {
    pub(super) fn new(client: Client, hash: Bytes, bounds: Bounds) -> Self {
        Self { client, hash, queue: Queue::new(bounds) }
    }

    /// Runs the script once. `Ok` is any reply, an error reply included. It has no timeout: who gives up on it still has
    /// it in flight.
    pub(super) fn evalsha(&self, call: &script::Call) -> impl Future<Output = Reply> + Send + 'static {
        self.command("EVALSHA", arguments(Value::Bytes(self.hash.clone()), call))
    }

    /// Lets the next command use slots that are about to be imported.
    pub(super) fn asking(&self) -> impl Future<Output = Reply> + Send + Unpin + 'static {
        Box::pin(self.command("ASKING", Vec::new()))
    }

    /// Loads the script.
    pub(super) fn load(&self) -> impl Future<Output = Reply> + Send + 'static {
        self.command("SCRIPT", vec![Value::from_static_str("LOAD"), Value::from_static_str(script::SPEND)])
    }

    /// One command's reply, for who keeps the map of nodes. `Ok` is any reply, an error reply included.
    pub(super) async fn ask(&self, words: &[&str], within: Duration) -> Reply {
        ask(&self.client, words, within).await
    }

    fn command(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
    ) -> impl Future<Output = Reply> + Send + 'static {
        let client = self.client.clone();
        async move {
            let command = CustomCommand::new_static(name, ClusterHash::Random, false);
            client.with_options(&once(Duration::ZERO)).custom_raw(command, arguments).await
        }
    }
}

type Reply = Result<Resp3Frame, Error>;

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
        let (client, hash, task) = match self.node.dial.dial().await {
            Ok(connected) => connected,
            Err(why) => return why,
        };
        // Ends the connection with all that is in flight, also when this future is dropped.
        let mut task = AbortOnDrop(task);
        let live = Arc::new(Live::new(client.clone(), hash, Bounds::shared_by(self.node.links.len())));
        *failures = 0;
        tracing::info!(store = %address, connection = self.index, "connected");
        self.link().up(live.clone());
        self.node.up();
        tokio::select! {
            biased;
            why = commit::run(self.node, &live) => why,
            ended = &mut task.0 => match ended {
                Ok(Err(e)) => error::from_client(address, &e, SILENCE_MAX),
                _ => unavailable(address, "the connection was closed"),
            },
            () = self.node.is_to_connect_anew() => unavailable(address, "it is a replica now, connecting anew"),
            () = silence(&client) => unavailable(address, "no sign of life, connecting anew"),
        }
    }

    fn link(&self) -> &Link {
        &self.node.links[self.index]
    }

    fn down(&self, why: StoreError) {
        let link = self.link();
        let was_up = link.is_up();
        // Said once, not at each attempt.
        if was_up || link.why_down(&self.node.address) != why {
            tracing::warn!(connection = self.index, "{why}");
        }
        link.down(why);
        if was_up {
            self.node.tell(Sign::Down);
        }
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.link().down(unavailable(&self.node.address, "the runtime of this connection has ended"));
        self.link().claimed.store(false, Ordering::Release);
        self.node.tell(Sign::Down);
    }
}

/// Ends when the server gives no sign of life.
async fn silence(client: &Client) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        let ping = CustomCommand::new_static("PING", ClusterHash::Random, false);
        let reply = client.with_options(&once(SILENCE_MAX)).custom_raw(ping, Vec::<Value>::new()).await;
        // Any reply will do, and "not permitted" is one.
        if reply.is_err_and(|e| *e.kind() == ErrorKind::Timeout) {
            return;
        }
    }
}

/// Ends a connection with all that is in flight.
pub(super) struct AbortOnDrop(pub(super) ConnectHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The arguments of one `EVALSHA`; the script's hash goes before them.
pub(super) fn arguments(hash: Value, call: &script::Call) -> Vec<Value> {
    let mut all = Vec::with_capacity(2 + call.keys.len() + call.args.len());
    all.push(hash);
    all.push(Value::Integer(i64::try_from(call.keys.len()).unwrap_or(i64::MAX)));
    all.extend(call.keys.iter().chain(&call.args).map(|bytes| Value::Bytes(bytes.clone())));
    all
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
