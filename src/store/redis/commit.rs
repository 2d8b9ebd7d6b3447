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
//! wakes is bounded by that. One [`Alarm`] serves all of a connection: it is in time, where tokio's are up to 2 ms late.
//!
//! # One task
//!
//! One task does all of it for one connection, the connection itself included: it writes calls into the wire's buffer,
//! sends what is there with one system call, reads what has arrived, and tells. Nothing is handed to another task on the
//! way. What it must never do is wait for one call while another is answered, so it is one function that is polled, and
//! does at each turn whatever can be done. Heartbeats and the questions of who keeps the map of nodes go the same way, so
//! they never come between ASKING and the call that it is for.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::{
    alarm::Alarm,
    dial::{Hash, LOAD, evalsha},
    error,
    flight::{Awaited, Batch, Flight, Flights, Kind},
    heart::{Beat, Heart},
    node::{Node, NodeError},
    queue::{Look, Queue},
    reply::{self, Whole},
    request::{How, Request},
    resp::{self, Malformed},
    wire::{Lost, Wire},
};
use crate::{
    clock::{Clock, SystemClock},
    store::{
        StoreError,
        script::{self, Answer, Keys},
    },
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
pub(super) async fn run(node: &Node, queue: &Queue, wire: Wire, hash: Hash) -> StoreError {
    let heart = Heart::new(SystemClock.instant());
    let mut commit = Commit { node, queue, wire, hash, flights: Flights::default(), heart };
    let mut alarm = Alarm::default();
    let why = poll_fn(|cx| commit.poll(cx, &mut alarm)).await;
    commit.flights.fail(&why);
    why
}

struct Commit<'n> {
    node: &'n Node,
    queue: &'n Queue,
    wire: Wire,
    /// Of the script.
    hash: Hash,
    flights: Flights,
    heart: Heart,
}

impl Commit<'_> {
    /// Does whatever can be done. Ready when the connection is no good any more.
    fn poll(&mut self, cx: &mut Context<'_>, alarm: &mut Alarm) -> Poll<StoreError> {
        loop {
            if let Err(why) = self.receive(cx).and_then(|()| self.send(SystemClock.instant(), cx)) {
                return Poll::Ready(why);
            }
            let (flights, send_at) = self.looks_at();
            let at = match self.queue.look_at(flights, send_at, cx.waker()) {
                Look::Now => continue,
                Look::Later(at) => at,
            };
            if alarm.poll(at, cx).is_pending() {
                return Poll::Pending;
            }
            if let Err(why) = self.expire(SystemClock.instant()) {
                return Poll::Ready(why);
            }
        }
    }

    /// Deals with all that has arrived.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<(), StoreError> {
        loop {
            while let Some(length) = self.arrived().map_err(|lost| self.lost(&lost))? {
                self.landed(length, cx)?;
            }
            match self.wire.poll_read(cx) {
                Poll::Ready(read) => read.map_err(|lost| self.lost(&lost))?,
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// The length of the next reply, once it is there.
    fn arrived(&mut self) -> Result<Option<usize>, Lost> {
        match self.flights.next() {
            Some(awaited) => Ok(self.wire.arrived(&awaited.bounds())?),
            None if self.wire.has_input() => Err(Malformed::Unasked.into()),
            None => Ok(None),
        }
    }

    fn lost(&self, lost: &Lost) -> StoreError {
        error::from_lost(&self.node.address, lost)
    }

    /// Sends what may go now.
    fn send(&mut self, now: Instant, cx: &mut Context<'_>) -> Result<(), StoreError> {
        // While the network does not take what was written, what waits is better off in line: there it can still leave.
        if !self.wire.is_full() {
            self.write(now);
        }
        match self.wire.poll_flush(cx) {
            Poll::Ready(Err(lost)) => Err(self.lost(&lost)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    fn write(&mut self, now: Instant) {
        let shard = &self.node.address;
        while let Some(question) = self.queue.take_question() {
            resp::words(self.wire.output(), question.words);
            self.flights.push(Awaited::Question(question));
        }
        if self.node.is_open() {
            self.queue.fail(&self.node.silent(now));
            if self.flights.is_idle() && self.node.may_probe(now) {
                let batch = self.flights.batch();
                self.launch(batch, Kind::Probe, false, now);
            }
            return;
        }
        while self.may_send(now) {
            let room = self.node.in_flight_max.saturating_sub(self.flights.charges());
            let mut batch = self.flights.batch();
            self.queue.take(shard, room.min(CALL_CHARGES_MAX), now, &mut batch.requests);
            if batch.requests.is_empty() {
                self.flights.done(batch);
                break;
            }
            self.launch(batch, Kind::Together, false, now);
        }
        while self.flights.is_idle() || self.flights.charges() < self.node.in_flight_max {
            let Some(request) = self.queue.take_alone(shard, now) else { break };
            let mut batch = self.flights.batch();
            batch.requests.push(request);
            self.launch(batch, Kind::Alone, false, now);
        }
    }

    fn may_send(&self, now: Instant) -> bool {
        let newest = || self.flights.calls().filter(|f| f.kind == Kind::Together).map(|f| f.sent).max();
        let room = self.flights.is_idle() || self.flights.charges() < self.node.in_flight_max;
        room && match self.flights.together() {
            0 => true,
            number => number < CALLS_MAX && newest().is_none_or(|sent| sent + SEND_ANYWAY_AFTER <= now),
        }
    }

    fn launch(&mut self, mut batch: Batch, kind: Kind, loaded: bool, now: Instant) {
        let Batch { requests, call } = &mut batch;
        let keys = if kind == Kind::Alone { Keys::Declared } else { Keys::Undeclared };
        call.ask(requests.iter().map(Request::charges), keys, None);
        let out = self.wire.output();
        if requests.first().is_some_and(|request| request.how == How::Asking) {
            resp::words(out, &["ASKING"]);
            self.flights.push(Awaited::Asking);
        }
        evalsha(out, &self.hash, call);
        self.flights.push(Awaited::Call(Flight {
            charges: requests.iter().map(|request| request.charges().len()).sum(),
            earliest: requests.iter().map(|request| request.deadline.at).min(),
            batch,
            kind,
            sent: now,
            late: false,
            accused: false,
            loaded,
        }));
    }

    /// Deals with the next reply. `Err` when it is none to what was asked: then nobody knows what the connection says.
    fn landed(&mut self, length: usize, cx: &mut Context<'_>) -> Result<(), StoreError> {
        let now = SystemClock.instant();
        match self.flights.pop() {
            Some(Awaited::Call(flight)) => return self.call_landed(flight, length, now, cx),
            Some(Awaited::Script) => {
                let failed =
                    self.wire.frame(length).error().map(|text| Whole::of_text(&self.node.address, &text));
                self.loaded(failed, now);
            }
            Some(Awaited::Question(question)) => question.tell(Ok(self.wire.frame(length).to_value())),
            // Any reply will do, and "not permitted" is one.
            Some(Awaited::Pong) => self.heart.beats(now),
            Some(Awaited::Asking) | None => {}
        }
        self.wire.take(length);
        Ok(())
    }

    fn call_landed(
        &mut self,
        mut flight: Flight,
        length: usize,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Result<(), StoreError> {
        self.count_answer(&mut flight, now);
        if !flight.loaded && reply::is_noscript(self.wire.frame(length)) {
            self.wire.take(length);
            self.load_for(flight);
            return Ok(());
        }
        // The next call is on its way while this one is read.
        self.send(now, cx)?;
        let Batch { requests, call } = &mut flight.batch;
        let read = reply::read(&self.node.address, self.wire.frame(length), |reply| {
            call.answers(requests.iter().map(Request::charges), reply)
        });
        self.wire.take(length);
        let mut garbage = Ok(());
        match read {
            Ok(answers) => {
                self.node.serves();
                for (request, answer) in requests.drain(..).zip(answers) {
                    self.tell(request, answer);
                }
            }
            Err(whole) => {
                self.node.refuses(&whole);
                for request in requests {
                    request.tell(Err(whole.to_error(flight.kind == Kind::Alone)));
                }
                if let Whole::Garbage(why) = whole {
                    garbage = Err(why);
                }
            }
        }
        self.flights.done(flight.batch);
        garbage
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
                self.queue.put_back(request);
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
    fn load_for(&mut self, flight: Flight) {
        if !self.flights.is_loading() {
            resp::words(self.wire.output(), LOAD);
            self.flights.push(Awaited::Script);
        }
        self.flights.park(flight);
    }

    /// Runs again what waited for the script: nothing of it was done. Those are left out who have given up meanwhile.
    fn loaded(&mut self, failed: Option<Whole>, now: Instant) {
        for mut flight in self.flights.unpark() {
            flight.batch.requests.retain_mut(|request| {
                if let Some(whole) = &failed {
                    request.tell(Err(whole.to_error(false)));
                }
                !request.expire(&self.node.address, now) && request.is_awaited()
            });
            if !flight.batch.requests.is_empty() {
                self.launch(flight.batch, flight.kind, true, now);
            }
        }
    }

    /// Tells those who are late, and counts the calls that are. `Err` when the server gives no sign of life.
    fn expire(&mut self, now: Instant) -> Result<(), StoreError> {
        let shard = &self.node.address;
        self.queue.expire(shard, now);
        self.flights.expire(shard, now);
        let timeout = self.node.timeout;
        let is_late =
            |flight: &&mut Flight| flight.kind != Kind::Probe && !flight.late && flight.sent + timeout <= now;
        for flight in self.flights.calls_mut().filter(is_late) {
            flight.late = true;
            self.node.late(flight.sent, now);
        }
        let silence_max = self.node.silence_max();
        let is_silent =
            |flight: &&mut Flight| flight.late && !flight.accused && flight.sent + silence_max <= now;
        if let Some(silent) = self.flights.calls_mut().find(is_silent) {
            silent.accused = true;
            self.node.unanswered(silent.sent, now);
        }
        match self.heart.beat(now) {
            Beat::Nothing => {}
            Beat::Ping => {
                resp::words(self.wire.output(), &["PING"]);
                self.flights.push(Awaited::Pong);
            }
            Beat::Dead => {
                let why = "no sign of life, connecting anew".to_owned();
                return Err(StoreError::Unavailable { shard: shard.clone(), why });
            }
        }
        Ok(())
    }

    /// When there is something to do though nobody comes and nothing lands; and when those who wait are sent anyway.
    fn looks_at(&self) -> (Option<Instant>, Option<Instant>) {
        let mut send_at = None;
        let mut at = self.heart.looks_at();
        let mut earlier = |then: Instant| at = at.min(then);
        for flight in self.flights.calls() {
            flight.earliest.into_iter().for_each(&mut earlier);
            match flight.kind {
                Kind::Probe => continue,
                _ if !flight.late => earlier(flight.sent + self.node.timeout),
                _ if !flight.accused => earlier(flight.sent + self.node.silence_max()),
                _ => {}
            }
            if flight.kind == Kind::Together {
                send_at = send_at.max(Some(flight.sent + SEND_ANYWAY_AFTER));
            }
        }
        if self.node.is_open() && self.flights.is_idle() {
            self.node.next_probe().into_iter().for_each(&mut earlier);
        }
        let may_send =
            self.flights.together() < CALLS_MAX && self.flights.charges() < self.node.in_flight_max;
        // What could not go out goes when the network takes it.
        (Some(at), send_at.filter(|_| may_send && !self.wire.is_full()))
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        if self.flights.calls().any(|flight| flight.kind == Kind::Probe) {
            self.node.probe_lost();
        }
    }
}
