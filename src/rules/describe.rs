//! What is in force, for people: the reference's `/rlconfig`, our `/rules`, and counts.

use serde_json::{Value, json};

use super::{Counts, Domain, Form, Rule, RuleSet, units};

impl RuleSet {
    /// How many domains, limits and tenants there are.
    pub fn counts(&self) -> Counts {
        let tenants = |domain: &Domain| match &domain.form {
            Form::Tree(_) => 0,
            Form::Tiers(tiers) => tiers.tenants(),
        };
        Counts {
            domains: self.domains.len(),
            limits: self.domains.iter().map(|domain| domain.rules().count()).sum(),
            tenants: self.domains.iter().map(tenants).sum(),
        }
    }

    /// One line for each limit, as the reference's `/rlconfig` has it (golden case `rlconfig-lines`):
    /// `domain.key_value: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false`. What the reference
    /// does not know follows behind, where a rule differs from the reference's defaults.
    pub fn describe(&self) -> Vec<String> {
        let line = |domain: &Domain, name: &str, rule: &Rule| {
            let mut line = format!(
                "{}.{name}: unit={} requests_per_unit={}, shadow_mode: {}, quota_mode: {}",
                domain.name,
                rule.limit.map_or("UNKNOWN", |_| units::unit_name(rule.shown.1)),
                rule.written.requests,
                rule.written.shadow,
                rule.written.quota,
            );
            let Some(limit) = rule.limit else { return line };
            if limit.algorithm() != crate::limit::Algorithm::FixedWindow {
                line += &format!(", algorithm: {}", limit.algorithm().as_str());
            }
            if limit.window_us() != rule.shown.1.window_us() {
                line += &format!(", window: {}", period(limit.window_us()));
            }
            if limit.burst() != limit.requests() {
                line += &format!(", burst: {}", limit.burst());
            }
            if let Some(lease) = rule.lease {
                line += &format!(", lease: {lease}");
            }
            if let Some(shards) = rule.shards {
                line += &format!(", shards: {shards}");
            }
            line
        };
        let lines = |domain| self.named_rules(domain).map(move |(name, rule)| line(domain, &name, rule));
        self.domains.iter().flat_map(lines).collect()
    }

    /// A domain's rules by the names of their descriptors, or of tiers, routes and tenants.
    fn named_rules<'r>(&'r self, domain: &'r Domain) -> Box<dyn Iterator<Item = (String, &'r Rule)> + 'r> {
        match &domain.form {
            Form::Tree(tree) => {
                Box::new(tree.rules().map(|rule| (self.labels[rule.metric as usize].1.to_string(), rule)))
            }
            Form::Tiers(tiers) => Box::new(tiers.named_rules()),
        }
    }

    /// What is in force, for `/rules`: revision, version, counts, and each domain's rules with file and line. Tenants
    /// are counted, not listed.
    pub fn to_json(&self) -> Value {
        let counts = self.counts();
        json!({
            "revision": self.revision,
            "version": self.version,
            "domains": self.domains.iter().map(|domain| self.domain_json(domain)).collect::<Vec<_>>(),
            "counts": { "domains": counts.domains, "limits": counts.limits, "tenants": counts.tenants },
        })
    }

    fn domain_json(&self, domain: &Domain) -> Value {
        let rules: Vec<Value> = self.named_rules(domain).map(|(name, rule)| rule_json(&name, rule)).collect();
        match &domain.form {
            Form::Tree(_) => json!({ "domain": domain.name, "form": "descriptors", "rules": rules }),
            Form::Tiers(tiers) => json!({
                "domain": domain.name,
                "form": "tiers",
                "default_tier": tiers.default_tier(),
                "tiers": tiers.tier_names(),
                "tenants": tiers.tenants(),
                "rules": rules,
            }),
        }
    }
}

fn rule_json(name: &str, rule: &Rule) -> Value {
    let limit = rule.limit.map(|limit| {
        json!({
            "algorithm": limit.algorithm().as_str(),
            "requests": limit.requests(),
            "window": period(limit.window_us()),
            "burst": limit.burst(),
        })
    });
    json!({
        "rule": name,
        "name": rule.name,
        "limit": limit,
        "shadow_mode": rule.written.shadow,
        "quota_mode": rule.written.quota,
        "lease": rule.lease,
        "shards": rule.shards,
        "on_store_failure": rule.on_store_failure.as_str(),
        "file": *rule.at.0,
        "line": rule.at.1,
    })
}

/// A period as rule files write it, in the largest unit that divides it.
pub(super) fn period(us: u64) -> String {
    const UNITS: [(&str, u64); 6] = [
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
        ("us", 1),
    ];
    let fits = UNITS.into_iter().find(|(_, unit)| us.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{us}us"), |(word, unit)| format!("{}{word}", us / unit))
}
