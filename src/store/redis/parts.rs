//! The parts of a request: which of its charges go where in one call, and sending several parts at once.

use std::{pin::Pin, sync::Arc, task::Poll};

use super::{
    Shared,
    deployment::Deployment,
    map::Map,
    node::Node,
    route::{Grain, Undecided},
};
use crate::{
    limit::{Charge, Decision},
    store::StoreError,
};

/// Charges of a request that go to one server in one call.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) deployment: Arc<Deployment>,
    pub(super) node: Arc<Node>,
    pub(super) grain: Grain,
    /// Of the charges, by their index in the request.
    pub(super) indices: Vec<usize>,
}

/// The part that holds all charges, where there is one. Its indices are left out.
pub(super) fn the_one(shared: &Shared, charges: &[Charge]) -> Result<Option<Part>, StoreError> {
    let mut one: Option<(Part, u16)> = None;
    for charge in charges {
        let deployment = shared.deployment(charge);
        let map = deployment.map();
        let slot = map.slot(charge.key.as_bytes());
        let Some(node) = map.node(slot) else { return Err(deployment.nobody_has(slot)) };
        match &one {
            Some((part, of))
                if !Arc::ptr_eq(&part.node, node) || (part.grain == Grain::Slot && *of != slot) =>
            {
                return Ok(None);
            }
            Some(_) => {}
            None => {
                let grain = grain_of(&map, node, Grain::Node);
                let (deployment, node) = (deployment.clone(), node.clone());
                one = Some((Part { deployment, node, grain, indices: Vec::new() }, slot));
            }
        }
    }
    Ok(one.map(|(part, _)| part))
}

/// Puts charges together by their server, in the order of the request.
pub(super) fn parts(
    shared: &Shared,
    charges: &[Charge],
    indices: &[usize],
    grain: Grain,
) -> Result<Vec<Part>, StoreError> {
    let mut parts: Vec<(Part, u16)> = Vec::with_capacity(1);
    for &index in indices {
        let charge = &charges[index];
        let deployment = shared.deployment(charge);
        let map = deployment.map();
        let slot = map.slot(charge.key.as_bytes());
        let Some(node) = map.node(slot) else { return Err(deployment.nobody_has(slot)) };
        let grain = grain_of(&map, node, grain);
        let same = parts.iter_mut().find(|(part, of)| {
            Arc::ptr_eq(&part.node, node)
                && match grain {
                    Grain::Node => true,
                    Grain::Slot => *of == slot,
                    Grain::Key => charges[part.indices[0]].key == charge.key,
                }
        });
        match same {
            Some((part, _)) => part.indices.push(index),
            None => {
                let part =
                    Part { deployment: deployment.clone(), node: node.clone(), grain, indices: vec![index] };
                parts.push((part, slot));
            }
        }
    }
    Ok(parts.into_iter().map(|(part, _)| part).collect())
}

/// Of charges that would be put together by `grain`, where the node lets a call hold several slots.
fn grain_of(map: &Map, node: &Node, grain: Grain) -> Grain {
    if map.is_cluster() && !node.crosses_slots() { grain.max(Grain::Slot) } else { grain }
}

/// Parts that fell apart become smaller each time, so that this ends.
pub(super) fn finer(grain: Grain) -> Grain {
    match grain {
        Grain::Node => Grain::Slot,
        Grain::Slot | Grain::Key => Grain::Key,
    }
}

pub(super) type InFlight = Pin<Box<dyn Future<Output = (Part, Result<Decision, Undecided>)> + Send>>;

/// Futures of which whichever is ready comes next.
pub(super) struct Racing(pub(super) Vec<InFlight>);

impl Racing {
    /// `None` when all have ended.
    pub(super) async fn next(&mut self) -> Option<(Part, Result<Decision, Undecided>)> {
        std::future::poll_fn(|context| {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            let ready = self.0.iter_mut().enumerate().find_map(|(index, future)| {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    Some((index, output))
                } else {
                    None
                }
            });
            match ready {
                Some((index, output)) => {
                    drop(self.0.swap_remove(index));
                    Poll::Ready(Some(output))
                }
                None => Poll::Pending,
            }
        })
        .await
    }
}
