//! What leases are counted by: see `lease`.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::counter;

/// Hits that were taken ahead of their requests.
#[derive(Clone, Debug, Default)]
pub struct LeaseCounters {
    /// Answers that were spent of it.
    pub answers: Counter,
    /// How often some were taken.
    pub taken: Counter,
    /// How many were taken.
    pub tokens: Counter,
    /// How many came back.
    pub given_back: Counter,
    /// How many were neither spent nor given back.
    pub lost: Counter,
}

impl LeaseCounters {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        Self {
            answers: counter(
                registry,
                "lease_answers",
                "Answers of hits that were taken ahead, without asking the store",
            ),
            taken: counter(registry, "leases", "How often hits were taken ahead of their requests"),
            tokens: counter(registry, "leased_hits", "Hits that were taken ahead"),
            given_back: counter(
                registry,
                "leased_hits_given_back",
                "Hits that were taken ahead, not spent, and given back",
            ),
            lost: counter(
                registry,
                "leased_hits_lost",
                "Hits that were taken ahead, and neither spent nor given back",
            ),
        }
    }
}
