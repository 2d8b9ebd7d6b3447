//! One server: its address, how to dial it, and the connections to it.
//!
//! Nodes come and go while the store lives: a cluster grows, a sentinel promotes. So a node knows nothing of the others
//! and shares no queue, lock or wait with them; what it notices it tells by a [`Sign`], and who keeps the map of nodes
//! hears it. It has one place for a connection for each seat (`redis/seats.rs`), and connects as soon as the runtimes that
//! hold the seats learn of it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use fred::types::{Resp3Frame, Value};
use tokio::sync::watch;

use super::{
    IN_FLIGHT_MAX,
    dial::Dial,
    error,
    link::{self, Link, Live},
};
use crate::{
    clock::{Clock, SystemClock},
    limit::{Charge, Decision},
    store::{ShardHealth, StoreError, script},
};

/// One server and the connections to it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) address: String,
    pub(super) links: Box<[Link]>,
    /// Of one connection.
    pub(super) in_flight_max: usize,
    pub(super) dial: Dial,
    /// True once the node is no longer wanted.
    closing: watch::Sender<bool>,
    hears: Hears,
}

/// What a node tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// A connection is up, and was not before.
    Up,
    /// A connection is down, or could not be made.
    Down,
}

/// Whom a node tells its signs. Called on any thread; must not wait.
#[derive(Clone)]
pub(super) struct Hears(pub(super) Arc<dyn Fn(Sign) + Send + Sync>);

impl fmt::Debug for Hears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hears")
    }
}

impl Node {
    /// `connections`: how many places for them there are.
    pub(super) fn new(address: String, dial: Dial, connections: usize, hears: Hears) -> Self {
        Self {
            address,
            links: (0..connections).map(|_| Link::default()).collect(),
            in_flight_max: (IN_FLIGHT_MAX / connections).max(1),
            dial,
            closing: watch::Sender::new(false),
            hears,
        }
    }

    /// Decides the charges of one request, all or nothing, in one call of the script over the connection of `seat`.
    pub(super) async fn spend(
        &self,
        seat: usize,
        charges: &[Charge],
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        let call = script::Call::new([charges], script::Keys::Declared, None);
        let live = self.live(seat)?;
        let loads = live.loads();
        let mut reply = live.evalsha(self, &call, deadline).await?;
        if is_noscript(&reply) {
            live.load_again(self, loads, deadline).await?;
            reply = live.evalsha(self, &call, deadline).await?;
        }
        self.decide(&call, charges, &reply)
    }

    pub(super) fn health(&self, seat: usize) -> ShardHealth {
        let state = self.live(seat).map(|_| ()).map_err(|e| e.to_string());
        ShardHealth { shard: self.address.clone(), state }
    }

    /// Whether any connection is up.
    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(Link::is_up)
    }

    /// Keeps the connection of a seat up, on this runtime, until [`close`](Self::close) or the runtime's end.
    pub(super) async fn keep(self: Arc<Self>, seat: usize) {
        if self.links[seat].claim() {
            link::keep(self, seat).await;
        }
    }

    /// Ends all connections, with what is in flight on them.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Ends when the node is closed.
    pub(super) async fn closed(&self) {
        // The sender lives as long as the node does.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    pub(super) fn tell(&self, sign: Sign) {
        (self.hears.0)(sign);
    }

    /// The connection of a seat, or while it is down any other that is up; else what is wrong with the seat's.
    fn live(&self, seat: usize) -> Result<Arc<Live>, StoreError> {
        if let Some(live) = self.links[seat].live() {
            return Ok(live);
        }
        match self.links.iter().find_map(Link::live) {
            Some(live) => Ok(live),
            None => Err(self.links[seat].why_down(&self.address)),
        }
    }

    fn decide(
        &self,
        call: &script::Call,
        charges: &[Charge],
        reply: &Resp3Frame,
    ) -> Result<Decision, StoreError> {
        if let Some(text) = error_text(reply) {
            return Err(error::from_reply(&self.address, &text));
        }
        let answers = script_reply(reply).and_then(|reply| call.answers([charges], reply));
        match answers.and_then(|mut answers| answers.pop()) {
            Some(script::Answer::Decided(decision)) => Ok(decision),
            Some(script::Answer::Unusable(why)) => Err(error::from_reply(&self.address, &why)),
            None => Err(StoreError::Refused {
                shard: self.address.clone(),
                why: "it answered the script in a form that is not the script's".to_owned(),
            }),
        }
    }

    pub(super) fn timed_out(&self, deadline: Deadline) -> StoreError {
        StoreError::Timeout { shard: self.address.clone(), after: deadline.whole }
    }
}

/// When a spend gives up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    at: Instant,
    pub(super) whole: Duration,
}

impl Deadline {
    pub(super) fn after(whole: Duration) -> Self {
        // A caller who grants more than the clock can count grants for ever, and the shard's timeout bounds that.
        let now = SystemClock.instant();
        Self { at: now.checked_add(whole).unwrap_or(now), whole }
    }

    /// What is left; `None` when nothing is.
    pub(super) fn left(&self) -> Option<Duration> {
        self.at.checked_duration_since(SystemClock.instant()).filter(|left| !left.is_zero())
    }
}

fn is_noscript(reply: &Resp3Frame) -> bool {
    error_text(reply).is_some_and(|text| text.starts_with("NOSCRIPT"))
}

/// The reply to a call of the script, if it has the form of one.
fn script_reply(reply: &Resp3Frame) -> Option<script::Reply<'_>> {
    let Resp3Frame::Array { data, .. } = reply else { return None };
    let [
        Resp3Frame::Number { data: now, .. },
        Resp3Frame::BlobString { data: fitted, .. },
        Resp3Frame::BlobString { data: held, .. },
    ] = &data[..]
    else {
        return None;
    };
    Some(script::Reply { now: *now, fitted, held })
}

/// The text of an error reply.
fn error_text(reply: &Resp3Frame) -> Option<std::borrow::Cow<'_, str>> {
    match reply {
        Resp3Frame::SimpleError { data, .. } => Some((&**data).into()),
        Resp3Frame::BlobError { data, .. } => Some(String::from_utf8_lossy(data)),
        _ => None,
    }
}

/// The arguments of one `EVALSHA`; the script's hash goes before them.
pub(super) fn arguments(hash: Value, call: &script::Call) -> Vec<Value> {
    let mut all = Vec::with_capacity(2 + call.keys.len() + call.args.len());
    all.push(hash);
    all.push(Value::Integer(i64::try_from(call.keys.len()).unwrap_or(i64::MAX)));
    all.extend(call.keys.iter().chain(&call.args).map(|bytes| Value::Bytes(bytes.clone())));
    all
}
