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
    Rule,
    fields::{Fields, Grammar, Reader},
    labels::{Detail, Labels, Level},
    mistake::quote,
    tree::At,
    yaml::Node,
};

mod limits;

/// The deepest that descriptors nest: a request has at most as many entries.
pub const DESCRIPTORS_DEEP_MAX: usize = 64;

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
        "lease",
        "shards",
    ],
    later: &["reserve", "max_delay", "release_after"],
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
    let mut form = Form { reader, labels, domain };
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
}

/// The descriptors from the top to one place.
#[derive(Clone, Default)]
struct Path {
    /// `key_value.key`, as the reference names its rules.
    name: String,
    /// `key.key`
    keys: String,
    depth: usize,
    /// For names that hold what clients send.
    levels: Vec<Level>,
}

impl Path {
    fn below(&self, key: &str, value: &str, marks: Marks) -> Self {
        let dot = if self.depth > 0 { "." } else { "" };
        let underscore = if value.is_empty() { "" } else { "_" };
        let level = Level::new(key, value, marks.share, marks.valued);
        Self {
            levels: self.levels.iter().cloned().chain([level]).collect(),
            name: format!("{}{dot}{key}{underscore}{value}", self.name),
            keys: format!("{}{dot}{key}", self.keys),
            depth: self.depth + 1,
        }
    }

    fn detail(&self, detailed: bool) -> Option<Detail> {
        Detail::new(&self.levels, detailed)
    }
}

impl Form<'_, '_> {
    fn level(&mut self, node: &Node, seen: &mut Seen, above: &Path) -> Vec<Descriptor> {
        let items = self.reader.items(node, "descriptors");
        if above.depth == DESCRIPTORS_DEEP_MAX && !items.is_empty() {
            let message = format!("descriptors nest deeper than {DESCRIPTORS_DEEP_MAX}");
            self.reader.mistake(node, message, "no request has that many entries");
            return Vec::new();
        }
        items.iter().filter_map(|item| self.descriptor(item, seen, above)).collect()
    }

    fn descriptor(&mut self, node: &Node, seen: &mut Seen, above: &Path) -> Option<Descriptor> {
        let fields = self.reader.fields(node, &DESCRIPTOR)?;
        let key = fields.get("key").and_then(|node| self.reader.text(node, "`key`")).unwrap_or("");
        let value = fields.get("value").and_then(|node| self.reader.text(node, "`value`")).unwrap_or("");
        if key.is_empty() {
            self.reader.mistake(
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
        let marks = self.marks(&fields, key, value);
        let path = above.below(key, value, marks);
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
        let marks = Marks {
            shadow: flag("shadow_mode"),
            quota: flag("quota_mode"),
            share: flag("share_threshold"),
            // These two are about the reference's names of metrics alone; ours hold nothing that clients send.
            detailed: flag("detailed_metric"),
            valued: flag("value_to_metric"),
        };
        if marks.share && !key.contains('*') && !value.contains('*') {
            let at = fields.key("share_threshold").unwrap_or(fields.at);
            self.reader.mistake(
                at,
                "`share_threshold` needs a value with `*`: only values that match a pattern can share a counter",
                "write a `value` with `*`, or take `share_threshold` out",
            );
        }
        marks
    }
}

/// The booleans of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    shadow: bool,
    quota: bool,
    share: bool,
    detailed: bool,
    valued: bool,
}
