//! One server: its address, how to dial it, and the connections to it.
//!
//! Nodes come and go while the store lives: a cluster grows, a sentinel promotes. So a node knows nothing of the others
//! and shares no queue, lock or wait with them; what it notices it tells by a [`Sign`], and who keeps the map of nodes
//! hears it. It has one place for a connection for each seat (`redis/seats.rs`), and connects as soon as the runtimes that
//! hold the seats learn of it.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{
    breaker::{Breaker, Change, SILENT_TIMEOUTS},
    commit::IN_FLIGHT_MAX,
    deadline::Deadline,
    dial::Dial,
    error,
    link::{self, Link},
    queue::Queue,
    reply::Whole,
    request::How,
    resp::Value,
    sign::{Hears, Sign},
};
use crate::{
    clock::{Clock, SystemClock},
    limit::{Charge, Decision},
    store::{ShardHealth, StoreError},
    timer::Timer,
};

/// A breaker that opens again and again is told to the log so often.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// One server and the connections to it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) address: String,
    pub(super) links: Box<[Link]>,
    /// Of one connection.
    pub(super) in_flight_max: usize,
    pub(super) dial: Dial,
    /// After which a call is late.
    pub(super) timeout: Duration,
    breaker: Mutex<Breaker>,
    /// Whether the breaker is.
    open: AtomicBool,
    /// When the log was told that it opened.
    said_at: Mutex<Option<Instant>>,
    /// What the server said last, where it refuses to serve: out of memory, read only.
    refusal: Mutex<Option<StoreError>>,
    /// Whether there is one.
    is_refusing: AtomicBool,
    /// Whether its scripts may use declared keys only.
    declares: AtomicBool,
    /// True once the node is no longer wanted.
    closing: watch::Sender<bool>,
    /// Changes when the connections have to be made anew.
    anew: watch::Sender<()>,
    /// Changes whenever a connection comes up.
    ups: watch::Sender<()>,
    hears: Hears,
}

impl Node {
    /// `connections`: how many places for them there are; `timeout`: after which a call is late.
    pub(super) fn new(dial: Dial, connections: usize, timeout: Duration, hears: Hears) -> Self {
        Self {
            address: dial.address.to_string(),
            links: (0..connections).map(|_| Link::default()).collect(),
            in_flight_max: (IN_FLIGHT_MAX / connections).max(1),
            dial,
            timeout,
            breaker: Mutex::new(Breaker::new(timeout)),
            open: AtomicBool::new(false),
            said_at: Mutex::default(),
            refusal: Mutex::default(),
            is_refusing: AtomicBool::new(false),
            declares: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            anew: watch::Sender::new(()),
            ups: watch::Sender::new(()),
            hears,
        }
    }

    /// Decides the charges of one request, all or nothing, in one call of the script over the connection of `seat`, with
    /// the requests of others.
    pub(super) async fn spend(
        &self,
        seat: usize,
        charges: &[Charge],
        deadline: Deadline,
    ) -> Result<Decision, NodeError> {
        let how = if self.declares.load(Ordering::Relaxed) { How::Alone } else { How::Together };
        self.spend_how(seat, charges, deadline, how).await
    }

    /// The same in a call of its own that declares its keys, which all have to be of one slot: so a node of a cluster
    /// says where they are. `asking` is for who was told to ASK here.
    pub(super) async fn spend_alone(
        &self,
        seat: usize,
        charges: &[Charge],
        deadline: Deadline,
        asking: bool,
    ) -> Result<Decision, NodeError> {
        self.spend_how(seat, charges, deadline, if asking { How::Asking } else { How::Alone }).await
    }

    async fn spend_how(
        &self,
        seat: usize,
        charges: &[Charge],
        deadline: Deadline,
        how: How,
    ) -> Result<Decision, NodeError> {
        let now = SystemClock.instant();
        if deadline.at <= now {
            return Err(deadline.passed(&self.address).into());
        }
        let queue = self.queue(seat)?;
        if self.is_open() {
            return Err(self.silent(now).into());
        }
        queue.spend(&self.address, charges, deadline, how).await
    }

    /// Whether one call may hold keys of several slots of this node.
    pub(super) fn crosses_slots(&self) -> bool {
        !self.declares.load(Ordering::Relaxed)
    }

    /// One command's reply, for who keeps the map of nodes.
    ///
    /// # Errors
    /// When no connection is up, or there is no reply in time. An error reply is a reply.
    pub(super) async fn ask(
        &self,
        seat: usize,
        words: &'static [&'static str],
        within: Duration,
    ) -> Result<Value, StoreError> {
        self.queue(seat)?.ask(&self.address, words, within).await
    }

    /// Waits until a connection is up, or the deadline is over.
    pub(super) async fn until_up(&self, deadline: Deadline) {
        if self.is_up() {
            return;
        }
        let (mut ups, mut late) = (self.ups.subscribe(), Timer::new());
        late.set(deadline.at);
        while !self.is_up() {
            tokio::select! {
                // The sender lives as long as the node does.
                _ = ups.changed() => {}
                () = late.goes_off() => return,
            }
        }
    }

    pub(super) fn health(&self, seat: usize) -> ShardHealth {
        let state = match self.queue(seat) {
            Err(why) => Err(why.to_string()),
            Ok(_) if self.is_open() => Err(self.silent(SystemClock.instant()).to_string()),
            Ok(_) => match &*lock(&self.refusal) {
                Some(why) => Err(why.to_string()),
                None => Ok(()),
            },
        };
        ShardHealth { shard: self.address.clone(), state }
    }

    /// Whether any connection is up.
    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(Link::is_up)
    }

    /// Whether it is, and answers.
    pub(super) fn is_well(&self) -> bool {
        self.is_up() && !self.is_open()
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

    /// Makes all connections anew, and asks for the address behind the name again.
    pub(super) fn connect_anew(&self) {
        self.anew.send_replace(());
    }

    /// Ends when a connection has to be made anew.
    pub(super) async fn is_to_connect_anew(&self) {
        // The sender lives as long as the node does.
        let _ = self.anew.subscribe().changed().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    /// Ends when the node is closed.
    pub(super) async fn closed(&self) {
        // The sender lives as long as the node does.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    pub(super) fn tell(&self, sign: Sign) {
        if sign == Sign::Up {
            self.ups.send_replace(());
        }
        (self.hears.0)(sign);
    }

    /// The line before the connection of a seat, or while that is down before any other; else what is wrong with the
    /// seat's.
    fn queue(&self, seat: usize) -> Result<Arc<Queue>, StoreError> {
        if let Some(queue) = self.links[seat].queue() {
            return Ok(queue);
        }
        match self.links.iter().find_map(Link::queue) {
            Some(queue) => Ok(queue),
            None => Err(self.links[seat].why_down(&self.address)),
        }
    }
}

/// What the commit loops of a node's connections tell it.
impl Node {
    /// A new connection is up.
    pub(super) fn up(&self) {
        self.change(Breaker::close);
        self.serves();
        self.tell(Sign::Up);
    }

    /// A call was answered in the form of our script.
    pub(super) fn serves(&self) {
        if self.is_refusing.load(Ordering::Relaxed) {
            self.is_refusing.store(false, Ordering::Relaxed);
            *lock(&self.refusal) = None;
        }
    }

    /// A call, or a request in it, has no answer for a reason of the server's.
    pub(super) fn refuses(&self, whole: &Whole) {
        let Whole::Refused { text, error } = whole else { return };
        if !matches!(error, StoreError::Refused { .. }) {
            return;
        }
        *lock(&self.refusal) = Some(error.clone());
        self.is_refusing.store(true, Ordering::Relaxed);
        if text.contains("READONLY") {
            self.tell(Sign::ReadOnly);
        } else if error::is_sign_of_change(text) {
            self.suspect();
        }
    }

    /// Something says that this node is not, or no longer, what it is taken for.
    pub(super) fn suspect(&self) {
        self.tell(Sign::Suspect);
    }

    /// Keys have to be declared here.
    pub(super) fn declares(&self) {
        if !self.declares.swap(true, Ordering::Relaxed) {
            tracing::warn!(store = %self.address, "its scripts may use declared keys only, so each request is a call");
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// What callers are told while the breaker is open.
    pub(super) fn silent(&self, now: Instant) -> StoreError {
        let since = lock(&self.breaker).open_since().unwrap_or(now);
        let why = format!("no answer in time for {} ms", now.saturating_duration_since(since).as_millis());
        StoreError::Unavailable { shard: self.address.clone(), why }
    }

    pub(super) fn answered(&self, sent: Instant, now: Instant) {
        lock(&self.breaker).answered(sent, now);
    }

    pub(super) fn late(&self, sent: Instant, now: Instant) {
        self.change(|breaker| breaker.late(sent, now));
    }

    pub(super) fn unanswered(&self, sent: Instant, now: Instant) {
        self.change(|breaker| breaker.unanswered(sent, now));
    }

    /// A call without an answer for so long is told as [`unanswered`](Self::unanswered).
    pub(super) fn silence_max(&self) -> Duration {
        self.timeout.saturating_mul(SILENT_TIMEOUTS)
    }

    pub(super) fn next_probe(&self) -> Option<Instant> {
        lock(&self.breaker).next_probe()
    }

    pub(super) fn may_probe(&self, now: Instant) -> bool {
        lock(&self.breaker).may_probe(now)
    }

    pub(super) fn probed(&self, sent: Instant, now: Instant) {
        let random = RandomState::new().build_hasher().finish();
        self.change(|breaker| breaker.probed(sent, now, random));
    }

    pub(super) fn probe_lost(&self) {
        lock(&self.breaker).probe_lost();
        self.wake_all();
    }

    fn change(&self, by: impl FnOnce(&mut Breaker) -> Change) {
        let mut breaker = lock(&self.breaker);
        let change = by(&mut breaker);
        self.open.store(breaker.open_since().is_some(), Ordering::Release);
        drop(breaker);
        match change {
            Change::Nothing => {}
            Change::Opened => {
                let now = SystemClock.instant();
                let mut said_at = lock(&self.said_at);
                if said_at.is_none_or(|at| now.saturating_duration_since(at) >= SAID_EVERY) {
                    *said_at = Some(now);
                    tracing::warn!("{}", self.silent(now));
                }
                drop(said_at);
                // Whoever has a connection that is free may send the probe.
                self.wake_all();
                self.suspect();
            }
            Change::Closed => {}
        }
    }

    fn wake_all(&self) {
        self.links.iter().filter_map(Link::queue).for_each(|queue| queue.wake());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a node does not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeError {
    /// The slot has another node for good.
    Moved { slot: u16, to: String },
    /// The slot is on its way to another node, and the key is there.
    Ask { slot: u16, to: String },
    /// A key is not on the node, or not all are. Nothing was done for the request; who sends it alone learns more.
    NotHere,
    /// As a store.
    Store(StoreError),
}

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
