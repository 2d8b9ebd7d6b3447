//! `shards:` of a limit, in both forms: how many counters each of its keys is split into.

use std::num::NonZeroU8;

use super::{
    Unit,
    fields::{Fields, Reader},
    terms,
    yaml::Node,
};
use crate::{
    key::SHARDS_MAX,
    limit::{Algorithm, Limit},
};

/// A number from 1, which does not split and takes back what a tier says, to [`SHARDS_MAX`].
pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<NonZeroU8> {
    let node = fields.get("shards").filter(|node| !reader.is_null(node))?;
    let number = reader.number(node, "`shards`")?;
    let shards = u8::try_from(number).ok().filter(|number| *number <= SHARDS_MAX).and_then(NonZeroU8::new);
    if shards.is_none() {
        let message = format!("`shards` is 1 to {SHARDS_MAX}, and this is {number}");
        reader.mistake(node, message, "write into how many counters to split each key; 1 does not");
    }
    shards
}

/// What stands beside `shards`.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    pub(super) limit: Option<Limit>,
    pub(super) lease: Option<u32>,
    /// Whether envoyproxy/ratelimit could have such a rule.
    pub(super) of_the_reference: bool,
}

/// Into how many counters to split each key of a limit; `None` for one. `at` is to blame where it cannot be.
pub(super) fn of(
    reader: &mut Reader<'_>,
    shards: Option<NonZeroU8>,
    beside: Beside,
    at: &Node,
) -> Option<NonZeroU8> {
    let shards = shards.filter(|shards| shards.get() > 1)?;
    let limit = beside.limit.filter(|limit| limit.requests() > 0)?;
    let a_unit = Unit::ALL.iter().any(|unit| unit.window_us() == limit.window_us());
    let is_shared = reader.dialect.reference_keys && beside.of_the_reference && a_unit;
    let too_small = |of: &str, number: u32| {
        format!("a {of} of {number} cannot be split into {shards}: each part grants at least 1")
    };
    let fewer = "write fewer `shards` (1 does not split), or a larger number";
    let (message, help) = if reader.dialect.compat {
        let message = "TOLLGATE_COMPAT=reference counts the hits that it refuses, which a split limit cannot";
        (message.to_owned(), "take `shards` out")
    } else if is_shared && limit.algorithm() == Algorithm::FixedWindow {
        let message = "with KEY_FORMAT=reference this counter is envoyproxy/ratelimit's as well, which does not split it";
        (message.to_owned(), "take `shards` out, or choose another `algorithm` or `window`")
    } else if beside.lease.is_some_and(|lease| lease > 0) {
        let message =
            "`lease` beside `shards`: a leased key asks Redis so seldom that there is nothing to split";
        (message.to_owned(), "keep one of the two; `lease: 0` and `shards: 1` turn them off")
    } else if limit.requests() < u32::from(shards.get()) {
        (too_small("limit", limit.requests()), fewer)
    } else if limit.burst() < u32::from(shards.get()) {
        (too_small("burst", limit.burst()), fewer)
    } else if (0..shards.get())
        .filter_map(|index| limit.part(index, shards))
        .any(|part| terms::forgets_its_debt(&part))
    {
        let message =
            "a part of this burst takes more than 142 years to come back, which is all that gcra remembers";
        (message.to_owned(), "write a smaller one, or `algorithm: token_bucket`, which remembers tokens")
    } else {
        warn_of_rounding(reader, &limit, shards, at);
        return Some(shards);
    };
    reader.mistake(at, message, help);
    None
}

/// A sliding window rounds what it still counts of the last window up, in each part: see `split`.
fn warn_of_rounding(reader: &mut Reader<'_>, limit: &Limit, shards: NonZeroU8, at: &Node) {
    let lost = u64::from(shards.get());
    if limit.algorithm() == Algorithm::SlidingWindow && u64::from(limit.requests()) < 50 * lost {
        let message = format!(
            "each part of a sliding_window rounds up, so of {} in a window up to {lost} less may be granted",
            limit.requests()
        );
        reader.warn(at, message, "write fewer `shards`, or another `algorithm`");
    }
}
