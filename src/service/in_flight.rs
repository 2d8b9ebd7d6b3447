//! How many requests are worked on at a time, in the whole process.
//!
//! A request takes a place when its message is whole. Beyond the bound it waits for one as long as its deadline lets it: an
//! error at once would be read by Envoy as "let it pass", and a service that is asked too much would limit nothing. How
//! many wait is bounded by connections and their streams, what they hold by HTTP/2's windows and `server/held.rs`.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places that there are. A clone gives the same ones.
#[derive(Clone, Debug)]
pub struct InFlight {
    max: usize,
    places: Arc<Semaphore>,
}

/// A place, given back when dropped.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl InFlight {
    /// So many places.
    pub fn new(max: NonZeroUsize) -> Self {
        let max = max.get().min(Semaphore::MAX_PERMITS);
        Self { max, places: Arc::new(Semaphore::new(max)) }
    }

    /// A place, if there is one at this moment.
    pub fn try_enter(&self) -> Option<Place> {
        Some(Place { _permit: Arc::clone(&self.places).try_acquire_owned().ok()? })
    }

    /// A place, or `None` when there was none for so long. First come, first served.
    pub async fn enter(&self, within: Duration) -> Option<Place> {
        let permit = tokio::time::timeout(within, Arc::clone(&self.places).acquire_owned()).await;
        Some(Place { _permit: permit.ok()?.ok()? })
    }

    /// How many places are taken.
    pub fn count(&self) -> usize {
        self.max - self.places.available_permits()
    }
}
