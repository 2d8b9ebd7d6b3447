//! The headers of an answer: what clients read to know their limit and when to come back.
//!
//! One limit is described, which the limiter has chosen: the one that refused, else the one nearest to refusing. How it
//! is told is one convention a deployment ([`Numbers`]):
//!
//! | `LIMIT_HEADERS` | headers |
//! |---|---|
//! | `ietf` | `RateLimit-Policy: "NAME";q=20;w=1;burst=30` and `RateLimit: "NAME";r=7;t=2`, structured fields (RFC 9651) after draft-ietf-httpapi-ratelimit-headers-11 |
//! | `draft-03` | `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` in seconds from now |
//! | `x-ratelimit` | `x-ratelimit-limit`, `-remaining`, `-reset` in seconds since the Unix epoch |
//! | `none` | nothing, and no `Retry-After` |
//!
//! Times are whole seconds, rounded up: a client that comes back when it was told to is not refused once more for a
//! fraction. What the headers cannot say exactly they leave out: a window of half a second has no `w`, a limit that is
//! whole has no `t`, and a request that never fits has no `Retry-After`.
//!
//! The triple's limit is the most that can be left, a bucket's burst, so that `0 <= remaining <= limit` holds and
//! "reset" is when the two are equal again. For windows it is the number of the rule, as in the reference.

use std::fmt::Write;

use crate::{
    clock::Micros,
    limiter::{Answer, Described},
    settings::{Headers, Numbers, Reset, RetryAfter},
};

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const SF_INTEGER_MAX: u64 = 999_999_999_999_999;

/// What stands for the policy's name where a limit comes from the caller and no rule stands behind it.
const NAME_OF_OVERRIDES: &str = "override";

const SECOND_US: u64 = 1_000_000;

/// A header: name and value.
pub type Header = (String, String);

/// The headers of an answer that is given at `now`. `dice` is any number, from which the jitter of `Retry-After` is
/// drawn.
pub fn headers(answer: &Answer<'_>, style: &Headers, now: Micros, dice: u64) -> Vec<Header> {
    let mut out = Vec::new();
    // `headers: false` on a rule hides its numbers, not its Retry-After.
    let shown = answer.described.filter(|described| described.rule.is_none_or(|rule| rule.headers));
    if let Some(described) = shown {
        match &style.numbers {
            Numbers::Hidden => {}
            Numbers::Ietf => out.extend(ietf(&described)),
            Numbers::Triple { names, reset } => out.extend(triple(&described, names, *reset, now)),
        }
    }
    if let (true, Some(retry_us), RetryAfter::Shown { jitter }) =
        (answer.refused, answer.retry_us, style.retry_after)
    {
        let jitter_us = u64::try_from(jitter.as_micros()).unwrap_or(u64::MAX - 1);
        let wait_us = retry_us.saturating_add(dice % (jitter_us + 1));
        // At least 1: `Retry-After: 0` reads as an invitation.
        out.push(("Retry-After".to_owned(), seconds_up(wait_us).max(1).to_string()));
    }
    out
}

fn ietf(described: &Described<'_>) -> [Header; 2] {
    let name = described.rule.map_or(NAME_OF_OVERRIDES, |rule| &rule.policy);
    let limit = &described.limit;
    let mut policy = sf_string(name);
    put(&mut policy, "q", limit.requests().into());
    if limit.window_us().is_multiple_of(SECOND_US) {
        put(&mut policy, "w", limit.window_us() / SECOND_US);
    }
    if limit.burst() != limit.requests() {
        put(&mut policy, "burst", limit.burst().into());
    }
    let mut state = sf_string(name);
    put(&mut state, "r", described.remaining);
    if described.next_us > 0 {
        put(&mut state, "t", seconds_up(described.next_us));
    }
    [("RateLimit-Policy".to_owned(), policy), ("RateLimit".to_owned(), state)]
}

fn triple(described: &Described<'_>, names: &[String; 3], reset: Reset, now: Micros) -> [Header; 3] {
    let reset = match reset {
        Reset::Delta => seconds_up(described.reset_us),
        Reset::Epoch => seconds_up(now.0.saturating_add(described.reset_us)),
    };
    let [limit_name, remaining_name, reset_name] = names.clone();
    [
        (limit_name, described.limit.burst().to_string()),
        (remaining_name, described.remaining.to_string()),
        (reset_name, reset.to_string()),
    ]
}

fn put(field: &mut String, key: &str, value: u64) {
    // Writing to a String cannot fail.
    let _ = write!(field, ";{key}={}", value.min(SF_INTEGER_MAX));
}

fn seconds_up(us: u64) -> u64 {
    us.div_ceil(SECOND_US)
}

/// A structured field's String (RFC 9651, 4.1.6): printable ASCII, with `"` and `\` escaped. Rules hold their policy
/// names to that; whatever else got here becomes `?` rather than a header that no client can parse.
fn sf_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 32);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out.push('"');
    out
}
