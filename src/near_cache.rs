//! Near answers: what is known to be over until a time is refused here until then, and the store is not asked.
//!
//! A client who is over his limit and goes on asking is the one who costs a store most, and each of his answers could have
//! been told beforehand. A refusal that leaves less than one hit says when the next one is there; until then nothing can
//! make the store say anything else but a refund or another rule.
//!
//! **What is remembered** of a key: the limit's numbers, what the store said, and when. A near answer is the store's, counted
//! down by the time since: remaining 0, the same moments for the reset, the next hit and the retry. Of several hits the retry
//! is known only where they are as many as were refused, or where it is a window's end; else the store is asked.
//!
//! **When a request is answered here.** Only when each of its charges is known to be over, for the status of each is part
//! of the answer and one call tells all of them. Never where that would change what is counted: a charge that counts
//! always (`mode: record`) is the store's. [`Style::Reference`] is envoyproxy/ratelimit's local cache, where it is otherwise:
//! refused hits are not counted while they are remembered, and the other limits of the request are asked alone.
//!
//! **What ends it.** The time itself, by the monotonic clock from *before* the store was asked, so that nobody is refused
//! here whom the store would let in. A refund that passes here, from the moment it is answered; what an earlier refusal says
//! afterwards is not learned. New rules. And [`HOLD_MAX`], for a refund that passed another Tollgate.
//!
//! **Cost.** While nothing is known to be over, one comparison. Else a hash and a short lock of one of thousands of small
//! sets. Sets have a fixed number of bytes; a full one forgets what ends first, which costs one call of the store.

use std::{
    hash::BuildHasher,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use foldhash::quality::RandomState;

use crate::{
    algorithm::refuses,
    clock::Micros,
    limit::{Algorithm, Charge, Cost, Decision, Few, Limit, OnRefusal, Verdict},
};

/// The longest that a key is held for over without asking again: so long may a refund that passed another Tollgate go
/// unnoticed here. A client who asks a thousand times a second costs one call then, instead of a thousand.
pub const HOLD_MAX: Duration = Duration::from_secs(1);

/// Bytes of one set, its keys included.
const SET_BYTES: usize = 2048;

/// Keys of one set.
const WAYS: usize = 8;

/// What is left for the texts of a set's keys, and the longest key that is remembered.
const KEYS_BYTES: usize = SET_BYTES - size_of::<Mutex<Set>>() - WAYS * size_of::<Over>();

/// How near answers treat what the two services do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Answers are what the store would say.
    Ours,
    /// As the local cache of envoyproxy/ratelimit: hits are not counted while a refusal is remembered, which is until its
    /// window ends (refunds are not known there), and the other limits of the request are asked alone.
    Reference,
}

/// What is known of a request's charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Too little: ask the store.
    Nothing,
    /// All of them.
    All(Decision),
    /// One for each charge, in order; the store is to be asked about the others. Only in [`Style::Reference`].
    Some(Few<Option<Verdict>>),
}

/// Keys that are over, until when. Shared by all threads; bounded in bytes.
#[derive(Debug)]
pub struct NearCache {
    style: Style,
    hasher: RandomState,
    /// Times below are microseconds since then.
    began: Instant,
    sets: Box<[Mutex<Set>]>,
    /// When the last of all keys is over no more.
    latest: AtomicU64,
    /// What was asked before is forgotten.
    cleared: AtomicU64,
}

#[derive(Debug, Default)]
struct Set {
    over: Vec<Over>,
    /// What was asked before is not learned: a refund came between.
    refunded: u64,
    counts: Counts,
}

/// What has happened since the start, and how many keys there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that are remembered, also those that are over no more.
    pub keys: u64,
    /// Look-ups of a key that was known to be over.
    pub hits: u64,
    /// Look-ups of one that was not, while some key was.
    pub misses: u64,
    /// Keys that were over again, or still.
    pub overwritten: u64,
    /// Keys that made room for others while they were over.
    pub evicted: u64,
    /// Keys that made room since they were over no more.
    pub expired: u64,
}

/// A key that is over, as the store said.
#[derive(Debug)]
struct Over {
    hash: u64,
    key: Box<[u8]>,
    limit: Limit,
    /// When the store was asked, and when it answered.
    asked: u64,
    heard: u64,
    until: u64,
    beyond: u64,
    reset_us: u64,
    next_us: u64,
    /// Of so many hits.
    retry: Option<(u64, Option<u64>)>,
}

impl NearCache {
    /// At most about `bytes`, and at least one set of a few keys. Nothing is over at `now`.
    pub fn new(bytes: usize, style: Style, now: Instant) -> Self {
        // Rounded down to a power of two.
        let sets = 1 << (bytes / SET_BYTES).max(1).ilog2();
        Self {
            style,
            hasher: RandomState::default(),
            began: now,
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            latest: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        }
    }

    /// What is known of a request at `now`.
    pub fn look(&self, charges: &[Charge], now: Instant) -> Known {
        let now = self.us(now);
        if now >= self.latest.load(Relaxed) {
            return Known::Nothing;
        }
        // Stays empty before something is known.
        let mut known = Few::new();
        for (index, charge) in charges.iter().enumerate() {
            match self.verdict(charge, now) {
                None if self.style == Style::Ours => return Known::Nothing,
                None => {}
                Some(verdict) => {
                    known.resize(charges.len(), None);
                    known[index] = Some(verdict);
                }
            }
        }
        match self.style {
            _ if known.is_empty() => Known::Nothing,
            // Charges of one counter see what the others of the request would spend.
            Style::Ours if has_twins(charges) => Known::Nothing,
            // One that leaves a refused request alone has to be told that it is refused.
            Style::Reference if !unknown_count(charges, &known) => Known::Nothing,
            _ => match known.iter().copied().collect::<Option<Few<_>>>() {
                Some(verdicts) => Known::All(Decision { refused: refuses(charges, &verdicts), verdicts }),
                None => Known::Some(known),
            },
        }
    }

    /// Learns from what the store was asked at `asked` and answered at `heard`.
    pub fn learn(&self, charges: &[Charge], decision: &Decision, asked: Instant, heard: Instant) {
        let alone = charges.len() == 1;
        let (asked, heard) = (self.us(asked), self.us(heard));
        // In their order: of two charges on one counter the later one knows what the earlier one left.
        for (charge, verdict) in charges.iter().zip(&decision.verdicts) {
            match charge.cost {
                _ if !verdict.fits && verdict.remaining == 0 => {
                    self.insert(charge, verdict, alone, asked, heard)
                }
                // Where a request spans shards it was taken and given back, and others may have been refused between.
                Cost::Spend(_) if decision.refused && verdict.fits => self.given_back(charge, heard),
                // A larger limit on the same counter has moved the times of a smaller one.
                Cost::Spend(_) if heard < self.latest.load(Relaxed) => {
                    drop(self.forget(charge.key.as_bytes()))
                }
                _ => {}
            }
        }
    }

    /// Forgets what is given back to. To be called when the store has answered, or may have.
    pub fn refunded(&self, charges: &[Charge], now: Instant) {
        for charge in charges.iter().filter(|charge| charge.cost.gives()) {
            self.given_back(charge, self.us(now));
        }
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for set in &self.sets {
            let set = set.lock().unwrap_or_else(PoisonError::into_inner);
            all.keys += set.over.len() as u64;
            all.hits += set.counts.hits;
            all.misses += set.counts.misses;
            all.overwritten += set.counts.overwritten;
            all.evicted += set.counts.evicted;
            all.expired += set.counts.expired;
        }
        all
    }

    /// Forgets all that was asked until now.
    pub fn clear(&self, now: Instant) {
        self.cleared.fetch_max(self.us(now) + 1, Relaxed);
    }

    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    fn set(&self, hash: u64) -> MutexGuard<'_, Set> {
        // The lowest bits are as good as any. A panic under the lock leaves a set before or after a change.
        let index = hash as usize & (self.sets.len() - 1);
        self.sets[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given_back(&self, charge: &Charge, now: u64) {
        let mut set = self.forget(charge.key.as_bytes());
        set.refunded = set.refunded.max(now + 1);
    }

    fn forget(&self, key: &[u8]) -> MutexGuard<'_, Set> {
        let mut set = self.set(self.hasher.hash_one(key));
        set.over.retain(|over| *over.key != *key);
        set
    }

    fn verdict(&self, charge: &Charge, now: u64) -> Option<Verdict> {
        let hits = hits(charge.cost)?;
        let counts = matches!(charge.cost, Cost::Spend(_)) && charge.on_refusal == OnRefusal::Count;
        if counts && self.style == Style::Ours {
            return None;
        }
        let key = charge.key.as_bytes();
        let hash = self.hasher.hash_one(key);
        let mut set = self.set(hash);
        let same = |over: &&Over| over.hash == hash && over.limit == charge.limit && *over.key == *key;
        let holds = |over: &&Over| now < over.until && over.asked >= self.cleared.load(Relaxed);
        let over = set.over.iter().find(same).filter(holds);
        // The reference's look passes at exactly the limit.
        let over = over.filter(|over| hits > 0 || over.beyond > 0);
        let verdict = over.and_then(|over| over.verdict(charge, hits, now));
        match verdict {
            Some(_) => set.counts.hits += 1,
            None => set.counts.misses += 1,
        }
        verdict
    }

    fn insert(&self, charge: &Charge, verdict: &Verdict, alone: bool, asked: u64, heard: u64) {
        let hold_us = match self.style {
            Style::Ours => HOLD_MAX.as_micros() as u64,
            Style::Reference => u64::MAX,
        };
        let until = asked.saturating_add(verdict.next_us.min(hold_us));
        let key = charge.key.as_bytes();
        if until <= heard || key.len() > KEYS_BYTES {
            return;
        }
        let hash = self.hasher.hash_one(key);
        let retry = hits(charge.cost).filter(|_| alone).map(|hits| (hits, verdict.retry_us));
        let over = Over {
            hash,
            key: key.into(),
            limit: charge.limit,
            asked,
            heard,
            until,
            beyond: verdict.beyond,
            reset_us: verdict.reset_us,
            next_us: verdict.next_us,
            retry,
        };
        let mut set = self.set(hash);
        if asked >= set.refunded {
            set.insert(over, heard);
            drop(set);
            self.latest.fetch_max(until, Relaxed);
        }
    }
}

impl Set {
    fn insert(&mut self, new: Over, now: u64) {
        let counts = &mut self.counts;
        self.over.retain(|over| {
            let (same, expired) = (over.key == new.key, over.until <= now);
            counts.overwritten += u64::from(same);
            counts.expired += u64::from(expired && !same);
            !same && !expired
        });
        let bytes = |over: &[Over]| over.iter().map(|over| over.key.len()).sum::<usize>();
        while self.over.len() == WAYS || bytes(&self.over) + new.key.len() > KEYS_BYTES {
            let first = (0..self.over.len()).min_by_key(|&index| self.over[index].until);
            self.over.swap_remove(first.expect("a key alone fits"));
            self.counts.evicted += 1;
        }
        self.over.reserve_exact(WAYS - self.over.len());
        self.over.push(new);
    }
}

impl Over {
    /// What the store would say now; `None` where that is not known.
    fn verdict(&self, charge: &Charge, hits: u64, now: u64) -> Option<Verdict> {
        let since = now.saturating_sub(self.heard);
        let left = |us: u64| us.saturating_sub(since);
        let limit = &charge.limit;
        // Where the key names the window, its end is what the asker says.
        let window_us = charge.key.plain().map(|plain| plain.ends_in_us.get());
        let next_us = window_us.unwrap_or(left(self.next_us));
        let retry_us = match self.retry {
            _ if hits > u64::from(limit.burst()) => None,
            _ if hits <= 1 || limit.algorithm() == Algorithm::FixedWindow => Some(next_us),
            Some((seen, retry_us)) if seen == hits => retry_us.map(left),
            _ => return None,
        };
        let reset_us = window_us.unwrap_or(left(self.reset_us));
        Some(Verdict {
            fits: false,
            remaining: 0,
            beyond: self.beyond,
            reset_us,
            retry_us,
            next_us,
            since: Micros(0),
        })
    }
}

/// What a charge wants to fit; `None` for one that gives.
fn hits(cost: Cost) -> Option<u64> {
    match cost {
        Cost::Spend(hits) => Some(hits.get()),
        Cost::Look(hits) => Some(hits),
        Cost::Refund(_) | Cost::GiveBack { .. } => None,
    }
}

/// Whether two charges name one counter. Most requests have one or two.
fn has_twins(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(i, charge)| charges[..i].iter().any(|other| other.key == charge.key))
}

/// Whether all charges that nothing is known of are counted whatever becomes of the request.
fn unknown_count(charges: &[Charge], known: &[Option<Verdict>]) -> bool {
    charges.iter().zip(known).all(|(charge, known)| {
        known.is_some() || matches!(charge.cost, Cost::Look(_)) || charge.on_refusal == OnRefusal::Count
    })
}

#[cfg(test)]
mod tests;
