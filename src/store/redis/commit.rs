//! Group commit: what waits while a call is in flight goes together in the next one.
//!
//! A call costs Redis and its client several times what a request in it does, so the fewer calls the better; but who
//! waits for company makes everybody late. Group commit needs no choice between the two: an idle connection sends at once
//! whatever comes, and a busy one sends, when a call returns, all that has come meanwhile. The busier, the larger the
//! calls, up to [`CALL_CHARGES_MAX`].
//!
//! A slow network would double the wait so, since who comes just after a call has left waits for its return and then for
//! his own. So when the newest call in flight is older than [`SEND_ANYWAY_AFTER`], those who wait go anyway; there are at
//! most [`CALLS_MAX`] in flight.
//!
//! # Deadlines
//!
//! A request whose deadline passes while it waits is taken out and never sent. One that passes in flight is a timeout,
//! but the call stays in flight until it is answered or the connection ends: what a hung server may still do when it
//! wakes is bounded by that. One [`Timer`] serves all of a connection: it is in time, where tokio's are up to 2 ms late.
//!
//! # One task
//!
//! One task does all of it for one connection: it sends, receives, and tells. What it must never do is wait for one call
//! while another is answered, so calls in flight are futures in a list that it polls.

use std::{
    future::{Future, pending, poll_fn},
    pin::Pin,
    task::Poll,
    time::{Duration, Instant},
};

use fred::types::Resp3Frame;

use super::{
    error,
    link::Live,
    node::{Node, NodeError},
    queue::{How, Request},
    reply::{self, Whole},
};
use crate::{
    clock::{Clock, SystemClock},
    store::{
        StoreError,
        script::{self, Answer, Call, Keys},
    },
    timer::Timer,
};

/// The most charges that go in one call: some 1 ms of Redis, in which it serves nobody else.
pub(super) const CALL_CHARGES_MAX: usize = 256;

/// The most calls in flight on one connection.
pub(super) const CALLS_MAX: usize = 4;

/// How old the newest call in flight is before another one goes beside it. Far longer than a round trip in one data
/// centre, where the next call gains nothing from leaving early.
pub(super) const SEND_ANYWAY_AFTER: Duration = Duration::from_millis(1);

/// The most charges in flight to one server, over all connections of this process, those counted whose callers have given
/// up: what a server that hangs may still spend when it wakes.
pub const IN_FLIGHT_MAX: usize = 4096;

/// Serves the line of one connection for as long as the connection is any good; returns why it is not.
pub(super) async fn run(node: &Node, live: &Live) -> StoreError {
    let mut commit = Commit { node, live, flights: Vec::new(), loading: None };
    let mut timer = Timer::new();
    let mut armed = None;
    loop {
        commit.send(SystemClock.instant()).await;
        let look_at = commit.looks_at();
        if let Some(at) = look_at.filter(|at| armed.is_none_or(|armed| *at < armed)) {
            armed = look_at;
            timer.set(at);
        }
        tokio::select! {
            biased;
            (index, reply) = landing(&mut commit.flights) => {
                if let Err(why) = commit.landed(index, reply).await {
                    return why;
                }
            }
            loaded = loaded(&mut commit.loading) => commit.loaded(loaded).await,
            () = live.queue.arrived() => {}
            () = timer.goes_off(), if armed.is_some() => {
                armed = None;
                commit.expire(SystemClock.instant());
            }
        }
    }
}

type Reply = Result<Resp3Frame, fred::error::Error>;
type Replying = Pin<Box<dyn Future<Output = Reply> + Send>>;

struct Commit<'n> {
    node: &'n Node,
    live: &'n Live,
    /// In the order in which they were sent.
    flights: Vec<Flight>,
    /// The script, on its way to the server again.
    loading: Option<Replying>,
}

/// A call in flight.
struct Flight {
    requests: Vec<Request>,
    charges: usize,
    call: Call,
    kind: Kind,
    sent: Instant,
    /// Counted as late.
    late: bool,
    /// Told to the breaker as unanswered. Once: where other connections are answered, it is this one that is broken.
    accused: bool,
    /// No deadline in it is earlier.
    earliest: Option<Instant>,
    /// The script was loaded for it once.
    loaded: bool,
    /// `None` while it waits for the script to be loaded.
    reply: Option<Replying>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Together,
    /// One request alone.
    Alone,
    /// No request: to see whether the server answers.
    Probe,
}

impl Commit<'_> {
    /// Sends what may go now.
    async fn send(&mut self, now: Instant) {
        let shard = &self.node.address;
        if self.node.is_open() {
            self.live.queue.fail(&self.node.silent(now));
            if self.flights.is_empty() && self.node.may_probe(now) {
                let call = Call::new([], Keys::Undeclared, None);
                self.launch(Vec::new(), call, Kind::Probe, false, now).await;
            }
            return;
        }
        while self.may_send(now) {
            let room = self.node.in_flight_max.saturating_sub(self.in_flight());
            let requests = self.live.queue.take(shard, room.min(CALL_CHARGES_MAX), now);
            if requests.is_empty() {
                break;
            }
            let call = Call::new(requests.iter().map(Request::charges), Keys::Undeclared, None);
            self.launch(requests, call, Kind::Together, false, now).await;
        }
        while self.flights.is_empty() || self.in_flight() < self.node.in_flight_max {
            let Some(request) = self.live.queue.take_alone(shard, now) else { break };
            let call = Call::new([request.charges()], Keys::Declared, None);
            self.launch(vec![request], call, Kind::Alone, false, now).await;
        }
    }

    fn may_send(&self, now: Instant) -> bool {
        let together = || self.flights.iter().filter(|flight| flight.kind == Kind::Together);
        let number = together().count();
        let newest_is_old = || together().next_back().is_some_and(|f| f.sent + SEND_ANYWAY_AFTER <= now);
        let room = self.flights.is_empty() || self.in_flight() < self.node.in_flight_max;
        room && (number == 0 || (number < CALLS_MAX && newest_is_old()))
    }

    fn in_flight(&self) -> usize {
        self.flights.iter().map(|flight| flight.charges).sum()
    }

    async fn launch(&mut self, requests: Vec<Request>, call: Call, kind: Kind, loaded: bool, now: Instant) {
        if requests.first().is_some_and(|request| request.how == How::Asking) {
            // Its answer says nothing. Both commands go to the same queue of the client, one right after the other.
            let mut asking = self.live.asking();
            poll_once(&mut asking).await;
        }
        let mut reply: Replying = Box::pin(self.live.evalsha(&call));
        // The client sends what was polled. An error that comes at once is polled again with the others.
        let reply = match poll_once(&mut reply).await {
            Some(done) => Box::pin(std::future::ready(done)),
            None => reply,
        };
        self.flights.push(Flight {
            charges: requests.iter().map(|request| request.charges().len()).sum(),
            earliest: requests.iter().map(|request| request.deadline.at).min(),
            requests,
            call,
            kind,
            sent: now,
            late: false,
            accused: false,
            loaded,
            reply: Some(reply),
        });
    }

    /// Deals with the answer to a call. `Err` when it is none of our script's: then nobody knows what the connection says.
    async fn landed(&mut self, index: usize, reply: Reply) -> Result<(), StoreError> {
        let now = SystemClock.instant();
        let mut flight = self.flights.remove(index);
        if reply.is_ok() {
            self.count_answer(&mut flight, now);
        } else if flight.kind == Kind::Probe {
            self.node.probe_lost();
        }
        if !flight.loaded && reply.as_ref().is_ok_and(reply::is_noscript) {
            self.load_for(flight).await;
            return Ok(());
        }
        // The next call is on its way while this one is read.
        self.send(now).await;
        match reply::read(&self.node.address, reply, |reply| {
            flight.call.answers(flight.requests.iter().map(Request::charges), reply)
        }) {
            Ok(answers) => {
                self.node.serves();
                for (request, answer) in flight.requests.into_iter().zip(answers) {
                    self.tell(request, answer);
                }
                Ok(())
            }
            Err(whole) => {
                let why = match &whole {
                    Whole::Garbage(why) => Err(why.clone()),
                    _ => Ok(()),
                };
                self.node.refuses(&whole);
                for mut request in flight.requests {
                    request.tell(Err(whole.to_error(flight.kind == Kind::Alone)));
                }
                why
            }
        }
    }

    fn count_answer(&self, flight: &mut Flight, now: Instant) {
        if flight.kind == Kind::Probe {
            self.node.probed(flight.sent, now);
            return;
        }
        if !flight.late && now.saturating_duration_since(flight.sent) > self.node.timeout {
            self.node.late(flight.sent, now);
        }
        self.node.answered(flight.sent, now);
    }

    fn tell(&self, mut request: Request, answer: Answer) {
        match answer {
            Answer::Decided(decision) => request.tell(Ok(decision)),
            Answer::Unusable(why) if script::is_undeclared(&why) && request.how == How::Together => {
                self.node.declares();
                self.live.queue.put_back(request);
            }
            Answer::Unusable(why) if script::is_not_here(&why) => {
                self.node.suspect();
                request.tell(Err(NodeError::NotHere));
            }
            Answer::Unusable(why) => {
                let whole = Whole::of_text(&self.node.address, &why);
                // A key that is forbidden or foreign says nothing of the server.
                if error::is_sign_of_change(&why) {
                    self.node.refuses(&whole);
                }
                request.tell(Err(whole.to_error(false)));
            }
        }
    }

    /// Keeps a call that found no script until the script is loaded again (after a `SCRIPT FLUSH`), once for all of them.
    async fn load_for(&mut self, flight: Flight) {
        self.flights.push(Flight { reply: None, ..flight });
        if self.loading.is_none() {
            let mut loading: Replying = Box::pin(self.live.load());
            self.loading = Some(match poll_once(&mut loading).await {
                Some(done) => Box::pin(std::future::ready(done)),
                None => loading,
            });
        }
    }

    /// Runs again what waited for the script: nothing of it was done. Those are left out who have given up meanwhile.
    async fn loaded(&mut self, reply: Reply) {
        let now = SystemClock.instant();
        self.loading = None;
        let parked: Vec<Flight> = self.flights.extract_if(.., |flight| flight.reply.is_none()).collect();
        let failed = reply::read(&self.node.address, reply, |_| Some(())).err();
        let failed = failed.filter(|whole| !matches!(whole, Whole::Garbage(_)));
        for mut flight in parked {
            flight.requests.retain_mut(|request| {
                if let Some(whole) = &failed {
                    request.tell(Err(whole.to_error(false)));
                }
                !request.expire(&self.node.address, now) && request.is_awaited()
            });
            if !flight.requests.is_empty() {
                let keys = if flight.kind == Kind::Alone { Keys::Declared } else { Keys::Undeclared };
                let call = Call::new(flight.requests.iter().map(Request::charges), keys, None);
                self.launch(flight.requests, call, flight.kind, true, now).await;
            } else if flight.kind == Kind::Probe {
                // It has found out what it was sent for.
                self.node.probed(flight.sent, now);
            }
        }
    }

    /// Tells those who are late, and counts the calls that are.
    fn expire(&mut self, now: Instant) {
        let shard = &self.node.address;
        self.live.queue.expire(shard, now);
        for flight in &mut self.flights {
            if flight.earliest.is_some_and(|earliest| earliest <= now) {
                flight.earliest = None;
                for request in &mut flight.requests {
                    if !request.expire(shard, now) && request.is_awaited() {
                        let at = request.deadline.at;
                        flight.earliest = Some(flight.earliest.map_or(at, |earliest| earliest.min(at)));
                    }
                }
            }
            if flight.kind != Kind::Probe && !flight.late && flight.sent + self.node.timeout <= now {
                flight.late = true;
                self.node.late(flight.sent, now);
            }
        }
        let is_silent = |flight: &&mut Flight| {
            flight.late && !flight.accused && flight.sent + self.node.silence_max() <= now
        };
        if let Some(silent) = self.flights.iter_mut().find(is_silent) {
            silent.accused = true;
            self.node.unanswered(silent.sent, now);
        }
    }

    /// When there is something to do though nobody comes and nothing lands.
    fn looks_at(&self) -> Option<Instant> {
        let mut send_at = None;
        let mut at: Option<Instant> = None;
        let mut earlier = |then: Instant| at = Some(at.map_or(then, |at| at.min(then)));
        let (mut together, open) = (0, self.node.is_open());
        for flight in &self.flights {
            flight.earliest.into_iter().for_each(&mut earlier);
            match flight.kind {
                Kind::Probe => continue,
                _ if !flight.late => earlier(flight.sent + self.node.timeout),
                _ if !flight.accused => earlier(flight.sent + self.node.silence_max()),
                _ => {}
            }
            if flight.kind == Kind::Together {
                together += 1;
                send_at = Some(flight.sent + SEND_ANYWAY_AFTER);
            }
        }
        if open && self.flights.is_empty() {
            self.node.next_probe().into_iter().for_each(&mut earlier);
        }
        let send_at = send_at.filter(|_| together < CALLS_MAX && self.in_flight() < self.node.in_flight_max);
        self.live.queue.look_at(at, send_at)
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        if self.flights.iter().any(|flight| flight.kind == Kind::Probe) {
            self.node.probe_lost();
        }
    }
}

/// The first call that is answered, by its place in the list.
async fn landing(flights: &mut [Flight]) -> (usize, Reply) {
    poll_fn(|context| {
        for (index, flight) in flights.iter_mut().enumerate() {
            if let Some(reply) = &mut flight.reply
                && let Poll::Ready(reply) = reply.as_mut().poll(context)
            {
                return Poll::Ready((index, reply));
            }
        }
        Poll::Pending
    })
    .await
}

async fn loaded(loading: &mut Option<Replying>) -> Reply {
    match loading {
        Some(loading) => loading.await,
        None => pending().await,
    }
}

/// Lets a future begin. `None` while it has not ended.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *future).poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
