//! The tiered form: callers have tiers, tiers have limits.
//!
//! A product's limits are a table: which plan, which route, how much. Written as nested descriptors such a table repeats
//! itself for each tenant; here a tenant is one line, in the rules or in a csv file.
//!
//! ```yaml
//! domain: api
//! tenant: tenant                 # the entry that names the caller
//! route: route                   # the entry that names what is asked for
//! default_tier: free             # for tenants that nobody named, and for requests without one
//! tiers:
//!   free: {rate: 10/s, burst: 20}
//!   pro:
//!     rate: 100/s
//!     routes: {search: {rate: 20/s}}                          # instead of the tier's rate
//!     daily: {rate: 5000000/d, algorithm: fixed_window}       # besides it, on every request
//! tenants:
//!   acme: {tier: pro, rate: 500/s}                            # a tier with changes
//! tenants_from: tenants.csv
//! ```
//!
//! The most specific wins: tenant and route, the tier's route, the tenant's own rate, the tier's. What a route or a further
//! limit does not say (`on_store_failure`, `mode`, `headers`) is as the tier says, or the tenant; what a tenant's limit does
//! not say is as in the limit that it takes the place of, but a new `rate` has a new `burst`.

use std::{collections::HashMap, ops::Range, sync::Arc};

use super::{Rule, fields::Grammar, table::Table, tree::At};

mod find;
mod read;
mod spec;

pub(super) use find::{Hit, Tried};
pub(super) use read::{read, tier_help};

/// A file.
pub(super) const FILE: Grammar = Grammar {
    of: "a rule file with tiers",
    known: &["domain", "version", "tenant", "route", "default_tier", "tiers", "tenants", "tenants_from"],
    later: &[],
    open: false,
};

/// A tier. Further names are further limits.
pub(super) const TIER: Grammar = Grammar {
    of: "a tier",
    known: match TENANT.known {
        [_tier, own @ ..] => own,
        [] => &[],
    },
    later: &LATER,
    open: true,
};

/// A tenant. Further names are further limits.
pub(super) const TENANT: Grammar = Grammar {
    of: "a tenant",
    known: &[
        "tier",
        "rate",
        "unlimited",
        "burst",
        "algorithm",
        "on_store_failure",
        "mode",
        "headers",
        "lease",
        "shards",
        "name",
        "per",
        "routes",
    ],
    later: &LATER,
    open: true,
};

/// A route's limit, or a further one.
pub(super) const LIMIT: Grammar = Grammar {
    of: "a limit",
    known: match TENANT.known {
        [_tier, own @ .., _routes] => own,
        _ => &[],
    },
    later: &LATER,
    open: false,
};

const LATER: [&str; 3] = ["reserve", "max_delay", "release_after"];

/// The rules of one domain.
#[derive(Debug)]
pub(super) struct Tiers {
    /// The entry that names the tenant.
    tenant: Box<[u8]>,
    /// The entry that names the route.
    route: Option<Box<[u8]>>,
    /// The profile of `default_tier`.
    default: u32,
    /// The tiers in the order of the file, then tenants with limits of their own.
    profiles: Vec<Profile>,
    tiers: usize,
    /// Tenants to profiles.
    tenants: Table,
    /// Tenants that the rules name, to lines: only for telling where a tenant's tier comes from.
    in_rules: Table,
    /// The rule file, and the csv file.
    file: Arc<str>,
    csv: Option<Arc<str>>,
    rules: Vec<Rule>,
}

/// What a tier, or a tenant with limits of its own, is charged.
#[derive(Debug)]
pub(super) struct Profile {
    /// The tier's name.
    tier: Box<str>,
    /// As rules are listed: the tier, or `tenant_NAME`.
    title: Box<str>,
    at: At,
    /// The one limit, as index of `rules`.
    main: usize,
    /// What is charged besides.
    further: Range<usize>,
    /// Routes to rules.
    routes: Table,
    /// Where other routes are sought: a tenant's tier.
    base: Option<u32>,
    /// Those of its rules that no other profile has.
    own: Range<usize>,
}

impl Tiers {
    /// All rules, tiers first.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// All rules with their names: `free`, `free.search`, `free:daily`, `tenant_acme.search`.
    pub(super) fn named_rules(&self) -> impl Iterator<Item = (String, &Rule)> {
        self.profiles.iter().flat_map(move |profile| {
            let routes: HashMap<usize, String> = profile
                .routes
                .iter()
                .map(|(name, rule)| (rule as usize, String::from_utf8_lossy(name).into_owned()))
                .collect();
            let first = profile.own.start;
            self.rules[profile.own.clone()].iter().enumerate().map(move |(index, rule)| {
                let name = match (&rule.key_name, routes.get(&(first + index))) {
                    (_, Some(route)) => format!("{}.{route}", profile.title),
                    (Some(further), None) => format!("{}:{further}", profile.title),
                    (None, None) => profile.title.to_string(),
                };
                (name, rule)
            })
        })
    }

    /// How many tenants are named.
    pub(super) fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// The tiers in the order of the file.
    pub(super) fn tier_names(&self) -> Vec<&str> {
        self.profiles[..self.tiers].iter().map(|profile| &*profile.tier).collect()
    }

    /// The tier of tenants that nobody named.
    pub(super) fn default_tier(&self) -> &str {
        &self.profiles[self.default as usize].tier
    }
}
