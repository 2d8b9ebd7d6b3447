//! Names for metrics: a bounded set, since they come from rule files only; and what the reference makes of clients'
//! values in its own.

use std::collections::HashMap;

use crate::limit::Entry;

/// Domains and names of rules, each pair once.
#[derive(Debug, Default)]
pub(super) struct Labels {
    list: Vec<(Box<str>, Box<str>)>,
    known: HashMap<String, HashMap<String, u32>>,
}

impl Labels {
    /// The number of a name within a domain.
    pub(super) fn get(&mut self, domain: &str, name: &str) -> u32 {
        if let Some(number) = self.known.get(domain).and_then(|names| names.get(name)) {
            return *number;
        }
        let number = u32::try_from(self.list.len()).expect("files are bounded to fewer rules than that");
        self.list.push((domain.into(), name.into()));
        self.known.entry(domain.to_owned()).or_default().insert(name.to_owned(), number);
        number
    }

    /// All of them, by number.
    pub(super) fn into_list(self) -> Vec<(Box<str>, Box<str>)> {
        self.list
    }
}

/// One level of a path of descriptors, as far as the reference's names of metrics go.
#[derive(Clone, Debug)]
pub(super) struct Level {
    /// As the rule file has it: `key_value`, or the key alone.
    written: Box<str>,
    /// The key holds a `*`, so it says nothing about the entry's.
    starred: bool,
    share: bool,
    /// `value_to_metric`, where the file does not fix the value.
    valued: bool,
}

impl Level {
    pub(super) fn new(key: &str, value: &str, share: bool, valued: bool) -> Self {
        let underscore = if value.is_empty() { "" } else { "_" };
        let open = value.is_empty() || value.contains('*') || key.contains('*');
        Self {
            written: format!("{key}{underscore}{value}").into(),
            starred: key.contains('*'),
            share,
            valued: valued && open && !share,
        }
    }
}

/// How the reference names a rule where the name holds what clients send: `value_to_metric`, `detailed_metric`, and keys
/// with a `*`.
#[derive(Clone, Debug)]
pub struct Detail {
    levels: Box<[Part]>,
    /// Tells the limits of one descriptor apart.
    suffix: Box<str>,
}

#[derive(Clone, Debug)]
enum Part {
    /// As it stands.
    Text(Box<str>),
    /// The entry's key, and this.
    Key(Box<str>),
    /// The entry's key and its value, unless that is empty.
    Value,
    /// The entry's key and its value, whatever that is.
    Pair,
}

impl Detail {
    /// `None` where the name is the rule's own.
    pub(super) fn new(levels: &[Level], detailed: bool) -> Option<Self> {
        let shared = levels.iter().any(|level| level.share);
        let part = |level: &Level| match level {
            level if detailed && !level.share => {
                if shared {
                    Part::Value
                } else {
                    Part::Pair
                }
            }
            level if level.valued => Part::Value,
            level if level.starred => Part::Key(level.written.clone()),
            level => Part::Text(level.written.clone()),
        };
        let levels: Box<[Part]> = levels.iter().map(part).collect();
        let fixed = levels.iter().all(|part| matches!(part, Part::Text(_)));
        (!fixed).then(|| Self { levels, suffix: Box::default() })
    }

    pub(super) fn apart(&mut self, suffix: &str) {
        self.suffix = format!(":{suffix}").into();
    }

    /// The name for these entries, which the rule was found by.
    pub fn name(&self, domain: &[u8], entries: &[Entry]) -> Vec<u8> {
        let mut name = domain.to_vec();
        for (part, entry) in self.levels.iter().zip(entries) {
            name.push(b'.');
            match part {
                Part::Text(text) => name.extend_from_slice(text.as_bytes()),
                Part::Value if entry.value.is_empty() => name.extend_from_slice(&entry.key),
                Part::Key(text) => put(&mut name, &entry.key, text.as_bytes()),
                Part::Value | Part::Pair => put(&mut name, &entry.key, &entry.value),
            }
        }
        name.extend_from_slice(self.suffix.as_bytes());
        name
    }
}

fn put(name: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    name.extend_from_slice(key);
    name.push(b'_');
    name.extend_from_slice(value);
}
