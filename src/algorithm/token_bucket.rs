//! The token bucket: `burst` tokens that come back continuously, `requests` in each window.
//!
//! The obvious bucket keeps a level as a float, or adds tokens once a second. The first drifts (a tenth is no double),
//! the second grants a whole second's tokens at once. Here the level is exact: whole tokens, and a part of the next one
//! as a numerator over the microseconds of the reduced rate. At 10 a second (1 token in 100,000 µs) a wait of 150,001 µs
//! is 1 token and 50,001/100,000 of another, so nothing is lost however often the bucket is looked at.
//!
//! A bucket may be overdrawn, through charges that count always. It then fills from below.
//!
//! When the rule changes, the level stays, and the part is taken over to the new denominator, rounded down.

use std::fmt;

use super::{Budget, arith::muldiv};
use crate::{
    clock::Micros,
    limit::{COUNT_MAX, Limit, WAIT_MAX_US},
};

/// A level, exact, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Whole tokens; below 0 when overdrawn, down to `-COUNT_MAX`.
    tokens: i64,
    /// Of the next token: `part / of`. 0 in a full bucket.
    part: u64,
    /// The microseconds of the reduced rate that `part` was counted with.
    of: u64,
    /// When that was the level.
    at: Micros,
}

impl Budget for TokenBucket {
    fn at(before: Option<Self>, limit: &Limit, now: Micros) -> Self {
        let (tokens, us) = limit.reduced();
        let mut bucket =
            before.unwrap_or(Self { tokens: i64::from(limit.burst()), part: 0, of: us, at: now });
        if bucket.of != us {
            bucket.part = muldiv(bucket.part, us, bucket.of).0;
            bucket.of = us;
        }
        if now > bucket.at {
            let (whole, part) = muldiv(now.0 - bucket.at.0, tokens, us);
            bucket.tokens += whole as i64;
            bucket.part += part;
            if bucket.part >= us {
                bucket.part -= us;
                bucket.tokens += 1;
            }
            bucket.at = now;
        }
        bucket.clamp(limit);
        bucket
    }

    fn left(&self, _: &Limit, _: Micros) -> i64 {
        self.tokens
    }

    fn take(&mut self, hits: u64, _: &Limit) {
        self.tokens = (self.tokens - hits as i64).max(-(COUNT_MAX as i64));
    }

    fn give(&mut self, hits: u64, limit: &Limit) {
        self.tokens += hits as i64;
        self.clamp(limit);
    }

    fn give_back(&mut self, hits: u64, since: Micros, limit: &Limit) -> bool {
        let (tokens, us) = limit.reduced();
        let (void, part) = muldiv(self.at.0.saturating_sub(since.0), tokens, us);
        if void >= hits {
            return false;
        }
        self.tokens += (hits - void) as i64;
        if part > self.part {
            self.tokens -= 1;
            self.part += us;
        }
        self.part -= part;
        self.clamp(limit);
        true
    }

    fn since(&self) -> Micros {
        self.at
    }

    fn until(&self, hits: u64, limit: &Limit, _: Micros) -> u64 {
        let missing = hits as i64 - self.tokens;
        if missing <= 0 {
            return 0;
        }
        // The smallest dt with dt·tokens >= missing·us - part.
        let (tokens, us) = limit.reduced();
        let (whole, rest) = muldiv(missing as u64, us, tokens);
        if whole == WAIT_MAX_US {
            return WAIT_MAX_US;
        }
        whole - self.part / tokens + u64::from(rest > self.part % tokens)
    }

    fn until_whole(&self, limit: &Limit, now: Micros) -> u64 {
        self.until(u64::from(limit.burst()), limit, now)
    }
}

impl TokenBucket {
    pub(super) fn of(tokens: i64, part: u64, of: u64, at: u64) -> Self {
        Self { tokens, part, of, at: Micros(at) }
    }

    pub(super) fn words(self) -> [u64; 4] {
        [self.at.0, self.tokens.cast_unsigned(), self.part, self.of]
    }

    pub(super) fn from_words([at, tokens, part, of]: [u64; 4]) -> Self {
        Self { tokens: tokens.cast_signed(), part, of, at: Micros(at) }
    }

    fn clamp(&mut self, limit: &Limit) {
        if self.tokens >= i64::from(limit.burst()) {
            self.tokens = i64::from(limit.burst());
            self.part = 0;
        }
    }
}

/// Its numbers, for a person.
impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b {} {} {} {}", self.tokens, self.part, self.of, self.at.0)
    }
}
