//! Rules: from YAML to something that answers "which limits apply to these entries?" without allocating.
//!
//! Two forms are read, see `rules::reference` and `rules::tiered`; both compile to the same [`RuleSet`], which is whole
//! and immutable. Compiling does no I/O: files come in as [`Source`]s, and all mistakes of all files come out together.

use std::sync::Arc;

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
    /// Further entries that this rule counts apart by (`per: [user]`, tiered form).
    pub per: Box<[Box<[u8]>]>,
    /// Tells a further limit (`daily`) apart from the main one in keys.
    pub key_name: Option<Box<str>>,
    /// Where it stands: file and line, from 1.
    pub at: (Arc<str>, u32),
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

/// All rules in force: immutable, compiled whole.
#[derive(Debug)]
pub struct RuleSet {
    // (owned by the rules compiler)
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {}

/// Which rules apply to one descriptor.
#[derive(Debug)]
pub struct Found<'r> {
    _rules: &'r [Rule],
}

impl RuleSet {
    /// A hash of everything that was compiled, in hex; equal for equal rules.
    pub fn revision(&self) -> &str {
        unimplemented!()
    }

    /// The rules of a domain, or `None` where no file names it.
    pub fn domain(&self, _name: &[u8]) -> Option<&Domain> {
        unimplemented!()
    }

    /// Whether any rule has `replaces`, so that requests need not be searched for it.
    pub fn has_replaces(&self) -> bool {
        unimplemented!()
    }

    /// (domain, metric name) for each [`Rule::metric`].
    pub fn metric_labels(&self) -> &[(Box<str>, Box<str>)] {
        unimplemented!()
    }
}

impl Domain {
    /// Which rules apply to a descriptor with these entries. Allocates nothing, and costs the same for ten rules and a
    /// million.
    pub fn find<'r>(&'r self, _entries: &[Entry]) -> Found<'r> {
        unimplemented!()
    }
}

impl<'r> Found<'r> {
    /// The rules to charge, in the order they are judged; none where no rule matches. At most [`RULES_MAX`].
    pub fn rules(&self) -> impl Iterator<Item = &'r Rule> + use<'r> {
        [].iter()
    }

    /// The key of the counter that `rule`, one of these, charges for `entries`, the ones that were looked up. `limit`
    /// is the rule's own or an override.
    pub fn key(&self, _domain: &[u8], _entries: &[Entry], _rule: &Rule, _limit: &Limit) -> Key {
        unimplemented!()
    }

    /// The key of the counter of a limit that a caller brings along where no rule matched: all entries with their values.
    pub fn override_key(&self, _domain: &[u8], _entries: &[Entry], _limit: &Limit) -> Key {
        unimplemented!()
    }

    /// Whether a rule matched that has no limit: what it names is exempt, and not counted as unmatched.
    pub fn is_exempt(&self) -> bool {
        unimplemented!()
    }
}

/// How many rules may apply to one descriptor: `rate_limits` of a descriptor, further limits of a tier.
pub const RULES_MAX: usize = 8;
