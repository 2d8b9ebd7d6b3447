//! Which slot ends first: a heap with four branches, so that putting one right touches few lines of memory.
//!
//! The time a slot stands here by is `due`, which is never after its real end (see the shard). Each slot knows its place.

use super::{pages::Pages, shard::Slot};
use crate::clock::Micros;

const BRANCHES: usize = 4;

/// Slots by when they are due.
#[derive(Debug)]
pub(super) struct Queue(Pages<Due>);

/// In words of four bytes, or each would take 16 of them.
#[derive(Clone, Copy, Debug)]
struct Due {
    high: u32,
    low: u32,
    slot: u32,
}

impl Due {
    fn new(at: Micros, slot: u32) -> Self {
        Self { high: (at.0 >> 32) as u32, low: at.0 as u32, slot }
    }

    fn at(self) -> Micros {
        Micros(u64::from(self.high) << 32 | u64::from(self.low))
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        Self(Pages::new())
    }

    /// The slot that is due first, and when.
    pub(super) fn first(&self) -> Option<(u32, Micros)> {
        (self.0.len() > 0).then(|| (self.0[0].slot, self.0[0].at()))
    }

    /// When the slot at a place is due.
    pub(super) fn due(&self, place: u32) -> Micros {
        self.0[place as usize].at()
    }

    pub(super) fn push(&mut self, slot: u32, due: Micros, slots: &mut Pages<Slot>) {
        let due = Due::new(due, slot);
        self.0.push(due);
        self.rise(self.0.len() - 1, due, slots);
    }

    /// Says anew when the slot at a place is due.
    pub(super) fn set(&mut self, place: u32, due: Micros, slots: &mut Pages<Slot>) {
        let place = place as usize;
        self.put(place, Due::new(due, self.0[place].slot), slots);
    }

    pub(super) fn remove(&mut self, place: u32, slots: &mut Pages<Slot>) {
        let Some(last) = self.0.pop() else { return };
        let place = place as usize;
        if place < self.0.len() {
            // It comes from another branch, so it may belong above or below.
            self.put(place, last, slots);
        }
    }

    fn put(&mut self, place: usize, due: Due, slots: &mut Pages<Slot>) {
        if place > 0 && due.at() < self.0[(place - 1) / BRANCHES].at() {
            self.rise(place, due, slots);
        } else {
            self.sink(place, due, slots);
        }
    }

    /// Finds the place of one that belongs at this place or above.
    fn rise(&mut self, mut place: usize, due: Due, slots: &mut Pages<Slot>) {
        while place > 0 {
            let parent = (place - 1) / BRANCHES;
            if self.0[parent].at() <= due.at() {
                break;
            }
            self.stand(place, self.0[parent], slots);
            place = parent;
        }
        self.stand(place, due, slots);
    }

    /// Finds the place of one that belongs at this place or below.
    fn sink(&mut self, mut place: usize, due: Due, slots: &mut Pages<Slot>) {
        loop {
            let below = BRANCHES * place + 1..(BRANCHES * (place + 1) + 1).min(self.0.len());
            let Some(first) = below.min_by_key(|&child| self.0[child].at()) else { break };
            if due.at() <= self.0[first].at() {
                break;
            }
            self.stand(place, self.0[first], slots);
            place = first;
        }
        self.stand(place, due, slots);
    }

    fn stand(&mut self, place: usize, due: Due, slots: &mut Pages<Slot>) {
        self.0[place] = due;
        // There are fewer than 2^32 slots.
        slots[due.slot as usize].place = place as u32;
    }

    /// Whether each slot knows its place and stands behind what is due before it.
    #[cfg(test)]
    pub(super) fn is_in_order(&self, slots: &Pages<Slot>) -> bool {
        (0..self.0.len()).all(|place| {
            slots[self.0[place].slot as usize].place as usize == place
                && (place == 0 || self.0[(place - 1) / BRANCHES].at() <= self.0[place].at())
        })
    }
}
