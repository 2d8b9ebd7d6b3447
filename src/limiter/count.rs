//! Counting what was asked and what came of it: by rule under our own names, and under the reference's.

use std::sync::Arc;

use super::{
    Answer, Loaded, Question,
    plan::{Charged, Plan},
};
use crate::{
    limit::{Few, Role, Verdict},
    metrics::{
        RuleCounters,
        reference::{Group, Outcome, Reference},
    },
};

/// The counters of a charge under the reference's names.
#[derive(Debug)]
pub(super) enum Named<'l> {
    /// Of a rule: known since it was loaded.
    Rule(&'l Group),
    /// Of a name that holds a client's values.
    Value(Arc<Group>),
}

impl<'r> Plan<'r> {
    /// Counts what is wanted, before the store is asked. One name for each charge; none where nobody asks for them.
    pub(super) fn count_wanted<'l>(
        &self,
        loaded: &'l Loaded,
        question: &Question,
        reference: Option<&Reference>,
    ) -> Few<Named<'l>> {
        let mut named = Few::new();
        let Some(reference) = reference else { return named };
        for (charged, charge) in self.charged.iter().zip(&self.charges) {
            let name = name(charged, loaded, question, reference);
            reference.wanted(name.group(), charge.cost);
            named.push(name);
        }
        named
    }

    /// Counts what came of each charge.
    pub(super) fn count(
        &self,
        answer: &Answer<'_>,
        loaded: &Loaded,
        named: &[Named<'_>],
        reference: Option<&Reference>,
    ) {
        for (charged, verdict) in self.charged.iter().zip(&answer.verdicts) {
            let Some(counters) = counters(charged, loaded) else { continue };
            match (verdict.fits, charged.role) {
                (true, _) => counters.allowed.inc(),
                (false, Role::Enforce) => counters.refused.inc(),
                (false, Role::Quota) if answer.refused => counters.refused.inc(),
                (false, Role::Quota | Role::Shadow) => counters.shadowed.inc(),
            };
        }
        let Some(reference) = reference else { return };
        let charges = self.charged.iter().zip(&self.charges).zip(&answer.verdicts);
        for (index, (((charged, charge), verdict), name)) in charges.zip(named).enumerate() {
            let outcome = Outcome {
                near: answer.near.get(index) == Some(&true),
                limit: &charge.limit,
                cost: charge.cost,
                on_refusal: charge.on_refusal,
                shadow: charged.role == Role::Shadow,
                verdict,
            };
            reference.decided(name.group(), outcome);
        }
        if self.softened && !answer.refused && self.would_refuse(&answer.verdicts) {
            reference.shadowed();
        }
    }

    /// Whether the request is refused but for SHADOW_MODE.
    fn would_refuse(&self, verdicts: &[Verdict]) -> bool {
        let of = |role| {
            let charged = self.charged.iter().zip(verdicts);
            charged.filter(move |(charged, _)| charged.role == role).map(|(_, verdict)| verdict.fits)
        };
        let mut quotas = of(Role::Quota).peekable();
        let quotas_over = !self.spared && quotas.peek().is_some() && quotas.all(|fits| !fits);
        of(Role::Enforce).any(|fits| !fits) || quotas_over
    }
}

impl Named<'_> {
    fn group(&self) -> &Group {
        match self {
            Self::Rule(group) => group,
            Self::Value(group) => group,
        }
    }
}

fn counters<'l>(charged: &Charged<'_>, loaded: &'l Loaded) -> Option<&'l RuleCounters> {
    loaded.counters.rules.get(charged.rule?.metric as usize)
}

fn name<'l>(
    charged: &Charged<'_>,
    loaded: &'l Loaded,
    question: &Question,
    reference: &Reference,
) -> Named<'l> {
    let entries = &question.descriptors[charged.descriptor].entries;
    let rule = charged.rule.filter(|_| !charged.overridden);
    if let Some(detail) = rule.and_then(|rule| rule.detail.as_ref()) {
        return Named::Value(reference.of_value(&question.domain, &detail.name(&question.domain, entries)));
    }
    let group = rule.and_then(|_| counters(charged, loaded)?.reference.as_deref());
    group.map_or_else(|| Named::Value(reference.of_override(&question.domain, entries)), Named::Rule)
}
