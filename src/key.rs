//! Keys: which counter a charge spends from.
//!
//! A key is made of what clients send, so nobody may be able to write a value that imitates another one's key, or one
//! that is as long as the client likes. And people read keys in `redis-cli` when they look for a tenant's counter. So:
//!
//! ```text
//! tg:{acme}:api:tenant=acme,route=search:token_bucket
//!    └ tag ┘└ domain, entries ──────────┘└ identity of the limit: algorithm, a window's length, never its numbers
//! ```
//!
//! - Every byte but letters, digits and `. _ - / @ + ~` is written as `%XX`. The separators `: , = { } # *` can
//!   therefore not come from a client, and the text is injective: two keys are equal only if their parts are.
//! - Where that text would be longer than [`READABLE_MAX`], `#` and 128 bits of BLAKE3 over the length-prefixed parts
//!   stand instead. A cryptographic hash, since clients choose the values: 2^64 tries for a collision, not 2^32.
//! - The hash tag is the tenant, where the rules name one: Redis Cluster hashes what stands in `{}` only, so all
//!   counters of a tenant share a slot and one request about a tenant is one atomic call. Without a tenant there is no
//!   tag, and keys spread over all shards.
//!
//! `CACHE_KEY_PREFIX` stands before all of it, and with `KEY_FORMAT=reference` fixed windows have other keys altogether: see
//! [`Format`]. A key that is split stands for several counters, with names of their own: see `key/part.rs`.

mod format;
mod part;
mod slot;

use std::{cmp::Ordering, hash, num::NonZeroU8};

use bytes::Bytes;
use smallvec::SmallVec;

pub use format::{Format, Jitter, Plain, REFERENCE_MAX};
pub use part::SHARDS_MAX;
pub use slot::{SLOTS, slot};

use crate::limit::Limit;

/// The longest text of domain and entries that is kept readable, in bytes.
pub const READABLE_MAX: usize = 160;

/// The longest tenant that is kept readable in the hash tag, in bytes.
pub const TAG_MAX: usize = 64;

/// Bytes of a key that stand in place; the text of a longer one is allocated. Nearly all are shorter: a domain, two
/// entries and a window's length are 60 or 80.
const IN_PLACE: usize = 104;

/// A key's bytes while it is written, and afterwards.
type Text = SmallVec<[u8; IN_PLACE]>;

/// The name of one counter: at most about 300 bytes, but for keys in the reference's form. Two are equal
/// when their texts are.
#[derive(Clone, Debug)]
pub struct Key {
    text: Text,
    /// A counter in the reference's form.
    plain: Option<Plain>,
    /// How many counters it is split into.
    shards: Option<NonZeroU8>,
}

impl Key {
    /// `parts` names the entries to the given writer; it is called a second time when the key has to be hashed. `name`
    /// tells apart further limits of one tenant (`daily`).
    pub fn new(
        tenant: Option<&[u8]>,
        domain: &[u8],
        parts: impl Fn(&mut Parts<'_>),
        name: Option<&str>,
        limit: &Limit,
    ) -> Self {
        let mut out = Text::new();
        out.extend_from_slice(b"tg:");
        if let Some(tenant) = tenant {
            out.push(b'{');
            if tenant.is_empty() {
                // `{}` is no tag: Redis Cluster would hash the whole key. No tenant's name reads like this.
                out.push(b'#');
            }
            if !escape(tenant, &mut out, 4 + TAG_MAX) {
                out.truncate(4);
                out.push(b'#');
                push_hash(&mut out, blake3::Hasher::new().update(tenant));
            }
            out.extend_from_slice(b"}:");
        }
        let start = out.len();
        let mut fits = true;
        let text = To::Text { out: &mut out, end: start + READABLE_MAX, fits: &mut fits };
        let mut readable = Parts { to: text, first: true };
        readable.text(domain);
        readable.raw(b":");
        parts(&mut readable);
        if !fits {
            out.truncate(start);
            out.push(b'#');
            let mut hasher = blake3::Hasher::new();
            let mut hashed = Parts { to: To::Hash(&mut hasher), first: true };
            hashed.text(domain);
            parts(&mut hashed);
            push_hash(&mut out, &hasher);
        }
        out.push(b':');
        if let Some(name) = name {
            escape(name.as_bytes(), &mut out, usize::MAX);
            out.push(b'.');
        }
        push_identity(&mut out, limit);
        Self { text: out, plain: None, shards: None }
    }

    /// The bytes as they stand in a store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The bytes as they stand in a store, to be shared.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.text)
    }

    /// A key from the text of one, for tests.
    #[doc(hidden)]
    pub fn from_text(text: &str) -> Self {
        Self { text: Text::from_slice(text.as_bytes()), plain: None, shards: None }
    }

    /// This name for a counter in the reference's form, for tests.
    #[doc(hidden)]
    pub fn with_plain(self, plain: Plain) -> Self {
        Self { plain: Some(plain), ..self }
    }

    /// This name for a key that is split into so many counters.
    #[must_use]
    pub fn in_shards(self, shards: Option<NonZeroU8>) -> Self {
        Self { shards, ..self }
    }

    /// How many counters it is split into; `None` for one that is a counter itself.
    pub fn shards(&self) -> Option<NonZeroU8> {
        self.shards
    }

    /// One of the counters that it is split into, from 0; itself where it is not split.
    #[must_use]
    pub fn shard(&self, index: u8) -> Self {
        let Some(of) = self.shards else { return self.clone() };
        Self { text: Text::from_vec(part::part(&self.text, index, of)), shards: None, ..*self }
    }

    /// What is known of a counter in the reference's form; `None` for one of our own.
    pub fn plain(&self) -> Option<Plain> {
        self.plain
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl hash::Hash for Key {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

/// For people: what is no text, and what a terminal would act upon, is escaped.
impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write;
        String::from_utf8_lossy(&self.text).chars().try_for_each(|c| match c.is_control() {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

/// Takes the entries of a key, in order.
pub struct Parts<'k> {
    to: To<'k>,
    first: bool,
}

enum To<'k> {
    Text { out: &'k mut Text, end: usize, fits: &'k mut bool },
    Hash(&'k mut blake3::Hasher),
}

impl Parts<'_> {
    /// An entry with the client's own value: each value has a counter of its own.
    pub fn entry(&mut self, key: &[u8], value: &[u8]) {
        self.pair(key, b"=", value);
    }

    /// An entry whose value is the rule's pattern: all values that fit it share a counter. No value of a client can
    /// look like this, for its `*` would be escaped.
    pub fn shared(&mut self, key: &[u8], pattern: &[u8]) {
        self.pair(key, b"=*", pattern);
    }

    fn pair(&mut self, key: &[u8], separator: &[u8], value: &[u8]) {
        if !std::mem::take(&mut self.first) {
            self.raw(b",");
        }
        self.text(key);
        self.raw(separator);
        if let To::Hash(hasher) = &mut self.to {
            // With its length, as texts are: a `*` could else be the first byte of the next length.
            length_prefixed(hasher, separator);
        }
        self.text(value);
    }

    fn text(&mut self, text: &[u8]) {
        match &mut self.to {
            To::Text { out, end, fits } => **fits = **fits && escape(text, out, *end),
            To::Hash(hasher) => length_prefixed(hasher, text),
        }
    }

    /// A separator, which only the readable form needs: lengths separate the hashed one.
    fn raw(&mut self, text: &[u8]) {
        match &mut self.to {
            To::Text { out, fits, .. } if **fits => out.extend_from_slice(text),
            To::Text { .. } | To::Hash(_) => {}
        }
    }
}

/// Which bytes stand in a key as they are.
const IS_KEPT: [bool; 256] = {
    let mut kept = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        kept[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/' | b'@' | b'+' | b'~');
        byte += 1;
    }
    kept
};

/// Appends `text` escaped, and tells whether `out` is within `end` bytes; gives up where it is not.
fn escape(text: &[u8], out: &mut Text, end: usize) -> bool {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if text.len() > end.saturating_sub(out.len()) {
        return false;
    }
    // What is no letter, digit or the like is rare, and copying a run of bytes far quicker than one after the other.
    for run in text.chunk_by(|&a, &b| IS_KEPT[usize::from(a)] && IS_KEPT[usize::from(b)]) {
        match run {
            &[byte] if !IS_KEPT[usize::from(byte)] => {
                out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            run => out.extend_from_slice(run),
        }
    }
    out.len() <= end
}

fn length_prefixed(hasher: &mut blake3::Hasher, text: &[u8]) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text);
}

fn push_hash(out: &mut Text, hasher: &blake3::Hasher) {
    let hex = hasher.finalize().to_hex();
    out.extend_from_slice(&hex.as_bytes()[..32]);
}

fn push_identity(out: &mut Text, limit: &Limit) {
    out.extend_from_slice(limit.algorithm().as_str().as_bytes());
    if limit.algorithm().has_window() {
        let us = limit.window_us();
        let (number, unit) = if us.is_multiple_of(1_000_000) { (us / 1_000_000, "s") } else { (us, "us") };
        out.push(b'/');
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        out.extend_from_slice(unit.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    fn limit() -> Limit {
        Limit::new(Algorithm::FixedWindow, 5, 60_000_000, None).unwrap()
    }

    fn key(domain: &[u8], entries: &[(&[u8], &[u8])]) -> Key {
        Key::new(None, domain, |p| entries.iter().for_each(|(k, v)| p.entry(k, v)), None, &limit())
    }

    #[test]
    fn people_can_read_a_short_key() {
        assert_eq!(
            key(b"shop.api", &[(b"user", b"ann")]).to_string(),
            "tg:shop.api:user=ann:fixed_window/60s"
        );
        let bucket = Limit::new(Algorithm::TokenBucket, 5, 500, None).unwrap();
        let named = Key::new(Some(b"acme"), b"api", |p| p.entry(b"tenant", b"acme"), Some("daily"), &bucket);
        assert_eq!(named.to_string(), "tg:{acme}:api:tenant=acme:daily.token_bucket");
    }

    #[test]
    fn no_value_can_imitate_another_key() {
        let hostile: Vec<Vec<u8>> = [
            &b"a"[..],
            b"a,b=c",
            b"a:fixed_window/60s",
            b"{a}",
            b"a\0",
            b"a\n",
            b"a%2C",
            b"",
            b"#",
            b"*a",
            b"a_b",
            b"a|b",
            b"\xff",
            b"\xc3\xbf",
        ]
        .iter()
        .map(|v| v.to_vec())
        .chain([vec![b'x'; 1 << 20], vec![b'x'; (1 << 20) + 1], vec![b'{'; 161], vec![b'x'; 150]])
        .collect();
        let mut seen = std::collections::BTreeSet::new();
        for a in &hostile {
            for b in &hostile {
                assert!(seen.insert(key(a, &[(b, b"v")])), "{a:?} {b:?}");
                assert!(seen.insert(key(b"d", &[(a, b)])), "{a:?} {b:?}");
                assert!(seen.insert(key(b"d", &[(b"k", a), (b"l", b)])), "{a:?} {b:?}");
            }
        }
        let shared = Key::new(None, b"d", |p| p.shared(b"k", b"a"), None, &limit());
        assert!(seen.insert(shared));
        assert!(seen.iter().all(|k| k.as_bytes().len() < 300 && k.as_bytes().is_ascii()));
    }

    #[test]
    fn no_value_of_a_hashed_key_imitates_a_pattern_and_the_entry_after_it() {
        let domain = [b'd'; 200];
        let apart = |p: &mut Parts<'_>| {
            p.shared(b"a*", b"");
            p.entry(b"k", &[b'v'; 23]);
        };
        // The bytes that a hash would be fed after `=*`, were it fed no length of that: 42 is both `*` and their number.
        let mut imitated = vec![0; 1];
        imitated.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, b'k', b'=', 23, 0, 0, 0, 0, 0, 0, 0]);
        imitated.extend_from_slice(&[b'v'; 23]);
        assert_eq!(imitated.len(), 42);
        let one = Key::new(None, &domain, apart, None, &limit());
        assert_ne!(one, key(&domain, &[(b"a*", &imitated)]));
    }

    #[test]
    fn the_hash_tag_is_the_tenant_whatever_he_is_called() {
        for tenant in [&b"acme"[..], b"{}", b"}", b"", &[b'y'; 10_000]] {
            let key = Key::new(Some(tenant), b"d", |p| p.entry(b"k", tenant), None, &limit()).to_string();
            assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
            assert!(!key.contains("{}"), "Redis Cluster takes no empty tag: {key}");
        }
    }

    #[test]
    fn a_long_key_is_hashed_on_the_other_side_of_the_edge_only() {
        // "d:k=" is four bytes of the readable text.
        assert!(!key(b"d", &[(b"k", &[b'x'; READABLE_MAX - 4])]).to_string().contains('#'));
        assert!(key(b"d", &[(b"k", &[b'x'; READABLE_MAX - 3])]).to_string().contains('#'));
    }
}
