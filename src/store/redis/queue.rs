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
    task::Waker,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    deadline::Deadline,
    node::NodeError,
    request::{How, Outcome, Question, Request},
    resp::Value,
};
use crate::{limit::Charge, store::StoreError};

/// The most charges that wait to be sent to one server, over all connections of this process. At 100,000 charges a second
/// it is 160 ms of answers, far beyond any deadline.
pub const QUEUE_CHARGES_MAX: usize = 16_384;

/// The most memory that they take. Keys of our own form are at most 300 bytes; those of the reference's may be longer.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;

/// The most questions that wait besides: those who keep the map ask one or two at a time.
const QUESTIONS_MAX: usize = 64;

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

/// The line before one connection.
#[derive(Debug)]
pub(super) struct Queue {
    bounds: Bounds,
    waiting: Mutex<Waiting>,
}

/// When the task that sends has to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// At once: somebody has come.
    Now,
    /// When it is woken, or at this time.
    Later(Option<Instant>),
}

#[derive(Debug, Default)]
struct Waiting {
    /// Those who go with others, by ascending id.
    together: VecDeque<Request>,
    /// Those who go alone, by ascending id.
    alone: VecDeque<Request>,
    questions: VecDeque<Question>,
    next_id: u64,
    charges: usize,
    bytes: usize,
    /// No deadline of those who wait is earlier.
    earliest: Option<Instant>,
    /// When the task that sends will look by itself; `None` when it sleeps until it is woken.
    looks_at: Option<Instant>,
    /// Wakes that task.
    waker: Option<Waker>,
    /// It was woken, or would have been if it had slept, and has not looked since.
    woken: bool,
    /// Why the connection has ended.
    closed: Option<StoreError>,
}

impl Queue {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, waiting: Mutex::default() }
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
        let mut request = Request::new(charges, deadline, how, tell);
        let number = charges.len();
        let mut waiting = self.lock();
        if let Some(why) = &waiting.closed {
            return Err(why.clone().into());
        }
        if waiting.charges + number > self.bounds.charges || waiting.bytes + request.bytes > self.bounds.bytes
        {
            let why = format!("{} charges wait to be sent", waiting.charges);
            return Err(StoreError::Overload { shard: shard.to_owned(), why }.into());
        }
        let id = waiting.next_id;
        request.id = id;
        waiting.next_id += 1;
        let was_empty = waiting.is_empty();
        waiting.push_back(request);
        // Whoever comes behind others comes behind somebody who has woken it.
        let wake = was_empty || how != How::Together || waiting.looks_at.is_none_or(|at| deadline.at < at);
        if wake {
            Waiting::wake(waiting);
        }
        Ok(id)
    }

    /// One command's reply, an error reply included.
    ///
    /// # Errors
    /// When the connection has ended, too many ask, or there is no reply in time.
    pub(super) async fn ask(
        &self,
        shard: &str,
        words: &'static [&'static str],
        within: Duration,
    ) -> Result<Value, StoreError> {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.lock();
            if let Some(why) = &waiting.closed {
                return Err(why.clone());
            }
            if waiting.questions.len() >= QUESTIONS_MAX {
                let why = format!("{QUESTIONS_MAX} questions wait to be sent");
                return Err(StoreError::Overload { shard: shard.to_owned(), why });
            }
            waiting.questions.push_back(Question::new(words, tell));
            Waiting::wake(waiting);
        }
        match tokio::time::timeout(within, told).await {
            Ok(reply) => reply.unwrap_or_else(|_| Err(self.why_closed(shard))),
            Err(_) => Err(StoreError::Timeout { shard: shard.to_owned(), after: within }),
        }
    }

    /// Makes the task that sends look.
    pub(super) fn wake(&self) {
        Waiting::wake(self.lock());
    }

    /// Adds to `into` those who go next in one call, of at most so many charges, but one request in any case. None is late
    /// or without a caller.
    pub(super) fn take(&self, shard: &str, charges_max: usize, now: Instant, into: &mut Vec<Request>) {
        let mut waiting = self.lock();
        waiting.woken = false;
        let mut charges = 0;
        while let Some(next) = waiting.together.front() {
            let number = next.charges().len();
            if charges > 0 && charges + number > charges_max {
                break;
            }
            if let Some(request) =
                waiting.pop(How::Together).and_then(|request| request.still_wanted(shard, now))
            {
                charges += number;
                into.push(request);
            }
        }
    }

    /// The next question whose answer is still waited for.
    pub(super) fn take_question(&self) -> Option<Question> {
        let mut waiting = self.lock();
        while let Some(question) = waiting.questions.pop_front() {
            if question.is_awaited() {
                return Some(question);
            }
        }
        None
    }

    /// The next who goes alone.
    pub(super) fn take_alone(&self, shard: &str, now: Instant) -> Option<Request> {
        let mut waiting = self.lock();
        while let Some(request) = waiting.pop(How::Alone) {
            if let Some(request) = request.still_wanted(shard, now) {
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
    /// deadline, or where it has to send then, at `send_at`. From then on it is woken by `waker`.
    pub(super) fn look_at(&self, flights: Option<Instant>, send_at: Option<Instant>, waker: &Waker) -> Look {
        let mut waiting = self.lock();
        if mem::take(&mut waiting.woken) {
            return Look::Now;
        }
        let send_at = send_at.filter(|_| !waiting.is_empty());
        let at = [flights, waiting.earliest, send_at].into_iter().flatten().min();
        waiting.looks_at = at;
        if !waiting.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            waiting.waker = Some(waker.clone());
        }
        Look::Later(at)
    }

    /// Nobody gets in any more, and all who wait are told why.
    pub(super) fn close(&self, why: &StoreError) {
        let mut waiting = self.lock();
        waiting.closed = Some(why.clone());
        waiting.waker = None;
        for question in mem::take(&mut waiting.questions) {
            question.tell(Err(why.clone()));
        }
        drop(waiting);
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
    fn wake(mut waiting: MutexGuard<'_, Self>) {
        waiting.woken = true;
        let waker = waiting.waker.clone();
        // The thread that it wakes may want the lock.
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

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
