//! Budgets in this process: the default, with nothing to install.
//!
//! The obvious store is one map under one lock. It makes all cores wait for each other, it never forgets, and a client
//! that invents keys fills the machine. This one is
//!
//! - **sharded**: up to 64 maps, each under its own lock, by a hash whose seed is random. A request with several
//!   counters holds all their locks while it decides, taken in ascending order, so it is as atomic as in Redis and
//!   nobody waits in a circle;
//! - **bounded**: each shard holds its share of the keys, and when it is full the key that is nearest to full itself leaves
//!   for a new one. That one loses least: what an evicted key had spent is forgiven. So a flood of invented keys can
//!   only forgive what it would have had to wait for, and evictions are counted for people to see;
//! - **expiring by itself**: each decision looks at a few keys that may be full again and forgets them. There is no
//!   background task, and no decision has to clean up after a million others.
//!
//! A key takes about 160 bytes, its text included (a million like `tg:{acme}:api:tenant=acme,user=user0:token_bucket`
//! take 159 MB).
//!
//! Its limit is that it is one process's: with several Tollgates each grants the whole limit. And it is forgotten with it.

mod shard;

use std::{
    future::ready,
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use foldhash::quality::RandomState;

use self::shard::Shard;
use crate::{
    algorithm::{Counter, decide},
    clock::{Clock, Micros},
    limit::{Charge, Decision},
    store::{ShardHealth, Store, StoreError},
};

/// How many keys are remembered where nobody says otherwise: a million, some 160 MB when all are in use.
pub const MEMORY_KEYS_MAX: usize = 1_000_000;

/// The most shards: far more than cores, so that two of them seldom want the same one.
const SHARDS_MAX: usize = 64;

/// A shard smaller than this gets no company: keys spread unevenly over shards, and the share of a shard that is full
/// early is lost to the others.
const SHARD_KEYS_MIN: usize = 1024;

/// Keeps budgets in memory.
#[derive(Debug)]
pub struct MemoryStore<C> {
    clock: C,
    hasher: RandomState,
    shards: Box<[Line]>,
}

/// A shard that shares no cache line with its neighbours, and no pair of lines that are fetched together.
#[derive(Debug)]
#[repr(align(128))]
struct Line(Mutex<Shard>);

/// One counter of a request, and where it lives.
struct Place {
    shard: usize,
    hash: u64,
    /// Of one of the charges that name it.
    charge: usize,
    /// Index into the guards of this request.
    guard: usize,
}

impl<C: Clock> MemoryStore<C> {
    /// Remembers at most `keys_max` keys, at least 1; [`MEMORY_KEYS_MAX`] is the default elsewhere. What is above 2^32−1
    /// a shard counts as that.
    pub fn new(clock: C, keys_max: usize) -> Self {
        let shards = (keys_max / SHARD_KEYS_MIN + 1).next_power_of_two().min(SHARDS_MAX);
        let share = (keys_max / shards).min(u32::MAX as usize);
        Self {
            clock,
            hasher: RandomState::default(),
            shards: (0..shards).map(|_| Line(Mutex::new(Shard::new(share)))).collect(),
        }
    }

    /// Decides all charges of one request at once; [`Store::spend`] without the wrapping.
    pub fn decide(&self, charges: &[Charge]) -> Decision {
        let now = self.clock.now();
        match charges {
            [charge] => self.decide_one(charge, now),
            _ => self.decide_all(charges, now),
        }
    }

    /// How many keys are remembered, expired ones included that nobody has come by yet.
    pub fn len(&self) -> usize {
        (0..self.shards.len()).map(|i| self.lock(i).len()).sum()
    }

    /// Whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys had to leave before they were full, since the process started.
    pub fn evictions(&self) -> u64 {
        (0..self.shards.len()).map(|i| self.lock(i).evictions()).sum()
    }

    /// The common case: one hash, one lock, and no allocation but the answer's.
    fn decide_one(&self, charge: &Charge, now: Micros) -> Decision {
        let key = charge.key.as_bytes();
        let hash = self.hasher.hash_one(key);
        let mut shard = self.lock(self.shard_of(hash));
        let slot = shard.find(hash, key);
        let mut counter = [Counter::new(slot.and_then(|slot| shard.state(slot, now)))];
        let decision = decide(now, std::slice::from_ref(charge), &mut counter, |_| 0);
        shard.write(slot, (hash, key), counter[0].write(), now, &self.hasher);
        shard.sweep(now, &self.hasher);
        decision
    }

    fn decide_all(&self, charges: &[Charge], now: Micros) -> Decision {
        let (mut places, counter_of) = self.places(charges);
        let mut guards: Vec<MutexGuard<'_, Shard>> = Vec::new();
        let mut held = None;
        // Places come in ascending order of their shards.
        for place in &mut places {
            if held != Some(place.shard) {
                held = Some(place.shard);
                guards.push(self.lock(place.shard));
            }
            place.guard = guards.len() - 1;
        }
        let key_of = |place: &Place| charges[place.charge].key.as_bytes();
        let mut counters: Vec<Counter> = places
            .iter()
            .map(|place| {
                let shard = &guards[place.guard];
                Counter::new(shard.find(place.hash, key_of(place)).and_then(|slot| shard.state(slot, now)))
            })
            .collect();
        let decision = decide(now, charges, &mut counters, |charge| counter_of[charge]);
        for (place, counter) in places.iter().zip(&counters) {
            let shard = &mut guards[place.guard];
            // Found again, since a key of this very request may have evicted it in a shard of few keys.
            let slot = shard.find(place.hash, key_of(place));
            shard.write(slot, (place.hash, key_of(place)), counter.write(), now, &self.hasher);
            shard.sweep(now, &self.hasher);
        }
        decision
    }

    /// The distinct counters of a request in the order in which their locks are taken, and which one each charge names.
    fn places(&self, charges: &[Charge]) -> (Vec<Place>, Vec<usize>) {
        let mut sorted: Vec<(usize, u64, usize)> = charges
            .iter()
            .enumerate()
            .map(|(i, charge)| {
                let hash = self.hasher.hash_one(charge.key.as_bytes());
                (self.shard_of(hash), hash, i)
            })
            .collect();
        let key = |i: usize| charges[i].key.as_bytes();
        sorted.sort_unstable_by(|a, b| (a.0, a.1, key(a.2)).cmp(&(b.0, b.1, key(b.2))));
        let mut places: Vec<Place> = Vec::with_capacity(charges.len());
        let mut counter_of = vec![0; charges.len()];
        for (shard, hash, charge) in sorted {
            let same = places.last().is_some_and(|last| last.hash == hash && key(last.charge) == key(charge));
            if !same {
                places.push(Place { shard, hash, charge, guard: 0 });
            }
            counter_of[charge] = places.len() - 1;
        }
        (places, counter_of)
    }

    /// By bits from the middle: the table below uses the lowest and the highest.
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    /// A panic under the lock leaves the shard usable: it is not mended halfway through a decision but before or after.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    fn spend(
        &self,
        charges: &[Charge],
        _within: Duration,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        ready(Ok(self.decide(charges)))
    }

    fn decide_here(&self, charges: &[Charge]) -> Option<Decision> {
        Some(self.decide(charges))
    }

    fn is_here(&self) -> bool {
        true
    }

    fn health(&self) -> Vec<ShardHealth> {
        vec![ShardHealth { shard: "memory".into(), state: Ok(()) }]
    }
}
