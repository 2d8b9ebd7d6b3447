//! One connection: dialled, watched, given up, dialled again.
//!
//! A [`Link`] is the place of a connection; while it is up, the [`Queue`] before it. A task for each ([`keep`]) turns one
//! into the other for as long as the store lives:
//!
//! ```text
//!         dial: TCP, TLS, password, database, SCRIPT LOAD
//! down ─────────────────────────────────────────────────> up
//!   ^                                                      │ the socket ends, PING stays unanswered,
//!   └── wait: 50 ms, doubled up to 1 s, with jitter <──────┘ or what comes is no reply
//! ```

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;

use super::{
    commit,
    node::Node,
    queue::{Bounds, Queue},
    sign::Sign,
};
use crate::store::StoreError;

/// The wait before the first new attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// The longest wait between attempts: a Redis that is back is in use a second later.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The place of a connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    queue: ArcSwapOption<Queue>,
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

    /// The line before the connection, where that is up.
    pub(super) fn queue(&self) -> Option<Arc<Queue>> {
        self.queue.load_full()
    }

    /// Whether there is one.
    pub(super) fn is_up(&self) -> bool {
        self.queue.load().is_some()
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

    fn up(&self, queue: Arc<Queue>) {
        self.queue.store(Some(queue));
        *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn down(&self, why: StoreError) {
        *self.why_down.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
        if let Some(queue) = self.queue.swap(None) {
            queue.close(&why);
        }
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
        let (wire, hash) = match self.node.dial.dial().await {
            Ok(connected) => connected,
            Err(why) => return why,
        };
        let queue = Arc::new(Queue::new(Bounds::shared_by(self.node.links.len())));
        tracing::info!(store = %address, connection = self.index, "connected");
        self.link().up(queue.clone());
        self.node.up();
        // The wire goes with this future, and all that is in flight with the wire.
        let why = tokio::select! {
            biased;
            why = commit::run(self.node, &queue, wire, hash) => why,
            () = self.node.is_to_connect_anew() => unavailable(address, "it is a replica now, connecting anew"),
        };
        // Who connects and then talks nonsense is no better than who does not connect.
        if !matches!(why, StoreError::Corrupt { .. }) {
            *failures = 0;
        }
        why
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
