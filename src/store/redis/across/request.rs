//! A request of several parts on its way.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    super::{
        Shared,
        deadline::Deadline,
        parts::{self, InFlight, Part, Racing, finer},
        route::{Grain, Undecided},
    },
    undo::{self, Told},
};
use crate::{
    algorithm::Act,
    limit::{Charge, Cost, Decision, Role},
    store::StoreError,
};

/// How long giving back may take. Longer than a spend, since nobody waits for it.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(100);

/// When a charge is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// At once.
    Takes,
    /// It, or one after it on its key, may be refused if not for a refund before it on its key.
    Mixed,
    /// All others have passed.
    Gives,
}

/// A request of several parts.
pub(super) struct Request {
    shared: Arc<Shared>,
    charges: Vec<Charge>,
    seat: usize,
    deadline: Deadline,
    /// Of each charge, once its part was decided.
    told: Vec<Option<Told>>,
    racing: Racing,
}

/// The answer, and what is left to do then.
type Outcome = (Result<Decision, StoreError>, Option<Request>);

impl Request {
    pub(super) fn new(shared: &Arc<Shared>, charges: Vec<Charge>, deadline: Deadline) -> Self {
        let (seat, told) = (shared.seats.here(), vec![None; charges.len()]);
        Self { shared: shared.clone(), charges, seat, deadline, told, racing: Racing(Vec::new()) }
    }

    /// Decides it, in parts put together by `grain`.
    pub(super) async fn decide(mut self, grain: Grain) -> Outcome {
        let spared = match self.send_all(grain).await {
            Ok(spared) => spared,
            Err(error) => return (Err(error), Some(self)),
        };
        let Some(spared) = spared else {
            let verdicts = self.told.into_iter().flatten().map(|told| told.verdict).collect();
            return (Ok(Decision { refused: false, verdicts }), None);
        };
        let together = undo::together(&self.charges);
        let acts: Vec<(usize, Act, u64)> = spared
            .iter()
            .map(|&index| {
                let (act, hits) = Act::of(&self.charges[index]);
                (index, act, hits)
            })
            .collect();
        if let Err(error) = self.look_at(&spared, grain).await {
            return (Err(error), Some(self));
        }
        undo::judge(&self.charges, &acts, &mut self.told);
        let verdicts = undo::verdicts(&self.charges, &self.told, &together);
        (Ok(Decision { refused: true, verdicts }), Some(self))
    }

    /// Sends its parts, each when its time has come. Where it is refused, returns which charges that has spared.
    async fn send_all(&mut self, grain: Grain) -> Result<Option<Vec<usize>>, StoreError> {
        if !self.charges.iter().any(|charge| charge.cost.gives()) {
            let all: Vec<usize> = (0..self.charges.len()).collect();
            let refused = self.send(&all, grain).await?;
            return Ok(refused.then(Vec::new));
        }
        let (mut refused, mut spared) = (false, Vec::new());
        for stage in [Stage::Takes, Stage::Mixed, Stage::Gives] {
            let of_stage = |index: &usize| self.stage(*index) == stage;
            let indices: Vec<usize> = (0..self.charges.len()).filter(of_stage).collect();
            // One after the other, since what one gives cannot be taken back where another one refuses.
            let together = match stage {
                Stage::Mixed => parts::parts(&self.shared, &self.charges, &indices, grain)?
                    .into_iter()
                    .map(|part| part.indices)
                    .collect(),
                Stage::Takes | Stage::Gives => vec![indices],
            };
            for indices in together {
                if refused {
                    spared.extend(indices);
                } else {
                    refused = self.send(&indices, grain).await?;
                }
            }
        }
        Ok(refused.then_some(spared))
    }

    fn stage(&self, index: usize) -> Stage {
        let of_key = |other: &&Charge| other.key == self.charges[index].key;
        let gives = |other: &Charge| other.key == self.charges[index].key && other.cost.gives();
        let Some(first) = self.charges[..=index].iter().position(gives) else { return Stage::Takes };
        let may_refuse = |charge: &Charge| charge.role != Role::Shadow && !charge.cost.gives();
        match self.charges[first..].iter().filter(of_key).any(may_refuse) {
            true => Stage::Mixed,
            false => Stage::Gives,
        }
    }

    /// Sends these charges, all parts at once. Whether they, or all quotas, refuse.
    async fn send(&mut self, indices: &[usize], grain: Grain) -> Result<bool, StoreError> {
        self.launch(indices, grain)?;
        Ok(self.gather().await? || self.quotas_refuse())
    }

    fn launch(&mut self, indices: &[usize], grain: Grain) -> Result<(), StoreError> {
        for part in parts::parts(&self.shared, &self.charges, indices, grain)? {
            let sent = self.sent(part);
            self.racing.0.push(sent);
        }
        Ok(())
    }

    /// Waits for what is under way, also in smaller parts where some fell apart. Whether one refused. An answer need not
    /// wait for others where one fails.
    async fn gather(&mut self) -> Result<bool, StoreError> {
        let mut refused = false;
        while let Some((part, decided)) = self.racing.next().await {
            match decided {
                Ok(decision) => {
                    refused |= decision.refused;
                    self.hear(&part, &decision);
                }
                Err(Undecided::Split(grain)) => self.launch(&part.indices, grain.max(finer(part.grain)))?,
                Err(Undecided::Failed(error)) => return Err(error),
            }
        }
        Ok(refused)
    }

    fn hear(&mut self, part: &Part, decision: &Decision) {
        for (&index, verdict) in part.indices.iter().zip(&decision.verdicts) {
            self.told[index] = Some(Told { verdict: *verdict, passed: !decision.refused });
        }
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

    /// A quota refuses its part only where no quota outside of it can let the request pass.
    fn role(&self, part: &Part, charge: &Charge) -> Role {
        if charge.role != Role::Quota {
            return charge.role;
        }
        let may_pass = |index: usize| self.told[index].is_none_or(|told| told.verdict.fits);
        let outside = self.charges.iter().enumerate().any(|(index, other)| {
            other.role == Role::Quota && !part.indices.contains(&index) && may_pass(index)
        });
        if outside { Role::Shadow } else { Role::Quota }
    }

    /// Whether there are quotas, and all of them are known to be over.
    fn quotas_refuse(&self) -> bool {
        let mut quotas = self.charges.iter().zip(&self.told).filter(|(charge, _)| charge.role == Role::Quota);
        let is_over = |told: &Option<Told>| told.is_some_and(|told| !told.verdict.fits);
        quotas.clone().next().is_some() && quotas.all(|(_, told)| is_over(told))
    }

    /// Asks for the charges that the refusal has spared, so that their statuses are true: what counts always is counted.
    async fn look_at(&mut self, spared: &[usize], grain: Grain) -> Result<(), StoreError> {
        for &index in spared {
            let charge = &mut self.charges[index];
            charge.role = Role::Shadow;
            charge.cost = match Act::of(charge) {
                (Act::Count, _) => continue,
                (Act::Give | Act::GiveBack(_), _) => Cost::Look(0),
                (Act::Take | Act::Drain | Act::Look, hits) => Cost::Look(hits),
            };
        }
        self.send(spared, grain).await.map(drop)
    }

    /// Waits for what is under way still, and gives back what a request that does not pass does not spend.
    pub(super) async fn end(mut self) {
        while let Some((part, decided)) = self.racing.next().await {
            if let Ok(decision) = decided {
                self.hear(&part, &decision);
            }
        }
        let undoing = undo::undoing(&self.charges, &self.told);
        if undoing.is_empty() {
            return;
        }
        let mut back = Self::new(&self.shared, undoing, Deadline::after(GIVE_BACK_WITHIN));
        let all: Vec<usize> = (0..back.charges.len()).collect();
        let mut lost = back.launch(&all, Grain::Node).err();
        while !back.racing.0.is_empty() {
            lost = back.gather().await.err().or(lost);
        }
        if let Some(why) = lost {
            self.shared.give_backs_lost.count();
            tracing::debug!(%why, "what a refused request had taken could not all be given back");
        }
    }
}

/// A request that is carried to its end, also when its caller goes away.
pub(super) struct Carried<F: Future<Output = Outcome> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output = Outcome> + Send + 'static> Carried<F> {
    pub(super) fn new(request: F) -> Self {
        Self(Some(Box::pin(request)))
    }
}

impl<F: Future<Output = Outcome> + Send + 'static> Future for Carried<F> {
    type Output = Result<Decision, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(request) = &mut self.0 else { unreachable!("it is not polled after its end") };
        let (answer, rest) = std::task::ready!(request.as_mut().poll(cx));
        self.0 = None;
        if let Some(rest) = rest {
            tokio::spawn(rest.end());
        }
        Poll::Ready(answer)
    }
}

impl<F: Future<Output = Outcome> + Send + 'static> Drop for Carried<F> {
    fn drop(&mut self) {
        // Where the runtime has gone away as well, so have its connections.
        if let Some(request) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let (_, Some(rest)) = request.await {
                    rest.end().await;
                }
            });
        }
    }
}
