//! Deciding: the pure core that every store runs.
//!
//! A request names one or more charges, each a limit, the key of a counter and a cost. [`decide`] says for each whether
//! it fits, for all together whether the request is refused, and for each counter what to write. It takes the time and
//! the states as arguments; the memory store calls it under a lock, `scripts/spend.lua` does the same inside Redis, and
//! `tests/algorithms.rs` holds the two together to the last microsecond.
//!
//! A request is decided in two passes over working copies of its counters:
//!
//! 1. **As if it passed.** Each charge in order: what fits is spent, what does not is not, except that a charge may say
//!    what becomes of refused hits ([`OnRefusal`]). Two charges may name one counter (an override beside a rule); the later
//!    one sees what the earlier one spent, and each is judged by its own numbers.
//! 2. **As if it had not come**, only when the request is refused: from the original states again, just the hits that are
//!    spent in spite of a refusal. All else, refunds included, does not happen, so a refused request of charges that all
//!    say `Keep` writes nothing: neither values nor expiries move.
//!
//! A counter whose state equals a fresh one is deleted; any other expires when it would, or in Redis a little later. So an
//! idle counter costs nothing, and losing an expired one changes nothing.
//!
//! **Time never goes back.** After a failover to a server with a slow clock, or a step of a wall clock, now may be before
//! the time of a state. Such a state is judged as of its own time. Its expiry is a duration and needs no date, so what a
//! clock wrote that was years ahead for a moment is forgotten after its time to full, and not years later.
//!
//! **A limit of 0** blocks: nothing fits that wants a hit, no wait helps, and its counter is neither read nor written. So
//! a limit that was 0 for a while finds its counters as they were. Only a fixed window still counts what counts always, as
//! the reference does.

pub mod arith;
mod token_bucket;
mod gcra;
mod sliding_window;
mod fixed_window;
mod plain_count;
mod back;
mod stored;
mod words;

use std::fmt;

use smallvec::smallvec;

use crate::{
    clock::Micros,
    limit::{
        Algorithm, COUNT_MAX, Charge, Cost, Decision, Few, Limit, OnRefusal, Role, Verdict, WAIT_MAX_US,
    },
};
use arith::TIME_MAX_US;
use plain_count::PlainCount;

pub use back::giving_back;
pub(crate) use back::untaken;
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

/// What is remembered of a key. `Display` is for people; what stands in Redis is in `algorithm/stored.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types say it")]
pub enum State {
    TokenBucket(TokenBucket),
    Gcra(Gcra),
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    /// What was counted in the window that the key names.
    Plain(u64),
}

/// One counter of a request. Charges with equal keys share one.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    before: Option<State>,
    after: Option<State>,
    write: Write,
}

/// What a decision wants written to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Nothing: neither the value nor its expiry.
    Nothing,
    /// This state, for so many microseconds, at least 1: until it equals a fresh one, or as the reference keeps it.
    Put(State, u64),
    /// It equals a fresh one now.
    Delete,
}

impl Counter {
    /// `before` is what the store holds, `None` for a fresh counter.
    pub fn new(before: Option<State>) -> Self {
        Self { before, after: before, write: Write::Nothing }
    }

    /// What [`decide`] wants written.
    pub fn write(&self) -> Write {
        match self.write {
            Write::Delete if self.before.is_none() => Write::Nothing,
            write => write,
        }
    }

    /// The counter as the next request at the same moment finds it, once what is to be written was.
    #[must_use]
    pub fn next(&self) -> Self {
        Self::new(match self.write {
            Write::Nothing => self.before,
            Write::Put(state, _) => Some(state),
            Write::Delete => None,
        })
    }
}

/// Decides all charges of one request. `counter_of` says which of `counters` a charge spends from, by the charge's index;
/// charges share a counter exactly when their keys are equal.
///
/// Afterwards each counter knows what to [`Counter::write`].
pub fn decide(
    now: Micros,
    charges: &[Charge],
    counters: &mut [Counter],
    counter_of: impl Fn(usize) -> usize,
) -> Decision {
    let now = Micros(now.0.min(TIME_MAX_US));
    let mut verdicts = Few::with_capacity(charges.len());
    for (i, charge) in charges.iter().enumerate() {
        verdicts.push(judge(charge, &mut counters[counter_of(i)], now, Wish::of(charge)));
    }
    let refused = refuses(charges, &verdicts);
    // One charge alone needs no second pass: what it did was all that it does when it is refused.
    if refused && charges.len() > 1 {
        for counter in counters.iter_mut() {
            *counter = Counter::new(counter.before);
        }
        let together = hits_together(charges, counters.len(), &counter_of);
        for (i, (charge, verdict)) in charges.iter().zip(&mut verdicts).enumerate() {
            let Wish { act, hits, .. } = Wish::of(charge);
            let act = act.in_spite_of_refusal(verdict.fits);
            let wish = Wish { act, hits, together: together[counter_of(i)].max(hits) };
            let after = judge(charge, &mut counters[counter_of(i)], now, wish);
            *verdict = Verdict {
                fits: verdict.fits,
                retry_us: match (verdict.retry_us, after.retry_us) {
                    _ if verdict.fits => Some(0),
                    (Some(first), Some(second)) => Some(first.max(second)),
                    _ => None,
                },
                ..after
            };
        }
    }
    Decision { refused, verdicts }
}

/// For each counter, how many hits it has to hold for all charges that name it to fit one after the other. A client who
/// is told to come back when his first charge fits would be refused for the second.
pub(crate) fn hits_together(
    charges: &[Charge],
    counters: usize,
    counter_of: impl Fn(usize) -> usize,
) -> Few<u64> {
    let mut most: Few<u64> = smallvec![0; counters];
    let mut sums: Few<u64> = smallvec![0; counters];
    for (i, charge) in charges.iter().enumerate() {
        let (sum, most) = (&mut sums[counter_of(i)], &mut most[counter_of(i)]);
        let Wish { act, hits, .. } = Wish::of(charge);
        // What a refund gives may be lost in a full counter, so it pays for charges before it at most.
        let held = if act.gives() { sum.saturating_sub(hits) } else { (*sum + hits).min(COUNT_MAX) };
        *most = held.max(*most);
        if act != Act::Look {
            *sum = held;
        }
    }
    most
}

/// Whether the charges refuse the request together. Quotas do when there are some and none of them fits.
pub(crate) fn refuses(charges: &[Charge], verdicts: &[Verdict]) -> bool {
    let (mut quota, mut quota_fits) = (false, false);
    for (charge, verdict) in charges.iter().zip(verdicts) {
        match charge.role {
            Role::Enforce if !verdict.fits => return true,
            Role::Enforce | Role::Shadow => {}
            Role::Quota => {
                quota = true;
                quota_fits |= verdict.fits;
            }
        }
    }
    quota && !quota_fits
}

/// What a charge does to its counter, of what fits and of what does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Takes its hits, all or none.
    Take,
    /// Takes its hits, or what is left of them.
    Drain,
    /// Takes its hits, even beyond what is left.
    Count,
    /// Takes nothing.
    Look,
    /// Gives back, now.
    Give,
    /// Gives back what was taken, as of then.
    GiveBack(Micros),
}

/// What a charge asks of its counter.
#[derive(Clone, Copy, Debug)]
struct Wish {
    act: Act,
    hits: u64,
    /// Hits that have to fit before it is worth to ask again: its own, or those of the whole request.
    together: u64,
}

impl Wish {
    fn of(charge: &Charge) -> Self {
        let (act, hits) = Act::of(charge);
        Self { act, hits, together: hits }
    }
}

impl Act {
    /// The act of a charge and its hits, saturated.
    pub(crate) fn of(charge: &Charge) -> (Self, u64) {
        let (act, hits) = match (charge.cost, charge.on_refusal) {
            (Cost::Look(hits), _) => (Self::Look, hits),
            (Cost::Refund(hits), _) => (Self::Give, hits),
            (Cost::GiveBack { hits, since }, _) => (Self::GiveBack(since), hits),
            (Cost::Spend(hits), OnRefusal::Count) => (Self::Count, hits.get()),
            // Of a single hit that does not fit nothing is left to take.
            (Cost::Spend(hits), OnRefusal::Drain) if hits.get() > 1 => (Self::Drain, hits.get()),
            (Cost::Spend(hits), _) => (Self::Take, hits.get()),
        };
        (act, hits.min(COUNT_MAX))
    }

    fn gives(self) -> bool {
        matches!(self, Self::Give | Self::GiveBack(_))
    }

    /// What is left of it when the request is refused.
    fn in_spite_of_refusal(self, fits: bool) -> Self {
        match self {
            Self::Count => Self::Count,
            Self::Drain if !fits => Self::Drain,
            _ => Self::Look,
        }
    }
}

fn judge(charge: &Charge, counter: &mut Counter, now: Micros, wish: Wish) -> Verdict {
    let limit = &charge.limit;
    if limit.requests() == 0 && !counts_at_zero(limit, wish.act, wish.hits) {
        return blocked(charge, now, wish.act, wish.hits);
    }
    if let Some(window) = charge.key.plain() {
        let count = if let Some(State::Plain(count)) = counter.after { count } else { 0 };
        let before = Some(PlainCount { count: count.min(COUNT_MAX), window });
        return judge_by(limit, counter, before, |after| State::Plain(after.count), now, wish);
    }
    // The key names the algorithm, so a state of another kind can only come from a caller that mixes them up.
    match limit.algorithm() {
        Algorithm::TokenBucket => {
            let before = if let Some(State::TokenBucket(s)) = counter.after { Some(s) } else { None };
            judge_by(limit, counter, before, State::TokenBucket, now, wish)
        }
        Algorithm::Gcra => {
            let before = if let Some(State::Gcra(s)) = counter.after { Some(s) } else { None };
            judge_by(limit, counter, before, State::Gcra, now, wish)
        }
        Algorithm::SlidingWindow => {
            let before = if let Some(State::SlidingWindow(s)) = counter.after { Some(s) } else { None };
            judge_by(limit, counter, before, State::SlidingWindow, now, wish)
        }
        Algorithm::FixedWindow => {
            let before = if let Some(State::FixedWindow(s)) = counter.after { Some(s) } else { None };
            judge_by(limit, counter, before, State::FixedWindow, now, wish)
        }
    }
}

fn judge_by<B: Budget>(
    limit: &Limit,
    counter: &mut Counter,
    before: Option<B>,
    state: impl Fn(B) -> State,
    now: Micros,
    Wish { act, hits, together }: Wish,
) -> Verdict {
    let mut budget = B::at(before, limit, now);
    let left = budget.left(limit, now);
    let fits = act.gives() || hits as i64 <= left;
    let all_fit = act.gives() || together as i64 <= left;
    let taken = match act {
        Act::Take if fits => Some(hits),
        Act::Drain if left > 0 => Some(hits.min(left as u64)),
        Act::Count => Some(hits),
        Act::Take | Act::Drain | Act::Look | Act::Give | Act::GiveBack(_) => None,
    };
    if let Some(taken) = taken {
        budget.take(taken, limit);
    } else if act == Act::Give {
        budget.give(hits, limit);
    }
    let is_back = matches!(act, Act::GiveBack(since) if budget.give_back(hits, since, limit));
    let reset_us = budget.until_whole(limit, now);
    if taken.is_some() || act == Act::Give || is_back {
        counter.after = Some(state(budget));
        let put = Write::Put(state(budget), budget.kept(reset_us));
        counter.write = if reset_us == 0 { Write::Delete } else { put };
    }
    let left = budget.left(limit, now);
    let remaining = left.max(0) as u64;
    Verdict {
        fits,
        remaining,
        beyond: left.min(0).unsigned_abs(),
        reset_us,
        retry_us: match all_fit {
            true => Some(0),
            false if together > u64::from(limit.burst()) => None,
            false => Some(budget.until(together, limit, now)),
        },
        next_us: if reset_us == 0 { 0 } else { budget.until(remaining + 1, limit, now) },
        since: budget.since(),
    }
}

/// The reference counts at a limit of 0 too, so a look for no hits fits there as long as nothing was counted.
fn counts_at_zero(limit: &Limit, act: Act, hits: u64) -> bool {
    limit.algorithm() == Algorithm::FixedWindow && (act == Act::Count || (act == Act::Look && hits == 0))
}

/// A limit of 0: over whatever wants a hit, and no wait helps. Its window's end stands for the times that there are not.
fn blocked(charge: &Charge, now: Micros, act: Act, hits: u64) -> Verdict {
    let window_us = charge.limit.window_us();
    let end_us = charge.key.plain().map_or(window_us - now.0 % window_us, |plain| plain.ends_in_us.get());
    let fits = act.gives() || hits == 0;
    Verdict {
        fits,
        remaining: 0,
        beyond: 0,
        reset_us: end_us,
        retry_us: fits.then_some(0),
        next_us: end_us,
        since: Micros(0),
    }
}

/// A counter at a moment, under a limit that is not 0. Times are saturated at [`WAIT_MAX_US`], hits at [`COUNT_MAX`].
trait Budget: Copy {
    /// The state as of now, or of its own time if that is later, by the limit's numbers.
    fn at(before: Option<Self>, limit: &Limit, now: Micros) -> Self;
    /// How many hits fit at once; below 0 when overdrawn.
    fn left(&self, limit: &Limit, now: Micros) -> i64;
    /// Takes hits, overdrawing where they do not fit.
    fn take(&mut self, hits: u64, limit: &Limit);
    /// Gives hits back, up to full.
    fn give(&mut self, hits: u64, limit: &Limit);
    /// Gives back as much of these hits as is still missing because they were taken; see [`Cost::GiveBack`]. Whether any.
    fn give_back(&mut self, hits: u64, since: Micros, limit: &Limit) -> bool;
    /// The start of the window, or the moment of the level.
    fn since(&self) -> Micros;
    /// Microseconds until so many hits fit, at most the limit's burst.
    fn until(&self, hits: u64, limit: &Limit, now: Micros) -> u64;
    /// Microseconds until it equals a fresh one.
    fn until_whole(&self, limit: &Limit, now: Micros) -> u64;
    /// Microseconds that it is stored for, when it is whole after `reset_us`.
    fn kept(&self, reset_us: u64) -> u64 {
        reset_us
    }
}

/// The multiple of the window's length since the Unix epoch that now belongs to.
fn window_start(limit: &Limit, now: Micros) -> Micros {
    Micros(now.0 - now.0 % limit.window_us())
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenBucket(s) => s.fmt(f),
            Self::Gcra(s) => s.fmt(f),
            Self::SlidingWindow(s) => s.fmt(f),
            Self::FixedWindow(s) => s.fmt(f),
            Self::Plain(count) => count.fmt(f),
        }
    }
}

// Sums of a count and a wait stay far inside an i64, and inside what a double holds.
const _: () = assert!(COUNT_MAX + WAIT_MAX_US < 1 << 53);
