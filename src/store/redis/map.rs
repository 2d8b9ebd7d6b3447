//! Where keys live at this moment: the nodes and which slots they have.
//!
//! A map is never changed, only replaced. A request takes one and keeps to it; what has become wrong of it, a node tells by
//! a redirection.

use std::{fmt::Write as _, sync::Arc};

use super::{
    node::Node,
    slots::{SLOTS, ShardView, slot},
};
use crate::store::ShardHealth;

/// The nodes and their slots.
#[derive(Debug, Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Known>,
    /// The index of each slot's node. `None` where one node has all keys.
    slots: Option<Box<[u16]>>,
    /// Why there is no node; `None` where there is one.
    pub(super) why_empty: Option<String>,
    /// It is known whether there are other nodes.
    pub(super) is_settled: bool,
}

/// Of a slot that nobody has.
const NOBODY: u16 = u16::MAX;

/// A node and what it is for.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) node: Arc<Node>,
    pub(super) role: Role,
}

/// What a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It has keys, and a connection for each seat.
    Primary,
    /// It may have some soon, and has one connection: a replica, or a node that was named by a redirection.
    Standby,
}

impl Map {
    /// One node that has all keys.
    pub(super) fn of_one(node: Arc<Node>, is_settled: bool) -> Self {
        let nodes = vec![Known { node, role: Role::Primary }];
        Self { nodes, slots: None, why_empty: None, is_settled }
    }

    /// No node yet.
    pub(super) fn empty(why: String) -> Self {
        Self { why_empty: Some(why), ..Self::default() }
    }

    /// A cluster as it was seen. `node_at` finds or makes the nodes. A slot whose primary is lost stays with who had it
    /// in `before`: that one says best what is wrong, and may come back.
    pub(super) fn of_cluster(
        views: &[ShardView],
        before: &Self,
        mut node_at: impl FnMut(&super::slots::Endpoint) -> Arc<Node>,
    ) -> Self {
        let mut nodes = Vec::new();
        let mut slots = vec![NOBODY; SLOTS].into_boxed_slice();
        for view in views {
            let Some(primary) = view.primary.as_ref().filter(|_| !view.ranges.is_empty()) else { continue };
            let index = index_of(&mut nodes, node_at(primary), Role::Primary);
            for range in &view.ranges {
                slots[usize::from(*range.start())..=usize::from(*range.end())].fill(index);
            }
        }
        for (number, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| **slot == NOBODY) {
            if let Some(known) =
                before.slots.as_ref().and_then(|slots| before.nodes.get(usize::from(slots[number])))
            {
                *slot = index_of(&mut nodes, known.node.clone(), Role::Primary);
            }
        }
        for standby in views.iter().flat_map(|view| view.primary.iter().chain(&view.replicas)) {
            index_of(&mut nodes, node_at(standby), Role::Standby);
        }
        Self { nodes, slots: Some(slots), why_empty: None, is_settled: true }
    }

    /// The same with one node more.
    pub(super) fn with(&self, node: Arc<Node>) -> Self {
        let mut nodes = self.nodes.clone();
        nodes.push(Known { node, role: Role::Standby });
        Self {
            nodes,
            slots: self.slots.clone(),
            why_empty: self.why_empty.clone(),
            is_settled: self.is_settled,
        }
    }

    /// The slot of a key; 0 where slots mean nothing.
    pub(super) fn slot(&self, key: &[u8]) -> u16 {
        if self.slots.is_some() { slot(key) } else { 0 }
    }

    /// The node that has a slot.
    pub(super) fn node(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = self.slots.as_ref().map_or(0, |slots| slots[usize::from(slot)]);
        self.nodes
            .get(usize::from(index))
            .filter(|known| known.role == Role::Primary)
            .map(|known| &known.node)
    }

    /// The node at an address.
    pub(super) fn at(&self, address: &str) -> Option<&Arc<Node>> {
        self.nodes.iter().map(|known| &known.node).find(|node| node.address == address)
    }

    /// Whether slots are known: it is a cluster's.
    pub(super) fn is_cluster(&self) -> bool {
        self.slots.is_some()
    }

    pub(super) fn primaries(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.iter().filter(|known| known.role == Role::Primary).map(|known| &known.node)
    }

    /// Whether every slot has a node that is connected and answers.
    pub(super) fn is_whole(&self) -> bool {
        self.why_empty.is_none() && self.unserved().is_none() && self.primaries().all(|node| node.is_well())
    }

    /// Whether more than half of the shards are there. What is lost of a cluster has its failure modes; a Tollgate that
    /// starts in the middle of an outage serves the rest.
    pub(super) fn is_reached(&self) -> bool {
        let (up, all) =
            self.primaries().fold((0, 0), |(up, all), node| (up + usize::from(node.is_up()), all + 1));
        self.is_settled && up * 2 > all
    }

    /// A word for each shard.
    pub(super) fn health(&self, seat: usize) -> Vec<ShardHealth> {
        let mut all: Vec<ShardHealth> = self.primaries().map(|node| node.health(seat)).collect();
        if let Some(slots) = self.unserved() {
            let why = "no node of the cluster has them".to_owned();
            all.push(ShardHealth { shard: format!("slots {slots}"), state: Err(why) });
        }
        all
    }

    /// The slots that nobody has, as ranges; `None` where there are none.
    fn unserved(&self) -> Option<String> {
        let slots = self.slots.as_ref()?;
        let mut text = String::new();
        let mut number = 0;
        for run in slots.chunk_by(|a, b| (*a == NOBODY) == (*b == NOBODY)) {
            if run[0] == NOBODY {
                let comma = if text.is_empty() { "" } else { "," };
                // Writing to a String cannot fail.
                let _ = write!(text, "{comma}{number}-{}", number + run.len() - 1);
            }
            number += run.len();
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Where a node stands in the list, at the end if it did not. A primary has its role from its first mention on.
fn index_of(nodes: &mut Vec<Known>, node: Arc<Node>, role: Role) -> u16 {
    let index = nodes.iter().position(|known| Arc::ptr_eq(&known.node, &node)).unwrap_or_else(|| {
        nodes.push(Known { node, role });
        nodes.len() - 1
    });
    u16::try_from(index).unwrap_or(NOBODY)
}
