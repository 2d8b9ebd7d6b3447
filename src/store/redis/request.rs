//! What waits before a connection: requests to decide charges, and questions about the servers.

use std::time::Instant;

use tokio::sync::oneshot;

use super::{deadline::Deadline, node::NodeError, resp::Value};
use crate::{
    limit::{Charge, Decision},
    store::StoreError,
};

/// What a caller is told.
pub(super) type Outcome = Result<Decision, NodeError>;

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// In a call with others.
    Together,
    /// In a call of its own that declares its keys, all of one slot, so that a cluster says where they are.
    Alone,
    /// The same, after ASKING.
    Asking,
}

/// One request on its way.
#[derive(Debug)]
pub(super) struct Request {
    /// Its place in line.
    pub(super) id: u64,
    charges: Charges,
    /// What it takes while it waits.
    pub(super) bytes: usize,
    pub(super) deadline: Deadline,
    pub(super) how: How,
    /// `None` once the caller was told.
    tell: Option<oneshot::Sender<Outcome>>,
}

/// Most requests have one charge, which needs no memory of its own then.
#[derive(Debug)]
enum Charges {
    One(Charge),
    Many(Box<[Charge]>),
}

impl Request {
    pub(super) fn new(
        charges: &[Charge],
        deadline: Deadline,
        how: How,
        tell: oneshot::Sender<Outcome>,
    ) -> Self {
        let bytes = size_of::<Self>() + charges.iter().map(size).sum::<usize>();
        let charges = match charges {
            [one] => Charges::One(one.clone()),
            many => Charges::Many(many.into()),
        };
        Self { id: 0, charges, bytes, deadline, how, tell: Some(tell) }
    }

    /// `None` when it is late, which it is then told, or nobody waits for it.
    pub(super) fn still_wanted(mut self, shard: &str, now: Instant) -> Option<Self> {
        (!self.expire(shard, now) && self.is_awaited()).then_some(self)
    }

    pub(super) fn charges(&self) -> &[Charge] {
        match &self.charges {
            Charges::One(charge) => std::slice::from_ref(charge),
            Charges::Many(charges) => charges,
        }
    }

    /// Whether somebody waits for the outcome.
    pub(super) fn is_awaited(&self) -> bool {
        self.tell.as_ref().is_some_and(|tell| !tell.is_closed())
    }

    pub(super) fn tell(&mut self, outcome: Outcome) {
        if let Some(tell) = self.tell.take() {
            // A caller who is gone wants to know nothing.
            let _ = tell.send(outcome);
        }
    }

    /// Tells the caller that it is too late, if it is.
    pub(super) fn expire(&mut self, shard: &str, now: Instant) -> bool {
        let late = self.tell.is_some() && self.deadline.at <= now;
        if late {
            self.tell(Err(self.deadline.passed(shard).into()));
        }
        late
    }
}

/// One command of who keeps the map of nodes.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) words: &'static [&'static str],
    tell: oneshot::Sender<Result<Value, StoreError>>,
}

impl Question {
    pub(super) fn new(
        words: &'static [&'static str],
        tell: oneshot::Sender<Result<Value, StoreError>>,
    ) -> Self {
        Self { words, tell }
    }

    /// Whether somebody waits for the reply.
    pub(super) fn is_awaited(&self) -> bool {
        !self.tell.is_closed()
    }

    pub(super) fn tell(self, reply: Result<Value, StoreError>) {
        // Who asked may have given up.
        let _ = self.tell.send(reply);
    }
}

/// What a charge takes while it waits.
fn size(charge: &Charge) -> usize {
    size_of::<Charge>() + charge.key.as_bytes().len()
}
