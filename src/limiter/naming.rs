//! What the counter of a charge is called.
//!
//! By default its key is our own. With `KEY_FORMAT=reference` a counter that envoyproxy/ratelimit could have too has its
//! name there: a fixed window of a whole unit, of the only rule of a descriptor or of an override.

use crate::{
    clock::Micros,
    key::{Format, Key},
    limit::{Algorithm, Entry, Limit},
    rules::{Found, Rule, Unit},
};

/// Names the counters of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naming<'q> {
    pub(super) format: &'q Format,
    pub(super) domain: &'q [u8],
    pub(super) entries: &'q [Entry],
    /// Which window it is, where the key says so.
    pub(super) now: Micros,
}

impl Naming<'_> {
    /// Of a rule by its own numbers.
    pub(super) fn rule(&self, found: &Found<'_>, rule: &Rule, limit: &Limit) -> Key {
        let stem = || found.reference_stem(self.domain, self.entries);
        self.shared(limit, stem).unwrap_or_else(|| self.own(found, rule, limit))
    }

    /// Of a rule whose numbers the caller replaces.
    pub(super) fn overridden(&self, found: &Found<'_>, rule: &Rule, limit: &Limit) -> Key {
        self.shared_override(found, limit).unwrap_or_else(|| self.own(found, rule, limit))
    }

    /// Of a limit that the caller brings along and no rule stands behind.
    pub(super) fn brought(&self, found: &Found<'_>, limit: &Limit) -> Key {
        self.shared_override(found, limit)
            .unwrap_or_else(|| self.format.own(found.override_key(self.domain, self.entries, limit)))
    }

    fn own(&self, found: &Found<'_>, rule: &Rule, limit: &Limit) -> Key {
        self.format.own(found.key(self.domain, self.entries, rule, limit)).in_shards(rule.shards)
    }

    fn shared_override(&self, found: &Found<'_>, limit: &Limit) -> Option<Key> {
        self.shared(limit, || found.reference_override_stem(self.domain, self.entries))
    }

    fn shared(&self, limit: &Limit, stem: impl FnOnce() -> Option<Vec<u8>>) -> Option<Key> {
        self.format.reference?;
        let a_unit = Unit::ALL.iter().any(|unit| unit.window_us() == limit.window_us());
        if limit.algorithm() != Algorithm::FixedWindow || !a_unit {
            return None;
        }
        self.format.reference(&stem()?, limit, self.now)
    }
}
