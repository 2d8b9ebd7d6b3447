//! Why a request gets the limits it gets, in words.
//!
//! The steps are what the look-up itself tells while it looks, so they cannot say anything else than what happens.

use std::sync::Arc;

use super::{Domain, Form, Rule, describe::period, tiered, tree};
use crate::limit::Entry;

/// One thing that was tried on the way to a rule. `Display` says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was tried, such as `user=vip: exact value`.
    pub tried: String,
    /// Whether it matched.
    pub matched: bool,
    /// Where the rule stands that was tried: file and line; line 0 is a file without lines to tell, such as a csv.
    pub at: Option<(Arc<str>, u32)>,
}

impl Step {
    /// Where the rule stands that was tried: `api.yaml:34`, or `tenants.csv`, whose lines are not kept.
    pub fn place(&self) -> Option<String> {
        let (file, line) = self.at.as_ref()?;
        Some(if *line == 0 { file.to_string() } else { format!("{file}:{line}") })
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.matched { "+ " } else { "- " })?;
        f.write_str(&self.tried)?;
        self.place().map_or(Ok(()), |place| write!(f, "  ({place})"))
    }
}

impl Domain {
    /// How [`Domain::find`] gets to its answer, step by step, for `tollgate explain`.
    pub fn explain(&self, entries: &[Entry]) -> Vec<Step> {
        let mut steps = Vec::new();
        match &self.form {
            Form::Tree(tree) => {
                tree.find(entries, &mut |tried| steps.push(in_tree(entries, tried)));
            }
            Form::Tiers(tiers) => {
                tiers.find(entries, &mut |tried| steps.push(in_tiers(tiers, entries, tried)));
            }
        }
        steps
    }
}

fn in_tree(entries: &[Entry], tried: tree::Tried<'_>) -> Step {
    use tree::Tried;
    let step =
        |tried: String, matched: bool, at: Option<&(Arc<str>, u32)>| Step { tried, matched, at: at.cloned() };
    match tried {
        Tried::Exact(index, branch) => {
            let tried = format!("{}: the exact value", pair(&entries[index]));
            step(tried, branch.is_some(), branch.map(|branch| &branch.at))
        }
        Tried::Pattern(index, wild, branch, matched) => {
            let (key, value) = wild.written();
            let key = text(key.unwrap_or(&entries[index].key));
            let pattern = value.map_or(key.clone(), |value| format!("{key}={}", text(value)));
            step(format!("{}: the pattern {pattern}", pair(&entries[index])), matched, Some(&branch.at))
        }
        Tried::Bare(index, branch) => {
            let tried = format!("{}: the key {} alone", pair(&entries[index]), text(&entries[index].key));
            step(tried, branch.is_some(), branch.map(|branch| &branch.at))
        }
        Tried::TooDeep(index) => step(format!("{}: no rules below this", pair(&entries[index])), false, None),
        Tried::NoLimit(branch, exempt) => {
            let what = if exempt {
                "a rule without a limit: exempt"
            } else {
                "no limit at this depth, only below it"
            };
            step(what.into(), exempt, Some(&branch.at))
        }
        Tried::Limit(rule) => step(limit_of(rule), true, Some(&rule.at)),
        Tried::Default(Some(rule)) => {
            step(format!("the domain's default: {}", limit_of(rule)), true, Some(&rule.at))
        }
        Tried::Default(None) => step("the domain has no default: it passes".into(), false, None),
    }
}

fn in_tiers(tiers: &tiered::Tiers, entries: &[Entry], tried: tiered::Tried<'_>) -> Step {
    use tiered::Tried;
    let step = |tried: String, matched: bool, at: Option<(Arc<str>, u32)>| Step { tried, matched, at };
    match tried {
        Tried::NoTenant(key) => {
            step(format!("no entry {}: one budget for all such requests", text(key)), false, None)
        }
        Tried::Tenant(index, known) => {
            let what = match known {
                Some(profile) if profile.is_tenants() => "a tenant with limits of its own",
                Some(_) => "a known tenant",
                None => "nobody named this tenant: the default tier",
            };
            let at = tiers.source(&entries[index].value);
            step(format!("{}: {what}", pair(&entries[index])), known.is_some(), at)
        }
        Tried::Tier(profile) => {
            step(format!("the tier {}", profile.tier()), true, Some(profile.at().clone()))
        }
        Tried::Route(index, profile, rule) => {
            let whose = if profile.is_tenants() { "the tenant's" } else { "the tier's" };
            let tried = format!("{}: {whose} rule for the route", pair(&entries[index]));
            step(tried, rule.is_some(), rule.map(|rule| rule.at.clone()))
        }
        Tried::Limit(rule) => step(limit_of(rule), true, Some(rule.at.clone())),
    }
}

/// A limit in words.
fn limit_of(rule: &Rule) -> String {
    let Some(limit) = rule.limit else { return format!("{}: unlimited", rule.policy) };
    let burst =
        if limit.burst() == limit.requests() { String::new() } else { format!(", burst {}", limit.burst()) };
    let (requests, window) = (limit.requests(), period(limit.window_us()));
    format!("{}: {requests} in {window}{burst}, {}", rule.policy, limit.algorithm().as_str())
}

fn pair(entry: &Entry) -> String {
    format!("{}={}", text(&entry.key), text(&entry.value))
}

/// A client's bytes on a terminal: cut, and without control characters.
fn text(bytes: &[u8]) -> String {
    super::mistake::quote(&String::from_utf8_lossy(bytes))
}
