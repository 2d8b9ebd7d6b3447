//! One shard of the memory store: counters in slots, chains to find them by name, and a queue of what ends first.
//!
//! A bounded store needs to know which key is nearest to full, to evict it, and which ones are full, to forget them. That
//! order changes with each decision, and most changes are of one kind: a key is spent from, so it is full later. A queue
//! that is put in order each time would make each decision pay for that. This one is lazy. It is a heap by a time `due`
//! that is never after the slot's real `expires`. A decision that moves the expiry later leaves the queue alone; one that
//! moves it before `due` (a refund) moves the slot up. Only when a slot comes to the top is its `due` put right, and it
//! sinks to its place. A top whose `due` is right is the first of all.
//!
//! Each key has one slot and each slot one place in the queue, which the slot knows. So a key can leave from the middle, and
//! there are no remains to clean up.
//!
//! All three grow a little at a time and move nothing, so no decision waits for the growth of a million keys. And a decision
//! on a known key reads two lines of memory that are cold in a large store: the head of a chain, and the slot.

use super::{
    chains::{Chains, NONE},
    name::Name,
    pages::Pages,
    queue::Queue,
};
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
    slots: Pages<Slot>,
    chains: Chains,
    queue: Queue,
    /// The first slot that nobody uses; `next` leads to the others.
    free: u32,
    evictions: u64,
}

/// All that is known of a key, in one line of memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) name: Name,
    /// [`State::to_words`].
    state: [u64; 4],
    /// When the state equals a fresh one.
    expires: Micros,
    /// Index in the queue.
    pub(super) place: u32,
    /// The next slot of its chain.
    pub(super) next: u32,
}

// A million of them are 64 MB, and each is read at once.
const _: () = assert!(size_of::<Slot>() == 64);

impl Shard {
    /// At most `most` keys, at least one.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            slots: Pages::new(),
            chains: Chains::new(),
            queue: Queue::new(),
            free: NONE,
            evictions: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.chains.len()
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The slot of a key.
    pub(super) fn find(&self, name: &Name) -> Option<u32> {
        self.chains.find(name, &self.slots)
    }

    /// The state in a slot, unless it has expired.
    pub(super) fn state(&self, slot: u32, now: Micros) -> Option<State> {
        let slot = &self.slots[slot as usize];
        (slot.expires > now).then(|| State::from_words(slot.state))
    }

    /// Writes what was decided for a key, of which `slot` is the slot if it has one.
    pub(super) fn write(&mut self, slot: Option<u32>, name: &Name, write: Write, now: Micros) {
        match (write, slot) {
            (Write::Nothing, _) | (Write::Delete, None) => {}
            (Write::Delete, Some(slot)) => self.remove(slot),
            (Write::Put(state, whole_in_us), slot) => {
                let expires = Micros(now.0.saturating_add(whole_in_us));
                match slot {
                    Some(slot) => self.update(slot, state, expires),
                    None => self.insert(name, state, expires),
                }
            }
        }
    }

    /// Forgets some of what has expired.
    pub(super) fn sweep(&mut self, now: Micros) {
        for _ in 0..SWEEP_LOOKS {
            let Some((top, due)) = self.queue.first() else { return };
            if due > now {
                return;
            }
            if self.slots[top as usize].expires > now {
                self.put_top_right(top);
            } else {
                self.remove(top);
            }
        }
    }

    fn update(&mut self, slot: u32, state: State, expires: Micros) {
        let at = &mut self.slots[slot as usize];
        at.state = state.to_words();
        // Not later than it was, or the queue need not be asked.
        let earlier = expires < std::mem::replace(&mut at.expires, expires);
        let place = at.place;
        if earlier && expires < self.queue.due(place) {
            self.queue.set(place, expires, &mut self.slots);
        }
    }

    fn insert(&mut self, name: &Name, state: State, expires: Micros) {
        if self.len() >= self.most {
            self.evict();
        }
        let new = Slot { name: *name, state: state.to_words(), expires, place: 0, next: NONE };
        let slot = self.free;
        let slot = if slot == NONE {
            self.slots.push(new);
            // `most` is below 2^32.
            (self.slots.len() - 1) as u32
        } else {
            self.free = std::mem::replace(&mut self.slots[slot as usize], new).next;
            slot
        };
        self.queue.push(slot, expires, &mut self.slots);
        self.chains.insert(slot, &mut self.slots);
    }

    /// Removes the key that is nearest to full: it loses the least.
    fn evict(&mut self) {
        for _ in 0..EVICT_LOOKS {
            let Some((top, due)) = self.queue.first() else { return };
            if self.slots[top as usize].expires == due {
                break;
            }
            self.put_top_right(top);
        }
        if let Some((top, _)) = self.queue.first() {
            self.remove(top);
            self.evictions += 1;
        }
    }

    fn remove(&mut self, slot: u32) {
        self.chains.remove(slot, &mut self.slots);
        self.queue.remove(self.slots[slot as usize].place, &mut self.slots);
        self.slots[slot as usize].next = std::mem::replace(&mut self.free, slot);
    }

    fn put_top_right(&mut self, top: u32) {
        self.queue.set(0, self.slots[top as usize].expires, &mut self.slots);
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
        store::memory::name::Names,
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
        let names = Names::default();
        let mut shard = Shard::new(20);
        let mut model: Vec<(u64, u64)> = Vec::new();
        let mut random = 1_u64;
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (name, act, wait) = ((random >> 33) % 40, (random >> 40) % 8, 1 + (random >> 45) % 200);
            let name_of = |name: u64| names.of(&name.to_le_bytes());
            let now = Micros(step);
            let slot = shard.find(&name_of(name));
            let known = model.iter().position(|&(n, _)| n == name);
            assert_eq!(
                slot.and_then(|s| shard.state(s, now)).is_some(),
                known.is_some_and(|i| model[i].1 > step),
                "step {step}"
            );
            if act == 0 {
                shard.write(slot, &name_of(name), Write::Delete, now);
                model.retain(|&(n, _)| n != name);
            } else {
                shard.write(slot, &name_of(name), Write::Put(state(), wait), now);
                match known {
                    Some(i) => model[i].1 = step + wait,
                    None => {
                        if model.len() == 20 {
                            let soonest = model.iter().map(|&(_, e)| e).min().unwrap();
                            // Of several that end at once, any one may go; ask the shard which.
                            let gone = model
                                .iter()
                                .position(|&(n, e)| e == soonest && shard.find(&name_of(n)).is_none())
                                .expect("the one that ends first is gone");
                            model.swap_remove(gone);
                        }
                        model.push((name, step + wait));
                    }
                }
            }
            assert_eq!(shard.len(), model.len());
            if step % 3 == 0 {
                shard.sweep(now);
                model.retain(|&(n, e)| {
                    let found = shard.find(&name_of(n)).is_some();
                    assert!(found || e <= step, "only what has expired is swept");
                    found
                });
            }
            assert!(shard.queue.is_in_order(&shard.slots), "step {step}");
        }
        assert!(shard.evictions() > 100);
        assert!(shard.slots.len() <= 20, "slots are used again");
    }
}
