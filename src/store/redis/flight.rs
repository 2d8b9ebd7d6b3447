//! What was sent over one connection and is not answered yet.
//!
//! Redis answers in the order in which it was asked. So what is awaited stands in a line of its own, and a reply belongs to
//! its head.

use std::{collections::VecDeque, time::Instant};

use super::{
    reply,
    request::{Question, Request},
    resp::Bounds,
};
use crate::store::{StoreError, script::Call};

/// How many calls' memory is kept for calls to come.
const SPARE_MAX: usize = 8;

/// A call in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) batch: Batch,
    pub(super) charges: usize,
    pub(super) kind: Kind,
    pub(super) sent: Instant,
    /// Counted as late.
    pub(super) late: bool,
    /// Told to the breaker as unanswered. Once: where other connections are answered, it is this one that is broken.
    pub(super) accused: bool,
    /// No deadline in it is earlier.
    pub(super) earliest: Option<Instant>,
    /// The script was loaded for it once.
    pub(super) loaded: bool,
}

/// Requests and the call that they make. Used again for one flight after the other.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<Request>,
    pub(super) call: Box<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Together,
    /// One request alone.
    Alone,
    /// No request: to see whether the server answers.
    Probe,
}

/// What a reply will be to.
#[derive(Debug)]
pub(super) enum Awaited {
    Call(Flight),
    /// ASKING, whose reply says nothing.
    Asking,
    /// SCRIPT LOAD
    Script,
    /// PING
    Pong,
    Question(Question),
}

impl Awaited {
    /// Of the reply.
    pub(super) fn bounds(&self) -> Bounds {
        match self {
            Self::Call(flight) => reply::bounds(&flight.batch.call),
            Self::Asking | Self::Script | Self::Pong => Bounds::SHORT,
            Self::Question(_) => Bounds::TOLD,
        }
    }
}

/// What was sent and is not answered yet.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// In the order in which it was sent.
    awaited: VecDeque<Awaited>,
    /// Calls that found no script, and go again when it is loaded.
    parked: Vec<Flight>,
    spare: Vec<Batch>,
    /// How many calls there are, those that are parked among them.
    calls: usize,
    together: usize,
    charges: usize,
}

impl Flights {
    pub(super) fn push(&mut self, awaited: Awaited) {
        if let Awaited::Call(flight) = &awaited {
            self.count(flight);
        }
        self.awaited.push_back(awaited);
    }

    /// What the next reply is to.
    pub(super) fn next(&self) -> Option<&Awaited> {
        self.awaited.front()
    }

    pub(super) fn pop(&mut self) -> Option<Awaited> {
        let next = self.awaited.pop_front();
        if let Some(Awaited::Call(flight)) = &next {
            self.discount(flight);
        }
        next
    }

    /// Keeps a call until the script is loaded.
    pub(super) fn park(&mut self, flight: Flight) {
        self.count(&flight);
        self.parked.push(flight);
    }

    /// All calls that were parked.
    pub(super) fn unpark(&mut self) -> Vec<Flight> {
        let parked = std::mem::take(&mut self.parked);
        parked.iter().for_each(|flight| self.discount(flight));
        parked
    }

    /// Whether the script is on its way to the server.
    pub(super) fn is_loading(&self) -> bool {
        self.awaited.iter().any(|awaited| matches!(awaited, Awaited::Script))
    }

    /// Whether no call is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.calls == 0
    }

    /// How many calls of several requests are in flight.
    pub(super) fn together(&self) -> usize {
        self.together
    }

    /// How many charges are, those counted whose callers have given up.
    pub(super) fn charges(&self) -> usize {
        self.charges
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Flight> {
        let sent = self.awaited.iter().filter_map(|awaited| match awaited {
            Awaited::Call(flight) => Some(flight),
            _ => None,
        });
        self.parked.iter().chain(sent)
    }

    pub(super) fn calls_mut(&mut self) -> impl Iterator<Item = &mut Flight> {
        let sent = self.awaited.iter_mut().filter_map(|awaited| match awaited {
            Awaited::Call(flight) => Some(flight),
            _ => None,
        });
        self.parked.iter_mut().chain(sent)
    }

    /// An empty batch.
    pub(super) fn batch(&mut self) -> Batch {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes the memory of a batch back.
    pub(super) fn done(&mut self, mut batch: Batch) {
        if self.spare.len() < SPARE_MAX {
            batch.requests.clear();
            self.spare.push(batch);
        }
    }

    /// Tells those who are late.
    pub(super) fn expire(&mut self, shard: &str, now: Instant) {
        for flight in self.calls_mut().filter(|flight| flight.earliest.is_some_and(|at| at <= now)) {
            let requests = &mut flight.batch.requests;
            let is_waiting = |request: &mut Request| !request.expire(shard, now) && request.is_awaited();
            flight.earliest = requests
                .iter_mut()
                .filter_map(|request| is_waiting(request).then_some(request.deadline.at))
                .min();
        }
    }

    /// Tells all who wait for anything.
    pub(super) fn fail(&mut self, why: &StoreError) {
        for request in self.calls_mut().flat_map(|flight| &mut flight.batch.requests) {
            request.tell(Err(why.clone().into()));
        }
        for awaited in self.awaited.drain(..) {
            if let Awaited::Question(question) = awaited {
                question.tell(Err(why.clone()));
            }
        }
    }

    fn count(&mut self, flight: &Flight) {
        self.calls += 1;
        self.together += usize::from(flight.kind == Kind::Together);
        self.charges += flight.charges;
    }

    fn discount(&mut self, flight: &Flight) {
        self.calls -= 1;
        self.together -= usize::from(flight.kind == Kind::Together);
        self.charges -= flight.charges;
    }
}
