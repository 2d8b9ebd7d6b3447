//! What to ask, as written on a command line.
//!
//! A descriptor is one argument: `tenant=acme,route=search`. A comma ends an entry, the first `=` ends its key. A key
//! without `=` has an empty value. Keys and values may be any bytes (that is what clients send), so a backslash takes
//! the next character as it is (`\,` `\=` `\\`), and `\xFF` is the byte with that number.

use std::{fmt, str::FromStr};

use bytes::Bytes;
use clap::Args;

use crate::{
    limit,
    proto::envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::RateLimitRequest,
    },
    rules::Unit,
};

/// The question of `call` and of `explain`.
#[derive(Args, Clone, Debug)]
pub(super) struct Ask {
    /// Which rules: the `domain` of a rule file and of Envoy's rate limit filter
    domain: String,

    /// What the request is about: key=value,key=value, as Envoy's rate limit actions make it. `\,` `\=` `\\` stand
    /// for themselves, `\xFF` for a byte; a key without `=` has an empty value
    #[arg(required = true, value_name = "DESCRIPTOR")]
    descriptors: Vec<Descriptor>,

    /// What the request costs, from 0 (only look) to 2^64-1 [default: 1]
    #[arg(long, value_name = "N")]
    hits: Option<u64>,

    /// Give the hits back instead of spending them
    #[arg(long)]
    refund: bool,

    /// A limit to bring along instead of the rule's, such as 10/minute
    #[arg(long, value_name = "N/UNIT")]
    limit: Option<Limit>,

    /// Answer in JSON, for programs
    #[arg(long)]
    pub(super) json: bool,
}

impl Ask {
    /// The request as Envoy would send it.
    pub(super) fn request(&self) -> RateLimitRequest {
        let limit = self.limit.map(|Limit(requests_per_unit, unit)| RateLimitOverride {
            requests_per_unit,
            // `Unit` has the numbers of the wire.
            unit: unit as i32,
        });
        let descriptors = self.descriptors.iter().map(|descriptor| RateLimitDescriptor {
            entries: descriptor.0.clone(),
            limit,
            hits_addend: self.hits,
            is_negative_hits: self.refund,
        });
        // The descriptors' own hits, since those of the request cannot be 0 or beyond 2^32-1.
        RateLimitRequest { domain: self.domain.clone(), descriptors: descriptors.collect(), hits_addend: 0 }
    }

    /// The cost in words.
    pub(super) fn cost(&self) -> String {
        match (self.hits.unwrap_or(1), self.refund) {
            (0, false) => "only looking".into(),
            (1, false) => "1 hit".into(),
            (hits, false) => format!("{hits} hits"),
            (1, true) => "giving back 1 hit".into(),
            (hits, true) => format!("giving back {hits} hits"),
        }
    }
}

/// Entries, in order. `Display` writes what `FromStr` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Descriptor(pub(super) Vec<Entry>);

impl Descriptor {
    /// From the limiter's entries.
    pub(super) fn of(entries: &[limit::Entry]) -> Self {
        let entry = |entry: &limit::Entry| Entry { key: entry.key.clone(), value: entry.value.clone() };
        Self(entries.iter().map(entry).collect())
    }
}

impl FromStr for Descriptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        let (mut key, mut text_of) = (None, Vec::new());
        let mut rest = text.chars();
        loop {
            match rest.next() {
                Some('\\') => escaped(&mut rest, &mut text_of)?,
                Some('=') if key.is_none() => key = Some(std::mem::take(&mut text_of)),
                end @ (None | Some(',')) => {
                    let last = std::mem::take(&mut text_of);
                    let (key, value) = match key.take() {
                        Some(key) => (key, last),
                        None => (last, Vec::new()),
                    };
                    if key.is_empty() {
                        let nth = entries.len() + 1;
                        return Err(format!(
                            "entry {nth} has no key: write key=value, and `\\,` for a comma that belongs to a value"
                        ));
                    }
                    entries.push(Entry { key: Bytes::from(key), value: Bytes::from(value) });
                    if end.is_none() {
                        return Ok(Self(entries));
                    }
                }
                Some(c) => text_of.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

fn escaped(rest: &mut std::str::Chars<'_>, into: &mut Vec<u8>) -> Result<(), String> {
    match rest.next() {
        Some('x') => {
            let digits: String = rest.by_ref().take(2).collect();
            let byte = (digits.len() == 2).then(|| u8::from_str_radix(&digits, 16).ok()).flatten();
            into.push(byte.ok_or("`\\x` needs two hexadecimal digits, as in `\\xFF`")?);
        }
        Some(c) => into.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => return Err("it ends with a backslash: write `\\\\` for a backslash itself".into()),
    }
    Ok(())
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{}={}", Escaped(&entry.key), Escaped(&entry.value))?;
        }
        Ok(())
    }
}

/// Bytes as a person can read and write them: no control characters, which would play with the terminal.
struct Escaped<'b>(&'b [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    ',' | '=' | '\\' => write!(f, "\\{c}")?,
                    c if c.is_control() => {
                        c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|b| write!(f, "\\x{b:02X}"))?;
                    }
                    c => write!(f, "{c}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|b| write!(f, "\\x{b:02X}"))?;
        }
        Ok(())
    }
}

/// A limit to bring along: requests and unit, such as `10/minute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(u32, Unit);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_once('/').ok_or("write it as 10/minute")?;
        let number = number.parse().map_err(|_| format!("`{number}` is no number from 0 to 4294967295"))?;
        let unit = match unit {
            "s" | "second" => Unit::Second,
            "m" | "minute" => Unit::Minute,
            "h" | "hour" => Unit::Hour,
            "d" | "day" => Unit::Day,
            "w" | "week" => Unit::Week,
            "month" => Unit::Month,
            "y" | "year" => Unit::Year,
            _ => return Err(format!("`{unit}` is none of second, minute, hour, day, week, month, year")),
        };
        Ok(Self(number, unit))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
        let text_of = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let Descriptor(entries) = text.parse()?;
        Ok(entries.iter().map(|entry| (text_of(&entry.key), text_of(&entry.value))).collect())
    }

    #[test]
    fn a_descriptor_reads_as_it_is_written() {
        for (text, entries) in [
            ("a=b", vec![("a", "b")]),
            ("a=b,c=d", vec![("a", "b"), ("c", "d")]),
            ("a", vec![("a", "")]),
            ("a=", vec![("a", "")]),
            ("a=b=c", vec![("a", "b=c")]),
            (r"a\=b=c\,d\\", vec![("a=b", r"c,d\")]),
            (r"a=\x2c\q", vec![("a", ",q")]),
            (" a = b ", vec![(" a ", " b ")]),
        ] {
            let entries = entries.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            assert_eq!(parse(text), Ok(entries), "{text}");
        }
    }

    #[test]
    fn a_descriptor_that_makes_no_sense_is_told_so() {
        for (text, why) in [
            ("", "entry 1 has no key"),
            ("=x", "entry 1 has no key"),
            ("a=b,", "entry 2 has no key"),
            ("a=b,,c=d", "entry 2 has no key"),
            ("a=\\", "it ends with a backslash"),
            ("a=\\x2", "two hexadecimal digits"),
            ("a=\\xzz", "two hexadecimal digits"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn a_limit_is_a_number_and_a_unit() {
        assert_eq!("10/minute".parse(), Ok(Limit(10, Unit::Minute)));
        assert_eq!("0/s".parse(), Ok(Limit(0, Unit::Second)));
        for (text, why) in
            [("10", "10/minute"), ("x/s", "no number"), ("4294967296/s", "no number"), ("1/q", "none of")]
        {
            let told = text.parse::<Limit>().unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_typed_again(entries in prop::collection::vec(any::<(Vec<u8>, Vec<u8>)>(), 1..4)) {
            let entries: Vec<Entry> = entries
                .into_iter()
                .map(|(mut key, value)| {
                    key.push(b'k');
                    Entry { key: key.into(), value: value.into() }
                })
                .collect();
            let shown = Descriptor(entries.clone()).to_string();
            prop_assert!(!shown.chars().any(char::is_control));
            prop_assert_eq!(shown.parse(), Ok(Descriptor(entries)));
        }
    }
}
