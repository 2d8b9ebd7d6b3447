//! What is said to `scripts/spend.lua`, and what it answers.
//!
//! No Redis client is known here: a [`Call`] is keys and arguments, a reply is integers. The protocol:
//!
//! ```text
//! KEYS     the distinct keys of the request
//! ARGV[1]  now in microseconds, or empty for the server's own time
//! ARGV     then six for each charge:
//!            the index of its key, from 1
//!            three letters: algorithm (b g s f, r for a plain count in the reference's form), act (T D C L G), role (E S Q)
//!            tokens, microseconds, burst (of buckets in lowest terms; of a plain count, the microseconds that it is kept
//!            for and those until its window ends)
//!            hits
//! reply    0 or 1: refused; then five for each charge:
//!            fits, remaining (below 0 when overdrawn), reset_us, retry_us (-1 for never), next_us
//! ```
//!
//! A key that holds something else answers with an error that begins with `CORRUPT`, and nothing is written.

use std::{collections::HashMap, io::Write as _};

use bytes::Bytes;

use crate::{
    algorithm::Act,
    clock::Micros,
    limit::{Algorithm, Charge, Decision, Role, Verdict},
};

/// The script's text, for SCRIPT LOAD and EVAL.
pub const SPEND: &str = include_str!("../../scripts/spend.lua");

/// How many keys are told apart by comparing all of them; beyond, by a hash map.
const FEW_KEYS: usize = 8;

/// What a call of the script needs. Keys and arguments are slices of few allocations.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The distinct keys of the charges, in the order of their first use.
    pub keys: Vec<Bytes>,
    /// All of ARGV.
    pub args: Vec<Bytes>,
}

impl Call {
    /// All charges of one request. `now` is for tests; `None` takes the server's time.
    pub fn new(charges: &[Charge], now: Option<Micros>) -> Self {
        let mut keys = Keys::default();
        let mut text = Vec::with_capacity(16 + 48 * charges.len());
        let mut ends = Vec::with_capacity(1 + 6 * charges.len());
        if let Some(now) = now {
            put(&mut text, &mut ends, now.0);
        } else {
            ends.push(0);
        }
        for charge in charges {
            put(&mut text, &mut ends, keys.index(charge) as u64);
            let (act, hits) = Act::of(charge);
            text.extend_from_slice(&letters(charge, act));
            ends.push(text.len());
            let limit = &charge.limit;
            let requests = u64::from(limit.requests());
            let (tokens, us, burst) = match charge.key.plain() {
                Some(plain) => (requests, plain.kept_us.get(), plain.ends_in_us.get()),
                None if limit.algorithm().has_window() || requests == 0 => {
                    (requests, limit.window_us(), u64::from(limit.burst()))
                }
                None => (limit.reduced().0, limit.reduced().1, u64::from(limit.burst())),
            };
            for number in [tokens, us, burst, hits] {
                put(&mut text, &mut ends, number);
            }
        }
        let text = Bytes::from(text);
        let mut start = 0;
        let args = ends.into_iter().map(|end| text.slice(std::mem::replace(&mut start, end)..end)).collect();
        Self { keys: keys.all, args }
    }
}

/// The script's answer as a decision, or `None` when it is no answer of the script.
pub fn decode(reply: &[i64]) -> Option<Decision> {
    let (&refused, rest) = reply.split_first()?;
    let (verdicts, []) = rest.as_chunks::<5>() else { return None };
    let verdicts = verdicts
        .iter()
        .map(|&[fits, remaining, reset_us, retry_us, next_us]| {
            Some(Verdict {
                fits: flag(fits)?,
                remaining: remaining.max(0).unsigned_abs(),
                beyond: remaining.min(0).unsigned_abs(),
                reset_us: reset_us.try_into().ok()?,
                retry_us: if retry_us == -1 { None } else { Some(retry_us.try_into().ok()?) },
                next_us: next_us.try_into().ok()?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Decision { refused: flag(refused)?, verdicts })
}

fn flag(number: i64) -> Option<bool> {
    match number {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn put(text: &mut Vec<u8>, ends: &mut Vec<usize>, number: u64) {
    // Writing to a Vec cannot fail.
    let _ = write!(text, "{number}");
    ends.push(text.len());
}

fn letters(charge: &Charge, act: Act) -> [u8; 3] {
    let algorithm = match charge.limit.algorithm() {
        _ if charge.key.plain().is_some() => b'r',
        Algorithm::TokenBucket => b'b',
        Algorithm::Gcra => b'g',
        Algorithm::SlidingWindow => b's',
        Algorithm::FixedWindow => b'f',
    };
    let act = match act {
        Act::Take => b'T',
        Act::Drain => b'D',
        Act::Count => b'C',
        Act::Look => b'L',
        Act::Give => b'G',
    };
    let role = match charge.role {
        Role::Enforce => b'E',
        Role::Shadow => b'S',
        Role::Quota => b'Q',
    };
    [algorithm, act, role]
}

/// Numbers distinct keys from 1. Most requests have one or two, so a hash map waits until there are many.
#[derive(Default)]
struct Keys {
    all: Vec<Bytes>,
    many: HashMap<Bytes, usize>,
}

impl Keys {
    fn index(&mut self, charge: &Charge) -> usize {
        let key = charge.key.as_bytes();
        let known = if self.all.len() <= FEW_KEYS {
            self.all.iter().position(|k| k == key).map(|i| i + 1)
        } else {
            self.many.get(key).copied()
        };
        known.unwrap_or_else(|| {
            self.all.push(charge.key.to_bytes());
            let index = self.all.len();
            if index > FEW_KEYS {
                let new = self.many.len();
                self.many.extend(self.all.iter().cloned().zip(1..).skip(new));
            }
            index
        })
    }
}
