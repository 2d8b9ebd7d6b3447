//! The limits of a descriptor.

use super::{
    super::{
        RULES_MAX, Rule, Written,
        describe::period,
        fields::Fields,
        lease, metadata,
        mistake::quote,
        shards::{self, Beside},
        terms::{self, Mode, Numbers, Terms},
        units,
        yaml::Node,
    },
    Form, LIMIT, Marks, Path, REPLACED,
};
use crate::limit::{Algorithm, Limit, OnRefusal, Role};

/// The longest name that may stand in a counter's key, in bytes.
const KEY_NAME_MAX: usize = 64;

impl Form<'_, '_> {
    /// All limits of a descriptor.
    pub(super) fn rules(&mut self, fields: &Fields<'_>, path: &Path, marks: Marks) -> Vec<Rule> {
        let reader = &mut *self.reader;
        let one = fields.get("rate_limit").filter(|node| !reader.is_null(node));
        let several = fields.get("rate_limits").filter(|node| !reader.is_null(node));
        let metadata = fields.get("metadata").and_then(|node| metadata::read(reader, node));
        if let (Some(_), Some(_), Some(at)) = (one, several, fields.key("rate_limits")) {
            reader.mistake(
                at,
                "`rate_limit` and `rate_limits` on one descriptor",
                "move the one limit into the list",
            );
        }
        let nodes = match (one, several) {
            (_, Some(node)) => reader.items(node, "rate_limits"),
            (Some(node), None) => std::slice::from_ref(node),
            (None, None) => &[],
        };
        if nodes.len() > RULES_MAX {
            let message = format!("more than {RULES_MAX} limits on one descriptor");
            reader.mistake(&nodes[RULES_MAX], message, "keep the strictest");
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(nodes.len());
        for node in nodes.iter().take(RULES_MAX) {
            let Some(mut rule) = self.limit(node, path, marks) else { continue };
            rule.metadata.clone_from(&metadata);
            self.tell_apart(&mut rule, &rules, node, path);
            if nodes.len() > 1 {
                lease::warn_of_several(self.reader, rule.lease, node);
            }
            rules.push(rule);
        }
        rules
    }

    /// Several limits of one descriptor need several counters, and metrics.
    fn tell_apart(&mut self, rule: &mut Rule, others: &[Rule], node: &Node, path: &Path) {
        let Some(limit) = rule.limit.filter(|_| !others.is_empty()) else { return };
        let apart =
            |other: &Limit| (other.algorithm(), other.window_us()) != (limit.algorithm(), limit.window_us());
        let clash = others.iter().find(|other| other.limit.is_some_and(|limit| !apart(&limit)));
        if let Some(first) = clash {
            let first = (first.at.0.clone(), first.at.1);
            let message = format!("a second {} of this window on one descriptor", limit.algorithm().as_str());
            self.reader.twice(node, message, (&first.0, first.1), "keep the stricter of the two");
            return;
        }
        // A bucket's window is no part of its counter's identity, so buckets are told apart by their names.
        let same = |other: &&Rule| other.limit.is_some_and(|other| other.algorithm() == limit.algorithm());
        if !limit.algorithm().has_window() && others.iter().any(|other| same(&other)) {
            rule.key_name.clone_from(&rule.name);
            let taken = |other: &Rule| same(&other) && other.key_name == rule.key_name;
            if rule.key_name.is_none() || others.iter().any(taken) {
                let message = format!("a second {} on one descriptor", limit.algorithm().as_str());
                self.reader.mistake(node, message, "give it a `name` of its own: its counter needs one");
            }
        }
        if rule.key_name.as_ref().is_some_and(|name| name.len() > KEY_NAME_MAX) {
            let message = format!("a name that tells counters apart is at most {KEY_NAME_MAX} bytes long");
            self.reader.mistake(node, message, "write a shorter `name`");
        }
        let suffix = match &rule.name {
            Some(name) => name.to_string(),
            None => format!("{}/{}", limit.algorithm().as_str(), period(limit.window_us())),
        };
        rule.metric = self.labels.get(self.domain, &format!("{}:{suffix}", path.name));
        if let Some(detail) = &mut rule.detail {
            detail.apart(&suffix);
        }
    }

    /// The limit for what no rule matched.
    pub(super) fn default(&mut self, node: &Node) -> Option<Rule> {
        let path = Path { name: "default".into(), keys: "default".into(), depth: 0, levels: Vec::new() };
        self.limit(node, &path, Marks::default())
    }

    fn limit(&mut self, node: &Node, path: &Path, marks: Marks) -> Option<Rule> {
        let fields = self.reader.fields(node, &LIMIT)?;
        let requests = match fields.get("requests_per_unit") {
            Some(node) => self.reader.number(node, "`requests_per_unit`"),
            None => Some(0),
        };
        let unlimited = fields.get("unlimited").is_some_and(|node| self.reader.flag(node, "`unlimited`"));
        let name = fields.get("name").and_then(|node| self.reader.text(node, "`name`"));
        let name: Option<Box<str>> = name.filter(|name| !name.is_empty()).map(Into::into);
        let replaces = self.replaces(&fields, name.as_deref());
        let terms = Terms::read(self.reader, &fields);
        let limit = if unlimited { self.unlimited(&fields) } else { self.numbers(&fields, requests) };
        let at = |name| fields.key(name).unwrap_or(node);
        let lease = terms.lease.and_then(|lease| lease.hits(self.reader, limit, at("lease")));
        let beside = Beside { limit, lease, of_the_reference: true };
        let shards = shards::of(self.reader, terms.shards, beside, at("shards"));
        let (role, on_refusal) = self.consequences(&fields, terms, marks);
        lease::warn_of_no_effect(self.reader, lease, role, at("lease"));
        let requests = requests.unwrap_or(0);
        Some(Rule {
            limit,
            policy: terms::policy_name(name.as_deref().unwrap_or(&path.keys)),
            name,
            shown: (requests, terms::unit_of(limit.map_or(0, |limit| limit.window_us()))),
            role,
            on_refusal,
            on_store_failure: terms.on_store_failure.unwrap_or(self.reader.dialect.on_store_failure),
            headers: terms.headers.unwrap_or(true),
            lease,
            shards,
            replaces,
            metric: self.labels.get(self.domain, &path.name),
            detail: path.detail(marks.detailed),
            metadata: None,
            by_route: false,
            per: Box::default(),
            key_name: None,
            at: (self.reader.file.clone(), node.line),
            written: Written { requests, shadow: marks.shadow || role == Role::Shadow, quota: marks.quota },
        })
    }

    /// An unlimited limit has no numbers. The reference minds a unit that it knows, and passes over the rest
    /// (`config-unlimited-with-a-wrong-unit`).
    fn unlimited(&mut self, fields: &Fields<'_>) -> Option<Limit> {
        const NUMBERS: [&str; 8] = [
            "unit",
            "requests_per_unit",
            "algorithm",
            "burst",
            "window",
            "unit_multiplier",
            "lease",
            "shards",
        ];
        for name in NUMBERS {
            let (Some(key), Some(value)) = (fields.key(name), fields.get(name)) else { continue };
            let passed_over = match name {
                "unit" => value.scalar().is_none_or(|text| units::unit_word(text).is_none()),
                "requests_per_unit" => true,
                _ => false,
            };
            if passed_over {
                self.reader.warn(key, format!("`{name}` means nothing beside `unlimited`"), "take it out");
            } else {
                let message = format!("`{name}` contradicts `unlimited`");
                self.reader.mistake(key, message, "take one of the two out");
            }
        }
        None
    }

    fn numbers(&mut self, fields: &Fields<'_>, requests: Option<u32>) -> Option<Limit> {
        let algorithm = match fields.get("algorithm") {
            Some(_) => terms::algorithm(self.reader, fields),
            None => Some(Algorithm::FixedWindow),
        };
        let burst = terms::burst(self.reader, fields);
        let (window_us, window_at) = self.window(fields)?;
        let numbers = Numbers { algorithm: algorithm?, requests: requests?, window_us, window_at, burst };
        terms::limit(self.reader, &numbers)
    }

    /// `window`, or `unit` and perhaps `unit_multiplier`.
    fn window<'n>(&mut self, fields: &Fields<'n>) -> Option<(u64, &'n Node)> {
        let reader = &mut *self.reader;
        if let Some(node) = fields.get("window").filter(|node| !reader.is_null(node)) {
            for other in ["unit", "unit_multiplier"] {
                if let Some(key) = fields.key(other) {
                    let message = format!("`{other}` beside `window`");
                    reader.mistake(key, message, "`window` says the whole period: keep one of the two");
                }
            }
            let text = reader.text(node, "`window`")?;
            return match terms::period(text) {
                Ok(us) => Some((us, node)),
                Err(error) => {
                    reader.mistake(node, error.message, error.help);
                    None
                }
            };
        }
        let node = fields.get("unit").unwrap_or(fields.at);
        let text = fields.get("unit").and_then(|node| reader.text(node, "`unit`")).unwrap_or("");
        let Some(unit) = units::unit_word(text) else {
            match text {
                "" => reader.mistake(
                    node,
                    "a limit names a `unit` or a `window`",
                    "write `unit: second`, minute, hour, day, week, month or year, or `window: 30s`",
                ),
                _ => reader.mistake(
                    node,
                    format!("no unit is called `{}`", quote(text)),
                    units::unit_help(text),
                ),
            }
            return None;
        };
        let multiplier = match fields.get("unit_multiplier").filter(|node| !reader.is_null(node)) {
            Some(node) => match reader.number(node, "`unit_multiplier`")? {
                0 => {
                    reader.mistake(node, "a `unit_multiplier` of 0 makes no window", "write 1 or more");
                    return None;
                }
                n => u64::from(n),
            },
            None => 1,
        };
        Some((unit.window_us().saturating_mul(multiplier), node))
    }

    fn replaces(&mut self, fields: &Fields<'_>, own: Option<&str>) -> Box<[Box<str>]> {
        let Some(node) = fields.get("replaces") else { return Box::default() };
        let mut names: Vec<Box<str>> = Vec::new();
        for item in self.reader.items(node, "replaces") {
            let Some(fields) = self.reader.fields(item, &REPLACED) else { continue };
            let name = fields.get("name").and_then(|node| self.reader.text(node, "`name`")).unwrap_or("");
            if name.is_empty() {
                self.reader.mistake(item, "`replaces` needs a name", "write `- name: NAME`");
            } else if own == Some(name) {
                self.reader.mistake(item, "a limit cannot replace itself", "name another limit");
            } else if !names.iter().any(|known| **known == *name) {
                names.push(name.into());
            }
        }
        names.into()
    }

    /// What it means to be over this limit. `mode` is ours and strict; without it the reference's two booleans hold,
    /// and a refused charge uses up what was left (see the design, What is spent).
    fn consequences(&mut self, fields: &Fields<'_>, terms: Terms, marks: Marks) -> (Role, OnRefusal) {
        if let (true, Some(Mode::Enforce), Some(at)) = (marks.shadow, terms.mode, fields.key("mode")) {
            self.reader.mistake(at, "`mode: enforce` contradicts `shadow_mode`", "take one of the two out");
        }
        let role = match terms.mode.map(Mode::role) {
            _ if marks.shadow => Role::Shadow,
            Some(Role::Shadow) => Role::Shadow,
            _ if marks.quota => Role::Quota,
            _ => Role::Enforce,
        };
        let on_refusal = match terms.mode {
            _ if self.reader.dialect.compat => OnRefusal::Count,
            Some(mode) => mode.on_refusal(),
            None => OnRefusal::Drain,
        };
        (role, on_refusal)
    }
}
