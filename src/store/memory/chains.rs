//! Which slot a name has: a hash table that grows by a chain at a time.
//!
//! A table that doubles has to find a new place for all of its keys at once, and whoever is asked meanwhile waits for
//! that: 16,000 keys of one shard, each somewhere else in memory, are a millisecond. This is linear hashing (Litwin, 1980): with
//! each new key the next chain in turn is split in two, so every decision pays for its own growth and none for all.
//!
//! ```text
//! chains  [ 0 | 1 | 2 | 3 | 4 | 5 ]      the next to be split is 2, into 2 and 6
//! ```
//!
//! A chain links slots by their own `next`. There are [`CHAINS_A_KEY`] of them for each key, so most hold one key or none.

use super::{name::Name, pages::Pages, shard::Slot};

/// The end of a chain.
pub(super) const NONE: u32 = u32::MAX;

/// 4 bytes each: with two a look-up finds its slot at once four times in five.
const CHAINS_A_KEY: usize = 2;

/// Slots by name.
#[derive(Debug)]
pub(super) struct Chains {
    /// The first slot of each.
    heads: Pages<u32>,
    keys: usize,
}

impl Chains {
    pub(super) fn new() -> Self {
        Self { heads: Pages::new(), keys: 0 }
    }

    /// How many slots are in them.
    pub(super) fn len(&self) -> usize {
        self.keys
    }

    pub(super) fn find(&self, name: &Name, slots: &Pages<Slot>) -> Option<u32> {
        if self.keys == 0 {
            return None;
        }
        let mut at = self.heads[self.chain_of(name)];
        while at != NONE {
            let slot = &slots[at as usize];
            if slot.name == *name {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    /// Adds a slot, whose name is in none of them.
    pub(super) fn insert(&mut self, slot: u32, slots: &mut Pages<Slot>) {
        self.keys += 1;
        while self.heads.len() < CHAINS_A_KEY * self.keys {
            self.split_next(slots);
        }
        self.link(slot, slots);
    }

    /// Takes a slot out, which is in one of them.
    pub(super) fn remove(&mut self, slot: u32, slots: &mut Pages<Slot>) {
        let Slot { name, next, .. } = slots[slot as usize];
        let chain = self.chain_of(&name);
        let mut at = self.heads[chain];
        if at == slot {
            self.heads[chain] = next;
        } else {
            while slots[at as usize].next != slot {
                at = slots[at as usize].next;
            }
            slots[at as usize].next = next;
        }
        self.keys -= 1;
    }

    fn split_next(&mut self, slots: &mut Pages<Slot>) {
        let new = self.heads.len();
        self.heads.push(NONE);
        if new == 0 {
            return;
        }
        // Where all that belongs into the new one was until now.
        let split = new - (new + 1).next_power_of_two() / 2;
        let mut at = std::mem::replace(&mut self.heads[split], NONE);
        while at != NONE {
            let next = slots[at as usize].next;
            self.link(at, slots);
            at = next;
        }
    }

    fn link(&mut self, slot: u32, slots: &mut Pages<Slot>) {
        let chain = self.chain_of(&slots[slot as usize].name);
        slots[slot as usize].next = self.heads[chain];
        self.heads[chain] = slot;
    }

    /// By as many of the lowest bits as there are chains, or one less where that one is not split yet. There is a chain.
    fn chain_of(&self, name: &Name) -> usize {
        let all = self.heads.len().next_power_of_two();
        let chain = name.spread() as usize & (all - 1);
        if chain < self.heads.len() { chain } else { chain - all / 2 }
    }
}
