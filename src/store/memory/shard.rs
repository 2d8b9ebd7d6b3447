//! One shard of the memory store: a table of keys, the slots they live in, and a queue of what ends first.
//!
//! A bounded store needs to know which key is nearest to full, to evict it, and which ones are full, to forget them. That
//! order changes with each decision, and most changes are of one kind: a key is spent from, so it is full later. A queue
//! that is put in order each time would make each decision pay for that. This one is lazy. It is a binary heap by a time
//! `due` that is never after the slot's real `expires`. A decision that moves the expiry later leaves the queue alone; one
//! that moves it before `due` (a refund) moves the slot up. Only when a slot comes to the top is its `due` put right, and
//! it sinks to its place. A top whose `due` is right is the first of all.
//!
//! Each key in the table has one slot and each slot one place in the queue, which the slot knows. So a key can leave from
//! the middle, and there are no remains to clean up.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use crate::{
    algorithm::{State, Write},
    clock::Micros,
};

/// How many due times an eviction puts right before it takes the top as it is. Each decision makes at most one due time
/// wrong, so on average there is one to do; the bound is for a request that comes after many quiet ones.
const EVICT_LOOKS: usize = 16;

/// How many slots a decision looks at that may have expired: two for each it may add, so that they are caught up with.
const SWEEP_LOOKS: usize = 2;

/// Keys and states, at most `most`.
#[derive(Debug)]
pub(super) struct Shard {
    most: usize,
    table: HashTable<u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    queue: Vec<u32>,
    evictions: u64,
}

#[derive(Debug)]
struct Slot {
    key: Box<[u8]>,
    state: State,
    /// When the state equals a fresh one.
    expires: Micros,
    /// Not after `expires`; the queue's order.
    due: Micros,
    /// Index in the queue.
    place: u32,
}

impl Shard {
    /// At most `most` keys, at least one.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            queue: Vec::new(),
            evictions: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The slot of a key.
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.table.find(hash, |&slot| *self.slots[slot as usize].key == *key).copied()
    }

    /// The state in a slot, unless it has expired.
    pub(super) fn state(&self, slot: u32, now: Micros) -> Option<State> {
        let slot = &self.slots[slot as usize];
        (slot.expires > now).then_some(slot.state)
    }

    /// Writes what was decided for a key, of which `slot` is the slot if it has one.
    pub(super) fn write(
        &mut self,
        slot: Option<u32>,
        (hash, key): (u64, &[u8]),
        write: Write,
        now: Micros,
        hasher: &RandomState,
    ) {
        match (write, slot) {
            (Write::Nothing, _) | (Write::Delete, None) => {}
            (Write::Delete, Some(slot)) => self.remove(slot, hasher),
            (Write::Put(state, whole_in_us), slot) => {
                let expires = Micros(now.0.saturating_add(whole_in_us));
                match slot {
                    Some(slot) => self.update(slot, state, expires),
                    None => self.insert(hash, key, state, expires, hasher),
                }
            }
        }
    }

    /// Forgets some of what has expired.
    pub(super) fn sweep(&mut self, now: Micros, hasher: &RandomState) {
        for _ in 0..SWEEP_LOOKS {
            let Some(&top) = self.queue.first() else { return };
            let slot = &self.slots[top as usize];
            if slot.due > now {
                return;
            }
            if slot.expires > now {
                self.put_top_right();
            } else {
                self.remove(top, hasher);
            }
        }
    }

    fn update(&mut self, slot: u32, state: State, expires: Micros) {
        let at = &mut self.slots[slot as usize];
        at.state = state;
        at.expires = expires;
        if expires < at.due {
            at.due = expires;
            let place = at.place as usize;
            self.rise(place);
        }
    }

    fn insert(&mut self, hash: u64, key: &[u8], state: State, expires: Micros, hasher: &RandomState) {
        if self.len() >= self.most {
            self.evict(hasher);
        }
        let place = self.queue.len();
        // `most` is at most 2^32−1, so places and slots fit.
        let new = Slot { key: key.into(), state, expires, due: expires, place: place as u32 };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                (self.slots.len() - 1) as u32
            }
        };
        self.queue.push(slot);
        self.rise(place);
        let slots = &self.slots;
        self.table.insert_unique(hash, slot, |&slot| hasher.hash_one(&*slots[slot as usize].key));
    }

    /// Removes the key that is nearest to full: it loses the least.
    fn evict(&mut self, hasher: &RandomState) {
        for _ in 0..EVICT_LOOKS {
            let top = &self.slots[self.queue[0] as usize];
            if top.due == top.expires {
                break;
            }
            self.put_top_right();
        }
        self.remove(self.queue[0], hasher);
        self.evictions += 1;
    }

    fn remove(&mut self, slot: u32, hasher: &RandomState) {
        let at = &mut self.slots[slot as usize];
        let key = std::mem::take(&mut at.key);
        let place = at.place as usize;
        if let Ok(entry) = self.table.find_entry(hasher.hash_one(&*key), |&other| other == slot) {
            entry.remove();
        }
        self.free.push(slot);
        self.queue.swap_remove(place);
        if let Some(&moved) = self.queue.get(place) {
            self.slots[moved as usize].place = place as u32;
            // It came from another branch, so it may belong above or below.
            self.rise(place);
            let place = self.slots[moved as usize].place as usize;
            self.sink(place);
        }
    }

    fn put_top_right(&mut self) {
        let top = &mut self.slots[self.queue[0] as usize];
        top.due = top.expires;
        self.sink(0);
    }

    fn due(&self, place: usize) -> Micros {
        self.slots[self.queue[place] as usize].due
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.queue.swap(a, b);
        self.slots[self.queue[a] as usize].place = a as u32;
        self.slots[self.queue[b] as usize].place = b as u32;
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.due(parent) <= self.due(place) {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let mut first = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.queue.len() && self.due(child) < self.due(first) {
                    first = child;
                }
            }
            if first == place {
                return;
            }
            self.swap(place, first);
            place = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::{
        algorithm::{Counter, decide},
        key::Key,
        limit::{Algorithm, Charge, Cost, Limit, OnRefusal, Role},
    };

    /// Some state; which one does not matter here.
    fn state() -> State {
        let charge = Charge {
            key: Key::from_text("k"),
            limit: Limit::new(Algorithm::FixedWindow, 5, 1_000, None).unwrap(),
            cost: Cost::Spend(NonZeroU64::MIN),
            role: Role::Enforce,
            on_refusal: OnRefusal::Keep,
        };
        let mut counters = [Counter::new(None)];
        decide(Micros(0), &[charge], &mut counters, |_| 0);
        let Write::Put(state, _) = counters[0].write() else { panic!("a first hit is stored") };
        state
    }

    /// Holds a shard against a plain list under many random writes: what is found, what expires, what is evicted.
    #[test]
    fn the_queue_never_loses_a_key_nor_evicts_the_wrong_one() {
        let hasher = RandomState::default();
        let mut shard = Shard::new(20);
        let mut model: Vec<(u64, u64)> = Vec::new();
        let mut random = 1_u64;
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (name, act, wait) = ((random >> 33) % 40, (random >> 40) % 8, 1 + (random >> 45) % 200);
            let key = name.to_le_bytes();
            let hash = hasher.hash_one(&key[..]);
            let now = Micros(step);
            let slot = shard.find(hash, &key);
            let known = model.iter().position(|&(n, _)| n == name);
            assert_eq!(
                slot.and_then(|s| shard.state(s, now)).is_some(),
                known.is_some_and(|i| model[i].1 > step),
                "step {step}"
            );
            if act == 0 {
                shard.write(slot, (hash, &key), Write::Delete, now, &hasher);
                model.retain(|&(n, _)| n != name);
            } else {
                shard.write(slot, (hash, &key), Write::Put(state(), wait), now, &hasher);
                match known {
                    Some(i) => model[i].1 = step + wait,
                    None => {
                        if model.len() == 20 {
                            let soonest = model.iter().map(|&(_, e)| e).min().unwrap();
                            // Of several that end at once, any one may go; ask the shard which.
                            let gone = model
                                .iter()
                                .position(|&(n, e)| {
                                    let key = n.to_le_bytes();
                                    e == soonest && shard.find(hasher.hash_one(&key[..]), &key).is_none()
                                })
                                .expect("the one that ends first is gone");
                            model.swap_remove(gone);
                        }
                        model.push((name, step + wait));
                    }
                }
            }
            assert_eq!(shard.len(), model.len());
            if step % 3 == 0 {
                shard.sweep(now, &hasher);
                model.retain(|&(n, e)| {
                    let key = n.to_le_bytes();
                    let found = shard.find(hasher.hash_one(&key[..]), &key).is_some();
                    assert!(found || e <= step, "only what has expired is swept");
                    found
                });
            }
            for (place, &slot) in shard.queue.iter().enumerate() {
                assert_eq!(shard.slots[slot as usize].place as usize, place);
                assert!(place == 0 || shard.due((place - 1) / 2) <= shard.due(place));
            }
        }
        assert!(shard.evictions() > 100);
        assert!(shard.slots.len() <= 20, "slots are used again");
    }
}
