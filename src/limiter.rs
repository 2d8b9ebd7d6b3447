//! One request's way, on one screen: rules, keys, the store, the answer.
//!
//! ```text
//! Question -> Plan: which rules, keys and costs -> near answers, leases -> Store: one call -> Answer
//!                                                                    └ no answer: on_store_failure
//! ```
//!
//! The limiter knows no proto, no Redis and no HTTP. It is generic over the clock and the store. All that can be decided
//! when rules are compiled was decided there; a question of a few descriptors allocates nothing (`tests/allocations.rs`) unless
//! the store is elsewhere and has to be asked, and takes no lock.

mod answer;
mod count;
mod failure;
mod lease;
mod naming;
mod plan;
mod spend;
mod split;
mod trouble;

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwapOption, Guard};

pub use self::answer::{Answer, Degraded, Described, Status};
use self::{
    count::Named,
    plan::Plan,
    spend::{Asking, Here},
    trouble::Troubles,
};
use crate::{
    clock::Clock,
    key::Format,
    lease::Leases,
    limit::{Charge, Entry, Few},
    metrics::{Metrics, RuleSetCounters},
    near_cache::{HOLD_MAX, NearCache, Style},
    rules::{FailureMode, Rule, RuleSet},
    settings::Settings,
    split::Splits,
    store::{Store, StoreError, memory::MemoryStore},
};

/// Descriptors that one request may have. Only a configuration can exceed it, so that is the caller's mistake.
pub const DESCRIPTORS_MAX: usize = 64;

/// Entries that one descriptor may have. Only a configuration can exceed it, so that is the caller's mistake.
pub const ENTRIES_MAX: usize = 64;

/// Answers questions.
#[derive(Debug)]
pub struct Limiter<C, S> {
    clock: C,
    store: S,
    /// What `on_store_failure: local` spends from.
    local: MemoryStore<C>,
    /// Before a store that is elsewhere.
    near: Option<Arc<NearCache>>,
    /// The same.
    leases: Option<Leases>,
    splits: Splits,
    loaded: ArcSwapOption<Loaded>,
    options: Options,
    metrics: Arc<Metrics>,
    troubles: Troubles,
}

/// What settings say about answers.
#[derive(Clone, Debug)]
pub struct Options {
    /// `TOLLGATE_COMPAT=reference`: answers as envoyproxy/ratelimit gives them where we are deliberately better.
    pub compat: bool,
    /// The whole service on trial: nothing is refused, statuses tell what would have been.
    pub shadow_mode: bool,
    /// Every limit is a quota: a request passes while one of them has something left.
    pub quota_mode: bool,
    /// For limits that a caller brings along where no rule says `on_store_failure`.
    pub on_store_failure: FailureMode,
    /// A refused request leaves the limits alone that would have let it pass. Ours always does; in compat it costs a
    /// second call of the store.
    pub stop_counting: bool,
    /// How many Tollgates share the load: `local` grants this part of a limit.
    pub fleet_size: u32,
    /// How much memory near answers may take; 0 asks the store always.
    pub near_bytes: usize,
    /// Keys are leased without being asked to above so many requests a second in this process; 0 for none.
    pub lease_above: u32,
    /// What counters are called.
    pub keys: Format,
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        Self {
            compat: settings.compat,
            shadow_mode: settings.answers.shadow_mode,
            quota_mode: settings.answers.quota_mode,
            on_store_failure: settings.store.on_failure,
            stop_counting: settings.answers.stop_counting,
            fleet_size: settings.store.fleet_size.get(),
            near_bytes: settings.store.near_bytes,
            lease_above: settings.store.lease_above,
            keys: settings.keys.clone(),
        }
    }
}

/// One charge of a question, and why it is made.
#[derive(Clone, Debug)]
pub struct Planned<'r> {
    /// For which of the question's descriptors, from 0.
    pub descriptor: usize,
    /// `None` for a limit that the caller brought along and no rule stands behind.
    pub rule: Option<&'r Rule>,
    /// Whether the caller brought the limit along.
    pub overridden: bool,
    /// What is asked of the store.
    pub charge: Charge,
}

/// A rule set in force, with what belongs to it. Shared by all requests that began under it.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<RuleSet>,
    /// Their counters.
    pub counters: RuleSetCounters,
}

/// What comes of a question before anybody waits.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once, and a box would be an allocation")]
pub enum Begun<'r> {
    /// All of it: the store is in this process, or need not be asked.
    Answered(Answer<'r>),
    /// The store has to be asked: [`Limiter::finish`].
    Pending(Pending<'r>),
}

/// A question that the store has to be asked about. In a box: plans are large, and futures are moved.
#[derive(Debug)]
pub struct Pending<'r>(Box<Waiting<'r>>);

#[derive(Debug)]
struct Waiting<'r> {
    loaded: &'r Loaded,
    plan: Plan<'r>,
    named: Few<Named<'r>>,
    asking: Asking,
}

/// What a client asks, after decoding.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Chooses the rules.
    pub domain: bytes::Bytes,
    /// In the order of the request.
    pub descriptors: Vec<Descriptor>,
    /// The request's `hits_addend`; 0 means 1.
    pub hits: u32,
}

/// What a request is about.
#[derive(Clone, Debug, Default)]
pub struct Descriptor {
    /// In the order of the request.
    pub entries: Vec<Entry>,
    /// The descriptor's own `hits_addend`, which wins over the request's; 0 only looks.
    pub hits: Option<u64>,
    /// `is_negative_hits`: gives back.
    pub refund: bool,
    /// A limit that the caller brings along.
    pub limit: Option<Override>,
}

/// A limit that the caller brings along.
#[derive(Clone, Copy, Debug)]
pub struct Override {
    /// `requests_per_unit`
    pub requests: u32,
    /// The number of Envoy's `RateLimitUnit`. 0 and unknown ones are the caller's mistake.
    pub unit: i32,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    /// The caller's mistake: INVALID_ARGUMENT.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// No rules were loaded yet: UNAVAILABLE.
    #[error("no rules are loaded yet: the log says why")]
    NoRules,
    /// The store gave no answer and the rules say `error`: UNAVAILABLE, so that Envoy's own failure mode decides.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What is wrong with a question. Nothing that a client of Envoy can put into a header or a path is among it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A filter without a domain.
    #[error("rate limit domain must not be empty: set `domain` of Envoy's rate limit filter")]
    NoDomain,
    /// A request about nothing.
    #[error("rate limit descriptor list must not be empty: the route's rate limit actions made none")]
    NoDescriptors,
    /// More than [`DESCRIPTORS_MAX`].
    #[error("{0} descriptors are more than the {DESCRIPTORS_MAX} that one request may have")]
    Descriptors(usize),
    /// More than [`ENTRIES_MAX`].
    #[error(
        "descriptor {descriptor}: {entries} entries are more than the {ENTRIES_MAX} that one descriptor may have"
    )]
    Entries {
        /// Which one, from 0.
        descriptor: usize,
        /// How many it has.
        entries: usize,
    },
    /// A key or a value that is no text. Only in compat: the reference's protobuf refuses such a request, and Envoy lets
    /// it pass then, so ours limits it by its bytes.
    #[error("descriptor {0}: a key or a value is no UTF-8, which TOLLGATE_COMPAT=reference refuses")]
    Text(usize),
    /// An override without a unit, or with one of the future.
    #[error(
        "descriptor {descriptor}: limit.unit {unit} is none of 1 (SECOND) to 7 (WEEK): set the unit of the override"
    )]
    Unit {
        /// Which one, from 0.
        descriptor: usize,
        /// The number that it names.
        unit: i32,
    },
}

impl<C: Clock, S: Store> Limiter<C, S> {
    /// Knows no rules until [`Limiter::load`].
    pub fn new(clock: C, store: S, local: MemoryStore<C>, options: Options, metrics: Arc<Metrics>) -> Self {
        let style = if options.compat { Style::Reference } else { Style::Ours };
        let is_wanted = options.near_bytes > 0 && !store.is_here();
        let near = is_wanted.then(|| Arc::new(NearCache::new(options.near_bytes, style, clock.instant())));
        if let (Some(near), Some(reference)) = (&near, &metrics.reference) {
            reference.gauges.measure(spend::gauges(Arc::clone(near)));
        }
        let leases = (!store.is_here()).then(|| {
            Leases::new(options.fleet_size, options.lease_above, metrics.leases.clone(), clock.instant())
        });
        let splits = Splits::new(if near.is_some() { HOLD_MAX } else { Duration::ZERO });
        let (loaded, troubles) = (ArcSwapOption::empty(), Troubles::default());
        Self { clock, store, local, near, leases, splits, loaded, options, metrics, troubles }
    }

    /// Puts rules in force, at once for all questions that come from now on.
    pub fn load(&self, rules: Arc<RuleSet>) {
        let counters = self.metrics.counters_of(&rules);
        self.loaded.store(Some(Arc::new(Loaded { rules, counters })));
        if let Some(near) = &self.near {
            near.clear(self.clock.instant());
        }
        if let Some(leases) = &self.leases {
            leases.retire(self.clock.instant());
        }
    }

    /// The rules in force, or `None` before the first good ones.
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        self.loaded.load_full()
    }

    /// The rules in force, or `None` before the first good ones: for as long as a request is answered.
    pub fn in_force(&self) -> Guard<Option<Arc<Loaded>>> {
        // Whoever waits for a store would hold one of the few places in which a thread borrows rules; who does not need
        // not count how many hold them, which all threads would write to.
        if self.store.is_here() { self.loaded.load() } else { Guard::from_inner(self.loaded.load_full()) }
    }

    /// What settings say about answers.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where budgets are kept.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Why requests were answered without the store lately, in words; one for each cause.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.recent(self.clock.instant())
    }

    /// Answers a question under `loaded`, the rules that were in force when it came. Waits for the store no longer than
    /// `within`.
    ///
    /// # Errors
    /// The caller's mistake, or a store that gave no answer where the rules say `error`.
    pub async fn ask<'r>(
        &self,
        loaded: &'r Loaded,
        question: &Question,
        within: Duration,
    ) -> Result<Answer<'r>, AskError> {
        let pending = match self.begin(loaded, question)? {
            Begun::Answered(answer) => return Ok(answer),
            Begun::Pending(pending) => pending,
        };
        self.finish(pending, within, |answer| answer).await
    }

    /// The part of [`Limiter::ask`] that waits for nobody.
    ///
    /// # Errors
    /// The caller's mistake.
    pub fn begin<'r>(&self, loaded: &'r Loaded, question: &Question) -> Result<Begun<'r>, AskError> {
        let now = self.clock.now();
        let mut plan = Plan::new(&self.options);
        plan.fill(loaded, question, &self.options, now)?;
        self.count_unmatched(loaded, question, &plan);
        let reference = self.metrics.reference.as_ref();
        let named = plan.count_wanted(loaded, question, reference);
        if plan.charges.is_empty() {
            return Ok(Begun::Answered(plan.answer_without_charges()));
        }
        match self.decide_here(&plan) {
            Here::Decided(decided) => {
                let answer = plan.answer(decided, &self.options, now);
                plan.count(&answer, loaded, &named, reference);
                Ok(Begun::Answered(answer))
            }
            Here::Ask(asking) => {
                Ok(Begun::Pending(Pending(Box::new(Waiting { loaded, plan, named, asking }))))
            }
        }
    }

    /// The part of [`Limiter::ask`] that waits for the store, no longer than `within`. The answer is told to `tell`, and
    /// not returned: answers are large, and what futures return is moved once for each that waits for another.
    ///
    /// # Errors
    /// A store that gave no answer where the rules say `error`.
    pub async fn finish<'r, T>(
        &self,
        pending: Pending<'r>,
        within: Duration,
        tell: impl FnOnce(Answer<'r>) -> T,
    ) -> Result<T, AskError> {
        let Pending(mut waiting) = pending;
        let Waiting { loaded, plan, named, asking } = &mut *waiting;
        let decided = self.decide_there(plan, asking, within).await;
        let answer = match decided {
            Ok(decided) => plan.answer(decided, &self.options, self.clock.now()),
            Err(error) => self.without_store(plan, error)?,
        };
        plan.count(&answer, loaded, named, self.metrics.reference.as_ref());
        Ok(tell(answer))
    }

    /// What [`Limiter::ask`] would ask of the store, in order; for people who want to know.
    ///
    /// # Errors
    /// The caller's mistake.
    pub fn plan<'r>(&self, loaded: &'r Loaded, question: &Question) -> Result<Vec<Planned<'r>>, Invalid> {
        let mut plan = Plan::new(&self.options);
        plan.fill(loaded, question, &self.options, self.clock.now())?;
        let planned = plan.charged.iter().zip(plan.charges).map(|(charged, charge)| Planned {
            descriptor: charged.descriptor,
            rule: charged.rule,
            overridden: charged.overridden,
            charge,
        });
        Ok(planned.collect())
    }

    /// Promise 3: what passes because no rule names it is at least counted.
    fn count_unmatched(&self, loaded: &Loaded, question: &Question, plan: &Plan<'_>) {
        let unmatched = plan.unmatched();
        if unmatched > 0 {
            let known = loaded.rules.domain(&question.domain).is_some();
            let domain = if known { String::from_utf8_lossy(&question.domain) } else { "".into() };
            self.metrics.unmatched(&domain, unmatched);
            if let Some(reference) = self.metrics.reference.as_ref().filter(|_| !known) {
                reference.domain_not_found(&question.domain, unmatched);
            }
        }
    }
}

#[cfg(test)]
mod tests;
