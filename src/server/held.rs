//! What clients make us hold: bytes of messages that are not whole, or have no place in flight yet, and of answers that
//! nobody reads.
//!
//! HTTP/2's windows bound what is sent before it is read ([1 MiB a connection](super::http2)), and most requests need no
//! more: a message comes in one piece and is answered at once. What comes in pieces has to be read on, or a message that is
//! larger than the window would never be whole, so its bytes are counted here, for the connection and for the process.
//! What does not fit is not held: its request fails, and no other one does.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Of one connection: the largest message and a half. An Envoy's requests have some hundred bytes.
pub(super) const CONNECTION_MAX_BYTES: usize = 6 << 20;

/// Of all connections together.
pub(super) const ALL_MAX_BYTES: usize = 96 << 20;

/// The bounds of one connection. A clone is the same connection's.
#[derive(Clone, Debug)]
pub(super) struct Bounds(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    connection: AtomicUsize,
    all: Arc<AtomicUsize>,
}

impl Bounds {
    /// Of the first connection.
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Of a further one.
    pub(super) fn another(&self) -> Self {
        Self(Arc::new(Counts { all: Arc::clone(&self.0.all), ..Counts::default() }))
    }

    /// Nothing is held yet.
    pub(super) fn nothing(&self) -> Held {
        Held { bounds: self.clone(), bytes: 0 }
    }
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    bounds: Bounds,
    bytes: usize,
}

impl Held {
    /// So many more; false, and no more, where they do not fit.
    #[must_use]
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let Counts { connection, all } = &*self.bounds.0;
        if !take(connection, bytes, CONNECTION_MAX_BYTES) {
            return false;
        }
        if !take(all, bytes, ALL_MAX_BYTES) {
            connection.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bounds.0.connection.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bounds.0.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn take(held: &AtomicUsize, bytes: usize, max: usize) -> bool {
    let more = |held: usize| held.checked_add(bytes).filter(|held| *held <= max);
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_holds_so_much_and_not_a_byte_more() {
        let bounds = Bounds::new();
        let mut one = bounds.nothing();
        assert!(one.grow(CONNECTION_MAX_BYTES - 1) && one.grow(1) && !one.grow(1));
        assert!(bounds.another().nothing().grow(CONNECTION_MAX_BYTES), "another has bounds of its own");
        drop(one);
        assert!(bounds.nothing().grow(CONNECTION_MAX_BYTES));
    }

    #[test]
    fn all_connections_hold_so_much_and_not_a_byte_more() {
        let bounds = Bounds::new();
        let connections = ALL_MAX_BYTES / CONNECTION_MAX_BYTES;
        let mut all: Vec<Held> = (0..connections).map(|_| bounds.another().nothing()).collect();
        assert!(all.iter_mut().all(|held| held.grow(CONNECTION_MAX_BYTES)));
        let mut more = bounds.nothing();
        assert!(!more.grow(1));
        // What did not fit counts nowhere.
        all.pop();
        assert!(more.grow(CONNECTION_MAX_BYTES) && !more.grow(1));
    }
}
