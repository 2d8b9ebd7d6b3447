//! Leases: hits of a hot key are taken from the store ahead of their requests, and spent here.
//!
//! A key that is asked for thousands of times a second costs a store as many decisions. A lease is one of them for many
//! hits: this process takes 50 more than a request needs, and answers the next 50 by itself. They are paid for, so nobody
//! can be granted them a second time; what is not spent is given back after [`LIFE`], when rules change and when the
//! process ends.
//!
//! # Never more than the limit
//!
//! Taking ahead is not all. A bucket of 100 that 50 are taken of fills again while they are held, and with 100 in the
//! bucket and 50 here, 150 could pass at once. So think of the bucket's *whole*, `W = B + H`: what is in the store (`B`)
//! and what all Tollgates hold (`H`). A grant lowers it, taking and giving back leave it alone, and only refilling raises it,
//! at the limit's rate. So as long as `W <= burst` at all times, what is granted in any time `T` is at most
//! `burst + rate·T`: the bound that the bucket has without leases.
//!
//! `W <= burst` is held by each lease for itself. When one was taken, with `n` hits to hold and `h` for its request, the
//! whole was within the burst before; so there was *slack* for `h` more at least, which its request has spent. And the
//! bucket had `left` (and less than one more, for fractions are not told), and all others held at most `O`: so there was slack
//! for `burst - left - 1 - n - O`, which is more where the bucket is not nearly full. Since then the whole has grown by `rate·t`
//! at most. Therefore at `t` after it was asked for, only
//!
//! ```text
//! n - max(0, rate·t - slack)
//! ```
//!
//! of the lease may still be held, spent or given back; what is more is void, as a full bucket's refill is. Of the lease that
//! was taken first this alone keeps the whole within the burst (what it has spent and what is void make up for all growth
//! beyond the slack), whatever later ones do, and giving back at any time changes nothing; when it has ended, the next one
//! does, since the whole was within the burst when that was taken. So whoever spends his lease as fast as the bucket fills
//! loses nothing of it. `O` is bounded since each of the FLEET_SIZE Tollgates has at most one lease of a key, which was at
//! most `left / (2·FLEET_SIZE)`. Refunds of clients are not part of this: what they give while leases are held counts like
//! what they give at any other time.
//!
//! For GCRA the same holds, with time instead of tokens. A fixed window needs less: a lease is good until its window ends by
//! the store's clock. A sliding window weighs a hit by when it was counted, which for held ones is not when they pass, so it
//! has no leases. Times are local and monotonic, from *before* the store was asked; a store's clock that is set forward fills
//! buckets, with leases as without.
//!
//! # What it holds back
//!
//! A lease is at most `left / (2·FLEET_SIZE)`: all Tollgates together hold at most half of what is left, and that shrinks as
//! the key runs dry, until each hit asks the store. Nobody is refused without asking it.
//!
//! # Who waits
//!
//! Requests of a key whose lease is being fetched wait for it; it is one call then for all of them. Where the store is asked
//! for a hit alone, they ask all at once, and the store merges them.

mod errand;
mod held;
mod hot;

use std::{
    collections::HashMap,
    hash::BuildHasher,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use foldhash::quality::RandomState;
use tokio::sync::watch;

pub use self::errand::{Giving, Taking, Turn};
use self::{held::Held, hot::Hot};
use crate::{
    algorithm::arith::muldiv,
    key::Key,
    limit::{Algorithm, Charge, Cost, Limit, Role, Verdict, WAIT_MAX_US},
    metrics::LeaseCounters,
};

/// How long what was taken may be spent here. What a client may miss elsewhere meanwhile comes back soon; and a key that is
/// hot enough to be leased spends it far sooner.
pub const LIFE: Duration = Duration::from_secs(1);

/// How long giving back may take. What a window's end or a refilled bucket would void by then is not given back.
pub const GIVE_BACK_WITHIN: Duration = Duration::from_millis(100);

/// How long a key has no lease after giving back has failed: until then it may still happen, and count as held.
const BARRED: Duration = Duration::from_secs(10);

/// The most keys that are leased, or soon may be; others ask the store. Some 20 MB.
pub const KEYS_MAX: usize = 65_536;

const SHARDS: usize = 64;

/// What this process holds of which key. Shared by all threads.
#[derive(Debug)]
pub struct Leases {
    fleet: u64,
    hot: Option<Hot>,
    hasher: RandomState,
    shards: Box<[Mutex<HashMap<Key, Slot, RandomState>>]>,
    slots: AtomicUsize,
    counters: LeaseCounters,
}

/// What comes next for a request.
#[derive(Debug)]
pub enum Next<'l> {
    /// It was granted here.
    Here(Verdict),
    /// The store is to be asked for it, and then [`Leases::learn`].
    Ask,
    /// The store is to be asked for it and for more.
    Take(Taking<'l>),
    /// What is held does not do, and has to be given back first.
    GiveBack(Giving<'l>),
    /// Somebody else takes a lease of this key: see again when he has.
    Wait(Turn),
}

#[derive(Debug)]
struct Slot {
    limit: Limit,
    state: State,
    /// When it may be forgotten, if nothing is held.
    idle_at: Instant,
}

#[derive(Debug)]
enum State {
    /// So many hits were left in the store, which says how many to take, until then.
    Known(u64, Instant),
    /// Dropping it wakes those who wait.
    Taking(watch::Sender<()>),
    Held(Held),
    Giving,
    /// Nothing is leased until then.
    Barred(Instant),
}

impl Leases {
    /// For one of `fleet` Tollgates. `above`: the requests a second of a key in this process above which it is leased
    /// without being asked to; 0 for none.
    pub fn new(fleet: u32, above: u32, counters: LeaseCounters, now: Instant) -> Self {
        Self {
            fleet: u64::from(fleet.max(1)),
            hot: (above > 0).then(|| Hot::new(above, now)),
            hasher: RandomState::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            slots: AtomicUsize::new(0),
            counters,
        }
    }

    /// How many hits to take ahead for a charge that is alone in its request; 0 when it is not to be leased. `lease` is the
    /// rule's own word. To be called once for each request, since it counts them.
    pub fn size(&self, charge: &Charge, lease: Option<u32>, now: Instant) -> u64 {
        let may = || {
            charge.role == Role::Enforce
                && hits_of(charge).is_some()
                && can_be_leased(&charge.limit)
                // What is left of a split key is not known so well that a lease of it would be exact.
                && charge.key.plain().is_none()
                && charge.key.shards().is_none()
        };
        match (lease, &self.hot) {
            (Some(lease), _) if lease > 0 && may() => u64::from(lease),
            (None, Some(hot)) if may() => hot.size(self.hasher.hash_one(&charge.key), &charge.limit, now),
            _ => 0,
        }
    }

    /// Grants a charge of what is held, if there is enough.
    pub fn spend(&self, charge: &Charge, now: Instant) -> Option<Verdict> {
        let hits = hits_of(charge)?;
        let mut shard = self.shard(&charge.key);
        let slot = shard.get_mut(&charge.key).filter(|slot| slot.limit == charge.limit)?;
        let State::Held(held) = &mut slot.state else { return None };
        let verdict = held.spend(hits, &slot.limit, now)?;
        slot.idle_at = now + LIFE;
        drop(shard);
        self.counters.answers.inc();
        Some(verdict)
    }

    /// What comes next for a charge of a [`size`](Self::size) that is not 0.
    pub fn next(&self, charge: &Charge, size: u64, now: Instant) -> Next<'_> {
        if let Some(verdict) = self.spend(charge, now) {
            return Next::Here(verdict);
        }
        let Some(hits) = hits_of(charge) else { return Next::Ask };
        let mut shard = self.shard(&charge.key);
        let Some(slot) = shard.get_mut(&charge.key).filter(|slot| slot.limit == charge.limit) else {
            return Next::Ask;
        };
        slot.idle_at = now + LIFE;
        if let State::Held(held) = &slot.state {
            let (left, back) = (held.unspent(), held.to_give_back(&slot.limit, now + GIVE_BACK_WITHIN));
            self.counters.lost.inc_by(left - back);
            if back > 0 {
                let giving = Giving::new(self, &charge.key, charge.limit, (held, back), now);
                slot.state = State::Giving;
                return Next::GiveBack(giving);
            }
            slot.state = State::Known(held.left_in_store(), held.ends());
        }
        match &slot.state {
            State::Taking(taking) => Next::Wait(Turn::new(taking.subscribe())),
            State::Known(left, until) if now < *until => {
                let most = left.saturating_sub(hits) / (2 * self.fleet);
                let hold = size.min(most);
                if hold == 0 {
                    return Next::Ask;
                }
                slot.state = State::Taking(watch::Sender::new(()));
                Next::Take(Taking::new(self, charge, hits, hold, size, now))
            }
            State::Known(..) | State::Held(_) | State::Giving | State::Barred(_) => Next::Ask,
        }
    }

    /// Learns from what the store has said to a charge that was asked at `asked`: how much is left there.
    pub fn learn(&self, charge: &Charge, verdict: &Verdict, asked: Instant) {
        let known = State::Known(verdict.remaining, good_until(&charge.limit, verdict, asked));
        let mut shard = self.shard(&charge.key);
        match shard.get_mut(&charge.key) {
            Some(slot) => match slot.state {
                State::Known(..) => (slot.limit, slot.state) = (charge.limit, known),
                State::Barred(until) if until <= asked => slot.state = known,
                State::Barred(_) | State::Taking(_) | State::Held(_) | State::Giving => {}
            },
            None if self.slots.load(Relaxed) < KEYS_MAX => {
                let slot = Slot { limit: charge.limit, state: known, idle_at: asked + LIFE };
                shard.insert(charge.key.clone(), slot);
                self.slots.fetch_add(1, Relaxed);
            }
            None => {}
        }
    }

    /// Spends nothing more of what is held; [`due`](Self::due) has it then. For new rules.
    pub fn retire(&self, now: Instant) {
        for shard in &self.shards {
            for slot in lock(shard).values_mut() {
                if let State::Held(held) = &mut slot.state {
                    held.end(now);
                }
            }
        }
    }

    /// What is to be given back now: what has expired, or `all` of it. Forgets keys that nobody asks for any more.
    pub fn due(&self, all: bool, now: Instant) -> Vec<Giving<'_>> {
        let mut due = Vec::new();
        if self.slots.load(Relaxed) == 0 {
            return due;
        }
        for shard in &self.shards {
            let mut shard = lock(shard);
            let before = shard.len();
            shard.retain(|key, slot| {
                let held = match &slot.state {
                    State::Held(held) => held,
                    State::Known(..) => return now < slot.idle_at,
                    State::Barred(until) => return now < *until,
                    State::Taking(_) | State::Giving => return true,
                };
                if !all && now < held.ends() {
                    return true;
                }
                let back = held.to_give_back(&slot.limit, now + GIVE_BACK_WITHIN);
                self.counters.lost.inc_by(held.unspent() - back);
                if back == 0 {
                    return false;
                }
                due.push(Giving::new(self, key, slot.limit, (held, back), now));
                slot.state = State::Giving;
                true
            });
            self.slots.fetch_sub(before - shard.len(), Relaxed);
        }
        due
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, HashMap<Key, Slot, RandomState>> {
        lock(&self.shards[self.hasher.hash_one(key) as usize % SHARDS])
    }

    fn set(&self, key: &Key, state: State) {
        let old = self.shard(key).get_mut(key).map(|slot| mem::replace(&mut slot.state, state));
        // Wakes those who wait, who find the new state.
        drop(old);
    }
}

/// A panic under the lock leaves a map before or after a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hits_of(charge: &Charge) -> Option<u64> {
    if let Cost::Spend(hits) = charge.cost {
        Some(hits.get()).filter(|hits| *hits <= u64::from(u32::MAX))
    } else {
        None
    }
}

/// Whether a limit's algorithm keeps its bound when hits are taken ahead.
pub fn can_be_leased(limit: &Limit) -> bool {
    let (tokens, us) = limit.reduced();
    match limit.algorithm() {
        _ if tokens == 0 => false,
        Algorithm::FixedWindow => true,
        // A burst beyond the longest wait follows another line.
        Algorithm::TokenBucket | Algorithm::Gcra => muldiv(limit.burst().into(), us, tokens).0 < WAIT_MAX_US,
        Algorithm::SlidingWindow => false,
    }
}

/// Until when what the store said may be used: for [`LIFE`], and within a window.
fn good_until(limit: &Limit, verdict: &Verdict, asked: Instant) -> Instant {
    let life = match limit.algorithm() {
        Algorithm::FixedWindow => LIFE.min(Duration::from_micros(verdict.reset_us)),
        _ => LIFE,
    };
    asked + life
}

#[cfg(test)]
mod tests;
