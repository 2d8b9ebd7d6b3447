//! Which thread uses which connection.
//!
//! Each runtime that asks to connect takes a *seat*; there are as many as a node may have connections. Its task connects
//! the places of that seat on every node, those that come later too. Runtimes beyond the number of seats share them round
//! robin. A seat whose runtime has ended is free again.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

thread_local! {
    /// This thread's seat: the number of the seats that it belongs to, and its index there. Most processes have one
    /// store; a second one on the same thread would find the first one's number here and take its own first seat.
    static HERE: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// The seats of a store.
#[derive(Debug)]
pub(super) struct Seats {
    id: u64,
    taken: Box<[AtomicBool]>,
    /// Deals seats to runtimes that have none of their own.
    next: AtomicUsize,
}

impl Seats {
    /// `number` is not 0.
    pub(super) fn new(number: usize) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            taken: (0..number).map(|_| AtomicBool::new(false)).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// The seat of this thread.
    pub(super) fn here(&self) -> usize {
        match HERE.get() {
            (id, index) if id == self.id => index,
            _ => 0,
        }
    }

    /// Seats this thread. `Some` is a seat of its own, free again when it is dropped.
    pub(super) fn sit_down(self: &Arc<Self>) -> Option<Seat> {
        let free = |taken: &AtomicBool| {
            taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let own = self.taken.iter().position(free);
        let index = own.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed) % self.taken.len());
        HERE.set((self.id, index));
        own.map(|index| Seat { seats: self.clone(), index })
    }
}

/// A seat that a runtime holds.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    pub(super) index: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken[self.index].store(false, Ordering::Release);
    }
}
