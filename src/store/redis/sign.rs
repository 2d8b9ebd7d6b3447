//! What a node tells of itself to whoever keeps the map of nodes.

use std::{fmt, sync::Arc};

/// What a node tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// A connection is up, and was not before.
    Up,
    /// A connection is down, or could not be made.
    Down,
    /// It says that it is a replica.
    ReadOnly,
    /// It gives no answers, or says that it is not what it is taken for: read only, loading, without a key.
    Suspect,
}

/// Whom a node tells its signs. Called on any thread; must not wait.
#[derive(Clone)]
pub(super) struct Hears(pub(super) Arc<dyn Fn(Sign) + Send + Sync>);

impl fmt::Debug for Hears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hears")
    }
}
