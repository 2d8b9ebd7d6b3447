//! What waits to be sent over one connection.
//!
//! A request waits here while a call is in flight, or while the task that sends (`redis/commit.rs`) has not had its turn
//! yet; an idle connection has nothing in it. Whatever leaves before its turn was never sent, so it is surely not spent:
//! when its deadline passes, when its caller goes away, when the connection ends.
//!
//! The line is bounded in charges and in bytes. Above that a request fails at once as an overload: it could not be
//! answered in time, and what waits for a store that answers slowly would only grow.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::{Notify, oneshot};

use super::{deadline::Deadline, node::NodeError};
use crate::{
    limit::{Charge, Decision},
    store::StoreError,
};

/// The most charges that wait to be sent to one server, over all connections of this process. At 100,000 charges a second
/// it is 160 ms of answers, far beyond any deadline.
pub const QUEUE_CHARGES_MAX: usize = 16_384;

/// The most memory that they take. Keys of our own form are at most 300 bytes; those of the reference's may be longer.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;

/// What may wait in one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    charges: usize,
    bytes: usize,
}

impl Bounds {
    /// Of one of so many connections to a server.
    pub(super) fn shared_by(connections: usize) -> Self {
        Self { charges: QUEUE_CHARGES_MAX / connections, bytes: QUEUE_BYTES_MAX / connections }
    }
}

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
    id: u64,
    charges: Charges,
    bytes: usize,
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

/// The line before one connection.
#[derive(Debug)]
pub(super) struct Queue {
    bounds: Bounds,
    waiting: Mutex<Waiting>,
    /// There is something to do for the task that sends.
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Those who go with others, by ascending id.
    together: VecDeque<Request>,
    /// Those who go alone, by ascending id.
    alone: VecDeque<Request>,
    next_id: u64,
    charges: usize,
    bytes: usize,
    /// No deadline of those who wait is earlier.
    earliest: Option<Instant>,
    /// When the task that sends will look by itself; `None` when it sleeps until it is woken.
    looks_at: Option<Instant>,
    /// Why the connection has ended.
    closed: Option<StoreError>,
}

impl Queue {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, waiting: Mutex::default(), arrived: Notify::new() }
    }

    /// Waits in line, and then for the outcome.
    pub(super) async fn spend(
        &self,
        shard: &str,
        charges: &[Charge],
        deadline: Deadline,
        how: How,
    ) -> Outcome {
        let (tell, told) = oneshot::channel();
        let id = self.join(shard, charges, deadline, how, tell)?;
        let mut place = Place { queue: self, id, leaves: true };
        let outcome = told.await;
        place.leaves = false;
        outcome.unwrap_or_else(|_| Err(self.why_closed(shard).into()))
    }

    fn join(
        &self,
        shard: &str,
        charges: &[Charge],
        deadline: Deadline,
        how: How,
        tell: oneshot::Sender<Outcome>,
    ) -> Result<u64, NodeError> {
        let bytes = size_of::<Request>() + charges.iter().map(size).sum::<usize>();
        let charges = match charges {
            [one] => Charges::One(one.clone()),
            many => Charges::Many(many.into()),
        };
        let mut waiting = self.lock();
        if let Some(why) = &waiting.closed {
            return Err(why.clone().into());
        }
        let mut request = Request { id: waiting.next_id, charges, bytes, deadline, how, tell: Some(tell) };
        let (id, number) = (request.id, request.charges().len());
        if waiting.charges + number > self.bounds.charges || waiting.bytes + bytes > self.bounds.bytes {
            request.tell = None;
            let why = format!("{} charges wait to be sent", waiting.charges);
            return Err(StoreError::Overload { shard: shard.to_owned(), why }.into());
        }
        waiting.next_id += 1;
        let was_empty = waiting.is_empty();
        waiting.push_back(request);
        // Whoever comes behind others comes behind somebody who has woken it.
        let wake = was_empty || how != How::Together || waiting.looks_at.is_none_or(|at| deadline.at < at);
        drop(waiting);
        if wake {
            self.arrived.notify_one();
        }
        Ok(id)
    }

    /// Ends when somebody has come since it was called last.
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Makes the task that sends look.
    pub(super) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Those who go next in one call, of at most so many charges, but one request in any case. None is late or without
    /// a caller.
    pub(super) fn take(&self, shard: &str, charges_max: usize, now: Instant) -> Vec<Request> {
        let mut waiting = self.lock();
        let (mut taken, mut charges) = (Vec::new(), 0);
        while let Some(next) = waiting.together.front() {
            let number = next.charges().len();
            if !taken.is_empty() && charges + number > charges_max {
                break;
            }
            if let Some(request) =
                waiting.pop(How::Together).and_then(|request| still_wanted(request, shard, now))
            {
                charges += number;
                taken.push(request);
            }
        }
        taken
    }

    /// The next who goes alone.
    pub(super) fn take_alone(&self, shard: &str, now: Instant) -> Option<Request> {
        let mut waiting = self.lock();
        while let Some(request) = waiting.pop(How::Alone) {
            if let Some(request) = still_wanted(request, shard, now) {
                return Some(request);
            }
        }
        None
    }

    /// Back into the line, to go alone: nothing was done for it.
    pub(super) fn put_back(&self, mut request: Request) {
        request.how = How::Alone;
        let mut waiting = self.lock();
        // A new number, since the line is ordered by them; a caller who leaves meanwhile is found out when it is taken.
        request.id = waiting.next_id;
        waiting.next_id += 1;
        waiting.push_back(request);
    }

    /// Tells those who are late.
    pub(super) fn expire(&self, shard: &str, now: Instant) {
        let mut waiting = self.lock();
        if waiting.earliest.is_none_or(|earliest| now < earliest) {
            return;
        }
        waiting.retain(|request| !request.expire(shard, now));
    }

    /// Tells all who wait the same.
    pub(super) fn fail(&self, why: &StoreError) {
        self.lock().retain(|request| {
            request.tell(Err(why.clone().into()));
            false
        });
    }

    /// Says when the task that sends will look by itself, from when it would have to by the flights: at the first
    /// deadline, or where it has to send then, at `send_at`. Returns that.
    pub(super) fn look_at(&self, flights: Option<Instant>, send_at: Option<Instant>) -> Option<Instant> {
        let mut waiting = self.lock();
        let send_at = send_at.filter(|_| !waiting.is_empty());
        let at = [flights, waiting.earliest, send_at].into_iter().flatten().min();
        waiting.looks_at = at;
        at
    }

    /// Nobody gets in any more, and all who wait are told why.
    pub(super) fn close(&self, why: &StoreError) {
        self.lock().closed = Some(why.clone());
        self.fail(why);
    }

    fn why_closed(&self, shard: &str) -> StoreError {
        self.lock().closed.clone().unwrap_or_else(|| StoreError::Unavailable {
            shard: shard.to_owned(),
            why: "the connection was closed".to_owned(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.together.is_empty() && self.alone.is_empty()
    }

    fn push_back(&mut self, request: Request) {
        self.charges += request.charges().len();
        self.bytes += request.bytes;
        let at = request.deadline.at;
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        match request.how {
            How::Together => self.together.push_back(request),
            How::Alone | How::Asking => self.alone.push_back(request),
        }
    }

    fn pop(&mut self, how: How) -> Option<Request> {
        let line = if how == How::Together { &mut self.together } else { &mut self.alone };
        let request = line.pop_front()?;
        self.left(&request);
        Some(request)
    }

    fn left(&mut self, request: &Request) {
        self.charges -= request.charges().len();
        self.bytes -= request.bytes;
        if self.is_empty() {
            self.earliest = None;
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut Request) -> bool) {
        self.earliest = None;
        for mut request in mem::take(&mut self.together).into_iter().chain(mem::take(&mut self.alone)) {
            self.charges -= request.charges().len();
            self.bytes -= request.bytes;
            if keep(&mut request) {
                self.push_back(request);
            }
        }
    }

    fn remove(&mut self, id: u64) {
        let found = [&mut self.together, &mut self.alone].into_iter().find_map(|line| {
            let index = line.binary_search_by_key(&id, |request| request.id).ok()?;
            line.remove(index)
        });
        if let Some(request) = found {
            self.left(&request);
        }
    }
}

fn still_wanted(mut request: Request, shard: &str, now: Instant) -> Option<Request> {
    (!request.expire(shard, now) && request.is_awaited()).then_some(request)
}

/// What a charge takes while it waits.
fn size(charge: &Charge) -> usize {
    size_of::<Charge>() + charge.key.as_bytes().len()
}

/// A caller's place in line, which he leaves when he goes away.
struct Place<'q> {
    queue: &'q Queue,
    id: u64,
    leaves: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.leaves {
            self.queue.lock().remove(self.id);
        }
    }
}
