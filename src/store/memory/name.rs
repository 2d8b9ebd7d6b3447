//! What a key is called in memory: 128 bits instead of its text.
//!
//! Texts are what a million counters take most of their memory for, and clients choose how long they are. A name is as
//! long for each, so the store's bound on keys is one on bytes, and all that is known of a counter fits one cache line.
//!
//! Two keys of one name would share a counter. Among a million keys that has a chance of 2^-89, and nobody can search for
//! two: the hash is SipHash-1-3, a keyed one against such clients, twice over different texts under a key that each store
//! draws at random and that never leaves it.

use std::hash::{BuildHasher, RandomState};

/// A key's name in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name([u64; 2]);

/// Gives names.
#[derive(Debug, Default)]
pub(super) struct Names(RandomState);

impl Names {
    pub(super) fn of(&self, key: &[u8]) -> Name {
        Name([self.0.hash_one((0_u8, key)), self.0.hash_one((1_u8, key))])
    }
}

impl Name {
    /// Any number that is spread evenly: for the place in a shard.
    pub(super) fn spread(self) -> u64 {
        self.0[0]
    }

    /// Another one, which tells nothing of the first: for the shard.
    pub(super) fn other_spread(self) -> u64 {
        self.0[1]
    }
}
