//! The reference's form, compiled: levels of keys, one for each entry of a descriptor.
//!
//! On each level an entry is sought by its exact value, then among the patterns in the order of the file, then as a
//! bare key; what matched decides the next level, and there is no way back (golden cases `exact-then-star-then-bare`,
//! `no-way-back-from-an-exact-value`). A descriptor gets the limits that stand at its own depth, no deeper and no
//! shallower ones.
//!
//! Exact values and bare keys are found by hash, whatever their number. Patterns are tried one after the other, but only
//! those of the entry's own key; patterns *in keys* are few in practice and are tried for every entry.
//!
//! [`Tree::find`] tells an observer each thing it tries. Answering requests observes nothing, and the calls vanish;
//! `explain` writes them down. So what is explained is what happens.

use std::{ops::Range, sync::Arc};

use super::{
    Rule,
    pattern::Pattern,
    reference::Descriptor,
    table::{Table, TableBuilder},
};
use crate::limit::Entry;

/// Where something stands: file and line.
pub(super) type At = (Arc<str>, u32);

/// The rules of one domain.
#[derive(Debug)]
pub(super) struct Tree {
    /// The first is the one that descriptors begin at.
    levels: Vec<Level>,
    branches: Vec<Branch>,
    rules: Vec<Rule>,
    default: Option<Rule>,
    stars_are_exact: bool,
}

/// What stands side by side at one depth.
#[derive(Debug, Default)]
struct Level {
    /// Keys to `slots`.
    keys: Table,
    slots: Vec<Slot>,
    /// Descriptors with a pattern in the key.
    starred: Vec<Wild>,
}

/// The descriptors of one key.
#[derive(Debug)]
struct Slot {
    /// Values to branches.
    exact: Table,
    wild: Vec<Wild>,
    /// The branch of the bare key.
    bare: Option<u32>,
}

/// A descriptor with a pattern in its key or value.
#[derive(Debug)]
pub(super) struct Wild {
    /// Its place among its neighbours in the file: of two that match, the first wins.
    order: usize,
    /// `None` where the key is a slot's own.
    key: Option<Pattern>,
    value: Value,
    branch: u32,
}

/// What a value must be.
#[derive(Debug)]
enum Value {
    Any,
    Exact(Box<[u8]>),
    Pattern(Pattern),
}

/// One descriptor of the file.
#[derive(Debug)]
pub(super) struct Branch {
    rules: Range<usize>,
    /// The level below.
    level: Option<u32>,
    /// By depth: entries whose values share a counter. Empty where none does.
    shares: Box<[Option<Arc<Share>>]>,
    pub(super) at: At,
}

/// `share_threshold`: the rule's own key and value stand in the counter's key.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) key: Box<[u8]>,
    pub(super) value: Box<[u8]>,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hit<'r> {
    /// The rules at this depth, and which entries share a counter.
    Rules(&'r [Rule], &'r [Option<Arc<Share>>]),
    /// A descriptor that ends here and has no limit: what it matches is exempt.
    Exempt,
    /// The domain's default, for want of another.
    Default(&'r Rule),
    /// Nothing, and there is no default.
    Nothing,
}

/// Something that a look-up tried.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tried<'r> {
    /// Entry `usize`: a rule with exactly this key and value.
    Exact(usize, Option<&'r Branch>),
    /// Entry `usize`: a rule with a pattern in key or value.
    Pattern(usize, &'r Wild, &'r Branch, bool),
    /// Entry `usize`: a rule with this key alone.
    Bare(usize, Option<&'r Branch>),
    /// There are entries left from `usize` on, and no rules below.
    TooDeep(usize),
    /// All entries matched, and there is no limit at this depth; `bool`: what matched is exempt.
    NoLimit(&'r Branch, bool),
    /// All entries matched.
    Limit(&'r Rule),
    /// The domain's default.
    Default(Option<&'r Rule>),
}

impl Tree {
    /// Compiles descriptors of a domain, in the order of its files.
    ///
    /// `stars_are_exact`: a value that is a pattern's own text matches that pattern before any other, as in the reference
    /// (golden case `star-in-values-asked`). A client can so choose among patterns, which is why it is not our way.
    pub(super) fn new(descriptors: Vec<Descriptor>, default: Option<Rule>, stars_are_exact: bool) -> Self {
        let (levels, branches, rules) = (Vec::new(), Vec::new(), Vec::new());
        let mut tree = Self { levels, branches, rules, default, stars_are_exact };
        tree.add_level(descriptors, &[]);
        tree
    }

    /// What applies to a descriptor with these entries. Each thing that is tried is told to `tried`.
    #[inline]
    pub(super) fn find<'r>(&'r self, entries: &[Entry], tried: &mut impl FnMut(Tried<'r>)) -> Hit<'r> {
        match self.branch(entries, tried) {
            Some(branch) if !branch.rules.is_empty() => {
                let rules = &self.rules[branch.rules.clone()];
                rules.iter().for_each(|rule| tried(Tried::Limit(rule)));
                return Hit::Rules(rules, &branch.shares);
            }
            Some(branch) => {
                let exempt = branch.level.is_none();
                tried(Tried::NoLimit(branch, exempt));
                if exempt {
                    return Hit::Exempt;
                }
            }
            None => {}
        }
        tried(Tried::Default(self.default.as_ref()));
        self.default.as_ref().map_or(Hit::Nothing, Hit::Default)
    }

    #[inline]
    fn branch<'r>(&'r self, entries: &[Entry], tried: &mut impl FnMut(Tried<'r>)) -> Option<&'r Branch> {
        let (last, before) = entries.split_last()?;
        let mut level = self.levels.first()?;
        for (index, entry) in before.iter().enumerate() {
            let branch = self.step(level, index, entry, tried)?;
            let Some(below) = branch.level else {
                tried(Tried::TooDeep(index + 1));
                return None;
            };
            level = &self.levels[below as usize];
        }
        self.step(level, before.len(), last, tried)
    }

    /// One entry on one level: exact value, patterns in the order of the file, bare key.
    #[inline]
    fn step<'r>(
        &'r self,
        level: &'r Level,
        index: usize,
        entry: &Entry,
        tried: &mut impl FnMut(Tried<'r>),
    ) -> Option<&'r Branch> {
        let slot = level.keys.get(&entry.key).map(|slot| &level.slots[slot as usize]);
        let branch = |number: u32| &self.branches[number as usize];
        let exact = slot.and_then(|slot| slot.exact.get(&entry.value)).map(branch);
        tried(Tried::Exact(index, exact));
        if exact.is_some() {
            return exact;
        }
        let wild = slot.map_or(&[][..], |slot| &slot.wild);
        for wild in in_order(wild, &level.starred) {
            let matches = wild.matches(entry);
            tried(Tried::Pattern(index, wild, branch(wild.branch), matches));
            if matches {
                return Some(branch(wild.branch));
            }
        }
        let bare = slot.and_then(|slot| slot.bare).map(branch);
        tried(Tried::Bare(index, bare));
        bare
    }

    /// All rules, the default last.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().chain(&self.default)
    }
}

/// Two lists that are each in the order of the file, as one.
fn in_order<'r>(a: &'r [Wild], b: &'r [Wild]) -> impl Iterator<Item = &'r Wild> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if y.order < x.order => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}

// === compiling ===

impl Tree {
    /// Adds a level and all below it; its number.
    fn add_level(&mut self, descriptors: Vec<Descriptor>, above: &[Option<Arc<Share>>]) -> u32 {
        let number = self.levels.len();
        self.levels.push(Level::default());
        let mut keys = TableBuilder::default();
        let mut slots: Vec<SlotDraft> = Vec::new();
        let mut starred = Vec::new();
        let mut by_key = std::collections::HashMap::new();
        for (order, descriptor) in descriptors.into_iter().enumerate() {
            let (key, value) = (descriptor.key.clone(), descriptor.value.clone());
            let branch = self.add_branch(descriptor, above);
            let value = match (value.is_empty(), Pattern::new(value.as_bytes())) {
                (true, _) => Value::Any,
                (false, Some(pattern)) => Value::Pattern(pattern),
                (false, None) => Value::Exact(value.as_bytes().into()),
            };
            if let Some(key) = Pattern::new(key.as_bytes()) {
                starred.push(Wild { order, key: Some(key), value, branch });
                continue;
            }
            let slot = *by_key.entry(key.clone()).or_insert(slots.len());
            if slot == slots.len() {
                let fits = keys.push(key.as_bytes(), index(slot));
                assert!(fits, "a file is far smaller than a table may be");
                slots.push(SlotDraft::default());
            }
            slots[slot].add(order, value, branch, self.stars_are_exact);
        }
        let slots = slots.into_iter().map(SlotDraft::build).collect();
        self.levels[number] = Level { keys: keys.build().0, slots, starred };
        index(number)
    }

    fn add_branch(&mut self, descriptor: Descriptor, above: &[Option<Arc<Share>>]) -> u32 {
        let share = descriptor.share.then(|| {
            let (key, value) = (descriptor.key.as_bytes().into(), descriptor.value.as_bytes().into());
            Arc::new(Share { key, value })
        });
        let shares: Vec<_> = above.iter().cloned().chain([share]).collect();
        let first = self.rules.len();
        self.rules.extend(descriptor.rules);
        let rules = first..self.rules.len();
        let level = (!descriptor.below.is_empty()).then(|| self.add_level(descriptor.below, &shares));
        let shares = if shares.iter().any(Option::is_some) { shares.into() } else { Box::default() };
        self.branches.push(Branch { rules, level, shares, at: descriptor.at });
        index(self.branches.len() - 1)
    }
}

/// A slot in the making.
#[derive(Default)]
struct SlotDraft {
    exact: TableBuilder,
    wild: Vec<Wild>,
    bare: Option<u32>,
}

impl SlotDraft {
    fn add(&mut self, order: usize, value: Value, branch: u32, stars_are_exact: bool) {
        match value {
            Value::Any => self.bare = Some(branch),
            Value::Exact(value) => {
                let fits = self.exact.push(&value, branch);
                assert!(fits, "a file is far smaller than a table may be");
            }
            Value::Pattern(pattern) => {
                if stars_are_exact {
                    let fits = self.exact.push(pattern.text(), branch);
                    assert!(fits, "a file is far smaller than a table may be");
                }
                self.wild.push(Wild { order, key: None, value: Value::Pattern(pattern), branch });
            }
        }
    }

    fn build(self) -> Slot {
        Slot { exact: self.exact.build().0, wild: self.wild, bare: self.bare }
    }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).expect("files are bounded to fewer nodes than that")
}

impl Wild {
    fn matches(&self, entry: &Entry) -> bool {
        let value = match &self.value {
            Value::Any => true,
            Value::Exact(value) => **value == *entry.value,
            Value::Pattern(pattern) => pattern.matches(&entry.value),
        };
        value && self.key.as_ref().is_none_or(|key| key.matches(&entry.key))
    }

    /// As written, `None` for a part that is no pattern's.
    pub(super) fn written(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        let value = match &self.value {
            Value::Any => None,
            Value::Exact(value) => Some(&**value),
            Value::Pattern(pattern) => Some(pattern.text()),
        };
        (self.key.as_ref().map(Pattern::text), value)
    }
}
