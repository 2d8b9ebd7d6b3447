//! What a look-up found, and the keys of the counters that go with it.

use std::sync::Arc;

use super::{
    Rule, tiered,
    tree::{self, Share},
};
use crate::{
    key::Key,
    limit::{Entry, Limit},
};

/// Which rules apply to one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Found<'r> {
    first: Option<&'r Rule>,
    rest: &'r [Rule],
    how: How<'r>,
}

/// How keys are made.
#[derive(Clone, Copy, Debug)]
enum How<'r> {
    /// No rule matched.
    Nothing,
    /// A rule without a limit matched.
    Exempt,
    /// Of all entries; those that share a counter by the rule's own text.
    Entries(&'r [Option<Arc<Share>>]),
    /// Of the entry that names the tenant, the one that names the route, and those of `per`.
    Tenant(Option<usize>, Option<usize>),
}

impl<'r> Found<'r> {
    pub(super) fn in_tree(hit: tree::Hit<'r>) -> Self {
        match hit {
            tree::Hit::Rules(rest, shares) => Self { first: None, rest, how: How::Entries(shares) },
            tree::Hit::Default(rule) => Self { first: Some(rule), rest: &[], how: How::Entries(&[]) },
            tree::Hit::Exempt => Self { first: None, rest: &[], how: How::Exempt },
            tree::Hit::Nothing => Self { first: None, rest: &[], how: How::Nothing },
        }
    }

    pub(super) fn in_tiers(hit: tiered::Hit<'r>) -> Self {
        Self { first: Some(hit.first), rest: hit.further, how: How::Tenant(hit.tenant, hit.route) }
    }

    /// The rules to charge, in the order they are judged; none where no rule matches. At most
    /// [`RULES_MAX`](super::RULES_MAX).
    pub fn rules(&self) -> impl Iterator<Item = &'r Rule> + use<'r> {
        self.first.into_iter().chain(self.rest)
    }

    /// Whether a rule without a limit matched: the descriptor is exempt, not unknown.
    pub fn is_exempt(&self) -> bool {
        matches!(self.how, How::Exempt)
    }

    /// The key of the counter that `rule`, one of these, charges for `entries`, the ones that were looked up. `limit`
    /// is the rule's own or an override, which shares the rule's counter while algorithm and window are the same.
    pub fn key(&self, domain: &[u8], entries: &[Entry], rule: &Rule, limit: &Limit) -> Key {
        let name = rule.key_name.as_deref();
        let (tenant, route) = match self.how {
            How::Tenant(tenant, route) => (tenant, route.filter(|_| rule.by_route)),
            How::Entries(shares) => {
                return Key::new(
                    None,
                    domain,
                    |parts| {
                        for (index, entry) in entries.iter().enumerate() {
                            match shares.get(index) {
                                Some(Some(share)) => parts.shared(&share.key, &share.value),
                                _ => parts.entry(&entry.key, &entry.value),
                            }
                        }
                    },
                    name,
                    limit,
                );
            }
            How::Nothing | How::Exempt => return self.override_key(domain, entries, limit),
        };
        Key::new(
            tenant.map(|index| &*entries[index].value),
            domain,
            |parts| {
                let per = rule.per.iter().filter_map(|key| entries.iter().find(|entry| *entry.key == **key));
                let named = tenant.into_iter().chain(route).map(|index| &entries[index]);
                named.chain(per).for_each(|entry| parts.entry(&entry.key, &entry.value));
            },
            name,
            limit,
        )
    }

    /// The key of the counter that an override charges where no rule stands behind it: of all entries.
    pub fn override_key(&self, domain: &[u8], entries: &[Entry], limit: &Limit) -> Key {
        let all = |parts: &mut crate::key::Parts<'_>| {
            entries.iter().for_each(|entry| parts.entry(&entry.key, &entry.value));
        };
        Key::new(None, domain, all, None, limit)
    }

    /// The counter of the one rule that applies, as envoyproxy/ratelimit calls it, without the window's start. `None`
    /// where that one could have no such rule: several limits on one descriptor, a default, tiers.
    ///
    /// Of an entry that shares its counter the rule's own value stands there. Where the rule's key is a pattern, the
    /// reference writes both into the value's place, and so do we.
    pub fn reference_stem(&self, domain: &[u8], entries: &[Entry]) -> Option<Vec<u8>> {
        let (How::Entries(shares), None, [_]) = (self.how, self.first, self.rest) else { return None };
        let mut stem = [domain, b"_"].concat();
        for (index, entry) in entries.iter().enumerate() {
            stem.extend_from_slice(&entry.key);
            stem.push(b'_');
            match shares.get(index) {
                Some(Some(share)) => {
                    if *share.key != *entry.key {
                        stem.extend_from_slice(&share.key);
                        stem.extend_from_slice(if share.value.is_empty() { b"" } else { b"_" });
                    }
                    stem.extend_from_slice(&share.value);
                }
                _ => stem.extend_from_slice(&entry.value),
            }
            stem.push(b'_');
        }
        Some(stem)
    }

    /// As [`Found::reference_stem`], of an override: of all entries, whatever rule it replaces.
    pub fn reference_override_stem(&self, domain: &[u8], entries: &[Entry]) -> Option<Vec<u8>> {
        if matches!(self.how, How::Tenant(..)) {
            return None;
        }
        let mut stem = [domain, b"_"].concat();
        for entry in entries {
            for part in [&entry.key, &entry.value] {
                stem.extend_from_slice(part);
                stem.push(b'_');
            }
        }
        Some(stem)
    }
}
