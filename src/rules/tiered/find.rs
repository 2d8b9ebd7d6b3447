//! Which limits a request of a tenant is charged.
//!
//! Two look-ups by name, the tenant's and the route's, whatever the number of tenants. As in the other form an observer is
//! told what is tried, and when nobody observes nothing is left of it.

use super::{At, Profile, Rule, Tiers};
use crate::limit::Entry;

/// What a look-up found.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) struct Hit<'r> {
    /// Which entry names the tenant.
    pub(in crate::rules) tenant: Option<usize>,
    /// Which entry names the route.
    pub(in crate::rules) route: Option<usize>,
    /// The route's rule, or the one for all routes.
    pub(in crate::rules) first: &'r Rule,
    /// What is charged besides.
    pub(in crate::rules) further: &'r [Rule],
}

/// Something that a look-up tried.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) enum Tried<'r> {
    /// No entry has this key.
    NoTenant(&'r [u8]),
    /// Entry `usize` names a tenant; `None` where nobody named him.
    Tenant(usize, Option<&'r Profile>),
    /// The tier that applies.
    Tier(&'r Profile),
    /// Entry `usize` names a route; a rule for it, at the tenant or in the tier.
    Route(usize, &'r Profile, Option<&'r Rule>),
    /// A limit that is charged.
    Limit(&'r Rule),
}

impl Tiers {
    /// What a request with these entries is charged. Each thing that is tried is told to `tried`.
    #[inline]
    pub(in crate::rules) fn find<'r>(
        &'r self,
        entries: &[Entry],
        tried: &mut impl FnMut(Tried<'r>),
    ) -> Hit<'r> {
        let tenant = position(entries, &self.tenant);
        let known = tenant.and_then(|index| self.tenants.get(&entries[index].value));
        let profile = &self.profiles[known.unwrap_or(self.default) as usize];
        tried(match tenant {
            Some(index) => Tried::Tenant(index, known.map(|_| profile)),
            None => Tried::NoTenant(&self.tenant),
        });
        tried(Tried::Tier(profile));
        let route = self.route.as_ref().and_then(|route| position(entries, route));
        let by_route = route.and_then(|index| self.by_route(profile, index, entries, tried));
        let first = by_route.unwrap_or(&self.rules[profile.main]);
        let further = &self.rules[profile.further.clone()];
        tried(Tried::Limit(first));
        further.iter().for_each(|rule| tried(Tried::Limit(rule)));
        Hit { tenant, route, first, further }
    }

    /// The tenant's own rule for a route, else his tier's.
    #[inline]
    fn by_route<'r>(
        &'r self,
        profile: &'r Profile,
        index: usize,
        entries: &[Entry],
        tried: &mut impl FnMut(Tried<'r>),
    ) -> Option<&'r Rule> {
        let tier = profile.base.map(|base| &self.profiles[base as usize]);
        [Some(profile), tier].into_iter().flatten().find_map(|profile| {
            let rule = profile.routes.get(&entries[index].value).map(|rule| &self.rules[rule as usize]);
            tried(Tried::Route(index, profile, rule));
            rule
        })
    }

    /// Where a tenant's tier is written: the rules, or a csv file, whose lines are not kept.
    pub(in crate::rules) fn source(&self, tenant: &[u8]) -> Option<At> {
        match (self.in_rules.get(tenant), &self.csv) {
            (Some(line), _) => Some((self.file.clone(), line)),
            (None, Some(csv)) => self.tenants.get(tenant).map(|_| (csv.clone(), 0)),
            (None, None) => None,
        }
    }
}

impl Profile {
    /// The tier's name.
    pub(in crate::rules) fn tier(&self) -> &str {
        &self.tier
    }

    /// Whether it is a tenant's own.
    pub(in crate::rules) fn is_tenants(&self) -> bool {
        self.base.is_some()
    }

    /// Where it stands.
    pub(in crate::rules) fn at(&self) -> &At {
        &self.at
    }
}

#[inline]
fn position(entries: &[Entry], key: &[u8]) -> Option<usize> {
    entries.iter().position(|entry| *entry.key == *key)
}
