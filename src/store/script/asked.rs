//! What is asked of the script in one call: the distinct keys, the kinds of charges, the requests.
//!
//! A busy service asks the same of many keys, or of one. So what a charge asks is a *kind* that is said once, a request is
//! a key and the number of a kind, and equal charges that follow each other on one key are one *entry* that says how many
//! they are. Only neighbours are merged: a request between them on the same key is decided between them.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use crate::{
    algorithm::{Act, arith::muldiv},
    limit::{Algorithm, COUNT_MAX, Charge, Cost, Limit, Role, WAIT_MAX_US},
};

/// How many keys are told apart by comparing all of them; beyond, by a hash table.
const FEW_KEYS: usize = 8;

/// Among how many of the last kinds a charge's is looked for. One that is sent twice costs some bytes.
const KINDS_LOOKED_AT: usize = 8;

/// The most equal charges that are merged into one: a byte says how many of them fitted.
const MERGED_MAX: u64 = 255;

/// Where a charge is found in a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Which of the keys, from 0.
    pub(super) key: u32,
    /// Which of the bytes that say what fitted, from 0; [`UNASKED`] when it was not asked for.
    pub(super) entry: u32,
}

/// Of a request that names one key by two algorithms. The rules make no such thing, and the script could not tell.
pub(super) const UNASKED: u32 = u32::MAX;

/// What is asked, while requests are added.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) keys: DistinctKeys,
    /// Seven numbers each.
    kinds: Vec<[u64; 7]>,
    requests: Vec<u64>,
    pub(super) places: Vec<Place>,
    pub(super) entries: u32,
}

/// What is known of a key while requests are added.
#[derive(Clone, Copy, Debug)]
struct KeyUse {
    /// By which it is asked for.
    algorithm: u8,
    /// The last entry that names it, where that is a charge alone which equal ones may be merged into.
    last: Option<Alone>,
}

/// An entry of one charge.
#[derive(Clone, Copy, Debug)]
struct Alone {
    kind: u64,
    entry: u32,
    /// Where in the requests it says how many equal charges it is.
    count_at: usize,
}

impl Asked {
    /// Forgets all of it, and keeps the memory for what is asked next.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.kinds.clear();
        self.requests.clear();
        self.places.clear();
        self.entries = 0;
    }

    pub(super) fn push(&mut self, charges: &[Charge]) {
        let start = self.places.len();
        let mut one_algorithm = true;
        for charge in charges {
            let algorithm = algorithm_letter(charge);
            let key = self.keys.index(charge, algorithm);
            one_algorithm &= self.keys.uses[key as usize].algorithm == algorithm;
            self.places.push(Place { key, entry: UNASKED });
        }
        match charges {
            _ if !one_algorithm => {}
            [charge] => self.push_alone(charge, start),
            _ => self.push_several(charges, start),
        }
    }

    fn push_alone(&mut self, charge: &Charge, place: usize) {
        // What it means for its request does not matter to a charge that is alone.
        let kind_numbers = kind(charge, Role::Enforce);
        let kind = self.kind(kind_numbers);
        let key = self.places[place].key;
        if let Some(last) = self.keys.uses[key as usize].last
            && last.kind == kind
            && may_be(self.requests[last.count_at] + 1, &charge.limit, &kind_numbers)
        {
            self.requests[last.count_at] += 1;
            self.places[place].entry = last.entry;
            return;
        }
        self.requests.extend([u64::from(key) + 1, kind, 1]);
        let entry = self.next_entry();
        self.places[place].entry = entry;
        self.keys.uses[key as usize].last = Some(Alone { kind, entry, count_at: self.requests.len() - 1 });
    }

    fn push_several(&mut self, charges: &[Charge], start: usize) {
        self.requests.extend([0, charges.len() as u64]);
        for (charge, place) in charges.iter().zip(start..) {
            let kind = self.kind(kind(charge, charge.role));
            let key = self.places[place].key;
            self.requests.extend([u64::from(key) + 1, kind]);
            self.places[place].entry = self.next_entry();
            self.keys.uses[key as usize].last = None;
        }
    }

    fn next_entry(&mut self) -> u32 {
        self.entries += 1;
        self.entries - 1
    }

    /// Where the script finds a kind: behind the number of the first request, from 1.
    fn kind(&mut self, numbers: [u64; 7]) -> u64 {
        let known = self.kinds.iter().rev().take(KINDS_LOOKED_AT).position(|kind| *kind == numbers);
        let index = known.map_or(self.kinds.len(), |back| self.kinds.len() - 1 - back);
        if known.is_none() {
            self.kinds.push(numbers);
        }
        2 + 7 * index as u64
    }

    /// Appends all but the keys, packed.
    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        let first_request = 2 + 7 * self.kinds.len();
        let count = first_request - 1 + self.requests.len();
        // An array of 32-bit length; the bound of a call is far below.
        out.push(0xdd);
        out.extend_from_slice(&(count as u32).to_be_bytes());
        pack(first_request as u64, out);
        for &number in self.kinds.iter().flatten().chain(&self.requests) {
            pack(number, out);
        }
    }
}

/// Whether so many equal charges may be merged: as long as all of them at once are the same as one after the other.
fn may_be(count: u64, limit: &Limit, &[algorithm, act, _, tokens, us, burst, hits]: &[u64; 7]) -> bool {
    // A refund stops at full, and a drain takes what is left: the next one finds another counter.
    let repeats = [b'T', b'C', b'L'].iter().any(|&letter| act == u64::from(letter));
    // A burst beyond the longest wait is granted once, and what is left after that follows another line.
    let saturates =
        || algorithm == u64::from(b'g') && limit.requests() > 0 && muldiv(burst, us, tokens).0 == WAIT_MAX_US;
    repeats && count <= MERGED_MAX && count * hits <= COUNT_MAX && !saturates()
}

/// A number as MessagePack, in as few bytes as it takes; one above 2^63 is the negative number of the same bits.
fn pack(number: u64, out: &mut Vec<u8>) {
    let bytes = number.to_be_bytes();
    match number {
        0..0x80 => out.push(bytes[7]),
        0x80..0x100 => out.extend_from_slice(&[0xcc, bytes[7]]),
        0x100..0x1_0000 => {
            out.push(0xcd);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(0xce);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(if number > i64::MAX as u64 { 0xd3 } else { 0xcf });
            out.extend_from_slice(&bytes);
        }
    }
}

fn kind(charge: &Charge, role: Role) -> [u64; 7] {
    let (act, hits) = Act::of(charge);
    let limit = &charge.limit;
    let requests = u64::from(limit.requests());
    let (tokens, us, burst) = match charge.key.plain() {
        Some(plain) => (requests, plain.kept_us.get(), plain.ends_in_us.get()),
        None if limit.algorithm().has_window() || requests == 0 => {
            (requests, limit.window_us(), u64::from(limit.burst()))
        }
        None => (limit.reduced().0, limit.reduced().1, u64::from(limit.burst())),
    };
    let act = match act {
        Act::Take => b'T',
        Act::Drain => b'D',
        Act::Count => b'C',
        Act::Look => b'L',
        Act::Give | Act::GiveBack(_) => b'G',
    };
    let role = match (charge.cost, role) {
        (Cost::GiveBack { since, .. }, _) => since.0.wrapping_neg(),
        (_, Role::Enforce) => b'E'.into(),
        (_, Role::Shadow) => b'S'.into(),
        (_, Role::Quota) => b'Q'.into(),
    };
    [algorithm_letter(charge).into(), act.into(), role, tokens, us, burst, hits]
}

fn algorithm_letter(charge: &Charge) -> u8 {
    match charge.limit.algorithm() {
        _ if charge.key.plain().is_some() => b'r',
        Algorithm::TokenBucket => b'b',
        Algorithm::Gcra => b'g',
        Algorithm::SlidingWindow => b's',
        Algorithm::FixedWindow => b'f',
    }
}

/// Numbers distinct keys from 0. A quiet server's calls have one or two, so a hash table waits until there are many.
#[derive(Debug, Default)]
pub(super) struct DistinctKeys {
    /// One after the other.
    texts: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
    uses: Vec<KeyUse>,
    many: HashTable<u32>,
    hasher: RandomState,
}

/// The largest memory for keys that is kept, in bytes. Those in the reference's form may be much longer than ours.
const TEXTS_KEPT_MAX: usize = 64 * 1024;

impl DistinctKeys {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> &[u8] {
        text(&self.texts, &self.ends, index)
    }

    fn clear(&mut self) {
        self.texts.clear();
        self.texts.shrink_to(TEXTS_KEPT_MAX);
        self.ends.clear();
        self.uses.clear();
        self.many.clear();
    }

    fn index(&mut self, charge: &Charge, algorithm: u8) -> u32 {
        let key = charge.key.as_bytes();
        let known = if self.len() <= FEW_KEYS {
            (0..self.len()).find(|&index| self.get(index) == key).map(|index| index as u32)
        } else {
            self.many.find(self.hasher.hash_one(key), |&index| self.get(index as usize) == key).copied()
        };
        known.unwrap_or_else(|| {
            self.texts.extend_from_slice(key);
            self.ends.push(self.texts.len());
            self.uses.push(KeyUse { algorithm, last: None });
            if self.len() > FEW_KEYS {
                let (texts, ends, hasher) = (&self.texts, &self.ends, &self.hasher);
                let hash = |&index: &u32| hasher.hash_one(text(texts, ends, index as usize));
                for index in self.many.len() as u32..ends.len() as u32 {
                    self.many.insert_unique(hash(&index), index, hash);
                }
            }
            (self.len() - 1) as u32
        })
    }
}

fn text<'t>(texts: &'t [u8], ends: &[usize], index: usize) -> &'t [u8] {
    let start = index.checked_sub(1).map_or(0, |before| ends[before]);
    &texts[start..ends[index]]
}
