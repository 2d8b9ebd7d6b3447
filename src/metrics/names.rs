//! Names that no client's value can break.

use std::sync::LazyLock;

use regex::Regex;

use crate::limit::Entry;

/// Stands in a name for all that there is no room for.
pub const OVERFLOW: &str = "__overflow__";

/// `key_value`, or the key alone.
pub(super) fn put_entry(name: &mut Vec<u8>, entry: &Entry) {
    name.extend_from_slice(&entry.key);
    if !entry.value.is_empty() {
        name.push(b'_');
        name.extend_from_slice(&entry.value);
    }
}

/// As [`clean`], and nothing in it looks like a tag, which begins with `.__`.
pub(super) fn untagged(name: &[u8]) -> String {
    clean(name).replace(".__", "._-")
}

pub(super) fn overflow(domain: Option<&[u8]>) -> String {
    match domain {
        Some(domain) => format!("{}.{OVERFLOW}", clean(domain)),
        None => format!("\n{OVERFLOW}"),
    }
}

/// A name that ends no line and no field: as in the reference `:` and `|` become `_`, and so do the dots of IPv4
/// addresses; and besides control characters and what is no UTF-8.
pub(super) fn clean(name: &[u8]) -> String {
    static IPV4: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}").expect("it is a regular expression")
    });
    let breaks = |c: char| matches!(c, ':' | '|' | char::REPLACEMENT_CHARACTER) || c.is_control();
    let name = String::from_utf8_lossy(name).replace(breaks, "_");
    let undotted = |found: &regex::Captures<'_>| found[0].replace('.', "_");
    IPV4.replace_all(&name, undotted).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(value: &[u8]) -> String {
        let mut name = b"d.".to_vec();
        put_entry(&mut name, &Entry { key: "k".into(), value: value.to_vec().into() });
        untagged(&name)
    }

    #[test]
    fn no_value_ends_a_line_or_a_field_or_begins_a_tag() {
        for (value, name) in [
            ("a:1|c", "d.k_a_1_c"),
            ("10.0.0.1:80", "d.k_10_0_0_1_80"),
            ("v1.2.3", "d.k_v1.2.3"),
            ("a\nb\r\0\u{7f}\u{85}", "d.k_a_b____"),
            ("x.__host=me", "d.k_x._-host=me"),
            ("grün", "d.k_grün"),
        ] {
            assert_eq!(named(value.as_bytes()), name, "{value:?}");
        }
        assert_eq!(named(b"\xffa"), "d.k__a");
    }
}
