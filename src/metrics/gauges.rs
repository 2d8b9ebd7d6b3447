//! Numbers that are measured when somebody asks, under the reference's names: those of its local cache.
//!
//! Who has them is in a higher layer and puts a function here.

use std::{fmt, sync::OnceLock};

/// Names and values at a moment.
pub type Measured = Vec<(&'static str, u64)>;

/// What is measured; nothing until somebody says what.
#[derive(Default)]
pub struct Gauges(OnceLock<Box<dyn Fn() -> Measured + Send + Sync>>);

impl Gauges {
    /// Measures with `how` from now on. The first one to say so stays.
    pub fn measure(&self, how: impl Fn() -> Measured + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(how));
    }

    /// The values now.
    pub fn measured(&self) -> Measured {
        self.0.get().map_or_else(Vec::new, |how| how())
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.measured()).finish()
    }
}
