//! Rules: from YAML to something that answers "which limits apply to these entries?" without allocating.
//!
//! Two forms are read, see `rules::reference` and `rules::tiered`; both compile to the same [`RuleSet`], which is whole
//! and immutable. Compiling does no I/O: files come in as [`Source`]s, and all mistakes of all files come out together.

pub mod mistake;
pub mod watch;

use std::sync::Arc;

pub use mistake::{Level, Mistake, Mistakes};

use crate::{
    key::Key,
    limit::{Entry, Limit, OnRefusal, Role},
};

/// A file's name, as people know it, and its text.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the rule directory, such as `team/limits.yaml`.
    pub name: String,
    /// As it was read; a file that is no UTF-8 is a mistake like others.
    pub text: Vec<u8>,
}

/// What the same text may mean in different deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether refused hits are counted and the reference's other old ways hold (`TOLLGATE_COMPAT=reference`).
    pub compat: bool,
    /// What a rule says that does not say `on_store_failure`.
    pub on_store_failure: FailureMode,
    /// Whether several files may add to one domain (`MERGE_DOMAIN_CONFIG`); otherwise that is a mistake.
    pub merge_domains: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { compat: false, on_store_failure: FailureMode::Error, merge_domains: false }
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
#[derive(Debug)]
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
    /// Names of rules that this one replaces in the same request.
    pub replaces: Box<[Box<str>]>,
    /// Index into [`RuleSet::metric_labels`]: rules that share a name share their counters.
    pub metric: u32,
    /// `metadata` of the descriptor, for the answer's dynamic metadata.
    pub metadata: Option<serde_json::Value>,
    /// Further entries that this rule counts apart by (`per: [user]`, tiered form).
    pub per: Box<[Box<[u8]>]>,
    /// Tells a further limit (`daily`) apart from the main one in keys.
    pub key_name: Option<Box<str>>,
    /// Where it stands: file and line, from 1.
    pub at: (Arc<str>, u32),
    /// What the file says, for people who ask what is in force.
    pub written: Written,
}

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

/// Compiles all rule files, whole or not at all.
///
/// # Errors
/// All mistakes of all files, in the order of files and lines.
pub fn compile(_files: &impl Files, _dialect: Dialect) -> Result<Compiled, Mistakes> {
    unimplemented!()
}

/// All rules in force: immutable, compiled whole.
#[derive(Debug, Default)]
pub struct RuleSet {
    // (owned by the rules compiler)
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {}

/// Which rules apply to one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Found<'r> {
    _rules: &'r [Rule],
}

impl RuleSet {
    /// A hash of everything that was compiled, in hex; equal for equal rules.
    pub fn revision(&self) -> &str {
        unimplemented!()
    }

    /// What the files call themselves: their `version:`, joined by `,` where they differ.
    pub fn version(&self) -> Option<&str> {
        unimplemented!()
    }

    /// The rules of a domain, or `None` where no file names it.
    pub fn domain(&self, _name: &[u8]) -> Option<&Domain> {
        unimplemented!()
    }

    /// (domain, metric name) for each [`Rule::metric`].
    pub fn metric_labels(&self) -> &[(Box<str>, Box<str>)] {
        unimplemented!()
    }

    /// Whether any rule `replaces` others, so that requests need not look for it where none does.
    pub fn has_replaces(&self) -> bool {
        unimplemented!()
    }

    /// How many domains, limits and tenants there are.
    pub fn counts(&self) -> Counts {
        unimplemented!()
    }

    /// One line for each limit, as the reference's `/rlconfig` has it:
    /// `domain.key_value: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false`. What the reference
    /// does not know follows behind, where a rule says it.
    pub fn describe(&self) -> Vec<String> {
        unimplemented!()
    }

    /// What is in force, for `/rules`: revision, version, counts, and each domain's rules with file and line. Tenants
    /// are counted, not listed.
    pub fn to_json(&self) -> serde_json::Value {
        unimplemented!()
    }
}

impl Domain {
    /// Which rules apply to a descriptor with these entries. Allocates nothing, and costs the same for ten rules and a
    /// million.
    pub fn find<'r>(&'r self, _entries: &[Entry]) -> Found<'r> {
        unimplemented!()
    }

    /// How [`Domain::find`] gets to its answer, step by step, for `tollgate explain`.
    pub fn explain(&self, _entries: &[Entry]) -> Vec<Step> {
        unimplemented!()
    }
}

/// One thing that was tried on the way to a rule. `Display` says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was tried, such as `user=vip: exact value`.
    pub tried: String,
    /// Whether it matched.
    pub matched: bool,
    /// Where the rule stands that was tried: file and line.
    pub at: Option<(Arc<str>, u32)>,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.tried)?;
        f.write_str(if self.matched { ": matches" } else { ": no match" })?;
        match &self.at {
            Some((file, line)) => write!(f, " ({file}:{line})"),
            None => Ok(()),
        }
    }
}

impl<'r> Found<'r> {
    /// The rules to charge, in the order they are judged; none where no rule matches. At most [`RULES_MAX`].
    pub fn rules(&self) -> impl Iterator<Item = &'r Rule> + use<'r> {
        [].iter()
    }

    /// Whether a rule without a limit matched: the descriptor is exempt, not unknown.
    pub fn is_exempt(&self) -> bool {
        unimplemented!()
    }

    /// The key of the counter that `rule`, one of these, charges for `entries`, the ones that were looked up. `limit`
    /// is the rule's own or an override, which shares the rule's counter while algorithm and window are the same.
    pub fn key(&self, _domain: &[u8], _entries: &[Entry], _rule: &Rule, _limit: &Limit) -> Key {
        unimplemented!()
    }

    /// The key of the counter that an override charges where no rule stands behind it.
    pub fn override_key(&self, _domain: &[u8], _entries: &[Entry], _limit: &Limit) -> Key {
        unimplemented!()
    }
}

/// How many rules may apply to one descriptor: `rate_limits` of a descriptor, further limits of a tier.
pub const RULES_MAX: usize = 8;

/// The JSON Schema of rule files, both forms, draft 2020-12. Editors read it.
pub const SCHEMA: &str = include_str!("rules/schema.json");
