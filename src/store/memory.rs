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
//! A key takes 86 bytes however long it is (`cargo bench --bench keys`), and a decision about one of a million waits
//! for two or three lines of memory that no cache holds.
//!
//! Its limit is that it is one process's: with several Tollgates each grants the whole limit. And it is forgotten with it.

mod shard;
mod chains;
mod queue;
mod pages;
mod name;

use std::{
    future::ready,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smallvec::smallvec;

use self::{
    name::{Name, Names},
    shard::Shard,
};
use crate::{
    algorithm::{Counter, decide},
    clock::{Clock, Micros},
    limit::{Charge, Decision, Few},
    store::{ShardHealth, Store, StoreError},
};

/// How many keys are remembered where nobody says otherwise: a million, some 90 MB when all are in use.
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
    names: Names,
    shards: Box<[Line]>,
}

/// A shard that shares no cache line with its neighbours, and no pair of lines that are fetched together.
#[derive(Debug)]
#[repr(align(128))]
struct Line(Mutex<Shard>);

/// One counter of a request, and where it lives. In the order in which locks are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    shard: usize,
    name: Name,
    /// One of the charges that name it.
    charge: usize,
    /// Index into the guards of this request.
    guard: usize,
}

impl<C: Clock> MemoryStore<C> {
    /// Remembers at most `keys_max` keys, at least 1; [`MEMORY_KEYS_MAX`] is the default elsewhere. What is above 2^32−2
    /// a shard counts as that.
    pub fn new(clock: C, keys_max: usize) -> Self {
        let shards = (keys_max / SHARD_KEYS_MIN + 1).next_power_of_two().min(SHARDS_MAX);
        let share = (keys_max / shards).min(u32::MAX as usize - 1);
        Self {
            clock,
            names: Names::default(),
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

    /// The common case: one name, one lock, and no allocation.
    fn decide_one(&self, charge: &Charge, now: Micros) -> Decision {
        let name = self.names.of(charge.key.as_bytes());
        let mut shard = self.lock(self.shard_of(&name));
        let slot = shard.find(&name);
        let mut counter = [Counter::new(slot.and_then(|slot| shard.state(slot, now)))];
        let decision = decide(now, std::slice::from_ref(charge), &mut counter, |_| 0);
        shard.write(slot, &name, counter[0].write(), now);
        shard.sweep(now);
        decision
    }

    fn decide_all(&self, charges: &[Charge], now: Micros) -> Decision {
        let (mut places, counter_of) = self.places(charges);
        let mut guards: Few<MutexGuard<'_, Shard>> = Few::new();
        let mut held = None;
        // Places come in ascending order of their shards.
        for place in &mut places {
            if held != Some(place.shard) {
                held = Some(place.shard);
                guards.push(self.lock(place.shard));
            }
            place.guard = guards.len() - 1;
        }
        let state = |place: &Place| {
            let shard = &guards[place.guard];
            shard.find(&place.name).and_then(|slot| shard.state(slot, now))
        };
        let mut counters: Few<Counter> = places.iter().map(|place| Counter::new(state(place))).collect();
        let decision = decide(now, charges, &mut counters, |charge| counter_of[charge]);
        for (place, counter) in places.iter().zip(&counters) {
            let shard = &mut guards[place.guard];
            // Found again, since a key of this very request may have evicted it in a shard of few keys.
            let slot = shard.find(&place.name);
            shard.write(slot, &place.name, counter.write(), now);
            shard.sweep(now);
        }
        decision
    }

    /// The distinct counters of a request in the order in which their locks are taken, and which one each charge names.
    fn places(&self, charges: &[Charge]) -> (Few<Place>, Few<usize>) {
        let place = |(charge, of): (usize, &Charge)| {
            let name = self.names.of(of.key.as_bytes());
            Place { shard: self.shard_of(&name), name, charge, guard: 0 }
        };
        let mut places: Few<Place> = charges.iter().enumerate().map(place).collect();
        places.sort_unstable();
        let mut counter_of: Few<usize> = smallvec![0; charges.len()];
        let mut distinct = 0;
        for index in 0..places.len() {
            let place = places[index];
            if distinct == 0 || places[distinct - 1].name != place.name {
                places[distinct] = place;
                distinct += 1;
            }
            counter_of[place.charge] = distinct - 1;
        }
        places.truncate(distinct);
        (places, counter_of)
    }

    fn shard_of(&self, name: &Name) -> usize {
        name.other_spread() as usize & (self.shards.len() - 1)
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
