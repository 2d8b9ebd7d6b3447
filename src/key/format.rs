//! How keys are written: the prefix, and the reference's form.
//!
//! While a deployment moves from envoyproxy/ratelimit to Tollgate, both answer for a while. Each with counters of its own
//! would grant every limit twice. So with `KEY_FORMAT=reference` the fixed windows of rules that both know live under the
//! reference's keys, as a plain number that its `INCRBY` and our script may change in turn:
//!
//! ```text
//! shop_user_ann_1767225600          42
//! └ prefix, domain, key, value, start of the window in seconds, joined by `_`
//! ```
//!
//! What follows from that form holds here too, as long as it is in use:
//!
//! - **Counters can collide.** Nothing is escaped: `(a, b_c)` and `(a_b, c)` are one counter, and so are an hour's and a
//!   day's in the first hour of the day, since the window's length is no part of the name.
//! - **The clock that counts is the asker's.** The window's start is in the key, so whoever asks decides it, and the
//!   store's clock has no say. Clocks that are a second apart disagree about a second at each window's end.
//! - **Keys are as long as clients' values**, up to [`REFERENCE_MAX`]; beyond it our own key stands, which is not shared.
//! - **A counter stays for a whole unit after its last hit**, and for up to `EXPIRATION_JITTER_MAX_SECONDS` more.

use std::{hash::BuildHasher, num::NonZeroU64};

use foldhash::quality::FixedState;

use super::{Key, Text};
use crate::{clock::Micros, limit::Limit};

/// The longest key in the reference's form, in bytes: more than Envoy lets all headers of a request be (60 KiB).
pub const REFERENCE_MAX: usize = 64 * 1024;

/// How keys are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// `CACHE_KEY_PREFIX`: stands before every key.
    pub prefix: String,
    /// `KEY_FORMAT=reference`, with the most that a counter's expiry is moved, in seconds.
    pub reference: Option<Jitter>,
}

/// `EXPIRATION_JITTER_MAX_SECONDS`: counters of one window expire spread over so many seconds. 0 is not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(pub u32);

/// A counter in the reference's form: the count alone is stored, for its window is named by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Microseconds until the window ends, by the clock of who asks.
    pub ends_in_us: NonZeroU64,
    /// Microseconds that the counter is kept for after a hit.
    pub kept_us: NonZeroU64,
}

impl Format {
    /// Our own keys without a prefix.
    pub const OWN: Self = Self { prefix: String::new(), reference: None };

    /// A key of our own, behind the prefix.
    pub fn own(&self, key: Key) -> Key {
        if self.prefix.is_empty() {
            return key;
        }
        let mut text = Text::from_slice(self.prefix.as_bytes());
        text.extend_from_slice(&key.text);
        Key { text, ..key }
    }

    /// The reference's key of a counter at a time, where keys are written so. `stem` is the key from the domain to the
    /// last `_`; `limit` is a fixed window of whole seconds.
    pub fn reference(&self, stem: &[u8], limit: &Limit, now: Micros) -> Option<Key> {
        let Jitter(jitter) = self.reference?;
        let elapsed_us = now.0 % limit.window_us();
        let start = (now.0 - elapsed_us) / 1_000_000;
        let mut text = Text::from_slice(self.prefix.as_bytes());
        text.extend_from_slice(stem);
        text.extend_from_slice(itoa::Buffer::new().format(start).as_bytes());
        if text.len() > REFERENCE_MAX {
            return None;
        }
        // Any spread over the keys will do, and one that is a key's own needs no dice.
        let spread = FixedState::default().hash_one(&text[..]).checked_rem(u64::from(jitter)).unwrap_or(0);
        let ends_in_us = NonZeroU64::new(limit.window_us() - elapsed_us)?;
        let kept_us = NonZeroU64::new(limit.window_us() + spread * 1_000_000)?;
        Some(Key { text, plain: Some(Plain { ends_in_us, kept_us }), shards: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    const NOW: Micros = Micros(1_767_225_661_500_000);

    fn minute() -> Limit {
        Limit::new(Algorithm::FixedWindow, 5, 60_000_000, None).unwrap()
    }

    fn written(jitter: u32, stem: &[u8]) -> Option<Key> {
        Format { prefix: "blue:".into(), reference: Some(Jitter(jitter)) }.reference(stem, &minute(), NOW)
    }

    #[test]
    fn a_key_of_the_reference_names_its_window_and_knows_when_it_ends() {
        let key = written(0, b"shop_user_ann_").unwrap();
        assert_eq!(key.as_bytes(), b"blue:shop_user_ann_1767225660");
        let plain = key.plain().unwrap();
        assert_eq!((plain.ends_in_us.get(), plain.kept_us.get()), (58_500_000, 60_000_000));
        assert_eq!(Format::OWN.reference(b"shop_user_ann_", &minute(), NOW), None);
    }

    #[test]
    fn expiries_are_spread_below_the_jitter_and_none_is_shorter() {
        let kept = |i: u32| written(300, format!("d_k_{i}_").as_bytes()).unwrap().plain().unwrap().kept_us;
        let all: std::collections::BTreeSet<u64> = (0..5000).map(|i| kept(i).get()).collect();
        assert_eq!(all.len(), 300);
        assert_eq!((all.first(), all.last()), (Some(&60_000_000), Some(&359_000_000)));
    }

    #[test]
    fn a_key_beyond_the_bound_is_not_the_references() {
        let room = REFERENCE_MAX - "blue:1767225660".len();
        assert!(written(0, &vec![b'x'; room]).is_some());
        assert!(written(0, &vec![b'x'; room + 1]).is_none());
    }

    #[test]
    fn a_prefix_stands_before_our_own_keys_and_control_characters_do_not_reach_a_terminal() {
        let format = Format { prefix: "blue:\u{1b}".into(), reference: None };
        let key = format.own(Key::from_text("tg:d"));
        assert_eq!(key.as_bytes(), b"blue:\x1btg:d");
        assert_eq!(key.to_string(), "blue:\\u{1b}tg:d");
    }
}
