//! Rules: from YAML to something that answers "which limits apply to these entries?" without allocating.
//!
//! Two forms are read, see `rules::reference` and `rules::tiered`; both compile to the same [`RuleSet`], which is whole
//! and immutable. Compiling does no I/O: files come in through [`Files`], and all mistakes of all files come out together.

mod compile;
mod reference;
mod tiered;
mod terms;
mod units;
mod lease;
mod shards;
mod fields;
mod metadata;
mod scalar;
mod words;
mod yaml;
pub mod plain;
pub mod mistake;

mod found;
mod tree;
mod tenants;
mod pattern;
mod table;
mod labels;

mod describe;
mod explain;
mod schema;

pub mod watch;
pub mod xds;

use std::{ffi::OsStr, num::NonZeroU8, path::Path, sync::Arc};

pub use compile::compile;
pub use explain::Step;
pub use found::Found;
pub use labels::Detail;
pub use mistake::{Level, Mistake, Mistakes};
pub use reference::DESCRIPTORS_DEEP_MAX;
pub use schema::SCHEMA;
pub use tenants::TENANT_MAX;
pub(crate) use words::misspelt;
pub use yaml::{DEPTH_MAX, FILE_MAX, NODES_MAX};

use self::{table::Table, tiered::Tiers, tree::Tree};
use crate::limit::{Entry, Limit, OnRefusal, Role};

/// What the same text may mean in different deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether refused hits are counted and the reference's other old ways hold (`TOLLGATE_COMPAT=reference`).
    pub compat: bool,
    /// What a rule says that does not say `on_store_failure`.
    pub on_store_failure: FailureMode,
    /// Whether several files may add to one domain (`MERGE_DOMAIN_CONFIG`); otherwise that is a mistake.
    pub merge_domains: bool,
    /// Whether fixed windows are counted under the reference's names (`KEY_FORMAT=reference`).
    pub reference_keys: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Self {
            compat: false,
            on_store_failure: FailureMode::Error,
            merge_domains: false,
            reference_keys: false,
        }
    }
}

/// What to answer when the store gives none. In ascending strictness: of several rules in a request the strictest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureMode {
    /// Let the request pass.
    Allow,
    /// A conservative limit in this process.
    Local,
    /// UNAVAILABLE, so that Envoy's own failure mode decides.
    Error,
    /// Refuse the request.
    Deny,
}

impl FailureMode {
    /// As written in rule files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Local => "local",
            Self::Error => "error",
            Self::Deny => "deny",
        }
    }
}

/// The unit that `current_limit` names, with the numbers of Envoy's `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Unit {
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl Unit {
    /// All of them, from the shortest to the longest.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The unit with this number on the wire; `None` for 0 (UNKNOWN) and for units of the future.
    pub fn from_wire(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as i32 == number)
    }

    /// Its length in microseconds. As in the reference a month is 30 days and a year 365.
    pub fn window_us(self) -> u64 {
        let seconds = match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        };
        seconds * 1_000_000
    }
}

/// One compiled limit with all that an answer about it needs.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `None` is unlimited.
    pub limit: Option<Limit>,
    /// The rule's own `name`, which `current_limit` shows.
    pub name: Option<Box<str>>,
    /// The name for headers: `name`, else the descriptor's keys joined by `.`, in the tiered form the tier (and
    /// `.route`). Never a client's value. Printable ASCII without `"` and `\`.
    pub policy: Box<str>,
    /// What `current_limit` shows: the number as written, with the smallest unit that is not shorter than the window.
    pub shown: (u32, Unit),
    /// Enforced, on trial, or a quota.
    pub role: Role,
    /// What becomes of refused hits.
    pub on_refusal: OnRefusal,
    /// When the store gives no answer.
    pub on_store_failure: FailureMode,
    /// `headers: false` hides this rule's numbers (not its Retry-After).
    pub headers: bool,
    /// How many hits to take from the store ahead of their requests; 0 for none, `None` where it is left to LEASE_ABOVE.
    pub lease: Option<u32>,
    /// How many counters a key is split into, at least 2; `None` for one.
    pub shards: Option<NonZeroU8>,
    /// Names of rules that this one replaces in the same request.
    pub replaces: Box<[Box<str>]>,
    /// Index into [`RuleSet::metric_labels`]: rules that share a name share their counters.
    pub metric: u32,
    /// How the reference names it for metrics where that hangs on what a client sent.
    pub detail: Option<Detail>,
    /// `metadata` of the descriptor, for the answer's dynamic metadata.
    pub metadata: Option<Metadata>,
    /// Whether the route's entry is part of its key (tiered form).
    pub by_route: bool,
    /// Further entries that this rule counts apart by (`per: [user]`, tiered form).
    pub per: Box<[Box<[u8]>]>,
    /// Tells a further limit (`daily`) apart from the main one in keys.
    pub key_name: Option<Box<str>>,
    /// Where it stands: file and line, from 1.
    pub at: (Arc<str>, u32),
    /// What the file says, for people who ask what is in force.
    pub written: Written,
}

/// Any tree that a rule hands on.
pub type Metadata = serde_json::Value;

/// Reads rule files; the only way for compiling to reach anything outside.
pub trait Files {
    /// Names of all rule files (`*.yaml`, `*.yml`), relative, in a stable order.
    fn list(&self) -> Vec<String>;
    /// A file's bytes. Also asked for files that a rule file names (`tenants_from`), relative to the rule file's folder.
    ///
    /// # Errors
    /// As the file system says.
    fn read(&self, name: &str) -> std::io::Result<Vec<u8>>;
}

/// Which files of a directory are rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// `*.yaml` and `*.yml`, none that begins with a dot.
    #[default]
    Yaml,
    /// All that do not begin with a dot: the reference with `RUNTIME_IGNOREDOTFILES=true`.
    Shown,
    /// All, an editor's swap file too: the reference as it comes (golden case `several-files`).
    All,
}

impl Which {
    /// Whether a file or folder of this name is passed over.
    fn skips(self, name: &OsStr) -> bool {
        self != Self::All && name.as_encoded_bytes().starts_with(b".")
    }

    /// Whether a file that is not passed over is one of rules, by its name.
    fn is_rule(self, path: &Path) -> bool {
        let yaml = |extension: &OsStr| extension == "yaml" || extension == "yml";
        self != Self::Yaml || path.extension().is_some_and(yaml)
    }
}

/// What a rule file says, where [`Rule`] holds what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// `requests_per_unit`, or a rate's number; it may stand beside `unlimited`, where it means nothing.
    pub requests: u32,
    /// `shadow_mode`, or `mode: shadow | record`.
    pub shadow: bool,
    /// `quota_mode`.
    pub quota: bool,
}

/// What compiling gives.
#[derive(Debug)]
pub struct Compiled {
    /// The rules.
    pub rules: RuleSet,
    /// What is legal and perhaps not meant. Warnings never keep rules from being loaded.
    pub warnings: Mistakes,
}

/// Reads YAML that is no rule file, with each scalar as the text that it is written as.
///
/// # Errors
/// The first mistake in one line, with its place.
pub fn yaml_texts(text: &str) -> Result<serde_json::Value, String> {
    let document = yaml::read(text, yaml::BOUNDS)
        .map_err(|broken| format!("line {}, column {}: {}", broken.line, broken.column, broken.message))?;
    Ok(document.root.as_ref().map_or(serde_json::Value::Null, metadata::texts))
}

/// How many there are, for `tollgate check` and `/rules`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Domains.
    pub domains: usize,
    /// Limits that are written down: each rule that a request can be charged to.
    pub limits: usize,
    /// Tenants that are named, in rules and in csv files.
    pub tenants: usize,
}

/// Files in memory, by name: for tests, and for rules that come from elsewhere.
impl Files for std::collections::BTreeMap<String, Vec<u8>> {
    fn list(&self) -> Vec<String> {
        let is_rules = |name: &&String| name.ends_with(".yaml") || name.ends_with(".yml");
        self.keys().filter(is_rules).cloned().collect()
    }

    fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        self.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }
}

/// All rules in force: immutable, compiled whole.
#[derive(Debug, Default)]
pub struct RuleSet {
    revision: String,
    version: Option<String>,
    names: Table,
    domains: Vec<Domain>,
    labels: Vec<(Box<str>, Box<str>)>,
    has_replaces: bool,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    form: Form,
}

/// How a domain finds its rules.
#[derive(Debug)]
enum Form {
    Tree(Box<Tree>),
    Tiers(Box<Tiers>),
}

impl RuleSet {
    /// A hash of everything that was compiled, in hex; equal for equal rules. Empty for a set that no file made.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// What the files call themselves: their `version:`, joined by `,` where they differ.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The rules of a domain, or `None` where no file names it.
    pub fn domain(&self, name: &[u8]) -> Option<&Domain> {
        self.names.get(name).map(|number| &self.domains[number as usize])
    }

    /// All domains, in the order of their files.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// (domain, metric name) for each [`Rule::metric`].
    pub fn metric_labels(&self) -> &[(Box<str>, Box<str>)] {
        &self.labels
    }

    /// Whether any rule `replaces` others, so that requests need not look for it where none does.
    pub fn has_replaces(&self) -> bool {
        self.has_replaces
    }
}

impl Domain {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which rules apply to a descriptor with these entries. Allocates nothing, and costs the same for ten rules and a
    /// million.
    pub fn find<'r>(&'r self, entries: &[Entry]) -> Found<'r> {
        match &self.form {
            Form::Tree(tree) => Found::in_tree(tree.find(entries, &mut |_| ())),
            Form::Tiers(tiers) => Found::in_tiers(tiers.find(entries, &mut |_| ())),
        }
    }

    /// All its rules, in the order of the file.
    fn rules(&self) -> Box<dyn Iterator<Item = &Rule> + '_> {
        match &self.form {
            Form::Tree(tree) => Box::new(tree.rules()),
            Form::Tiers(tiers) => Box::new(tiers.rules()),
        }
    }
}

/// How many rules may apply to one descriptor: `rate_limits` of a descriptor, further limits of a tier.
pub const RULES_MAX: usize = 8;
