//! Files in memory, entries and keys from short texts.

use std::collections::BTreeMap;

use bytes::Bytes;
use tollgate::{
    limit::Entry,
    rules::{Compiled, Dialect, Mistakes, RuleSet, compile},
};

/// The dialect of `TOLLGATE_COMPAT=reference`.
pub(crate) fn compat() -> Dialect {
    Dialect { compat: true, ..Dialect::default() }
}

/// Compiles files given as (name, text).
pub(crate) fn compile_files(files: &[(&str, &str)], dialect: Dialect) -> Result<Compiled, Mistakes> {
    let files: BTreeMap<String, Vec<u8>> =
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
    compile(&files, dialect)
}

/// Rules of one file, which must be without mistakes.
pub(crate) fn rules(text: &str) -> RuleSet {
    rules_of(&[("rules.yaml", text)])
}

/// Rules of several files, which must be without mistakes.
pub(crate) fn rules_of(files: &[(&str, &str)]) -> RuleSet {
    compile_files(files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}")).rules
}

/// What is wrong with one file, rendered.
pub(crate) fn mistakes(text: &str) -> String {
    let compiled = compile_files(&[("rules.yaml", text)], Dialect::default());
    compiled.map_or_else(|mistakes| mistakes.to_string(), |_| panic!("compiles: {text}"))
}

/// `user=ann,path=/x`
pub(crate) fn entries(text: &str) -> Vec<Entry> {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Entry { key: bytes(key), value: bytes(value) }
    };
    pairs.map(entry).collect()
}

/// The keys of the counters that a descriptor is charged, in order.
pub(crate) fn keys(rules: &RuleSet, domain: &str, descriptor: &str) -> Vec<String> {
    let entries = entries(descriptor);
    let found = rules.domain(domain.as_bytes()).unwrap().find(&entries);
    let key = |rule: &tollgate::rules::Rule| {
        let limit = rule.limit.as_ref()?;
        Some(found.key(domain.as_bytes(), &entries, rule, limit).to_string())
    };
    found.rules().filter_map(key).collect()
}

/// The numbers of the limits that a descriptor is charged: `5/60s`, in order.
pub(crate) fn limits(rules: &RuleSet, domain: &str, descriptor: &str) -> Vec<String> {
    let entries = entries(descriptor);
    let found = rules.domain(domain.as_bytes()).unwrap().find(&entries);
    let limit = |rule: &tollgate::rules::Rule| {
        let Some(limit) = rule.limit else { return "unlimited".to_owned() };
        format!("{}/{}s", limit.requests(), limit.window_us() / 1_000_000)
    };
    found.rules().map(limit).collect()
}
