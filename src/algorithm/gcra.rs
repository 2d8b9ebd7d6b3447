//! The generic cell rate algorithm (ITU-T I.371): each hit moves a theoretical arrival time by the interval between two
//! hits, and a hit fits as long as that time is not further ahead of now than the burst allows.
//!
//! It grants what a token bucket grants; what it remembers is time owed instead of tokens left. So when the rule
//! changes, the debt in time stays: who has used up an hour's worth waits for that hour whatever an hour grants by then.
//!
//! The interval is `us/tokens` of the reduced rate and seldom whole (a third of a second; a tenth of a microsecond at 10
//! million a second), so times carry a remainder over `tokens`. The arrival time is kept as its distance from the last
//! write: a sum with a date would leave the integers that doubles hold.
//!
//! Its limit: a debt saturates at [`WAIT_MAX_US`]. A burst that takes more than those 142 years to come back is granted
//! once, and less often than its rate would allow after that, never more.

use std::fmt;

use super::{Budget, arith::muldiv};
use crate::{
    clock::Micros,
    limit::{Limit, WAIT_MAX_US},
};

/// How far the theoretical arrival time was ahead, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    /// Whole microseconds ahead, and the part of another.
    ahead: Span,
    /// What the part is counted in: the tokens of the reduced rate.
    of: u64,
    /// When it was so far ahead.
    at: Micros,
}

/// `us + part/of` microseconds; ordered as such. Saturated at `WAIT_MAX_US` without a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    us: u64,
    part: u64,
}

const ZERO: Span = Span { us: 0, part: 0 };

impl Gcra {
    pub(super) fn of(us: u64, part: u64, of: u64, at: u64) -> Self {
        Self { ahead: Span { us, part }, of, at: Micros(at) }
    }

    fn shorten(&mut self, by: Span) {
        if by >= self.ahead {
            self.ahead = ZERO;
            return;
        }
        let borrow = self.ahead.part < by.part;
        self.ahead.us -= by.us + u64::from(borrow);
        self.ahead.part = self.ahead.part + if borrow { self.of } else { 0 } - by.part;
    }

    pub(super) fn words(self) -> [u64; 4] {
        [self.at.0, self.ahead.us, self.ahead.part, self.of]
    }
}

impl Budget for Gcra {
    fn at(before: Option<Self>, limit: &Limit, now: Micros) -> Self {
        let of = limit.reduced().0;
        let mut gcra = before.unwrap_or(Self { ahead: ZERO, of, at: now });
        if gcra.of != of {
            gcra.ahead.part = muldiv(gcra.ahead.part, of, gcra.of).0;
            gcra.of = of;
        }
        if now > gcra.at {
            gcra.ahead = match gcra.ahead.us.checked_sub(now.0 - gcra.at.0) {
                Some(us) => Span { us, ..gcra.ahead },
                None => ZERO,
            };
            gcra.at = now;
        }
        gcra
    }

    fn left(&self, limit: &Limit, _: Micros) -> i64 {
        let most = time_of(u64::from(limit.burst()), limit);
        if self.ahead > most {
            return -1;
        }
        // Not the quotient below, since `most` may be saturated.
        if self.ahead == ZERO {
            return i64::from(limit.burst());
        }
        let (tokens, us) = limit.reduced();
        let borrow = most.part < self.ahead.part;
        let room_us = most.us - self.ahead.us - u64::from(borrow);
        let room_part = most.part + if borrow { tokens } else { 0 } - self.ahead.part;
        let (whole, rest) = muldiv(room_us, tokens, us);
        (whole + (rest + room_part) / us) as i64
    }

    fn take(&mut self, hits: u64, limit: &Limit) {
        let cost = time_of(hits, limit);
        let part = self.ahead.part + cost.part;
        let carry = part >= self.of;
        let us = self.ahead.us + cost.us + u64::from(carry);
        self.ahead = if us >= WAIT_MAX_US {
            Span { us: WAIT_MAX_US, part: 0 }
        } else {
            Span { us, part: if carry { part - self.of } else { part } }
        };
    }

    fn give(&mut self, hits: u64, limit: &Limit) {
        self.shorten(time_of(hits, limit));
    }

    fn give_back(&mut self, hits: u64, since: Micros, limit: &Limit) -> bool {
        let cost = time_of(hits, limit);
        let void = self.at.0.saturating_sub(since.0);
        let missing = cost.us.checked_sub(void).map(|us| Span { us, ..cost }).filter(|span| *span != ZERO);
        if let Some(missing) = missing {
            self.shorten(missing);
        }
        missing.is_some()
    }

    fn since(&self) -> Micros {
        self.at
    }

    fn until(&self, hits: u64, limit: &Limit, _: Micros) -> u64 {
        let (cost, most) = (time_of(hits, limit), time_of(u64::from(limit.burst()), limit));
        // ahead + cost - most, rounded up to a whole microsecond; the parts sum up to less than two.
        let us = (self.ahead.us + cost.us) as i64 - most.us as i64;
        let (parts, of) = ((self.ahead.part + cost.part) as i64 - most.part as i64, self.of as i64);
        let up = i64::from(parts > 0) + i64::from(parts > of);
        ((us + up).max(0) as u64).min(WAIT_MAX_US)
    }

    fn until_whole(&self, _: &Limit, _: Micros) -> u64 {
        self.ahead.us + u64::from(self.ahead.part > 0)
    }
}

/// How long the rate takes to grant so many hits.
fn time_of(hits: u64, limit: &Limit) -> Span {
    let (tokens, us) = limit.reduced();
    let (us, part) = muldiv(hits, us, tokens);
    Span { us, part }
}

/// Its numbers, for a person.
impl fmt::Display for Gcra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g {} {} {} {}", self.ahead.us, self.ahead.part, self.of, self.at.0)
    }
}
