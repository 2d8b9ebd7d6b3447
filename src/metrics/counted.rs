//! Counters that are given to others: to a store, to what writes the log and sends spans.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// A counter that can be given away.
#[derive(Clone, Debug, Default)]
pub struct Counted(Counter);

impl Counted {
    /// What refused requests had taken on one server, and could not give back there.
    pub(super) fn give_backs_lost(registry: &mut Registry) -> Self {
        let counted = Self::default();
        registry.register(
            "store_give_backs_lost",
            "What refused requests had taken on one server and could not give back: it refills by itself",
            counted.0.clone(),
        );
        counted
    }

    /// Once more.
    pub fn count(&self) {
        self.0.inc();
    }

    /// How often so far.
    pub fn so_far(&self) -> u64 {
        self.0.get()
    }
}

/// What did not fit into bounded queues, since nothing beside an answer may delay it.
#[derive(Clone, Debug, Default)]
pub struct Dropped {
    /// Lines of the log.
    pub log_lines: Counter,
    /// Spans, and those that no collector took.
    pub spans: Counter,
}

impl Dropped {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let dropped = Self::default();
        registry.register(
            "log_lines_dropped",
            "Log lines that did not fit into the queue; logging never delays an answer",
            dropped.log_lines.clone(),
        );
        registry.register(
            "spans_dropped",
            "Spans that did not fit into the queue, or that the collector did not take",
            dropped.spans.clone(),
        );
        dropped
    }
}
