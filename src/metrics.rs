//! What is counted, under names of our own.
//!
//! Counters are atomics that were looked up when the rules were loaded: counting an answer takes no lock, formats no
//! label and never waits for a scrape. Labels come from rule files only, never from a client's values, so the number of
//! series is bounded by the rules.

mod counted;
pub mod exposition;
pub mod gauges;
mod leases;
pub mod mapper;
mod mapping_file;
pub mod mogrifier;
mod names;
pub mod reference;
pub mod statsd;
mod times;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

pub use self::counted::{Counted, Dropped};
pub use self::leases::LeaseCounters;
use self::reference::{Group, OVERFLOW, Reference};
use crate::rules::RuleSet;

/// Upper bounds of the store's latency, in seconds: from a local Redis to ten times the default STORE_TIMEOUT.
const STORE_SECONDS: [f64; 9] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05];

/// How many rules are counted apart where no setting says it.
const SERIES_MAX: usize = 10_000;

/// What came of a charge.
const VERDICTS: [&str; 3] = ["allowed", "refused", "shadowed"];

/// All counters of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    rules: Family<RuleLabels, Counter>,
    /// Domains and rules that have counters of their own, at most `series_max`.
    named: Mutex<HashSet<(Box<str>, Box<str>)>>,
    series_max: usize,
    unmatched: Family<DomainLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    fallbacks: Family<FallbackLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
    management: Family<ManagementLabels, Gauge>,
    /// How each answer is counted.
    pub answered: Answered,
    /// The same under the reference's names, where they are asked for.
    pub reference: Option<Reference>,
    /// Requests that were answered here, since all of their limits were known to be over.
    pub near_answers: Counter,
    /// What was taken ahead of requests.
    pub leases: LeaseCounters,
    /// Seconds that the store took to answer.
    pub store_seconds: Histogram,
    /// Domains, limits and tenants in force.
    pub loaded: LoadedGauges,
    /// Requests that are worked on; set when somebody asks.
    pub in_flight: Gauge,
    /// What did not fit into bounded queues.
    pub dropped: Dropped,
    /// What a refused request had taken on one server, and could not give back there.
    pub give_backs_lost: Counted,
}

/// One counter for each kind of answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Overall code OK.
    pub ok: Counter,
    /// Overall code OVER_LIMIT.
    pub over_limit: Counter,
    /// INVALID_ARGUMENT.
    pub invalid: Counter,
    /// UNAVAILABLE.
    pub unavailable: Counter,
}

/// What a load of the rules sets.
#[derive(Clone, Debug, Default)]
pub struct LoadedGauges {
    /// Domains in force.
    pub domains: Gauge,
    /// Limits in force.
    pub limits: Gauge,
    /// Tenants in force.
    pub tenants: Gauge<i64>,
    /// 1 while the last change is not in force, since it has mistakes.
    pub outdated: Gauge,
}

/// The counters of one rule.
#[derive(Clone, Debug)]
pub struct RuleCounters {
    /// Charges that fitted.
    pub allowed: Counter<u64, AtomicU64>,
    /// Charges that refused their request.
    pub refused: Counter<u64, AtomicU64>,
    /// Charges of a limit on trial (or of a quota beside another) that did not fit.
    pub shadowed: Counter<u64, AtomicU64>,
    /// Under the reference's names, where they are asked for.
    pub reference: Option<Arc<Group>>,
}

/// The counters that belong to one loaded rule set.
#[derive(Debug)]
pub struct RuleSetCounters {
    /// By [`crate::rules::Rule::metric`].
    pub rules: Vec<RuleCounters>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AnswerLabels {
    answer: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RuleLabels {
    domain: String,
    rule: String,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DomainLabels {
    domain: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FailureLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FallbackLabels {
    mode: &'static str,
    cause: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReloadLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ManagementLabels {
    server: String,
}

impl Answered {
    fn registered(registry: &mut Registry) -> Self {
        let answers = Family::<AnswerLabels, Counter>::default();
        registry.register("answers", "Answers to ShouldRateLimit by overall code", answers.clone());
        let answer = |answer| answers.get_or_create_owned(&AnswerLabels { answer });
        Self {
            ok: answer("ok"),
            over_limit: answer("over_limit"),
            invalid: answer("invalid"),
            unavailable: answer("unavailable"),
        }
    }
}

impl LoadedGauges {
    fn registered(registry: &mut Registry) -> Self {
        let loaded = Self::default();
        registry.register("domains", "Domains in force", loaded.domains.clone());
        registry.register("limits", "Limits in force", loaded.limits.clone());
        registry.register("tenants", "Tenants in force", loaded.tenants.clone());
        registry.register(
            "rules_outdated",
            "1 while the last change of the rules has mistakes and those before it are in force",
            loaded.outdated.clone(),
        );
        loaded
    }
}

impl Metrics {
    /// All at zero, without the reference's names.
    pub fn new() -> Arc<Self> {
        Self::with(None, SERIES_MAX)
    }

    /// All at zero. At most `series_max` rules are counted apart, the others together as `__overflow__`.
    pub fn with(reference: Option<Reference>, series_max: usize) -> Arc<Self> {
        let mut registry = Registry::with_prefix("tollgate");
        let answered = Answered::registered(&mut registry);
        let rules = Family::<RuleLabels, Counter>::default();
        registry.register("charges", "Charges by rule and by what came of them", rules.clone());
        let unmatched = Family::<DomainLabels, Counter>::default();
        registry.register(
            "unmatched_descriptors",
            "Descriptors that no rule matched; an empty domain stands for all that no file names",
            unmatched.clone(),
        );
        let failures = Family::<FailureLabels, Counter>::default();
        registry.register("store_failures", "Calls that the store did not answer", failures.clone());
        let fallbacks = Family::<FallbackLabels, Counter>::default();
        registry.register(
            "fallbacks",
            "Answers given by on_store_failure instead of the store",
            fallbacks.clone(),
        );
        let reloads = Family::<ReloadLabels, Counter>::default();
        registry.register(
            "rule_reloads",
            "Loads of the rule files; a refused one changes nothing",
            reloads.clone(),
        );
        let management = Family::<ManagementLabels, Gauge>::default();
        registry.register(
            "management_server_connected",
            "Whether the management server is there; without it the last good rules stay",
            management.clone(),
        );
        let near_answers = counter(
            &mut registry,
            "near_answers",
            "Answers without asking the store, since their limits were known to be over",
        );
        let leases = LeaseCounters::registered(&mut registry);
        let store_seconds = Histogram::new(STORE_SECONDS);
        registry.register("store_seconds", "Time that the store took to answer", store_seconds.clone());
        let loaded = LoadedGauges::registered(&mut registry);
        let in_flight = Gauge::default();
        registry.register("in_flight", "Requests that are worked on, see IN_FLIGHT_MAX", in_flight.clone());
        let dropped = Dropped::registered(&mut registry);
        let give_backs_lost = Counted::give_backs_lost(&mut registry);
        Arc::new(Self {
            registry,
            rules,
            named: Mutex::default(),
            series_max,
            unmatched,
            failures,
            fallbacks,
            reloads,
            management,
            answered,
            reference,
            near_answers,
            leases,
            store_seconds,
            loaded,
            in_flight,
            dropped,
            give_backs_lost,
        })
    }

    /// The counters of a rule set. Rules that keep their names over a reload keep their counts.
    pub fn counters_of(&self, rules: &RuleSet) -> RuleSetCounters {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let new = rules.metric_labels().iter().filter(|labels| !named.contains(*labels)).count();
        if named.len() + new > self.series_max {
            // Rules that are in force no more make room.
            let kept: HashSet<_> = rules.metric_labels().iter().collect();
            let gone: Vec<_> = named.extract_if(|labels| !kept.contains(labels)).collect();
            for (domain, rule) in &gone {
                for verdict in VERDICTS {
                    self.rules.remove(&labels(domain, rule, verdict));
                }
            }
        }
        let rules = rules.metric_labels().iter().map(|(domain, rule)| {
            let own = (domain.clone(), rule.clone());
            let apart = named.contains(&own) || (named.len() < self.series_max && named.insert(own));
            let shown = if apart { rule } else { OVERFLOW };
            let [allowed, refused, shadowed] =
                VERDICTS.map(|verdict| self.rules.get_or_create_owned(&labels(domain, shown, verdict)));
            let reference = self.reference.as_ref().map(|names| names.of_rule(domain, rule));
            RuleCounters { allowed, refused, shadowed, reference }
        });
        RuleSetCounters { rules: rules.collect() }
    }

    /// Counts descriptors that no rule matched. `domain` is one that the rules name, else `""`.
    pub fn unmatched(&self, domain: &str, descriptors: u64) {
        self.unmatched.get_or_create_owned(&DomainLabels { domain: domain.into() }).inc_by(descriptors);
    }

    /// Counts a call that the store did not answer, by the error's kind.
    pub fn store_failed(&self, kind: &'static str) {
        self.failures.get_or_create_owned(&FailureLabels { kind }).inc();
        if let Some(reference) = &self.reference {
            reference.store_failed();
        }
    }

    /// Counts an answer that a rule's `on_store_failure` gave, by the mode and the error's kind.
    pub fn fell_back(&self, mode: &'static str, cause: &'static str) {
        self.fallbacks.get_or_create_owned(&FallbackLabels { mode, cause }).inc();
    }

    /// Tells whether the management server at an address is there. Where rules are files, there is no such series.
    pub fn management_server(&self, address: &str, there: bool) {
        let labels = ManagementLabels { server: address.to_owned() };
        self.management.get_or_create_owned(&labels).set(there.into());
    }

    /// Counts a load of the rule files.
    pub fn reloaded(&self, accepted: bool) {
        self.loaded.outdated.set(i64::from(!accepted));
        let result = if accepted { "accepted" } else { "refused" };
        self.reloads.get_or_create_owned(&ReloadLabels { result }).inc();
        if let Some(reference) = &self.reference {
            reference.reloaded(accepted);
        }
    }

    /// All of it in the text format of OpenMetrics 1.0.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut out, &self.registry);
        out
    }

    /// How many answers were given so far.
    pub fn answers_total(&self) -> u64 {
        let Answered { ok, over_limit, invalid, unavailable } = &self.answered;
        [ok, over_limit, invalid, unavailable].into_iter().map(|counter| counter.get()).sum()
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn labels(domain: &str, rule: &str, verdict: &'static str) -> RuleLabels {
    RuleLabels { domain: domain.into(), rule: rule.into(), verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Dialect, compile};
    use std::collections::BTreeMap;

    fn rules(names: std::ops::Range<u32>) -> RuleSet {
        let rule = |n| format!("- {{key: k{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
        let text = format!("domain: d\ndescriptors:\n{}", names.map(rule).collect::<String>());
        compile(&BTreeMap::from([("d.yaml".to_owned(), text.into_bytes())]), Dialect::default())
            .unwrap()
            .rules
    }

    #[test]
    fn rules_beyond_the_bound_are_counted_together_and_old_ones_make_room() {
        let metrics = Metrics::with(None, 3);
        let count = |rules: &RuleSet| {
            let counters = metrics.counters_of(rules);
            for counters in counters.rules {
                counters.allowed.inc();
            }
            let text = metrics.text();
            let mut lines: Vec<_> =
                text.lines().filter(|line| line.contains("verdict=\"allowed\"")).collect();
            lines.sort_unstable();
            lines
                .iter()
                .map(|line| line.split('"').nth(3).unwrap().to_owned() + &line[line.len() - 2..])
                .collect::<Vec<_>>()
        };
        assert_eq!(count(&rules(0..2)), ["k0 1", "k1 1"]);
        assert_eq!(count(&rules(0..5)), ["__overflow__ 2", "k0 2", "k1 2", "k2 1"]);
        assert_eq!(count(&rules(2..5)), ["__overflow__ 2", "k2 2", "k3 1", "k4 1"]);
    }
}
