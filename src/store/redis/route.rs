//! Sending the charges of one node to it, and following it to another one when it says that they are there.
//!
//! A redirection proves that nothing was spent, so it is followed, and the next one, too: a slot may move on while its
//! keys are followed. Nothing else is: a spend that timed out may have happened. Charges that turn out to be in several
//! places are handed back to be sent in smaller parts.

use std::sync::Arc;

use super::{
    deadline::Deadline,
    deployment::Deployment,
    node::{Node, NodeError},
};
use crate::{
    limit::{Charge, Decision},
    store::StoreError,
};

/// How many redirections are followed, one after the other and within the deadline. Where a slot moves there is one, and
/// a second where it has moved on or is back meanwhile; nodes that go on sending callers to each other disagree.
const HOPS_MAX: usize = 3;

/// How charges are put together into parts, each of which is one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grain {
    /// All of one node.
    Node,
    /// All of one slot.
    Slot,
    /// All of one key.
    Key,
}

/// Why a part was not decided.
#[derive(Debug)]
pub(super) enum Undecided {
    /// Nothing was spent; its charges are in several places and have to be sent in parts of this grain.
    Split(Grain),
    /// It failed, and may have been spent where that was a timeout.
    Failed(StoreError),
}

impl Deployment {
    /// Decides charges of one node, put together by `grain`.
    pub(super) async fn spend(
        &self,
        node: &Node,
        seat: usize,
        charges: &[Charge],
        grain: Grain,
        deadline: Deadline,
    ) -> Result<Decision, Undecided> {
        let mut answer = match grain {
            Grain::Node => node.spend(seat, charges, deadline).await,
            Grain::Slot | Grain::Key => node.spend_alone(seat, charges, deadline, false).await,
        };
        if answer == Err(NodeError::NotHere) && grain == Grain::Node && !self.are_of_several_slots(charges) {
            // Alone it is told where.
            answer = node.spend_alone(seat, charges, deadline, false).await;
        }
        match answer {
            Ok(decision) => Ok(decision),
            // Boxed, since it is seldom and would make the future of each request twice as large.
            Err(error @ (NodeError::Moved { .. } | NodeError::Ask { .. })) => {
                Box::pin(self.follow(node, seat, charges, deadline, error)).await
            }
            Err(error) => Err(self.undecided(node, charges, error)),
        }
    }

    /// Follows redirections, of which `error` may be the first.
    async fn follow(
        &self,
        node: &Node,
        seat: usize,
        charges: &[Charge],
        deadline: Deadline,
        mut error: NodeError,
    ) -> Result<Decision, Undecided> {
        let mut at: Option<Arc<Node>> = None;
        for _ in 0..HOPS_MAX {
            let by = at.as_deref().unwrap_or(node);
            let (to, asking) = match &error {
                NodeError::Moved { to, .. } => (to, false),
                NodeError::Ask { to, .. } => (to, true),
                _ => break,
            };
            if self.is_single() {
                let why = "it is a node of a cluster, which REDIS_TYPE=single cannot use: write cluster, or remove it";
                return Err(refused(by, why));
            }
            let target = self.redirected(by, to);
            if self.are_of_several_slots(charges) {
                return Err(Undecided::Split(Grain::Slot));
            }
            let Some(target) = target else {
                return Err(refused(by, "it redirects to an address that makes no sense"));
            };
            target.until_up(deadline).await;
            match target.spend_alone(seat, charges, deadline, asking).await {
                Ok(decision) => return Ok(decision),
                Err(next) => error = next,
            }
            at = Some(target);
        }
        Err(self.undecided(at.as_deref().unwrap_or(node), charges, error))
    }

    /// What an error means that is not followed, or not any more.
    fn undecided(&self, node: &Node, charges: &[Charge], error: NodeError) -> Undecided {
        match error {
            NodeError::Store(error) => Undecided::Failed(error),
            NodeError::NotHere if self.are_of_several_slots(charges) => Undecided::Split(Grain::Slot),
            // While a slot moves, some of its keys are here and others there.
            NodeError::NotHere if charges.iter().any(|charge| charge.key != charges[0].key) => {
                Undecided::Split(Grain::Key)
            }
            NodeError::NotHere => refused(node, "it does not say where a key is that is not there"),
            NodeError::Moved { to, .. } | NodeError::Ask { to, .. } => {
                self.redirected(node, &to);
                refused(node, "the keys moved on while they were followed")
            }
        }
    }

    fn are_of_several_slots(&self, charges: &[Charge]) -> bool {
        let map = self.map();
        let mut slots = charges.iter().map(|charge| map.slot(charge.key.as_bytes()));
        let first = slots.next();
        slots.any(|slot| Some(slot) != first)
    }
}

fn refused(node: &Node, why: &str) -> Undecided {
    Undecided::Failed(StoreError::Refused { shard: node.address.clone(), why: why.to_owned() })
}
