//! Names for metrics: a bounded set, since they come from rule files only.

use std::collections::HashMap;

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
