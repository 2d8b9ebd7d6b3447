//! All or nothing across servers.
//!
//! The charges of a request are put together by the server that has their keys. Where that is one, as it is when a tenant
//! names the hash tag, one call decides them. Where there are several, each decides its *part*, all at the same time, and
//! then:
//!
//! - **All parts passed**: so does the request. That took one round trip, however many parts.
//! - **A part refused**, or all quotas of the request are over: so is the request. What the other parts have taken is
//!   given back, and the answer, which does not wait for that, reads as if it had not been taken.
//! - **A part failed**: the failure mode answers for the request, and what the other parts have taken is given back. What
//!   failed for a timeout may have been taken, and stays so.
//!
//! What is given back is what `algorithm::decide` would not have spent: fitting takes. What counts always (`mode: record`),
//! and what a charge that did not fit has used up, stays spent.
//!
//! **Between taking and giving back** others may be refused who would have passed on one server; nobody is granted more
//! than there is. That lasts a round trip. If giving back fails, which is counted, it lasts until the limit has refilled
//! by itself: a window's end, or a bucket's time for so many hits. It may also come late, when a server that hung wakes:
//! a give-back says what it was taken from, and what is over by then is not given (`algorithm::giving_back`).
//!
//! **Quotas** (of which one that fits is enough) are judged over all parts; in a part that does not hold all of them they
//! take what fits and refuse nothing.
//!
//! **Refunds** must not happen when the request is refused, and cannot be taken back once somebody else has spent them. So
//! a part that gives waits until all others have passed. Only here it takes two round trips, and where several parts give
//! and may refuse, one more for each.
//!
//! **A client that goes away** leaves its request behind, which is carried to its end even so.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Shared,
    deadline::Deadline,
    parts::{self, InFlight, Part, Racing, finer},
    route::{Grain, Undecided},
};
use crate::{
    algorithm::{Act, giving_back, untaken},
    limit::{Charge, Cost, Decision, OnRefusal, Role, Verdict},
    store::StoreError,
};

/// How long giving back may take. Longer than a spend, since nobody waits for it.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(100);

/// When a part is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// At once.
    Takes,
    /// It gives and may refuse: alone, after all that only take.
    Mixed,
    /// It refuses nothing: last.
    Gives,
}

/// Decides the charges of one request.
pub(super) async fn spend(
    shared: &Arc<Shared>,
    charges: &[Charge],
    deadline: Deadline,
) -> Result<Decision, StoreError> {
    let all: Vec<usize> = (0..charges.len()).collect();
    let whole = parts::parts(shared, charges, &all, Grain::Node)?;
    if let [part] = whole.as_slice() {
        let seat = shared.seats.here();
        match part.deployment.spend(&part.node, seat, charges, part.grain, deadline).await {
            Ok(decision) => return Ok(decision),
            Err(Undecided::Failed(error)) => return Err(error),
            Err(Undecided::Split(grain)) => {
                let smaller = parts::parts(shared, charges, &all, grain)?;
                return spend_parts(shared, charges, smaller, deadline).await;
            }
        }
    }
    spend_parts(shared, charges, whole, deadline).await
}

/// Decides parts, and leaves what is left to do then to a task of its own.
async fn spend_parts(
    shared: &Arc<Shared>,
    charges: &[Charge],
    parts: Vec<Part>,
    deadline: Deadline,
) -> Result<Decision, StoreError> {
    let (answer, answered) = oneshot::channel();
    let request = Request {
        shared: shared.clone(),
        charges: charges.to_vec(),
        seat: shared.seats.here(),
        deadline,
        answer: Some(answer),
        verdicts: vec![None; charges.len()],
        taken: Vec::new(),
        failed: false,
    };
    tokio::spawn(request.decide(parts));
    answered.await.unwrap_or_else(|_| {
        let why = "the runtime of this request has ended".to_owned();
        Err(StoreError::Unavailable { shard: "Redis".to_owned(), why })
    })
}

/// A request of several parts.
struct Request {
    shared: Arc<Shared>,
    charges: Vec<Charge>,
    seat: usize,
    deadline: Deadline,
    /// `None` once it was given.
    answer: Option<oneshot::Sender<Result<Decision, StoreError>>>,
    verdicts: Vec<Option<Verdict>>,
    /// Parts that have passed.
    taken: Vec<Part>,
    failed: bool,
}

impl Request {
    async fn decide(mut self, mut parts: Vec<Part>) {
        parts.sort_by_key(|part| self.stage(part));
        let mut refused = false;
        while !parts.is_empty() && !refused && !self.failed {
            let stage = self.stage(&parts[0]);
            let many = match stage {
                Stage::Mixed => 1,
                Stage::Takes | Stage::Gives => {
                    parts.iter().take_while(|part| self.stage(part) == stage).count()
                }
            };
            refused = self.send(parts.drain(..many).collect()).await || self.quotas_refuse();
        }
        if refused && !self.failed && !parts.is_empty() {
            self.look_at(parts).await;
        }
        if !self.failed {
            let verdicts: Vec<Verdict> = self.verdicts.iter().copied().flatten().collect();
            let verdicts = if refused { self.untaken(verdicts) } else { verdicts };
            self.answer(Ok(Decision { refused, verdicts: verdicts.into() }));
        }
        if refused || self.failed {
            self.give_back().await;
        }
    }

    /// Whether there are quotas, and all of them are known to be over.
    fn quotas_refuse(&self) -> bool {
        let mut quotas =
            self.charges.iter().zip(&self.verdicts).filter(|(charge, _)| charge.role == Role::Quota);
        let is_over = |verdict: &Option<Verdict>| verdict.is_some_and(|verdict| !verdict.fits);
        quotas.clone().next().is_some() && quotas.all(|(_, verdict)| is_over(verdict))
    }

    /// A quota refuses its part only where no quota outside of it can let the request pass.
    fn role(&self, part: &Part, charge: &Charge) -> Role {
        let may_pass = |index: usize| self.verdicts[index].is_none_or(|verdict| verdict.fits);
        let outside = self.charges.iter().enumerate().any(|(index, other)| {
            other.role == Role::Quota && !part.indices.contains(&index) && may_pass(index)
        });
        if charge.role == Role::Quota && outside { Role::Shadow } else { charge.role }
    }

    /// Asks the parts that the refusal has spared, so that their statuses are true: what counts always is counted there.
    async fn look_at(&mut self, parts: Vec<Part>) {
        for &index in parts.iter().flat_map(|part| &part.indices) {
            let charge = &mut self.charges[index];
            charge.role = Role::Shadow;
            charge.cost = match Act::of(charge) {
                (Act::Count, _) => continue,
                (Act::Give | Act::GiveBack(_), _) => Cost::Look(0),
                (Act::Take | Act::Drain | Act::Look, hits) => Cost::Look(hits),
            };
        }
        self.send(parts).await;
    }

    fn stage(&self, part: &Part) -> Stage {
        let mut charges = part.indices.iter().map(|&index| &self.charges[index]);
        if !charges.clone().any(|charge| matches!(charge.cost, Cost::Refund(_))) {
            Stage::Takes
        } else if charges.all(|charge| charge.role == Role::Shadow || matches!(charge.cost, Cost::Refund(_)))
        {
            Stage::Gives
        } else {
            Stage::Mixed
        }
    }

    /// Sends parts, all at once, and in smaller ones where they fell apart. Whether one refused.
    async fn send(&mut self, parts: Vec<Part>) -> bool {
        let mut refused = false;
        let mut racing = Racing(parts.into_iter().map(|part| self.sent(part)).collect());
        while let Some((part, decided)) = racing.next().await {
            match decided {
                Ok(decision) => {
                    for (&index, verdict) in part.indices.iter().zip(decision.verdicts) {
                        self.verdicts[index] = Some(verdict);
                    }
                    if decision.refused {
                        refused = true;
                    } else {
                        self.taken.push(part);
                    }
                }
                Err(Undecided::Split(grain)) => {
                    match parts::parts(
                        &self.shared,
                        &self.charges,
                        &part.indices,
                        grain.max(finer(part.grain)),
                    ) {
                        Ok(parts) => racing.0.extend(parts.into_iter().map(|part| self.sent(part))),
                        Err(error) => self.fail(error),
                    }
                }
                // The answer need not wait for the other parts; what they take has to be given back.
                Err(Undecided::Failed(error)) => self.fail(error),
            }
        }
        refused
    }

    fn sent(&self, part: Part) -> InFlight {
        let charge = |&index: &usize| {
            let charge = &self.charges[index];
            Charge { role: self.role(&part, charge), ..charge.clone() }
        };
        let charges: Vec<Charge> = part.indices.iter().map(charge).collect();
        let (seat, deadline) = (self.seat, self.deadline);
        Box::pin(async move {
            let decided = part.deployment.spend(&part.node, seat, &charges, part.grain, deadline).await;
            (part, decided)
        })
    }

    fn fail(&mut self, error: StoreError) {
        self.failed = true;
        self.answer(Err(error));
    }

    fn answer(&mut self, answer: Result<Decision, StoreError>) {
        if let Some(to) = self.answer.take() {
            // Who asked may have gone away.
            let _ = to.send(answer);
        }
    }

    /// The verdicts of a refused request: those of parts that had passed, as if nothing had been taken there.
    fn untaken(&self, mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
        for part in &self.taken {
            // Charges of one key see what those before them have taken.
            let mut taken: Vec<(usize, u64)> = Vec::new();
            for &index in &part.indices {
                let charge = &self.charges[index];
                if let (Act::Take | Act::Drain, hits) = Act::of(charge)
                    && verdicts[index].fits
                {
                    taken.push((index, hits));
                }
                let of_key = taken.iter().filter(|(other, _)| self.charges[*other].key == charge.key);
                let hits = of_key.map(|(_, hits)| hits).sum();
                verdicts[index] = untaken(&charge.limit, verdicts[index], hits);
            }
        }
        verdicts
    }

    /// Gives back, on all parts that have passed, what a refused request does not spend.
    async fn give_back(&mut self) {
        let mut back = Vec::new();
        for part in std::mem::take(&mut self.taken) {
            let (indices, charges): (Vec<usize>, Vec<Charge>) = part
                .indices
                .iter()
                .filter_map(|&index| {
                    let verdict = self.verdicts[index]?;
                    Some((index, undoing(&self.charges[index], &verdict)?))
                })
                .unzip();
            if !indices.is_empty() {
                back.push((Part { indices, ..part }, charges));
            }
        }
        if back.is_empty() {
            return;
        }
        for (part, charges) in &back {
            for (&index, charge) in part.indices.iter().zip(charges) {
                self.charges[index] = charge.clone();
            }
        }
        self.deadline = Deadline::after(GIVE_BACK_WITHIN);
        self.failed = false;
        let all: Vec<Part> = back.into_iter().map(|(part, _)| part).collect();
        let shards: Vec<String> = all.iter().map(|part| part.node.address.clone()).collect();
        self.send(all).await;
        if self.failed {
            self.shared.give_backs_lost.count();
            tracing::debug!(?shards, "what a refused request had taken could not all be given back");
        }
    }
}

/// What takes back the effect of a charge of a part that had passed; `None` where there is none.
fn undoing(charge: &Charge, verdict: &Verdict) -> Option<Charge> {
    let (act, hits) = Act::of(charge);
    let cost = match act {
        Act::Take | Act::Drain if verdict.fits && charge.limit.requests() != 0 => {
            giving_back(&charge.limit, verdict, hits)
        }
        // Others may have spent it: then it is owed, if that is late in the next window.
        Act::Give => Cost::Spend(hits.try_into().ok()?),
        _ => return None,
    };
    Some(Charge { cost, role: Role::Shadow, on_refusal: OnRefusal::Count, ..charge.clone() })
}
