//! Split keys: a hot key is several counters, each of a part of its limit.
//!
//! All hits of one key are one server's work, so a key that is too hot for one server of a cluster stays so however many
//! servers are added. With `shards: 8` it is eight counters in eight slots, each of an eighth of the limit; the parts sum
//! up to the limit exactly, so however their hits are dealt, no more than the limit is granted.
//!
//! The obvious way stops there: a request asks one part by chance, and is refused when that one has nothing left. Users
//! then get 12 of 100 on an unlucky part while 88 are left. So a request asks *one* part, and only where that one has too
//! little, all the others what they have left, in one call, and then takes what it needs from where it is:
//!
//! ```text
//! take of one part ── fits ──> granted: one call, of one key
//!        └ does not fit ──> look at the others ── enough ──> take of these, all or nothing; granted
//!                                  └ not enough ──> refused: all parts were asked
//! ```
//!
//! **Which part** is asked: of two by chance the one that has more left as far as is known here ("the power of two
//! choices"). What is known is what the store has said of each part and when, with what has come back since; it is told
//! with each answer as well, for nothing else can say what the whole limit has left without asking all parts each time.
//!
//! **What is promised.** Never more than the limit, by the bound of each algorithm: the sum of the parts' bounds is the
//! limit's. A request is refused only when all parts together had too little: each as it said in this request, or to an
//! earlier one by which it is over until a time that has not come (within [`HOLD_MAX`](crate::near_cache::HOLD_MAX), as near
//! answers have it), or when others were faster several times in a row. A cost may be larger than a part: it is taken of
//! several, all or nothing. Parts are looked at a few keys at a time, and no more once a request is refused for sure: what
//! is told of its other keys, and of a cost that its limit never has, is then what was known.
//!
//! **What it costs.** Of a bucket, parts of a hit are no hit: with `n` parts, up to `n` hits may be under way that none of
//! them has whole; they are not lost, and rates are exact. A sliding window rounds its share of the last window up in each
//! part, so it may count up to `n - 1` hits more than one counter would. And windows end by the clock of each part's server.
//!
//! This file remembers what is known, bounded; `split/known.rs` works out what follows from it; who asks the store is
//! `limiter/split.rs`.

mod known;

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use foldhash::quality::RandomState;

pub use self::known::{Asked, Deal, Split};
use crate::{key::Key, limit::Charge};

const MAPS: usize = 16;

/// The most keys of which something is known; of others a request asks by chance. At most 16 MB with 64 parts each, 2 MB
/// with 8.
pub const KEYS_MAX: usize = 4096;

/// How long a key is remembered at least that nobody asks for, while there is room for others.
const IDLE: Duration = Duration::from_secs(1);

/// What this process knows of split keys. Shared by all threads.
#[derive(Debug)]
pub struct Splits {
    hasher: RandomState,
    maps: Box<[Mutex<HashMap<Key, Known, RandomState>>]>,
    /// Counts questions, and deals by chance.
    order: AtomicU64,
    trust: Duration,
}

#[derive(Debug)]
struct Known {
    split: Split,
    used: Instant,
}

impl Splits {
    /// `trust`: how long a part that is over until a later time is not asked again; 0 asks always.
    pub fn new(trust: Duration) -> Self {
        Self {
            hasher: RandomState::default(),
            maps: (0..MAPS).map(|_| Mutex::default()).collect(),
            order: AtomicU64::new(0),
            trust,
        }
    }

    /// How long a part that is over until a later time is not asked again.
    pub fn trust(&self) -> Duration {
        self.trust
    }

    /// What is known of a charge's key, and how to deal so many hits. They count as taken until more is known, so that
    /// requests at the same time choose other parts. `None` for a key that is not split.
    pub fn begin(&self, charge: &Charge, hits: u64, now: Instant) -> Option<(Split, Deal)> {
        let fresh = Split::new(charge)?;
        let chance = self.chance();
        let mut map = self.map(&charge.key);
        let known = match map.get_mut(&charge.key) {
            Some(known) => known,
            None => {
                make_room(&mut map, now);
                map.entry(charge.key.clone()).or_insert(Known { split: fresh.clone(), used: now })
            }
        };
        if !known.split.is_of(charge) {
            known.split = known.split.renumbered(fresh);
        }
        known.used = now;
        let deal = known.split.deal(hits, chance, now);
        known.split.count_as_taken(&deal);
        Some((known.split.clone(), deal))
    }

    /// Both know afterwards what one of them did.
    pub fn learn(&self, charge: &Charge, split: &mut Split) {
        if let Some(known) = self.map(&charge.key).get_mut(&charge.key)
            && known.split.is_of(charge)
        {
            known.split.join(split);
        }
    }

    /// A question to the store, now.
    pub fn asked(&self, now: Instant) -> Asked {
        Asked { at: now, order: self.order.fetch_add(1, Relaxed) }
    }

    /// A number by chance, good enough to spread hits.
    pub fn chance(&self) -> u64 {
        self.hasher.hash_one(self.order.fetch_add(1, Relaxed))
    }

    fn map(&self, key: &Key) -> MutexGuard<'_, HashMap<Key, Known, RandomState>> {
        let map = &self.maps[self.hasher.hash_one(key) as usize % MAPS];
        // A panic under the lock leaves a map before or after a change.
        map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For one more key: idle ones leave, or where there is none, any.
fn make_room(map: &mut HashMap<Key, Known, RandomState>, now: Instant) {
    if map.len() < KEYS_MAX / MAPS {
        return;
    }
    map.retain(|_, known| now < known.used + IDLE);
    if map.len() == KEYS_MAX / MAPS
        && let Some(any) = map.keys().next().cloned()
    {
        map.remove(&any);
    }
}

#[cfg(test)]
mod tests;
