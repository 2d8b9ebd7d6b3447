//! From a question to charges: which rules apply, which counters they spend from, what the request costs.

use std::num::NonZeroU64;

use super::{
    DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Invalid, Loaded, Options, Override, Question, naming::Naming,
};
use crate::{
    clock::Micros,
    limit::{Algorithm, Charge, Cost, Decision, Entry, Few, Limit, OnRefusal, Role},
    rules::{Domain, FailureMode, Found, Rule, Unit},
};

/// What will be asked of the store, and what belongs to each charge.
#[derive(Debug)]
pub(super) struct Plan<'r> {
    /// One call's worth.
    pub(super) charges: Few<Charge>,
    /// In step with `charges`: one list would make the store's input a copy.
    pub(super) charged: Few<Charged<'r>>,
    /// One for each descriptor: what its status says where nothing is charged.
    pub(super) bare: Few<Bare>,
    /// SHADOW_MODE holds.
    pub(super) softened: bool,
    /// A descriptor without a limit lets the request pass its quotas.
    pub(super) spared: bool,
}

/// What an answer needs to know of a charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charged<'r> {
    /// Index of the descriptor.
    pub(super) descriptor: usize,
    /// `None` for an override that no rule stands behind.
    pub(super) rule: Option<&'r Rule>,
    /// Whether the caller brought the limit along.
    pub(super) overridden: bool,
    /// What `current_limit` shows.
    pub(super) shown: (u32, Unit),
    /// The rule's own role: the charge's may be softened by a global mode, but statuses tell what would have been.
    pub(super) role: Role,
    /// When the store gives no answer.
    pub(super) on_store_failure: FailureMode,
}

/// A descriptor's status where no charge speaks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// The rule has no limit, or another rule of the request replaces it.
    Unlimited,
    /// A rule says `unlimited: true`.
    Unbounded,
    /// No rule matched: passes, and is counted.
    Unmatched,
}

impl<'r> Plan<'r> {
    /// A plan for nothing yet. It is filled where it stands, since it is large.
    pub(super) fn new(options: &Options) -> Self {
        Self {
            charges: Few::new(),
            charged: Few::new(),
            bare: Few::new(),
            softened: options.shadow_mode,
            spared: false,
        }
    }

    /// # Errors
    /// The caller's mistakes. They are found before anything is charged.
    pub(super) fn fill(
        &mut self,
        loaded: &'r Loaded,
        question: &Question,
        options: &Options,
        now: Micros,
    ) -> Result<(), Invalid> {
        check(question, options.compat)?;
        self.bare.resize(question.descriptors.len(), Bare::Unmatched);
        let Some(domain) = loaded.rules.domain(&question.domain) else { return Ok(()) };
        for (index, descriptor) in question.descriptors.iter().enumerate() {
            self.add(domain, question, index, descriptor, options, now)?;
        }
        self.drop_replaced(loaded, question);
        self.soften(options);
        Ok(())
    }

    fn add(
        &mut self,
        domain: &'r Domain,
        question: &Question,
        index: usize,
        descriptor: &Descriptor,
        options: &Options,
        now: Micros,
    ) -> Result<(), Invalid> {
        let entries = descriptor.entries.as_slice();
        let naming = Naming { format: &options.keys, domain: &question.domain, entries, now };
        let cost = cost_of(question, descriptor, options.compat);
        let found = domain.find(&descriptor.entries);
        let mut brought = match descriptor.limit {
            Some(limit) => Some(unit_of(limit, index)?).map(|unit| (limit.requests, unit)),
            None => None,
        };
        let replaced = brought.map_or(0, |brought| replaced_by(brought, &found, question, descriptor));
        for (number, rule) in found.rules().enumerate() {
            self.bare[index] = Bare::Unlimited;
            let overridden = if number == replaced { brought.take() } else { None };
            let Some((limit, shown)) = limit_of(rule, overridden) else {
                self.bare[index] = Bare::Unbounded;
                continue;
            };
            let key = match overridden {
                Some(_) => naming.overridden(&found, rule, &limit),
                None => naming.rule(&found, rule, &limit),
            };
            // What a caller brings along is enforced, whatever the rule's own mode.
            let (role, on_refusal) = match overridden {
                Some(_) => (Role::Enforce, overriding(Some(rule), options.compat)),
                None => (rule.role, rule.on_refusal),
            };
            self.charges.push(Charge { key, limit, cost, role, on_refusal });
            self.charged.push(Charged {
                descriptor: index,
                rule: Some(rule),
                overridden: overridden.is_some(),
                shown,
                role,
                on_store_failure: rule.on_store_failure,
            });
        }
        if let Some((requests, unit)) = brought {
            self.bare[index] = Bare::Unlimited;
            let limit = fixed(requests, unit);
            let key = naming.brought(&found, &limit);
            let (role, on_refusal) = (Role::Enforce, overriding(None, options.compat));
            self.charges.push(Charge { key, limit, cost, role, on_refusal });
            self.charged.push(Charged {
                descriptor: index,
                rule: None,
                overridden: true,
                shown: (requests, unit),
                role,
                on_store_failure: options.on_store_failure,
            });
        } else if found.is_exempt() && self.bare[index] == Bare::Unmatched {
            self.bare[index] = Bare::Unlimited;
        }
        Ok(())
    }

    /// `replaces`: a rule takes the place of others that the same request names, by their `name`. A rule that is
    /// itself replaced still replaces others; no rule replaces its own kind; unlimited rules and limits brought along
    /// cannot be replaced.
    fn drop_replaced(&mut self, loaded: &'r Loaded, question: &Question) {
        if !loaded.rules.has_replaces() {
            return;
        }
        let Some(domain) = loaded.rules.domain(&question.domain) else { return };
        // Unlimited rules replace too, and are no charge: look at all that were found.
        let replacing: Few<&Rule> = question
            .descriptors
            .iter()
            .filter(|descriptor| descriptor.limit.is_none())
            .flat_map(|descriptor| domain.find(&descriptor.entries).rules())
            .filter(|rule| !rule.replaces.is_empty())
            .collect();
        let replaced = |charged: &Charged<'_>| {
            let rule = charged.rule.filter(|_| !charged.overridden);
            let name = rule.and_then(|rule| rule.name.as_deref());
            name.is_some_and(|name| {
                replacing.iter().any(|other| {
                    !rule.is_some_and(|rule| std::ptr::eq(rule, *other))
                        && other.replaces.iter().any(|replaces| **replaces == *name)
                })
            })
        };
        let keep: Few<bool> = self.charged.iter().map(|charged| !replaced(charged)).collect();
        let mut kept = keep.iter();
        self.charges.retain(|_| kept.next().copied().unwrap_or(true));
        let mut kept = keep.iter();
        self.charged.retain(|_| kept.next().copied().unwrap_or(true));
    }

    /// The two global modes. Under the shadow nothing refuses. With QUOTA_MODE each limit is a quota, and so is a
    /// descriptor without one: it has something left, so the request passes. (`unlimited: true` is no quota.) A limit on
    /// trial is never over, as if it were not there.
    fn soften(&mut self, options: &Options) {
        if !options.quota_mode && !options.shadow_mode {
            return;
        }
        let charged = |index| self.charged.iter().any(|charged| charged.descriptor == index);
        let free = |(index, bare): (usize, &Bare)| *bare != Bare::Unbounded && !charged(index);
        let on_trial = || self.charged.iter().any(|charged| charged.role == Role::Shadow);
        let spared = options.quota_mode && (self.bare.iter().enumerate().any(free) || on_trial());
        self.spared = spared;
        for (charge, charged) in self.charges.iter_mut().zip(&mut self.charged) {
            if options.quota_mode && charge.role == Role::Enforce {
                charge.role = Role::Quota;
                charged.role = Role::Quota;
            }
            if options.shadow_mode || spared {
                charge.role = Role::Shadow;
            }
        }
    }

    /// The same charges, only asking whether they would fit.
    pub(super) fn looks(&self) -> Few<Charge> {
        let look = |charge: &Charge| Charge { cost: looking(charge.cost), ..charge.clone() };
        self.charges.iter().map(look).collect()
    }

    /// The same charges, where those that `seen` lets pass only look.
    pub(super) fn only_over(&self, seen: &Decision) -> Few<Charge> {
        let mut charges = self.looks();
        for ((look, charge), verdict) in charges.iter_mut().zip(&self.charges).zip(&seen.verdicts) {
            if !verdict.fits {
                look.cost = charge.cost;
            }
        }
        charges
    }

    /// How many descriptors no rule matched.
    pub(super) fn unmatched(&self) -> u64 {
        self.bare.iter().filter(|bare| **bare == Bare::Unmatched).count() as u64
    }
}

/// Bounds and fields that only a configuration can get wrong.
fn check(question: &Question, compat: bool) -> Result<(), Invalid> {
    if question.domain.is_empty() {
        return Err(Invalid::NoDomain);
    }
    match question.descriptors.len() {
        0 => return Err(Invalid::NoDescriptors),
        n if n > DESCRIPTORS_MAX => return Err(Invalid::Descriptors(n)),
        _ => {}
    }
    for (index, descriptor) in question.descriptors.iter().enumerate() {
        let entries = descriptor.entries.len();
        if entries > ENTRIES_MAX {
            return Err(Invalid::Entries { descriptor: index, entries });
        }
        if let Some(limit) = descriptor.limit {
            unit_of(limit, index)?;
        }
        let is_text = |entry: &Entry| str::from_utf8(&entry.key).and(str::from_utf8(&entry.value)).is_ok();
        if compat && !descriptor.entries.iter().all(is_text) {
            return Err(Invalid::Text(index));
        }
    }
    Ok(())
}

fn unit_of(limit: Override, descriptor: usize) -> Result<Unit, Invalid> {
    Unit::from_wire(limit.unit).ok_or(Invalid::Unit { descriptor, unit: limit.unit })
}

/// A descriptor's own hits win over the request's; there 0 looks, here 0 means 1.
///
/// A look asks whether one hit would pass. The reference's asks for none, which passes at exactly the limit; and it
/// charges what should be given back, since it does not know the flag.
fn cost_of(question: &Question, descriptor: &Descriptor, compat: bool) -> Cost {
    let hits = descriptor.hits.unwrap_or(u64::from(question.hits.max(1)));
    match NonZeroU64::new(hits) {
        None => Cost::Look(if compat { 0 } else { 1 }),
        Some(_) if descriptor.refund && !compat => Cost::Refund(hits),
        Some(hits) => Cost::Spend(hits),
    }
}

fn looking(cost: Cost) -> Cost {
    match cost {
        Cost::Spend(hits) => Cost::Look(hits.get()),
        Cost::Look(_) | Cost::Refund(_) | Cost::GiveBack { .. } => cost,
    }
}

/// Which of a descriptor's rules an override replaces: the first, and the others hold besides; but where it would share
/// the counter of another one, that one, or the counter would be charged twice.
fn replaced_by(
    brought: (u32, Unit),
    found: &Found<'_>,
    question: &Question,
    descriptor: &Descriptor,
) -> usize {
    let key = |rule: &Rule, limit: &Limit| found.key(&question.domain, &descriptor.entries, rule, limit);
    let first = found.rules().next();
    let Some((first, (limit, _))) = first.and_then(|rule| Some((rule, limit_of(rule, Some(brought))?)))
    else {
        return 0;
    };
    let shared = key(first, &limit);
    let is_shared = |rule: &Rule| rule.limit.is_some_and(|limit| key(rule, &limit) == shared);
    found.rules().position(is_shared).unwrap_or(0)
}

/// The rule's own limit, or its numbers replaced; `None` where the rule is unlimited and nothing was brought along.
fn limit_of(rule: &Rule, overridden: Option<(u32, Unit)>) -> Option<(Limit, (u32, Unit))> {
    let Some((requests, unit)) = overridden else { return rule.limit.map(|limit| (limit, rule.shown)) };
    let algorithm = rule.limit.map_or(Algorithm::FixedWindow, |limit| limit.algorithm());
    let limit = Limit::new(algorithm, requests, unit.window_us(), None).unwrap_or(fixed(requests, unit));
    Some((limit, (requests, unit)))
}

fn fixed(requests: u32, unit: Unit) -> Limit {
    Limit::new(Algorithm::FixedWindow, requests, unit.window_us(), None)
        .expect("a unit is a window within bounds, and there is no burst")
}

/// Refused hits of an override: as the rule that it replaces has it, but it is never on trial.
fn overriding(rule: Option<&Rule>, compat: bool) -> OnRefusal {
    match rule.map(|rule| rule.on_refusal) {
        _ if compat => OnRefusal::Count,
        Some(OnRefusal::Keep) => OnRefusal::Keep,
        _ => OnRefusal::Drain,
    }
}
