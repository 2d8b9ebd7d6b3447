//! Names that stand twice in one map, and `<<`.
//!
//! YAML forbids the first and says of the second that what stands in the map itself wins. The reference's reader knows
//! neither rule: it takes a map in the order in which it is written, and of two equal names the later one counts, also
//! where the later one comes in by `<<` (golden cases `config-yaml-key-twice`, `config-anchors-and-merge-keys`). Rule files
//! that are in use are read so, and whoever wrote them is told, since neither can have been meant:
//!
//! ```yaml
//! rate_limit:
//!   requests_per_unit: 7      # of no effect
//!   <<: *small
//! ```
//!
//! Of two maps under `rate_limit` or `metadata`, the later one says only what it says: the rest is the earlier one's.

use std::collections::{HashMap, HashSet};

use super::{Broken, Kind, Node};

/// Where the reference's reader adds the later map to the earlier one.
const JOINED: [&str; 2] = ["rate_limit", "metadata"];

/// How many names are compared with each other; more are hashed.
const FEW: usize = 8;

/// A name that stands twice in one map, of which the later one counts.
#[derive(Debug)]
pub(in crate::rules) struct Repeat {
    /// The name that is doubtful: the later of two, or the one that does not override.
    pub(in crate::rules) at: Node,
    /// The line of the other one.
    pub(in crate::rules) other: u32,
    /// What happened.
    pub(in crate::rules) why: Why,
}

/// Why a name is doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) enum Why {
    /// It was written twice.
    Twice,
    /// It was written twice, and what the later one leaves out is the earlier one's.
    Joined,
    /// `<<` stands below it and brings another value.
    Overridden,
}

/// Where a pair came from.
#[derive(Clone, Copy)]
enum Origin {
    Written,
    /// Through `<<` in this line.
    Merged(u32),
}

/// Puts what `<<` points to into a map, and leaves one of equal names.
///
/// # Errors
/// When `<<` points to no map.
pub(super) fn settle(node: &mut Node, repeats: &mut Vec<Repeat>) -> Result<(), Broken> {
    let Kind::Mapping(pairs) = &mut node.kind else { return Ok(()) };
    if !pairs.iter().any(|(key, _)| is_merge(key)) && !has_repeats(pairs) {
        return Ok(());
    }
    let mut settled = Settled { pairs: Vec::new(), origins: Vec::new(), at: HashMap::new(), repeats };
    for (key, value) in std::mem::take(pairs) {
        if !is_merge(&key) {
            settled.put(key, value, Origin::Written);
            continue;
        }
        // Of several maps the first wins, so it comes last.
        for map in maps(value)?.into_iter().rev() {
            map.into_iter().for_each(|(name, value)| settled.put(name, value, Origin::Merged(key.line)));
        }
    }
    *pairs = settled.pairs;
    Ok(())
}

fn is_merge(key: &Node) -> bool {
    matches!(&key.kind, Kind::Scalar { text, plain: true } if **text == *"<<")
}

fn has_repeats(pairs: &[(Node, Node)]) -> bool {
    let mut names = pairs.iter().filter_map(|(key, _)| key.scalar());
    if pairs.len() > FEW {
        let mut seen = HashSet::with_capacity(pairs.len());
        return !names.all(|name| seen.insert(name));
    }
    let names: Vec<&str> = names.collect();
    (1..names.len()).any(|n| names[..n].contains(&names[n]))
}

type Pairs = Vec<(Node, Node)>;

/// What `<<` points to: a map, or a list of maps.
fn maps(value: Node) -> Result<Vec<Pairs>, Broken> {
    let (line, column) = (value.line, value.column);
    let items = match value.kind {
        Kind::Sequence(items) => items,
        _ => vec![value],
    };
    let map = |item: Node| match item.kind {
        Kind::Mapping(pairs) => Ok(pairs),
        Kind::Scalar { .. } | Kind::Sequence(_) => Err(Broken {
            line,
            column,
            message: "`<<` takes a map, or a list of maps".into(),
            help: "point it to one: `<<: *name`",
        }),
    };
    items.into_iter().map(map).collect()
}

/// A map without equal names, in the making.
struct Settled<'r> {
    pairs: Pairs,
    origins: Vec<Origin>,
    at: HashMap<Box<str>, usize>,
    repeats: &'r mut Vec<Repeat>,
}

impl Settled<'_> {
    fn put(&mut self, key: Node, mut value: Node, origin: Origin) {
        let known = key.scalar().and_then(|name| self.at.get(name).copied());
        let Some(at) = known else {
            if let Some(name) = key.scalar() {
                self.at.insert(name.into(), self.pairs.len());
            }
            self.pairs.push((key, value));
            self.origins.push(origin);
            return;
        };
        let (old_key, old) = &self.pairs[at];
        let joined = key.scalar().is_some_and(|name| JOINED.contains(&name)) && both_maps(old, &value);
        match (self.origins[at], origin) {
            (Origin::Written, Origin::Written) => {
                let why = if joined { Why::Joined } else { Why::Twice };
                self.repeats.push(Repeat { at: key.clone(), other: old_key.line, why });
            }
            (Origin::Written, Origin::Merged(other)) if !same(old, &value) => {
                self.repeats.push(Repeat { at: old_key.clone(), other, why: Why::Overridden });
            }
            _ => {}
        }
        if joined {
            join(old, &mut value);
        }
        self.pairs[at] = (key, value);
        self.origins[at] = origin;
    }
}

fn both_maps(a: &Node, b: &Node) -> bool {
    matches!((&a.kind, &b.kind), (Kind::Mapping(_), Kind::Mapping(_)))
}

/// Adds what only the earlier map says to the later one.
fn join(earlier: &Node, later: &mut Node) {
    let (Kind::Mapping(earlier), Kind::Mapping(later)) = (&earlier.kind, &mut later.kind) else { return };
    let says =
        |name: &Node| later.iter().any(|(key, _)| key.scalar().is_some() && key.scalar() == name.scalar());
    let missing: Pairs = earlier.iter().filter(|(key, _)| !says(key)).cloned().collect();
    later.extend(missing);
}

/// Whether two values say the same, wherever they stand.
fn same(a: &Node, b: &Node) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Scalar { text: a, plain: p }, Kind::Scalar { text: b, plain: q }) => a == b && p == q,
        (Kind::Sequence(a), Kind::Sequence(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Kind::Mapping(a), Kind::Mapping(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.0, &b.0) && same(&a.1, &b.1))
        }
        _ => false,
    }
}
