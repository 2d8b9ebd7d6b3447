//! What is counted under the names of envoyproxy/ratelimit, so that its dashboards and alerts go on working.
//!
//! ```text
//! ratelimit.service.rate_limit.DOMAIN.KEY_VALUE.total_hits     hits that a rule was asked for, and of these:
//!                                               within_limit     those that fitted
//!                                               near_limit       those above NEAR_LIMIT_RATIO of the limit
//!                                               over_limit       those that did not fit
//!                                               over_limit_with_local_cache     of those, the ones refused without the store
//!                                               shadow_mode      those that did not fit a rule on trial
//! ratelimit.service.rate_limit.DOMAIN.domain_not_found         descriptors of a domain without rules
//! ratelimit.service.call.should_rate_limit.redis_error         calls that the store did not answer
//!                                          service_error       calls without rules, or with a mistake
//! ratelimit.service.config_load_success, config_load_error     loads of the rules
//! ratelimit.service.global_shadow_mode                         answers that SHADOW_MODE turned into OK
//! ratelimit_server.ShouldRateLimit.total_requests              calls over gRPC
//!                                  response_time               their durations, in whole milliseconds
//! ratelimit.localcache.entryCount, hitCount and so on          what near answers know, see `gauges`
//! ```
//!
//! **Names hold clients' values** where a rule says so (`value_to_metric`, `detailed_metric`) and wherever a caller brings
//! a limit along. The reference keeps a counter for each of them for ever. Here names of values are bounded in number
//! (METRICS_SERIES_MAX) and in length ([`NAME_MAX`]); what is beyond is counted together under [`OVERFLOW`].
//!
//! **Off the path.** Counters of rules are looked up when the rules are loaded. Only a name that holds a client's value is
//! looked up for a request, under a lock that is shared by readers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

pub use super::names::OVERFLOW;
use super::{
    gauges::Gauges,
    names::{clean, overflow, put_entry, untagged},
    times::Times,
};
use crate::limit::{Algorithm, Cost, Entry, Limit, OnRefusal, Verdict};

/// The longest name that holds clients' values, in bytes: a few of them fit into a datagram.
pub const NAME_MAX: usize = 512;

const RULES: &str = "ratelimit.service.rate_limit";

const OF_RULE: &[&str] =
    &["total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode", "over_limit_with_local_cache"];
const TOTAL: usize = 0;
const WITHIN: usize = 1;
const NEAR: usize = 2;
const OVER: usize = 3;
const SHADOW: usize = 4;
const OVER_HERE: usize = 5;

const OF_DOMAIN: &[&str] = &["domain_not_found"];
const OF_SERVICE: &[&str] = &["config_load_success", "config_load_error", "global_shadow_mode"];
const OF_CALL: &[&str] = &["redis_error", "service_error"];
const OF_SERVER: &[&str] = &["total_requests"];

/// The counters of one process under the reference's names.
#[derive(Debug)]
pub struct Reference {
    near_limit_ratio: f32,
    series_max: usize,
    /// By the name of the rule.
    rules: Mutex<HashMap<Box<str>, Arc<Group>>>,
    /// By names that hold clients' values.
    values: RwLock<HashMap<Box<str>, Arc<Group>>>,
    service: Arc<Group>,
    call: Arc<Group>,
    server: Arc<Group>,
    /// Durations of calls.
    pub times: Times,
    /// Of the local cache, where there is one.
    pub gauges: Gauges,
}

/// Counters whose names begin alike.
#[derive(Debug)]
pub struct Group {
    name: Box<str>,
    ends: &'static [&'static str],
    cells: Box<[Cell]>,
}

#[derive(Debug, Default)]
struct Cell {
    total: AtomicU64,
    /// How much of it was sent; only the sender looks.
    sent: AtomicU64,
}

/// A counter that is not 0, at a moment.
#[derive(Clone, Debug)]
pub struct Sample {
    group: Arc<Group>,
    cell: usize,
    /// Since the process began.
    pub total: u64,
    /// Of these, what was not sent yet.
    pub unsent: u64,
}

/// What came of one charge.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The limit that was charged.
    pub limit: &'a Limit,
    /// What was wanted.
    pub cost: Cost,
    /// What became of it where it did not fit.
    pub on_refusal: OnRefusal,
    /// Whether the rule is on trial.
    pub shadow: bool,
    /// What the store said.
    pub verdict: &'a Verdict,
    /// Whether that was known here, as in the reference's local cache.
    pub near: bool,
}

impl Reference {
    /// All at 0. Hits above `near_limit_ratio` of a limit are near; at most `series_max` names of each kind are kept.
    pub fn new(near_limit_ratio: f32, series_max: usize) -> Self {
        let group = |name: &str, ends| Arc::new(Group::new(name.into(), ends));
        Self {
            near_limit_ratio,
            series_max,
            rules: Mutex::default(),
            values: RwLock::default(),
            service: group("ratelimit.service", OF_SERVICE),
            call: group("ratelimit.service.call.should_rate_limit", OF_CALL),
            server: group("ratelimit_server.ShouldRateLimit", OF_SERVER),
            times: Times::default(),
            gauges: Gauges::default(),
        }
    }

    /// The counters of a rule. Those of rules that are in force no more make room.
    pub fn of_rule(&self, domain: &str, rule: &str) -> Arc<Group> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let name = clean(format!("{domain}.{rule}").as_bytes());
        if let Some(known) = rules.get(name.as_str()) {
            return Arc::clone(known);
        }
        if rules.len() >= self.series_max {
            rules.retain(|_, group| Arc::strong_count(group) > 1);
        }
        let name = if rules.len() < self.series_max { name } else { overflow(Some(domain.as_bytes())) };
        let new = || Arc::new(Group::new(format!("{RULES}.{name}").into(), OF_RULE));
        Arc::clone(rules.entry(name.as_str().into()).or_insert_with(new))
    }

    /// The counters of a name that holds clients' values, in a domain that has rules.
    pub fn of_value(&self, domain: &[u8], name: &[u8]) -> Arc<Group> {
        self.by_value(Some(domain), name, OF_RULE)
    }

    /// The counters of a limit that a caller brought along: the reference names them after all entries.
    pub fn of_override(&self, domain: &[u8], entries: &[Entry]) -> Arc<Group> {
        let mut name = domain.to_vec();
        for entry in entries {
            name.push(b'.');
            put_entry(&mut name, entry);
        }
        self.of_value(domain, &name)
    }

    /// Counts descriptors of a domain that has no rules.
    pub fn domain_not_found(&self, domain: &[u8], descriptors: u64) {
        self.by_value(None, domain, OF_DOMAIN).add(0, descriptors);
    }

    fn by_value(&self, known: Option<&[u8]>, name: &[u8], ends: &'static [&'static str]) -> Arc<Group> {
        let fits = name.len() <= NAME_MAX;
        let name = match (fits, known) {
            (false, _) => overflow(known),
            (true, Some(_)) => untagged(name),
            // A domain could be called like a rule; no clean name begins so.
            (true, None) => format!("\n{}", untagged(name)),
        };
        if let Some(group) = self.values.read().unwrap_or_else(PoisonError::into_inner).get(name.as_str()) {
            return Arc::clone(group);
        }
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        let room = values.len() < self.series_max || values.contains_key(name.as_str());
        let name = if room { name } else { overflow(known) };
        let new = || Arc::new(Group::new(format!("{RULES}.{}", name.trim_start_matches('\n')).into(), ends));
        Arc::clone(values.entry(name.as_str().into()).or_insert_with(new))
    }

    /// Counts a load of the rules.
    pub fn reloaded(&self, accepted: bool) {
        self.service.add(if accepted { 0 } else { 1 }, 1);
    }

    /// Counts an answer that only SHADOW_MODE made OK.
    pub fn shadowed(&self) {
        self.service.add(2, 1);
    }

    /// Counts a call of the store that had no answer.
    pub fn store_failed(&self) {
        self.call.add(0, 1);
    }

    /// Counts a call that no rules, or a mistake of the caller, left without an answer.
    pub fn not_asked(&self) {
        self.call.add(1, 1);
    }

    /// Counts a call over gRPC, which took so long.
    pub fn called(&self, took: Duration) {
        self.server.add(0, 1);
        self.times.add(took);
    }

    /// Counts the hits that are asked for, before anything is known of them.
    pub fn wanted(&self, group: &Group, cost: Cost) {
        group.add(TOTAL, hits_of(cost));
    }

    /// Counts what came of them.
    ///
    /// Where refused hits are counted too (`TOLLGATE_COMPAT=reference`) a refused cost of several hits is split at the
    /// limit, as there: what was left of it was near, the rest was over. Otherwise all of it is over, since none was
    /// granted.
    pub fn decided(&self, group: &Group, outcome: Outcome<'_>) {
        let Outcome { limit, cost, on_refusal, shadow, verdict, near } = outcome;
        let (hits, full) = (hits_of(cost), u64::from(limit.burst()));
        // In single precision, as there: 0.8 of 10 is 8, but 0.7 of 10 is 7 only so.
        let near_from = f64::from(limit.burst() as f32 * self.near_limit_ratio).floor() as u64;
        if verdict.fits {
            let after = full.saturating_sub(verdict.remaining);
            let before = after.saturating_sub(hits);
            group.add(WITHIN, hits);
            group.add(NEAR, after.saturating_sub(near_from.max(before)));
            return;
        }
        // What is over already has nothing left to split.
        let split = on_refusal == OnRefusal::Count && limit.algorithm() != Algorithm::Gcra && !near;
        let left = if split { hits.saturating_sub(verdict.beyond) } else { 0 };
        let over = hits - left;
        group.add(OVER, over);
        if near {
            group.add(OVER_HERE, over);
        }
        if left > 0 {
            let before = full.saturating_sub(left);
            group.add(NEAR, full - near_from.max(before));
        }
        if shadow {
            group.add(SHADOW, over);
        }
    }

    /// All counters that are not 0, in no order.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        for group in [&self.service, &self.call, &self.server] {
            group.sample(&mut samples);
        }
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.values().for_each(|group| group.sample(&mut samples));
        drop(rules);
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        values.values().for_each(|group| group.sample(&mut samples));
        samples
    }
}

impl Group {
    fn new(name: Box<str>, ends: &'static [&'static str]) -> Self {
        Self { name, ends, cells: ends.iter().map(|_| Cell::default()).collect() }
    }

    fn add(&self, cell: usize, hits: u64) {
        if hits > 0 {
            self.cells[cell].total.fetch_add(hits, Relaxed);
        }
    }

    fn sample(self: &Arc<Self>, samples: &mut Vec<Sample>) {
        for (index, cell) in self.cells.iter().enumerate() {
            let total = cell.total.load(Relaxed);
            if total > 0 {
                let unsent = total.saturating_sub(cell.sent.load(Relaxed));
                samples.push(Sample { group: Arc::clone(self), cell: index, total, unsent });
            }
        }
    }
}

impl Sample {
    /// Its name, without tags.
    pub fn name(&self) -> String {
        format!("{}.{}", self.group.name, self.group.ends[self.cell])
    }

    /// Remembers that it was sent.
    pub fn sent(&self) {
        self.group.cells[self.cell].sent.store(self.total, Relaxed);
    }
}

/// Hits that are counted: who only looks, or gives back, wants none.
fn hits_of(cost: Cost) -> u64 {
    match cost {
        Cost::Spend(hits) => hits.get(),
        Cost::Look(_) | Cost::Refund(_) | Cost::GiveBack { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    fn values(reference: &Reference, end: &str) -> Vec<(String, u64)> {
        let mut values: Vec<_> = reference.samples().iter().map(|s| (s.name(), s.total)).collect();
        values.retain(|(name, _)| name.ends_with(end));
        values.sort();
        values
    }

    #[test]
    fn beyond_the_bounds_of_number_and_length_all_is_counted_together() {
        let reference = Reference::new(0.8, 3);
        let hit = Cost::Spend(NonZeroU64::MIN);
        for n in 0..10 {
            reference.wanted(&reference.of_value(b"d", format!("d.k_{n}").as_bytes()), hit);
        }
        let long = vec![b'x'; NAME_MAX + 1];
        reference.wanted(&reference.of_value(b"d", &long), hit);
        reference.domain_not_found(b"elsewhere", 2);
        let named = |name: &str, n| (format!("{RULES}.{name}"), n);
        assert_eq!(
            values(&reference, ""),
            [
                named("__overflow__.domain_not_found", 2),
                named("d.__overflow__.total_hits", 8),
                named("d.k_0.total_hits", 1),
                named("d.k_1.total_hits", 1),
                named("d.k_2.total_hits", 1),
            ]
        );
        for n in 0..10 {
            reference.wanted(&reference.of_rule("d", &format!("r{n}")), hit);
        }
        // Nobody holds the earlier ones, so they made room.
        assert!(reference.rules.lock().unwrap().len() <= 3);
        let held: Vec<_> = (0..10).map(|n| reference.of_rule("e", &format!("r{n}"))).collect();
        assert_eq!(held.iter().filter(|group| group.name.ends_with(OVERFLOW)).count(), 7);
    }

    #[test]
    fn what_was_sent_is_not_sent_again() {
        let reference = Reference::new(0.8, 3);
        reference.reloaded(true);
        let sample = reference.samples().remove(0);
        assert_eq!((sample.name().as_str(), sample.unsent), ("ratelimit.service.config_load_success", 1));
        assert_eq!(reference.samples()[0].unsent, 1);
        reference.reloaded(true);
        sample.sent();
        assert_eq!((reference.samples()[0].unsent, reference.samples()[0].total), (1, 2));
    }
}
