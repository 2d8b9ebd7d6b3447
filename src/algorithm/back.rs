//! What was taken and is not used: how to give it back, and what the answer reads meanwhile.
//!
//! Hits are taken for a request that another server refuses, or ahead of requests that do not come. A server that hangs
//! may give them back long after, when they are no longer missing. A refund would then lower the count of a window that they
//! are no part of, or fill a bucket twice, and more than the limit would pass. So [`Cost::GiveBack`] says what they were
//! taken from:
//!
//! - **A window** gets them back if it is the one that runs, or the one before, as far as a sliding window still weighs it.
//! - **A bucket** that is full refills no more. So from the moment on at which it would have been full without the take, each
//!   token that refills is one that is not missing any more, and what is given back shrinks at the limit's rate.
//!
//! Of windows that is exact in any order and however late. Of buckets it is as long as one take at a time is on its way
//! back; of several, each may have been taken from a bucket that had the others missing, so at most what they gave may
//! pass beyond the burst.

use super::{arith, arith::TIME_MAX_US};
use crate::{
    clock::Micros,
    limit::{COUNT_MAX, Cost, Limit, Verdict},
};

/// What gives back the hits that a charge with this verdict, and those before it on its key, have taken.
pub fn giving_back(limit: &Limit, verdict: &Verdict, hits: u64) -> Cost {
    let Micros(mut since) = verdict.since;
    if !limit.algorithm().has_window() && limit.requests() != 0 {
        let (tokens, us) = limit.reduced();
        let (whole, rest) = arith::muldiv(hits.min(COUNT_MAX), us, tokens);
        // Both are rounded up, so one is taken off: too early is safe.
        since += verdict.reset_us.saturating_sub(whole + u64::from(rest > 0) + 1);
    }
    Cost::GiveBack { hits, since: Micros(since.min(TIME_MAX_US)) }
}

/// What a verdict would read if these hits, which were taken, had not been (below 0: were given). Of a bucket exact to a
/// microsecond; a sliding window is said to be whole when its present hits are gone, though only older ones may be left.
pub(crate) fn untaken(limit: &Limit, verdict: Verdict, hits: i64) -> Verdict {
    let left = (verdict.remaining as i64 - verdict.beyond as i64 + hits).min(i64::from(limit.burst()));
    if hits == 0 || limit.requests() == 0 {
        return verdict;
    }
    let whole = left == i64::from(limit.burst());
    let (tokens, us) = limit.reduced();
    let earlier = if limit.algorithm().has_window() {
        0
    } else {
        arith::muldiv(hits.max(0).unsigned_abs(), us, tokens).0
    };
    Verdict {
        remaining: left.max(0).unsigned_abs(),
        beyond: left.min(0).unsigned_abs(),
        reset_us: if whole { 0 } else { verdict.reset_us.saturating_sub(earlier) },
        next_us: if whole { 0 } else { verdict.next_us },
        ..verdict
    }
}
