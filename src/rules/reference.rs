//! The reference's form: descriptors within descriptors.
//!
//! Every field of envoyproxy/ratelimit means what it means there, with the same defaults and the same refusals; what is
//! ours stands beside them. One file is one domain, unless [`Dialect::merge_domains`](super::Dialect) says otherwise.
//!
//! ```yaml
//! domain: shop
//! descriptors:
//! - key: user                          # each user alone
//!   rate_limit: {unit: hour, requests_per_unit: 100}
//! - key: user
//!   value: vip                         # an exception
//!   rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: token_bucket, burst: 50}
//!   descriptors:                       # user=vip and then path=...
//!   - key: path
//!     value: /search/*
//!     share_threshold: true            # one counter for all paths that match
//!     rate_limits:                     # several at once
//!     - {window: 10s, requests_per_unit: 5}
//!     - {unit: day, requests_per_unit: 1000}
//! default: {unit: minute, requests_per_unit: 600}   # for what no rule matched
//! ```

use std::collections::HashMap;

use super::{
    RULES_MAX, Rule, Written,
    fields::{Fields, Grammar, Reader},
    labels::Labels,
    mistake::quote,
    terms::{self, Mode, Numbers, Terms},
    tree::At,
    yaml::Node,
};
use crate::limit::{Algorithm, Limit, OnRefusal, Role};

/// The deepest that descriptors nest: a request has at most as many entries.
pub const DESCRIPTORS_DEEP_MAX: usize = 64;

/// The most limits of one file.
pub const LIMITS_FILE_MAX: usize = 500_000;

/// A file. Its `name` is for people: generated files have one.
pub(super) const FILE: Grammar = Grammar {
    of: "a rule file",
    known: &["domain", "name", "version", "descriptors", "default"],
    later: &[],
    open: false,
};

/// A descriptor.
pub(super) const DESCRIPTOR: Grammar = Grammar {
    of: "a descriptor",
    known: &[
        "key",
        "value",
        "rate_limit",
        "rate_limits",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "share_threshold",
        "detailed_metric",
        "value_to_metric",
        "metadata",
    ],
    later: &["cidr", "regex"],
    open: false,
};

/// A limit.
pub(super) const LIMIT: Grammar = Grammar {
    of: "a limit",
    known: &[
        "unit",
        "requests_per_unit",
        "unlimited",
        "name",
        "replaces",
        "algorithm",
        "burst",
        "window",
        "unit_multiplier",
        "on_store_failure",
        "mode",
        "headers",
    ],
    later: &["shards", "lease", "reserve", "max_delay", "release_after"],
    open: false,
};

/// An item of `replaces`.
pub(super) const REPLACED: Grammar =
    Grammar { of: "an item of `replaces`", known: &["name"], later: &[], open: false };

/// A domain in the making; several files may add to it.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) default: Option<Rule>,
    /// What stands on the first level, to find what stands there twice.
    seen: Seen,
}

/// Keys and values of one level, and where they stand.
type Seen = HashMap<(Box<str>, Box<str>), At>;

/// A descriptor of the file.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) key: Box<str>,
    /// Empty for a bare key.
    pub(super) value: Box<str>,
    /// `share_threshold`
    pub(super) share: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) below: Vec<Descriptor>,
    pub(super) at: At,
}

/// Reads a file's descriptors into the draft of its domain.
pub(super) fn read(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    domain: &str,
    labels: &mut Labels,
    draft: &mut Draft,
) {
    let mut form = Form { reader, labels, domain, limits: 0 };
    if let Some(node) = fields.get("descriptors") {
        let mut seen = std::mem::take(&mut draft.seen);
        let descriptors = form.level(node, &mut seen, &Path::default());
        draft.seen = seen;
        draft.descriptors.extend(descriptors);
    }
    if let Some(node) = fields.get("default").filter(|node| !form.reader.is_null(node)) {
        let rule = form.default(node);
        if let (Some(first), Some(_)) = (&draft.default, &rule) {
            let first = (&*first.at.0, first.at.1);
            form.reader.twice(node, "this domain has a `default` already", first, "keep one of them");
        }
        draft.default = rule.or(draft.default.take());
    }
}

/// A file in the making.
struct Form<'a, 'f> {
    reader: &'a mut Reader<'f>,
    labels: &'a mut Labels,
    domain: &'a str,
    limits: usize,
}

/// The descriptors from the top to one place.
#[derive(Clone, Default)]
struct Path {
    /// `key_value.key`, as the reference names its rules.
    name: String,
    /// `key.key`
    keys: String,
    depth: usize,
}

impl Path {
    fn below(&self, key: &str, value: &str) -> Self {
        let dot = if self.depth > 0 { "." } else { "" };
        let underscore = if value.is_empty() { "" } else { "_" };
        Self {
            name: format!("{}{dot}{key}{underscore}{value}", self.name),
            keys: format!("{}{dot}{key}", self.keys),
            depth: self.depth + 1,
        }
    }
}

impl Form<'_, '_> {
    fn level(&mut self, node: &Node, seen: &mut Seen, above: &Path) -> Vec<Descriptor> {
        let items = self.reader.items(node, "descriptors");
        if above.depth == DESCRIPTORS_DEEP_MAX && !items.is_empty() {
            let message = format!("descriptors nest deeper than {DESCRIPTORS_DEEP_MAX}");
            self.reader.mistake_help(node, message, "no request has that many entries");
            return Vec::new();
        }
        items.iter().filter_map(|item| self.descriptor(item, seen, above)).collect()
    }

    fn descriptor(&mut self, node: &Node, seen: &mut Seen, above: &Path) -> Option<Descriptor> {
        let fields = self.reader.fields(node, &DESCRIPTOR)?;
        let key = fields.get("key").and_then(|node| self.reader.text(node, "`key`")).unwrap_or("");
        let value = fields.get("value").and_then(|node| self.reader.text(node, "`value`")).unwrap_or("");
        if key.is_empty() {
            self.reader.mistake_help(
                fields.get("key").unwrap_or(node),
                "a descriptor names a key",
                "write `key:` and the name of an entry",
            );
        } else if let Some(first) = seen.get(&(key.into(), value.into())) {
            let equal = if value.is_empty() {
                format!("key `{}`", quote(key))
            } else {
                format!("key `{}` and value `{}`", quote(key), quote(value))
            };
            let first = (first.0.clone(), first.1);
            let message = format!("a second descriptor with {equal} on this level");
            self.reader.twice(
                node,
                message,
                (&first.0, first.1),
                "merge the two; for several limits write `rate_limits`",
            );
        } else {
            seen.insert((key.into(), value.into()), (self.reader.file.clone(), node.line));
        }
        let path = above.below(key, value);
        let marks = self.marks(&fields, key, value);
        let rules = self.rules(&fields, &path, marks);
        let below = match fields.get("descriptors") {
            Some(node) => self.level(node, &mut Seen::default(), &path),
            None => Vec::new(),
        };
        let at = (self.reader.file.clone(), node.line);
        Some(Descriptor { key: key.into(), value: value.into(), share: marks.share, rules, below, at })
    }

    /// The booleans of a descriptor.
    fn marks(&mut self, fields: &Fields<'_>, key: &str, value: &str) -> Marks {
        let mut flag =
            |name: &str| fields.get(name).is_some_and(|node| self.reader.flag(node, &format!("`{name}`")));
        // The two about metrics change names of metrics in the reference, by what clients send. Ours stay bounded.
        for name in ["detailed_metric", "value_to_metric"] {
            flag(name);
        }
        let marks =
            Marks { shadow: flag("shadow_mode"), quota: flag("quota_mode"), share: flag("share_threshold") };
        if marks.share && !key.contains('*') && !value.contains('*') {
            let at = fields.key("share_threshold").unwrap_or(fields.at);
            self.reader.mistake_help(
                at,
                "`share_threshold` needs a value with `*`: only values that match a pattern can share a counter",
                "write a `value` with `*`, or take `share_threshold` out",
            );
        }
        marks
    }

    fn rules(&mut self, fields: &Fields<'_>, path: &Path, marks: Marks) -> Vec<Rule> {
        let reader = &mut *self.reader;
        let one = fields.get("rate_limit").filter(|node| !reader.is_null(node));
        let several = fields.get("rate_limits").filter(|node| !reader.is_null(node));
        let metadata = fields.get("metadata").and_then(|node| super::metadata::read(reader, node));
        if let (Some(_), Some(_), Some(at)) = (one, several, fields.key("rate_limits")) {
            reader.mistake_help(
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
            reader.mistake(&nodes[RULES_MAX], format!("more than {RULES_MAX} limits on one descriptor"));
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(nodes.len());
        for node in nodes.iter().take(RULES_MAX) {
            let Some(mut rule) = self.limit(node, path, marks) else { continue };
            rule.metadata.clone_from(&metadata);
            self.tell_apart(&mut rule, &rules, node, path);
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
                self.reader.mistake_help(node, message, "give it a `name` of its own: its counter needs one");
            }
        }
        let suffix = match &rule.name {
            Some(name) => name.to_string(),
            None => format!("{}/{}us", limit.algorithm().as_str(), limit.window_us()),
        };
        rule.metric = self.labels.get(self.domain, &format!("{}:{suffix}", path.name));
    }

    /// The limit for what no rule matched.
    fn default(&mut self, node: &Node) -> Option<Rule> {
        let path = Path { name: "default".into(), keys: "default".into(), depth: 0 };
        self.limit(node, &path, Marks::default())
    }

    fn limit(&mut self, node: &Node, path: &Path, marks: Marks) -> Option<Rule> {
        self.limits += 1;
        if self.limits == LIMITS_FILE_MAX + 1 {
            let message = format!("more than {LIMITS_FILE_MAX} limits in one file");
            self.reader.mistake_help(node, message, "split the file, or use the tiered form with a csv file");
        }
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
        let (role, on_refusal) = self.consequences(&fields, terms, marks);
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
            replaces,
            metric: self.labels.get(self.domain, &path.name),
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
        for name in ["unit", "requests_per_unit", "algorithm", "burst", "window", "unit_multiplier"] {
            let (Some(key), Some(value)) = (fields.key(name), fields.get(name)) else { continue };
            let passed_over = match name {
                "unit" => value.scalar().is_none_or(|text| terms::unit_word(text).is_none()),
                "requests_per_unit" => true,
                _ => false,
            };
            if passed_over {
                self.reader.warn(key, format!("`{name}` means nothing beside `unlimited`"), "take it out");
            } else {
                let message = format!("`{name}` contradicts `unlimited`");
                self.reader.mistake_help(key, message, "take one of the two out");
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
                    reader.mistake_help(key, message, "`window` says the whole period: keep one of the two");
                }
            }
            let text = reader.text(node, "`window`")?;
            return match terms::period(text) {
                Ok(us) => Some((us, node)),
                Err(error) => {
                    reader.mistake_help(node, error.message, error.help);
                    None
                }
            };
        }
        let node = fields.get("unit").unwrap_or(fields.at);
        let text = fields.get("unit").and_then(|node| reader.text(node, "`unit`")).unwrap_or("");
        let Some(unit) = terms::unit_word(text) else {
            match text {
                "" => reader.mistake_help(
                    node,
                    "a limit names a `unit` or a `window`",
                    "write `unit: second`, minute, hour, day, week, month or year, or `window: 30s`",
                ),
                _ => reader.mistake_help(
                    node,
                    format!("no unit is called `{}`", quote(text)),
                    terms::unit_help(text),
                ),
            }
            return None;
        };
        let multiplier = match fields.get("unit_multiplier").filter(|node| !reader.is_null(node)) {
            Some(node) => match reader.number(node, "`unit_multiplier`")? {
                0 => {
                    reader.mistake_help(node, "a `unit_multiplier` of 0 makes no window", "write 1 or more");
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
                self.reader.mistake_help(item, "`replaces` needs a name", "write `- name: NAME`");
            } else if own == Some(name) {
                self.reader.mistake_help(item, "a limit cannot replace itself", "name another limit");
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
            self.reader.mistake_help(
                at,
                "`mode: enforce` contradicts `shadow_mode`",
                "take one of the two out",
            );
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

/// The booleans of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    shadow: bool,
    quota: bool,
    share: bool,
}
