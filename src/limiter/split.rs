//! Spending of split keys: see [`crate::split`] for what is promised.
//!
//! A request asks the store for all of its charges at once, all or nothing, as any other; for a split one, for a part of
//! it, or several. Where that was too little, the other parts are asked what they have left, the hits are dealt anew, and
//! the request is asked for again: nothing was spent, since it was refused. A limit on trial, or a quota beside one that
//! fits, does not refuse its request, so it is asked for again alone.
//!
//! What a charge takes of several parts has to stand or fall together, whatever its role: it is enforced, and asked for in
//! its own role again, of one part, where that has refused the request.
//!
//! What counts always is counted once, where most is left.

use std::{
    num::NonZeroU64,
    slice,
    time::{Duration, Instant},
};

use super::Limiter;
use crate::{
    algorithm::refuses,
    clock::Clock,
    key::SHARDS_MAX,
    limit::{Charge, Cost, Decision, Few, OnRefusal, Role, Verdict},
    split::{Asked, Deal, Split},
    store::{Store, StoreError},
};

/// How often a request is asked for at most, when others are faster each time.
const ROUNDS_MAX: usize = 4;

/// How many parts are looked at in one call at most: some hundred microseconds of a server's time.
const LOOKS_MAX: usize = 256;

const _: () = assert!(SHARDS_MAX as usize <= LOOKS_MAX, "all parts of one key go into one call");

/// One charge of a request.
struct Wish<'c> {
    charge: &'c Charge,
    /// `None` for one counter.
    split: Option<Split>,
    deal: Deal,
    /// It is enforced, since its parts stand or fall together.
    together: bool,
    /// What the store said at last; of a split one only whether all of it fitted.
    said: Option<Verdict>,
    /// It is asked for no more.
    settled: bool,
}

impl<C: Clock, S: Store> Limiter<C, S> {
    /// As the store's own `spend`, of charges some of which are split.
    pub(super) async fn spend_split(
        &self,
        charges: &[Charge],
        within: Duration,
    ) -> Result<Decision, StoreError> {
        let began = self.asked();
        let mut wishes: Vec<Wish<'_>> = charges.iter().map(|charge| self.wish(charge, began.at)).collect();
        if wishes.iter().any(Wish::gives_back) {
            self.look(&mut wishes, began, within).await?;
            let now = self.clock.instant();
            wishes.iter_mut().filter(|wish| wish.gives_back()).for_each(|wish| wish.deal_back(now));
        }
        let mut passed = false;
        for round in 1..=ROUNDS_MAX {
            let heard = self.ask_round(&mut wishes, began, within).await;
            match heard {
                Ok(refused) => passed = passed || !refused,
                // What has passed stays so, whatever becomes of limits on trial.
                Err(_) if passed => break,
                Err(error) => return Err(error),
            }
            wishes.iter_mut().for_each(|wish| wish.settle(passed));
            if !wishes.iter().any(Wish::lacks) {
                break;
            }
            match self.look(&mut wishes, began, within).await {
                Ok(()) => {}
                Err(_) if passed => break,
                Err(error) => return Err(error),
            }
            let is_last = round + 1 >= ROUNDS_MAX;
            if round == ROUNDS_MAX || !self.deal_again(&mut wishes, passed, is_last) {
                break;
            }
        }
        Ok(self.conclude(charges, wishes, passed, began, within).await)
    }

    fn wish<'c>(&self, charge: &'c Charge, now: Instant) -> Wish<'c> {
        let begun = self.splits.begin(charge, hits_of(charge), now);
        let (split, deal) = begun.unzip();
        let mut wish = Wish { charge, split, deal: Deal::new(), together: false, said: None, settled: false };
        wish.take_up(deal.unwrap_or_default());
        wish
    }

    /// Asks for all that is not settled. Whether the request was refused.
    async fn ask_round(
        &self,
        wishes: &mut [Wish<'_>],
        began: Asked,
        within: Duration,
    ) -> Result<bool, StoreError> {
        let charges: Vec<Charge> =
            wishes.iter().filter(|wish| !wish.settled).flat_map(Wish::charges).collect();
        let asked = self.asked();
        let decision = self.store.spend(&charges, self.left(within, began.at, asked.at)?).await?;
        let mut verdicts = decision.verdicts.iter();
        for wish in wishes.iter_mut().filter(|wish| !wish.settled) {
            wish.hear(&mut verdicts, asked);
            self.learn(wish);
        }
        Ok(decision.refused)
    }

    /// Asks what the parts have left of wishes that need to know it, a few wishes at a time, so that others get their turn
    /// in between. Once the request is refused for sure the rest is not looked at, but told from what is known.
    async fn look(&self, wishes: &mut [Wish<'_>], began: Asked, within: Duration) -> Result<(), StoreError> {
        let (trust, now) = (self.splits.trust(), self.clock.instant());
        let in_vain = wishes.iter().any(Wish::refuses_whole);
        let mut unsure: Vec<&mut Wish<'_>> = wishes.iter_mut().filter(|wish| wish.is_unsure()).collect();
        // Those that most likely refuse the request come first.
        unsure.sort_by_key(|wish| (wish.charge.role != Role::Enforce, wish.has_enough(now)));
        let mut later = &mut unsure[..];
        while !later.is_empty() {
            let asked = self.asked();
            let (mut looks, mut parts_of) = (Vec::new(), Vec::new());
            for wish in later.iter() {
                let parts = wish.unsure(began, trust, asked.at);
                if looks.len() + parts.len() > LOOKS_MAX {
                    break;
                }
                looks.extend(parts.iter().filter_map(|&part| wish.part(part, Cost::Look(0), Role::Shadow)));
                parts_of.push(parts);
            }
            let (few, rest) = later.split_at_mut(parts_of.len());
            later = rest;
            if looks.is_empty() {
                continue;
            }
            let decision = self.store.spend(&looks, self.left(within, began.at, asked.at)?).await?;
            let mut verdicts = decision.verdicts.iter();
            for (wish, parts) in few.iter_mut().zip(&parts_of) {
                if let Some(split) = &mut wish.split {
                    let heard = parts.iter().zip(&mut verdicts);
                    heard.for_each(|(&part, verdict)| split.hear(part, verdict, asked));
                }
                self.learn(wish);
            }
            let now = self.clock.instant();
            if in_vain || few.iter().any(|wish| wish.is_over(began, trust, now)) {
                break;
            }
        }
        Ok(())
    }

    /// # Errors
    /// When no time is left: who waits no more would be charged for an answer that nobody hears.
    fn left(&self, within: Duration, began: Instant, now: Instant) -> Result<Duration, StoreError> {
        let left = within.saturating_sub(now.duration_since(began));
        if left.is_zero() && !self.store.is_here() {
            let shard = "(not asked again, since the caller waits no longer)".to_owned();
            return Err(StoreError::Timeout { shard, after: within });
        }
        Ok(left)
    }

    fn asked(&self) -> Asked {
        self.splits.asked(self.clock.instant())
    }

    fn learn(&self, wish: &mut Wish<'_>) {
        if let Some(split) = &mut wish.split {
            self.splits.learn(wish.charge, split);
        }
    }

    /// Deals what lacks hits anew. Whether it is worth to ask again.
    fn deal_again(&self, wishes: &mut [Wish<'_>], passed: bool, is_last: bool) -> bool {
        let now = self.clock.instant();
        let (mut in_vain, mut worth) = (false, false);
        for wish in wishes.iter_mut() {
            let (enforced, was_together) = (wish.charge.role == Role::Enforce, wish.together);
            if !wish.lacks() {
                in_vain |= wish.refuses_whole();
                continue;
            }
            let enough = wish.deal_again(self.splits.chance(), is_last, now);
            in_vain |= enforced && !enough;
            worth |= was_together || (enough && (passed || wish.charge.role != Role::Shadow));
        }
        worth && (passed || !in_vain)
    }

    /// What is answered, and the last of what refused charges use up.
    async fn conclude(
        &self,
        charges: &[Charge],
        mut wishes: Vec<Wish<'_>>,
        passed: bool,
        began: Asked,
        within: Duration,
    ) -> Decision {
        let now = self.clock.instant();
        let told = |wishes: &[Wish<'_>], fits: &[bool]| -> Few<Verdict> {
            let now = self.clock.instant();
            wishes.iter().zip(fits).map(|(wish, fits)| wish.verdict(*fits, now)).collect()
        };
        // Who lacked hits that are there by now would have fitted, were it not for others.
        let would_fit = |wish: &Wish<'_>| !wish.refuses() || (!passed && wish.has_enough(now));
        let mut fits: Vec<bool> = wishes.iter().map(would_fit).collect();
        if !passed && !refuses(charges, &told(&wishes, &fits)) {
            // Or were faster each time.
            fits = wishes.iter().map(|wish| !wish.refuses()).collect();
        }
        for (wish, _) in wishes.iter_mut().zip(&fits).filter(|(wish, fits)| !**fits && wish.drains()) {
            self.drain(wish, began, within).await;
        }
        Decision { refused: !passed, verdicts: told(&wishes, &fits) }
    }

    /// A refused charge of several hits uses up what its limit had left. That it is refused is known already, so a store
    /// that does not answer any more changes nothing of that.
    async fn drain(&self, wish: &mut Wish<'_>, began: Asked, within: Duration) {
        let asked = self.asked();
        let Some(split) = &wish.split else { return };
        let parts: Vec<u8> = split.with_some_left(asked.at).collect();
        let drain = |&part: &u8| {
            let charge = wish.part(part, wish.charge.cost, Role::Shadow)?;
            Some(Charge { on_refusal: OnRefusal::Drain, ..charge })
        };
        let charges: Vec<Charge> = parts.iter().filter_map(drain).collect();
        if charges.is_empty() {
            return;
        }
        let Ok(left) = self.left(within, began.at, asked.at) else { return };
        let Ok(decision) = self.store.spend(&charges, left).await else { return };
        if let Some(split) = &mut wish.split {
            let drained = parts.iter().zip(&decision.verdicts);
            drained.for_each(|(&part, verdict)| split.hear(part, verdict, asked));
        }
        self.learn(wish);
    }
}

impl Wish<'_> {
    fn gives_back(&self) -> bool {
        self.split.is_some() && self.charge.cost.gives()
    }

    fn drains(&self) -> bool {
        self.split.is_some()
            && self.charge.on_refusal == OnRefusal::Drain
            && matches!(self.charge.cost, Cost::Spend(hits) if hits.get() > 1)
    }

    fn counts_always(&self) -> bool {
        self.charge.on_refusal == OnRefusal::Count && matches!(self.charge.cost, Cost::Spend(_))
    }

    /// Whether it did not fit, by what the store has said at last.
    fn refuses(&self) -> bool {
        self.said.is_some_and(|said| !said.fits)
    }

    /// One counter that refuses its request does so again.
    fn refuses_whole(&self) -> bool {
        self.split.is_none() && self.charge.role == Role::Enforce && self.refuses()
    }

    /// Whether its parts have what it wants, as far as is known.
    fn has_enough(&self, now: Instant) -> bool {
        self.split.as_ref().is_some_and(|split| split.try_deal(hits_of(self.charge), 0, now).is_some())
    }

    /// Whether other parts may have what it wants.
    fn lacks(&self) -> bool {
        !self.settled && self.split.is_some() && self.refuses()
    }

    /// Whether it depends on what other parts have left.
    fn is_unsure(&self) -> bool {
        self.lacks() || (self.gives_back() && self.said.is_none())
    }

    /// It wants more than its limit ever has, whatever is left.
    fn never_fits(&self) -> bool {
        !self.charge.cost.gives() && hits_of(self.charge) > u64::from(self.charge.limit.burst())
    }

    /// The parts to look at. What never fits needs none, but where it uses up what is left.
    fn unsure(&self, began: Asked, trust: Duration, now: Instant) -> Vec<u8> {
        match &self.split {
            Some(split) if !self.never_fits() || self.drains() => split.unsure(began, trust, now).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether it refuses the request for sure: all of its parts have said what they have, and it is too little.
    fn is_over(&self, began: Asked, trust: Duration, now: Instant) -> bool {
        let all_said = || self.unsure(began, trust, now).is_empty() && !self.has_enough(now);
        self.charge.role == Role::Enforce && self.lacks() && (self.never_fits() || all_said())
    }

    /// What fits in a request that has passed is done, and what counts always is so at once.
    fn settle(&mut self, passed: bool) {
        let done = passed && (self.split.is_none() || !self.refuses());
        self.settled |= done || self.counts_always();
    }

    fn take_up(&mut self, deal: Deal) {
        let enforced = self.charge.role == Role::Enforce || self.counts_always() || self.gives_back();
        self.together = deal.len() > 1 && !enforced;
        self.deal = deal;
    }

    fn deal_back(&mut self, now: Instant) {
        if let Some(split) = &self.split {
            self.deal = split.deal_back(hits_of(self.charge), now);
        }
    }

    /// Whether there is enough, as far as is known.
    fn deal_again(&mut self, chance: u64, is_last: bool, now: Instant) -> bool {
        let Some(split) = &self.split else { return false };
        let hits = hits_of(self.charge);
        let too_few = split.deal_too_few(hits, now);
        let deal = split.try_deal(hits, chance, now);
        let enough = deal.is_some();
        self.take_up(deal.unwrap_or_else(|| too_few.clone()));
        if self.together && is_last {
            self.take_up(too_few);
        }
        enough
    }

    /// What to ask the store for.
    fn charges(&self) -> Vec<Charge> {
        if self.split.is_none() {
            return vec![self.charge.clone()];
        }
        let role = if self.together { Role::Enforce } else { self.charge.role };
        let part = |&(part, hits): &(u8, u64)| {
            let cost = match self.charge.cost {
                Cost::Spend(_) => Cost::Spend(NonZeroU64::new(hits)?),
                Cost::Look(_) => Cost::Look(hits),
                Cost::Refund(_) => Cost::Refund(hits),
                Cost::GiveBack { since, .. } => Cost::GiveBack { hits, since },
            };
            self.part(part, cost, role)
        };
        self.deal.iter().filter_map(part).collect()
    }

    /// A charge on one part.
    fn part(&self, part: u8, cost: Cost, role: Role) -> Option<Charge> {
        let limit = self.split.as_ref()?.limit(part)?;
        // What a refused charge uses up is known only when all parts were asked.
        let on_refusal = if self.counts_always() { OnRefusal::Count } else { OnRefusal::Keep };
        Some(Charge { key: self.charge.key.shard(part), limit, cost, role, on_refusal })
    }

    /// Takes its own verdicts off those of a call.
    fn hear(&mut self, verdicts: &mut slice::Iter<'_, Verdict>, asked: Asked) {
        let Some(split) = &mut self.split else {
            self.said = verdicts.next().copied();
            return;
        };
        let mut all: Option<Verdict> = None;
        for (&(part, _), verdict) in self.deal.iter().zip(verdicts) {
            split.hear(part, verdict, asked);
            let fits = verdict.fits && all.is_none_or(|all| all.fits);
            all = Some(Verdict { fits, ..*verdict });
        }
        self.said = all;
    }

    fn verdict(&self, fits: bool, now: Instant) -> Verdict {
        match &self.split {
            None => self.said.unwrap_or_else(|| unreachable!("the store says something of each charge")),
            Some(split) => {
                // What counts always is over when the whole limit is, as far as is known.
                let fits = if self.counts_always() { split.left(now) >= 0 } else { fits };
                split.verdict(fits, hits_of(self.charge), now)
            }
        }
    }
}

/// What a charge wants, or gives.
fn hits_of(charge: &Charge) -> u64 {
    match charge.cost {
        Cost::Spend(hits) => hits.get(),
        Cost::Look(hits) | Cost::Refund(hits) | Cost::GiveBack { hits, .. } => hits,
    }
}
