//! One request's way, on one screen: rules, keys, the store, the answer.
//!
//! The limiter knows no proto, no Redis and no HTTP. It is generic over the clock and the store.

use std::sync::Arc;

use crate::{
    limit::Entry,
    rules::{Rule, Unit},
    store::StoreError,
};

/// What a client asks, after decoding.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Chooses the rules.
    pub domain: bytes::Bytes,
    /// In the order of the request.
    pub descriptors: Vec<Descriptor>,
    /// The request's `hits_addend`; 0 means 1.
    pub hits: u32,
}

/// What a request is about.
#[derive(Clone, Debug, Default)]
pub struct Descriptor {
    /// In the order of the request.
    pub entries: Vec<Entry>,
    /// The descriptor's own `hits_addend`, which wins over the request's; 0 only looks.
    pub hits: Option<u64>,
    /// `is_negative_hits`: gives back.
    pub refund: bool,
    /// A limit that the caller brings along. The unit is the number on the wire: 0 and unknown ones are the caller's mistake.
    pub limit: Option<Override>,
}

/// A limit that the caller brings along.
#[derive(Clone, Copy, Debug)]
pub struct Override {
    /// `requests_per_unit`
    pub requests: u32,
    /// The number of Envoy's `RateLimitUnit`.
    pub unit: i32,
}

/// What is answered.
#[derive(Debug)]
pub struct Answer<'r> {
    /// The overall code is OVER_LIMIT.
    pub refused: bool,
    /// One for each descriptor, in the request's order.
    pub statuses: Vec<Status<'r>>,
    /// What the headers describe: the limit that refused, else the one nearest to refusing; `None` where nothing is limited.
    pub described: Option<Described<'r>>,
    /// For `Retry-After` when refused: until this very request would fit; `None` when it never will.
    pub retry_us: Option<u64>,
}

/// What is answered for one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'r> {
    /// The code is OVER_LIMIT.
    pub over: bool,
    /// `current_limit`: number, unit and the rule's own name.
    pub limit: Option<(u32, Unit, Option<&'r str>)>,
    /// `limit_remaining`, saturated at 2^32−1 (which is also what an unlimited rule says).
    pub remaining: u32,
    /// `duration_until_reset` in microseconds.
    pub reset_us: Option<u64>,
}

/// The one limit that headers describe.
#[derive(Clone, Copy, Debug)]
pub struct Described<'r> {
    /// The rule, or `None` for an override that no rule stands behind.
    pub rule: Option<&'r Rule>,
    /// The limit that was charged: the rule's own or an override.
    pub limit: crate::limit::Limit,
    /// Hits that are left.
    pub remaining: u64,
    /// Until the limit is whole again, in microseconds.
    pub reset_us: u64,
    /// Until one more hit is there; a window's end. Never beyond the answer's `retry_us`.
    pub next_us: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    /// The caller's mistake: INVALID_ARGUMENT.
    #[error("{0}")]
    Invalid(String),
    /// No rules were loaded yet: UNAVAILABLE.
    #[error("no rules are loaded yet")]
    NoRules,
    /// The store gave no answer and the rules say `error`: UNAVAILABLE, so that Envoy's own failure mode decides.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A rule set in force, with what belongs to it. Shared by all requests that began under it.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: Arc<crate::rules::RuleSet>,
}
