//! A map from bytes to numbers that never changes, for all look-ups by name: keys, values, routes, a million tenants.
//!
//! A hash map of boxed names costs two jumps into cold memory for each look-up among many (the slot, then the name), and
//! some 60 bytes a name. What never changes can be packed instead:
//!
//! ```text
//! starts  [ 0 | 61 | 99 | ...                      one for each group of about four names, 1 byte a name in all
//! bytes   [ tag length number name | tag length number name | ...   |  the next group ...
//! ```
//!
//! A look-up hashes the name, reads one of `starts` (a megabyte for a million names, so it mostly stays in a near cache)
//! and then walks one group, whose names lie side by side: about one jump into cold memory, whatever the number of names. A
//! byte of the hash (`tag`) and the length spare comparing most of the names that are not it. Names are compared in
//! full, so an unknown name never passes for a known one.
//!
//! A handful of names (the keys of most levels, the routes of most tiers) is one group, which is walked without hashing.
//!
//! The hash is seeded at random. Values come from clients, but only names from files are in the table, so no client can
//! make groups long; and a value longer than any name is answered without hashing it.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;

/// Names a group, on average: fewer cost more `starts`, more cost longer walks.
const GROUP: usize = 4;

/// Up to so many names are one group, which is walked sooner than a name is hashed.
const SMALL: usize = 16;

/// What precedes a name: tag, length, number.
const HEADER: usize = 6;

/// This length means: the real one follows in four bytes.
const LONG: u8 = u8::MAX;

/// Names and their numbers.
pub(super) struct Table {
    state: RandomState,
    /// Where each group begins in `bytes`, and where the last one ends.
    starts: Box<[u32]>,
    bytes: Box<[u8]>,
    names: usize,
    longest: usize,
}

/// Names and numbers that will be a table.
#[derive(Default)]
pub(super) struct TableBuilder {
    names: Vec<u8>,
    rows: Vec<Row>,
}

struct Row {
    /// Where the name ends in `names`; it begins where the one before ends.
    end: u32,
    number: u32,
}

/// Two rows of one name, by their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Twice {
    pub(super) first: usize,
    pub(super) second: usize,
}

impl Table {
    /// The number of a name.
    #[inline]
    pub(super) fn get(&self, name: &[u8]) -> Option<u32> {
        if name.len() > self.longest {
            return None;
        }
        let groups = self.starts.len() - 1;
        if groups == 1 {
            return find(&self.bytes, small_tag(name), name);
        }
        let hash = self.state.hash_one(name);
        let group = group_of(hash, groups);
        let bytes = &self.bytes[self.starts[group] as usize..self.starts[group + 1] as usize];
        find(bytes, tag_of(hash), name)
    }

    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.names
    }

    /// All names and numbers, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u32)> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (header, name, after) = entry(rest)?;
            rest = after;
            Some((name, number_of(header)))
        })
    }
}

impl Default for Table {
    fn default() -> Self {
        TableBuilder::default().build().0
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table of {} names, {} bytes", self.names, self.bytes.len() + 4 * self.starts.len())
    }
}

impl TableBuilder {
    /// Adds a name. `false` when there is no room: all names together are at most 2^32 bytes, headers included.
    pub(super) fn push(&mut self, name: &[u8], number: u32) -> bool {
        let headers = (self.rows.len() + 1) * (HEADER + 4);
        if self.names.len() + name.len() + headers > u32::MAX as usize {
            return false;
        }
        self.names.extend_from_slice(name);
        let end = u32::try_from(self.names.len()).expect("less than 2^32, as was just seen");
        self.rows.push(Row { end, number });
        true
    }

    /// The name of a row.
    pub(super) fn name(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.rows[row - 1].end as usize };
        &self.names[start..self.rows[row].end as usize]
    }

    /// How many names were added.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The number of a row.
    pub(super) fn number(&self, row: usize) -> u32 {
        self.rows[row].number
    }

    /// The table, and the first names that stand in it twice (of which the first number counts): at most `TWICE_MAX`.
    pub(super) fn build(&self) -> (Table, Vec<Twice>) {
        let state = RandomState::default();
        let groups = if self.rows.len() <= SMALL { 1 } else { self.rows.len() / GROUP };
        let hashes: Vec<u64> = (0..self.rows.len()).map(|row| state.hash_one(self.name(row))).collect();
        let tag = |row: usize| if groups == 1 { small_tag(self.name(row)) } else { tag_of(hashes[row]) };
        let mut starts = vec![0_u32; groups + 1];
        for (row, hash) in hashes.iter().enumerate() {
            starts[group_of(*hash, groups) + 1] += size_of_entry(self.name(row));
        }
        for group in 0..groups {
            starts[group + 1] += starts[group];
        }
        let mut bytes = vec![0; starts[groups] as usize];
        let mut ends = starts.clone();
        let mut twice = Vec::new();
        for (row, hash) in hashes.iter().enumerate() {
            let (group, name) = (group_of(*hash, groups), self.name(row));
            let (start, end) = (starts[group] as usize, ends[group] as usize);
            if twice.len() < TWICE_MAX && find(&bytes[start..end], tag(row), name).is_some() {
                twice.push(Twice { first: self.first_of(name), second: row });
            }
            write_entry(&mut bytes[end..], tag(row), name, self.rows[row].number);
            ends[group] += size_of_entry(name);
        }
        let longest = (0..self.rows.len()).map(|row| self.name(row).len()).max().unwrap_or(0);
        let table =
            Table { state, starts: starts.into(), bytes: bytes.into(), names: self.rows.len(), longest };
        (table, twice)
    }

    fn first_of(&self, name: &[u8]) -> usize {
        (0..self.rows.len()).find(|row| self.name(*row) == name).expect("it was found among them")
    }
}

/// How many names that stand twice are told: each costs a walk over all names.
const TWICE_MAX: usize = super::mistake::MISTAKES_MAX;

/// Spreads by the hash's high bits; the tag is of the low ones.
#[inline]
fn group_of(hash: u64, groups: usize) -> usize {
    ((u128::from(hash) * groups as u128) >> 64) as usize
}

/// The tag where there is no hash: names that begin alike often end differently.
#[inline]
fn small_tag(name: &[u8]) -> u8 {
    name.last().copied().unwrap_or(0)
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    hash.to_le_bytes()[0]
}

#[inline]
fn find(group: &[u8], tag: u8, name: &[u8]) -> Option<u32> {
    let mut rest = group;
    while let Some((header, found, after)) = entry(rest) {
        if header[0] == tag && found == name {
            return Some(number_of(header));
        }
        rest = after;
    }
    None
}

/// Takes one entry off the front: its header, its name and what follows.
#[inline]
fn entry(bytes: &[u8]) -> Option<(&[u8; HEADER], &[u8], &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let (length, rest) = match header[1] {
        LONG => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        length => (usize::from(length), rest),
    };
    let (name, rest) = rest.split_at_checked(length)?;
    Some((header, name, rest))
}

#[inline]
fn number_of(header: &[u8; HEADER]) -> u32 {
    u32::from_le_bytes([header[2], header[3], header[4], header[5]])
}

fn size_of_entry(name: &[u8]) -> u32 {
    let long = if name.len() >= usize::from(LONG) { 4 } else { 0 };
    u32::try_from(HEADER + long + name.len()).expect("bounded by `push`")
}

fn write_entry(to: &mut [u8], tag: u8, name: &[u8], number: u32) {
    let length = u8::try_from(name.len()).unwrap_or(LONG);
    to[..2].copy_from_slice(&[tag, length]);
    to[2..HEADER].copy_from_slice(&number.to_le_bytes());
    let mut at = HEADER;
    if length == LONG {
        let long = u32::try_from(name.len()).expect("bounded by `push`");
        to[at..at + 4].copy_from_slice(&long.to_le_bytes());
        at += 4;
    }
    to[at..at + name.len()].copy_from_slice(name);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn table(names: &[Vec<u8>]) -> Table {
        let mut builder = TableBuilder::default();
        for (number, name) in names.iter().enumerate() {
            assert!(builder.push(name, number as u32));
        }
        let (table, twice) = builder.build();
        assert_eq!(twice, []);
        table
    }

    #[test]
    fn names_of_any_length_are_found_on_both_sides_of_the_escape() {
        let names: Vec<Vec<u8>> = [0, 1, 253, 254, 255, 256, 70_000].map(|n| vec![b'x'; n]).into();
        let table = table(&names);
        for (number, name) in names.iter().enumerate() {
            assert_eq!(table.get(name), Some(number as u32), "{}", name.len());
        }
        assert_eq!(table.get(&[b'x'; 257]), None);
        assert_eq!(table.get(&[b'x'; 70_001]), None);
    }

    #[test]
    fn an_empty_table_knows_nothing() {
        assert_eq!(Table::default().get(b""), None);
        assert_eq!(Table::default().iter().count(), 0);
    }

    #[test]
    fn a_name_that_stands_twice_is_told_by_both_rows() {
        let mut builder = TableBuilder::default();
        for (number, name) in [b"a", b"b", b"a", b"c", b"a"].into_iter().enumerate() {
            builder.push(name, number as u32);
        }
        let (table, twice) = builder.build();
        assert_eq!(twice, [Twice { first: 0, second: 2 }, Twice { first: 0, second: 4 }]);
        assert_eq!(table.get(b"a"), Some(0));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_hash_map(
            names in proptest::collection::hash_set(proptest::collection::vec(any::<u8>(), 0..9), 0..200),
            asked in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 0..50),
        ) {
            let names: Vec<Vec<u8>> = names.into_iter().collect();
            let table = table(&names);
            let map: HashMap<&[u8], u32> = names.iter().zip(0..).map(|(name, n)| (&name[..], n)).collect();
            for name in names.iter().chain(&asked) {
                prop_assert_eq!(table.get(name), map.get(&name[..]).copied());
            }
            prop_assert_eq!(table.len(), map.len());
            prop_assert_eq!(table.iter().collect::<HashMap<_, _>>(), map);
        }
    }
}
