//! What is known of the parts of one split key, and what follows from it: which parts to ask, and what to tell of the whole.

use std::{
    num::NonZeroU8,
    time::{Duration, Instant},
};

use crate::{
    clock::Micros,
    key::SHARDS_MAX,
    limit::{Algorithm, Charge, Limit, Verdict, WAIT_MAX_US},
};

/// Parts of a key, from 0, and the hits that each is asked for. Never empty, and no part twice.
pub type Deal = Vec<(u8, u64)>;

/// For how long at most a question counts as under way.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// The parts of a key under one limit.
#[derive(Clone, Debug)]
pub struct Split {
    limit: Limit,
    of: NonZeroU8,
    parts: Box<[Part]>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    requests: u32,
    burst: u32,
    heard: Option<Heard>,
    /// Hits that were asked for since.
    under_way: u64,
}

/// What the store said.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// Hits left; below 0 when overdrawn.
    left: i64,
    reset_us: u64,
    next_us: u64,
    asked: Asked,
}

/// When a store was asked. Of two questions at one moment one is the earlier.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The moment.
    pub at: Instant,
    pub(super) order: u64,
}

impl Split {
    /// Nothing is known: all parts are taken for full. `None` where the key is not split.
    pub(super) fn new(charge: &Charge) -> Option<Self> {
        let (limit, of) = (charge.limit, charge.key.shards()?);
        let part = |index| {
            let (requests, burst) = limit.part_numbers(index, of);
            // A part without a rate grants nothing, and is none.
            let burst = if requests == 0 { 0 } else { burst };
            Part { requests, burst, heard: None, under_way: 0 }
        };
        let parts = (0..of.get()).map(part).collect();
        (limit.requests() > 0).then_some(Self { limit, of, parts })
    }

    pub(super) fn is_of(&self, charge: &Charge) -> bool {
        self.limit == charge.limit && charge.key.shards() == Some(self.of)
    }

    /// What is known of the same counters under other numbers. A window's count stays what it is; what a bucket, or a share
    /// of an earlier window, comes to is not worked out.
    pub(super) fn renumbered(&self, mut fresh: Self) -> Self {
        let same = self.of == fresh.of && self.limit.window_us() == fresh.limit.window_us();
        if same && [self.limit, fresh.limit].iter().all(|l| l.algorithm() == Algorithm::FixedWindow) {
            for (new, old) in fresh.parts.iter_mut().zip(&self.parts) {
                new.heard = old.heard.map(|heard| Heard {
                    left: heard.left + i64::from(new.burst) - i64::from(old.burst),
                    ..heard
                });
            }
        }
        fresh
    }

    /// Both know afterwards what one of them did.
    pub(super) fn join(&mut self, other: &mut Self) {
        for (one, other) in self.parts.iter_mut().zip(&mut other.parts) {
            let order = |part: &Part| part.heard.map(|heard| heard.asked.order);
            if order(one) < order(other) {
                *one = *other;
            } else if order(other) < order(one) {
                *other = *one;
            }
        }
    }

    /// The limit of a part.
    pub fn limit(&self, index: u8) -> Option<Limit> {
        self.limit.part(index, self.of)
    }

    /// What the store said of a part.
    pub fn hear(&mut self, index: u8, verdict: &Verdict, asked: Asked) {
        let part = &mut self.parts[usize::from(index)];
        if part.heard.is_none_or(|heard| heard.asked.order <= asked.order) {
            let left = verdict.remaining as i64 - verdict.beyond as i64;
            let (reset_us, next_us) = (verdict.reset_us, verdict.next_us);
            part.heard = Some(Heard { left, reset_us, next_us, asked });
            part.under_way = 0;
        }
    }

    pub(super) fn count_as_taken(&mut self, deal: &Deal) {
        for &(index, hits) in deal {
            let part = &mut self.parts[usize::from(index)];
            part.under_way = part.under_way.saturating_add(hits);
        }
    }

    /// How to take so many hits; where there are too few as far as is known, all of the part that has most.
    pub fn deal(&self, hits: u64, chance: u64, now: Instant) -> Deal {
        self.try_deal(hits, chance, now).unwrap_or_else(|| self.deal_too_few(hits, now))
    }

    /// All hits of the part that has most.
    pub fn deal_too_few(&self, hits: u64, now: Instant) -> Deal {
        let real = self.indices().filter(|index| self.part(*index).burst > 0);
        let most = real.max_by_key(|index| self.free(*index, now));
        vec![(most.unwrap_or(0), hits)]
    }

    /// How to take so many hits: of one part, or of several where no one has so many; `None` where there are too few.
    pub fn try_deal(&self, hits: u64, chance: u64, now: Instant) -> Option<Deal> {
        let mut free = [0; SHARDS_MAX as usize];
        self.indices().for_each(|index| free[usize::from(index)] = self.free(index, now));
        let free = |index: u8| free[usize::from(index)];
        let enough = |index: &u8| self.part(*index).burst > 0 && free(*index) >= hits;
        let number = self.indices().filter(enough).count() as u64;
        if number > 0 {
            let nth = |n: u64| self.indices().filter(enough).nth(n as usize);
            let (one, other) = (nth((chance & 0xffff_ffff) % number), nth((chance >> 32) % number));
            let most = one.into_iter().chain(other).max_by_key(|index| free(*index));
            return most.map(|index| vec![(index, hits)]);
        }
        self.dealt_out(hits, free)
    }

    /// How to give so many hits back: where most are missing.
    pub fn deal_back(&self, hits: u64, now: Instant) -> Deal {
        let missing = |index| {
            let part = self.part(index);
            (i64::from(part.burst) - part.left(&self.limit, now)).max(0).unsigned_abs()
        };
        let all = self.indices().map(missing).sum::<u64>().min(hits);
        let mut deal = self.dealt_out(all, missing).unwrap_or_default();
        // What is more than is missing is lost, as in one counter.
        match deal.first_mut() {
            Some(first) => first.1 += hits - all,
            None => deal.push((0, hits)),
        }
        deal
    }

    /// Of as few parts as can be.
    fn dealt_out(&self, hits: u64, of: impl Fn(u8) -> u64) -> Option<Deal> {
        let mut most: Deal = self.indices().map(|index| (index, of(index))).collect();
        most.sort_by_key(|(_, has)| std::cmp::Reverse(*has));
        let (mut wanted, mut deal) = (hits, Deal::new());
        for (index, has) in most.into_iter().filter(|(_, has)| *has > 0) {
            if wanted == 0 {
                break;
            }
            deal.push((index, has.min(wanted)));
            wanted -= has.min(wanted);
        }
        (wanted == 0 && !deal.is_empty()).then_some(deal)
    }

    /// The parts of which nothing was heard since `since`, but for those that are over until a time that has not come.
    pub fn unsure(&self, since: Asked, trust: Duration, now: Instant) -> impl Iterator<Item = u8> {
        let is_sure = move |heard: &Heard| {
            let age = now.saturating_duration_since(heard.asked.at);
            heard.asked.order >= since.order || (heard.left <= 0 && age < trust && us(age) < heard.next_us)
        };
        self.indices().filter(move |index| {
            let part = self.part(*index);
            part.burst > 0 && !part.heard.as_ref().is_some_and(is_sure)
        })
    }

    /// The parts that have some hits left, as far as is known.
    pub fn with_some_left(&self, now: Instant) -> impl Iterator<Item = u8> {
        self.indices().filter(move |index| self.part(*index).left(&self.limit, now) > 0)
    }

    /// Hits that are left of the whole limit, as far as is known; below 0 when overdrawn.
    pub fn left(&self, now: Instant) -> i64 {
        self.parts.iter().map(|part| part.left(&self.limit, now)).sum()
    }

    /// What to tell of the whole limit to a charge of so many hits.
    pub fn verdict(&self, fits: bool, hits: u64, now: Instant) -> Verdict {
        let left = self.left(now);
        let reset_us = self.parts.iter().map(|part| part.reset_us(now)).max().unwrap_or(0);
        let next_us = if left < 0 { self.until(1, reset_us, now) } else { self.next_us(now).min(reset_us) };
        let missing = i64::try_from(hits).unwrap_or(i64::MAX).saturating_sub(left);
        let retry_us = match missing {
            _ if fits => Some(0),
            _ if hits > u64::from(self.limit.burst()) => None,
            // Others were faster.
            ..=0 => Some(1),
            1 => Some(next_us),
            _ => Some(self.until(hits as i64, reset_us, now)),
        };
        Verdict {
            fits,
            remaining: left.max(0).unsigned_abs(),
            beyond: left.min(0).unsigned_abs(),
            reset_us,
            retry_us,
            next_us,
            // Of several servers' clocks.
            since: Micros(0),
        }
    }

    /// Until some part has one more hit; 0 when all are whole.
    fn next_us(&self, now: Instant) -> u64 {
        self.parts.iter().filter_map(|part| part.next_us(&self.limit, now)).min().unwrap_or(0)
    }

    /// Until so many hits are there, which is at the reset at the latest.
    fn until(&self, hits: i64, reset_us: u64, now: Instant) -> u64 {
        let (mut too_early, mut enough) = (0, reset_us.min(WAIT_MAX_US));
        while too_early + 1 < enough {
            let middle = too_early + (enough - too_early) / 2;
            if self.left(now + Duration::from_micros(middle)) >= hits {
                enough = middle;
            } else {
                too_early = middle;
            }
        }
        enough
    }

    fn free(&self, index: u8, now: Instant) -> u64 {
        let part = self.part(index);
        // What was asked for long ago is no more under way, though nothing was heard.
        let is_old =
            part.heard.is_some_and(|heard| now.saturating_duration_since(heard.asked.at) > UNDER_WAY);
        let under_way = if is_old { 0 } else { part.under_way };
        part.left(&self.limit, now).max(0).unsigned_abs().saturating_sub(under_way)
    }

    fn part(&self, index: u8) -> &Part {
        &self.parts[usize::from(index)]
    }

    fn indices(&self) -> std::ops::Range<u8> {
        0..self.of.get()
    }
}

impl Part {
    /// Hits left, as told and with what has come back since.
    fn left(&self, limit: &Limit, now: Instant) -> i64 {
        let burst = i64::from(self.burst);
        let Some((heard, since)) = self.not_whole(now) else { return burst };
        match since.checked_sub(heard.next_us) {
            None => heard.left,
            Some(later) => {
                let (hits, us) = self.comes_back(&heard, limit);
                let more = u128::from(later) * u128::from(hits) / u128::from(us.max(1));
                let more = i64::try_from(more).unwrap_or(i64::MAX);
                (heard.left.max(0) + 1).saturating_add(more).min(burst)
            }
        }
    }

    /// Until one more hit is there; `None` when it is whole.
    fn next_us(&self, limit: &Limit, now: Instant) -> Option<u64> {
        let (heard, since) = self.not_whole(now)?;
        let Some(later) = since.checked_sub(heard.next_us) else { return Some(heard.next_us - since) };
        let (hits, us) = self.comes_back(&heard, limit);
        let (hits, us) = (u128::from(hits.max(1)), u128::from(us));
        let next = ((u128::from(later) * hits / us.max(1) + 1) * us).div_ceil(hits);
        Some(u64::try_from(next).unwrap_or(u64::MAX).saturating_sub(later))
    }

    fn reset_us(&self, now: Instant) -> u64 {
        self.not_whole(now).map_or(0, |(heard, since)| heard.reset_us - since)
    }

    /// What was said, and how many microseconds ago, unless it is whole again.
    fn not_whole(&self, now: Instant) -> Option<(Heard, u64)> {
        let heard = self.heard?;
        let since = us(now.saturating_duration_since(heard.asked.at));
        (since < heard.reset_us).then_some((heard, since))
    }

    /// So many hits in so many microseconds, once the next one is there. What slides out of a window has come evenly, for
    /// all that is known.
    fn comes_back(&self, heard: &Heard, limit: &Limit) -> (u64, u64) {
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::Gcra => (self.requests.into(), limit.window_us()),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let missing = i64::from(self.burst) - heard.left.max(0) - 1;
                (missing.max(0).unsigned_abs(), heard.reset_us - heard.next_us.min(heard.reset_us))
            }
        }
    }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
