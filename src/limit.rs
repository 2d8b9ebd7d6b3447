//! The words of rate limiting: what a rule grants, what a request costs, what came of it.
//!
//! All of it is plain data without a clock, a store or a wire format, so every layer speaks the same language.

use std::num::{NonZeroU8, NonZeroU64};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{clock::Micros, key::Key};

/// The longest window of a limit: ten years in microseconds, 2^48.2. The arithmetic of `scripts/` stays exact in
/// doubles for divisors below 2^49 (see `algorithm::arith`).
pub const WINDOW_MAX_US: u64 = 10 * 365 * 86_400 * 1_000_000;

/// Counts, costs and debts saturate here, below 2^49 as [`WINDOW_MAX_US`] is. No limit grants more than 2^32−1, so
/// a cost above this bound is refused all the same; only counters that count beyond full ever get near it.
pub const COUNT_MAX: u64 = (1 << 49) - 1;

/// Waits saturate here: 2^52 µs, 142 years.
pub const WAIT_MAX_US: u64 = 1 << 52;

/// Some of what a request has a few of: its charges, its verdicts. Four stand in place, more are allocated. Most requests
/// have one or two descriptors, of which each has a limit or two.
pub type Few<T> = SmallVec<[T; 4]>;

/// How hits are counted. See the design's table for the bound that each one keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A bucket of `burst` tokens that fills continuously.
    TokenBucket,
    /// The generic cell rate algorithm (ITU-T I.371): one theoretical arrival time.
    Gcra,
    /// The count of this window and a share of the last one.
    SlidingWindow,
    /// One counter for each window, aligned to the Unix epoch.
    FixedWindow,
}

impl Algorithm {
    /// As written in rule files, keys and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::Gcra => "gcra",
            Self::SlidingWindow => "sliding_window",
            Self::FixedWindow => "fixed_window",
        }
    }

    /// Whether the length of the window is part of a counter's identity. A bucket's level means the same at any rate;
    /// a window's count does not.
    pub fn has_window(self) -> bool {
        matches!(self, Self::SlidingWindow | Self::FixedWindow)
    }
}

/// What a rule grants: `requests` in each `window_us`, at most `burst` at once.
///
/// Invariants, held by [`Limit::new`]: `1 <= window_us <= WINDOW_MAX_US`; `burst` is 0 exactly when `requests` is 0
/// (nobody gets in), and equals `requests` for the two window algorithms, which know no burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    algorithm: Algorithm,
    requests: u32,
    window_us: NonZeroU64,
    burst: u32,
    /// `requests / window_us` in lowest terms, worked out once since every decision needs it.
    reduced: (u32, u64),
}

impl Limit {
    /// `burst: None` means `requests`.
    ///
    /// # Errors
    /// When the window is 0 or above [`WINDOW_MAX_US`], the burst is 0, or there is a burst beside a limit of 0 or on
    /// an algorithm that knows none.
    pub fn new(
        algorithm: Algorithm,
        requests: u32,
        window_us: u64,
        burst: Option<u32>,
    ) -> Result<Self, LimitError> {
        let window_us = NonZeroU64::new(window_us).ok_or(LimitError::WindowIsZero)?;
        if window_us.get() > WINDOW_MAX_US {
            return Err(LimitError::WindowTooLong);
        }
        match burst {
            Some(0) => Err(LimitError::BurstIsZero),
            Some(_) if algorithm.has_window() => Err(LimitError::BurstWithoutBucket(algorithm)),
            Some(_) if requests == 0 => Err(LimitError::BurstOfNothing),
            _ => {
                let common = gcd(window_us.get(), u64::from(requests));
                // The gcd divides `requests`, so the quotient is no larger than it.
                let reduced = ((u64::from(requests) / common) as u32, window_us.get() / common);
                Ok(Self { algorithm, requests, window_us, burst: burst.unwrap_or(requests), reduced })
            }
        }
    }

    /// How hits are counted.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// One of `of` parts, from 0, that it is split into as evenly as can be: they sum up to it exactly. `None` where it is
    /// too small to leave anything for this one.
    pub fn part(&self, index: u8, of: NonZeroU8) -> Option<Self> {
        let (requests, burst) = self.part_numbers(index, of);
        if requests == 0 {
            return None;
        }
        let burst = (!self.algorithm.has_window()).then_some(burst);
        Self::new(self.algorithm, requests, self.window_us(), burst).ok()
    }

    /// The requests and the burst of a part.
    pub(crate) fn part_numbers(&self, index: u8, of: NonZeroU8) -> (u32, u32) {
        let of = u32::from(of.get());
        let share = |whole: u32| whole / of + u32::from(u32::from(index) < whole % of);
        (share(self.requests), share(self.burst))
    }

    /// How many requests a window grants; 0 blocks.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The window's length in microseconds, from 1 to [`WINDOW_MAX_US`].
    pub fn window_us(&self) -> u64 {
        self.window_us.get()
    }

    /// The most that can be taken at once.
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// `requests` and `window_us` in lowest terms: 10 in a second are 1 in 100,000 µs. Remainders stay small so.
    pub fn reduced(&self) -> (u64, u64) {
        (u64::from(self.reduced.0), self.reduced.1)
    }
}

/// Euclid's. `a` is not 0; the gcd with 0 is `a`.
fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Why numbers make no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A window must last.
    #[error("a window of 0 grants nothing and never ends")]
    WindowIsZero,
    /// Beyond [`WINDOW_MAX_US`].
    #[error("a window is at most ten years")]
    WindowTooLong,
    /// A bucket must hold one request.
    #[error("a burst of 0 would refuse everything")]
    BurstIsZero,
    /// The window algorithms know no burst.
    #[error("{} knows no burst", .0.as_str())]
    BurstWithoutBucket(Algorithm),
    /// A limit of 0 blocks; a burst would contradict it.
    #[error("a limit of 0 blocks, so it can have no burst")]
    BurstOfNothing,
}

/// One pair of a descriptor. Keys and values are what the client sent, of any bytes and any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The entry's key, such as `user`.
    pub key: Bytes,
    /// The entry's value, such as `ann`.
    pub value: Bytes,
}

/// What a charge wants of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Takes this many hits, all or none.
    Spend(NonZeroU64),
    /// Asks whether this many would fit, and changes nothing. The design's look asks for 1; the reference's for 0,
    /// which fits as long as the limit is not exceeded.
    Look(u64),
    /// Gives this many back; stops at full and is never refused.
    Refund(u64),
    /// Gives back what was taken and not used, as if it had not been taken. It may come late: to a window that has ended
    /// it gives nothing, and to a bucket only what has not refilled in its place. Never refused, and asked for with
    /// [`Role::Shadow`]. See [`crate::algorithm::giving_back`].
    GiveBack {
        /// What was taken.
        hits: u64,
        /// By the store's clock: the start of the window that it was taken in; of a bucket, from when on it would have
        /// been full without that.
        since: Micros,
    },
}

impl Cost {
    /// Whether it gives rather than takes.
    pub fn gives(&self) -> bool {
        matches!(self, Self::Refund(_) | Self::GiveBack { .. })
    }
}

/// What a limit says in the answer to the whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Refuses the request when it is over.
    Enforce,
    /// Never refuses.
    Shadow,
    /// Refuses the request when it and all other quotas of the request are over.
    Quota,
}

/// What becomes of the hits of a charge when they, or the request, are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnRefusal {
    /// Nothing is spent: strictly all or nothing.
    Keep,
    /// As `Keep`, but a charge of several hits that does not fit uses up what its own limit had left.
    Drain,
    /// The hits are counted always, also beyond full and when another limit refuses.
    Count,
}

/// One thing to ask of a store: a limit, the key of its state, and what the request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Where the state lives.
    pub key: Key,
    /// What is granted.
    pub limit: Limit,
    /// What is wanted.
    pub cost: Cost,
    /// What it means for the request when it does not fit.
    pub role: Role,
    /// What is spent when it, or the request, is refused.
    pub on_refusal: OnRefusal,
}

/// What a store says of one charge. Times are durations from now in microseconds, saturated at [`WAIT_MAX_US`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the charge fitted (whatever its role). A refund always does.
    pub fits: bool,
    /// Hits that are left after the decision; 0 when overdrawn.
    pub remaining: u64,
    /// Hits that were counted beyond full, by charges that count always; 0 while some are left. GCRA keeps a time and
    /// says no more than 1.
    pub beyond: u64,
    /// Until the limit is whole again: a bucket's time to full, a window's end. 0 when it is whole.
    pub reset_us: u64,
    /// Until this charge would fit, when it did not, together with the request's others on its counter; `None` when it
    /// never will. 0 when it fitted.
    pub retry_us: Option<u64>,
    /// Until one more hit is there than `remaining`: a bucket's next token, a window's end. 0 when it is whole.
    pub next_us: u64,
    /// By the store's clock: the start of the window that was judged, or the moment of a bucket's level. 0 where that is
    /// not known, or where the key says it.
    pub since: Micros,
}

/// What a store says of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the charges refuse the request together.
    pub refused: bool,
    /// One for each charge, in order.
    pub verdicts: Few<Verdict>,
}
