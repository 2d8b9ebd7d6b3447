//! What is said to `scripts/spend.lua`, and what it answers.
//!
//! One call carries many requests, since a call costs Redis and its client several times what a request in it does. No
//! Redis client is known here: a [`Call`] is keys and arguments, a [`Reply`] is a number and two texts. The protocol:
//!
//! ```text
//! KEYS     the distinct keys of all requests, or fewer of them or none where the server needs not be told
//! ARGV[1]  now in microseconds, or empty for the server's own time
//! ARGV[2]  an array of integers, as MessagePack: what is asked
//! ARGV[3]  from here on all distinct keys, unless all are in KEYS
//!
//! asked    the index of the first request, from 1
//!          the kinds of charges, seven integers each:
//!            algorithm (b g s f, r for a plain count in the reference's form), act (T D C L G), role (E S Q), as letters
//!            tokens, microseconds, burst (of buckets in lowest terms; of a plain count, the microseconds that it is kept
//!            for and those until its window ends)
//!            hits
//!            (G of what was taken: instead of a role, since it refuses nothing, 0 or less, which is minus its `since`)
//!          the requests in the order of their arrival, each
//!            of one charge    key (from 1), index of its kind, how many equal ones follow each other
//!            of several       0, how many, and for each: key, index of its kind
//!
//! reply    now
//!          a byte for each charge of the requests: how often it fitted, as if its request passed
//!          what each key held before, one behind the other: '-' for nothing; a state (src/algorithm/stored.rs), a plain
//!          count with a line's end; or '!' and why the key cannot be used, with a line's end
//! ```
//!
//! # Who works out what
//!
//! The script decides what fits and writes what is left. How much remains and when to come back follows from what was
//! read and when, by the same functions that the memory store runs: so it is worked out here, where there are more cores
//! than one, and [`Call::answers`] decides the requests over again. That both come to the same is held by
//! `tests/algorithms`, and checked in each reply: where it says that something else fitted, it is no reply of our script.
//!
//! # Who shares a fate
//!
//! Requests share a call and nothing else. A key that cannot be used, since it holds something else or has left the
//! server, fails the requests that name it, before anything is written; the others stand.

mod asked;

use crate::{
    algorithm::{Counter, State, decide},
    clock::Micros,
    limit::{Charge, Decision},
};
use asked::{Asked, Place, UNASKED};

/// The script's text, for SCRIPT LOAD and EVAL.
pub const SPEND: &str = include_str!("../../scripts/spend.lua");

/// Where a call says which keys it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// In ARGV. Redis lets a script use any key of its node so, of any slot.
    Undeclared,
    /// In KEYS, all of them. A cluster wants them to be of one slot then, and answers for all or none.
    Declared,
}

/// One call of the script for some requests. Its memory can be used for one after the other: see [`ask`](Self::ask).
#[derive(Debug)]
pub struct Call {
    asked: Asked,
    /// Where its keys are told.
    keys: Keys,
    /// ARGV[1] and ARGV[2], and where the second one begins.
    head: Vec<u8>,
    packed_at: usize,
}

/// What the script answers, as it stands in the reply.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'r> {
    /// The time that it decided by.
    pub now: i64,
    /// How often each entry fitted.
    pub fitted: &'r [u8],
    /// What the keys held.
    pub held: &'r [u8],
}

/// What comes of one request of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are decided, and a box is an allocation")]
pub enum Answer {
    /// It was decided.
    Decided(Decision),
    /// A key of it cannot be used, for a reason in the server's words. Nothing was written for it.
    Unusable(String),
}

/// Whether the reason why a key cannot be used is that it is not on this node, or no longer, or not alone.
pub fn is_not_here(why: &str) -> bool {
    why.contains("non local key")
}

/// Whether the reason is that the server lets a script use no keys but those that it is told before.
pub fn is_undeclared(why: &str) -> bool {
    why.contains("undeclared key") || why.contains("do not hash to the same slot")
}

/// The most bytes that the script says of one key, the line's end included: a reason with 200 bytes of the key and 60 of
/// what it holds, or 200 of the server's words; a state has 80.
const HELD_MAX: usize = 400;

impl Default for Call {
    /// Asks for nothing.
    fn default() -> Self {
        Self { asked: Asked::default(), keys: Keys::Undeclared, head: Vec::new(), packed_at: 0 }
    }
}

impl Call {
    /// Asks for these requests: see [`ask`](Self::ask).
    pub fn new<'c>(
        requests: impl IntoIterator<Item = &'c [Charge]>,
        keys: Keys,
        now: Option<Micros>,
    ) -> Self {
        let mut call = Self::default();
        call.ask(requests, keys, now);
        call
    }

    /// Asks for these requests and nothing else any more, each of some charges; they are decided one after the other. `now`
    /// is for tests; `None` takes the server's time.
    pub fn ask<'c>(
        &mut self,
        requests: impl IntoIterator<Item = &'c [Charge]>,
        keys: Keys,
        now: Option<Micros>,
    ) {
        self.asked.clear();
        requests.into_iter().for_each(|charges| self.asked.push(charges));
        self.keys = keys;
        self.head.clear();
        if let Some(now) = now {
            self.head.extend_from_slice(now.0.to_string().as_bytes());
        }
        self.packed_at = self.head.len();
        self.asked.pack(&mut self.head);
    }

    /// How many keys are in KEYS.
    pub fn keys_declared(&self) -> usize {
        if self.keys == Keys::Declared { self.asked.keys.len() } else { 0 }
    }

    /// All of KEYS and ARGV, one after the other.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> {
        let keys = || (0..self.asked.keys.len()).map(|index| self.asked.keys.get(index));
        let (now, asked) = self.head.split_at(self.packed_at);
        let (before, behind) = match self.keys {
            Keys::Declared => (Some(keys()), None),
            Keys::Undeclared => (None, Some(keys())),
        };
        before.into_iter().flatten().chain([now, asked]).chain(behind.into_iter().flatten())
    }

    /// How many they are.
    pub fn words_len(&self) -> usize {
        2 + self.asked.keys.len()
    }

    /// The most bytes that the texts of the script's reply can have.
    pub fn reply_max(&self) -> usize {
        self.asked.entries as usize + HELD_MAX * self.asked.keys.len()
    }

    /// What comes of the requests, in their order. They have to be those that the call was made of.
    ///
    /// `None` when the reply is none that the script would give to this call.
    pub fn answers<'c>(
        &self,
        requests: impl IntoIterator<Item = &'c [Charge]>,
        reply: Reply<'_>,
    ) -> Option<Vec<Answer>> {
        let now = Micros(u64::try_from(reply.now).ok()?);
        let mut counters = self.counters(reply.held)?;
        if reply.fitted.len() != self.asked.entries as usize {
            return None;
        }
        let mut fitted = vec![0_u8; reply.fitted.len()];
        let mut answers = Vec::new();
        let mut places = &self.asked.places[..];
        for charges in requests {
            let (own, others) = places.split_at_checked(charges.len())?;
            places = others;
            answers.push(match why_unusable(own, &counters) {
                Some(why) => Answer::Unusable(why.to_owned()),
                None => Answer::Decided(replay(now, charges, own, &mut counters, &mut fitted)),
            });
        }
        (places.is_empty() && fitted == reply.fitted).then_some(answers)
    }

    fn counters<'r>(&self, mut held: &'r [u8]) -> Option<Vec<Held<'r>>> {
        let distinct = self.asked.keys.len();
        let mut counters = Vec::with_capacity(distinct);
        for _ in 0..distinct {
            let first = *held.first()?;
            let line_end = || held.iter().position(|&byte| byte == b'\n');
            let (one, others) = match first {
                b'-' => held.split_at(1),
                b'!' | b'0'..=b'9' => held.split_at(line_end()?),
                _ => held.split_at_checked(State::stored_bytes(first)?)?,
            };
            counters.push(match one {
                b"-" => Held::Counter(Counter::new(None)),
                [b'!', why @ ..] => Held::Unusable(std::str::from_utf8(why).ok()?),
                state => Held::Counter(Counter::new(Some(State::parse(state)?))),
            });
            held = if matches!(first, b'!' | b'0'..=b'9') { &others[1..] } else { others };
        }
        held.is_empty().then_some(counters)
    }
}

/// What a key held, and later, what the requests so far have made of it.
#[derive(Debug)]
enum Held<'r> {
    Counter(Counter),
    Unusable(&'r str),
}

fn why_unusable<'r>(places: &[Place], counters: &[Held<'r>]) -> Option<&'r str> {
    places.iter().find_map(|place| match counters[place.key as usize] {
        _ if place.entry == UNASKED => Some("CORRUPT one key is asked for by two algorithms at once"),
        Held::Unusable(why) => Some(why),
        Held::Counter(_) => None,
    })
}

/// Decides one request as the script did.
fn replay(
    now: Micros,
    charges: &[Charge],
    places: &[Place],
    counters: &mut [Held<'_>],
    fitted: &mut [u8],
) -> Decision {
    let decision = match places {
        [place] => {
            let Held::Counter(counter) = &mut counters[place.key as usize] else {
                unreachable!("it is usable")
            };
            let decision = decide(now, charges, std::slice::from_mut(counter), |_| 0);
            *counter = counter.next();
            decision
        }
        _ => {
            // The distinct keys of the request, and of each charge which of them it is.
            let mut keys: Vec<u32> = places.iter().map(|place| place.key).collect();
            keys.sort_unstable();
            keys.dedup();
            let mut own: Vec<Counter> = keys.iter().map(|&key| counters[key as usize].counter()).collect();
            let decision = decide(now, charges, &mut own, |i| {
                keys.binary_search(&places[i].key).unwrap_or_else(|_| unreachable!("all keys are listed"))
            });
            for (key, counter) in keys.into_iter().zip(&own) {
                counters[key as usize] = Held::Counter(counter.next());
            }
            decision
        }
    };
    for (place, verdict) in places.iter().zip(&decision.verdicts) {
        let count = &mut fitted[place.entry as usize];
        *count = count.saturating_add(u8::from(verdict.fits));
    }
    decision
}

impl Held<'_> {
    fn counter(&self) -> Counter {
        let Self::Counter(counter) = self else { unreachable!("it is usable") };
        *counter
    }
}
