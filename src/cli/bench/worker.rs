//! A thread that asks: a runtime of its own, its connections, and on each as many requests at a time as there are
//! streams. Threads share nothing but counters for the progress line, so that the client does not measure itself.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::{JoinSet, LocalSet},
};

use super::{
    super::terminal::human,
    connection::{Connection, Slot},
    keys::Keys,
    load::{Pace, Plan},
    schedule::{Schedule, share},
    tally::{Answer, Fault, Kind, Tally},
};
use crate::{
    clock::{Clock, SystemClock},
    timer::Timer,
};

/// The pause of a slot after a connection failed: a service that is gone is not asked a million times.
const PAUSE: Duration = Duration::from_millis(100);

/// How far all threads are, for the progress line.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) answers: AtomicU64,
    pub(super) errors: AtomicU64,
}

/// What a thread hears and tells.
pub(super) struct Wires {
    pub(super) progress: Arc<Progress>,
    /// Told when all of its connections are open, or why one is not.
    pub(super) open: oneshot::Sender<Result<(), String>>,
    /// When to begin.
    pub(super) start: oneshot::Receiver<Instant>,
    /// Changes when to end at once.
    pub(super) quit: watch::Receiver<()>,
}

/// A thread's whole life: connects, tells so, waits for the start, asks, counts.
///
/// # Errors
/// What the system does not give.
pub(super) fn work(plan: &Plan, thread: usize, wires: Wires) -> Result<Tally, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| format!("the system gives no runtime: {why}"))?;
    LocalSet::new().block_on(&runtime, live(plan, thread, wires))
}

async fn live(plan: &Plan, thread: usize, wires: Wires) -> Result<Tally, String> {
    let Wires { progress, open, start, mut quit } = wires;
    let connections = match connect(plan, thread).await {
        Ok(connections) => connections,
        Err(why) => {
            // The receiver tells it.
            let _ = open.send(Err(why));
            return Ok(Tally::new());
        }
    };
    let _ = open.send(Ok(()));
    // Without a start there is nothing to do: another thread could not connect.
    let Ok(start) = start.await else { return Ok(Tally::new()) };
    tokio::time::sleep_until(start.into()).await;

    let worker = Rc::new(Worker {
        plan: plan.clone(),
        keys: RefCell::new(Keys::new(plan.keys, plan.zipf, plan.seed, thread)),
        tickets: Tickets::new(plan, thread, start),
        tally: RefCell::new(Tally::new()),
        progress,
    });
    let mut slots = JoinSet::new();
    for connection in &connections {
        for _ in 0..plan.streams {
            slots.spawn_local(Rc::clone(&worker).drive(Slot::new(Rc::clone(connection))));
        }
    }
    let asking = async {
        while let Some(ended) = slots.join_next().await {
            if let Err(defect) = ended {
                std::panic::resume_unwind(defect.into_panic());
            }
        }
    };
    let pacing = async {
        worker.tickets.release().await;
        // All are out, and the slots end when they have taken them.
        std::future::pending().await
    };
    tokio::select! {
        () = asking => {}
        () = pacing => {}
        // What is in flight is neither answered nor failed.
        _ = quit.changed() => {}
    }
    Ok(worker.tally.replace(Tally::new()))
}

async fn connect(plan: &Plan, thread: usize) -> Result<Vec<Rc<Connection>>, String> {
    let mut connections = Vec::new();
    for _ in 0..share(plan.connections as u64, thread as u64, plan.threads as u64) {
        let connection = Connection::new(&plan.target, plan.timeout)?;
        connection.open().await.map_err(|fault| fault.told)?;
        connections.push(Rc::new(connection));
    }
    Ok(connections)
}

/// What the slots of a thread share.
struct Worker {
    plan: Plan,
    keys: RefCell<Keys>,
    tickets: Tickets,
    tally: RefCell<Tally>,
    progress: Arc<Progress>,
}

impl Worker {
    /// Sends one request after the other, as long as there are any.
    async fn drive(self: Rc<Self>, mut slot: Slot) {
        while let Some(due) = self.tickets.next().await {
            let sent = match self.tickets {
                Tickets::Paced { .. } => SystemClock.instant(),
                Tickets::Saturating { .. } => due,
            };
            let asked = self.ask(&mut slot, due, sent).await;
            let failed = asked.as_ref().err().map(|fault| fault.kind);
            self.tally.borrow_mut().count(due, sent, SystemClock.instant(), asked);
            let counter = if failed.is_some() { &self.progress.errors } else { &self.progress.answers };
            counter.fetch_add(1, Ordering::Relaxed);
            if failed.is_some_and(Kind::is_of_the_connection) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn ask(&self, slot: &mut Slot, due: Instant, sent: Instant) -> Result<Answer, Fault> {
        let deadline = due + self.plan.timeout;
        if sent >= deadline {
            let told = format!("all streams were busy for {} from when it was due", human(self.plan.timeout));
            return Err(Fault { kind: Kind::NotSent, told });
        }
        let question = self.question();
        slot.ask(&question, deadline).await
    }

    fn question(&self) -> Bytes {
        let key = if self.plan.question.has_key() { self.keys.borrow_mut().draw() } else { 0 };
        self.plan.question.about(key)
    }
}

/// Who may send the next request, and when it is due.
enum Tickets {
    /// Whoever has none in flight, now.
    Saturating { left: Cell<u64>, until: Option<Instant> },
    /// Whoever comes first, for the next one that is due.
    Paced { schedule: Schedule, start: Instant, taken: Cell<u64>, due: Semaphore, slots: usize },
}

impl Tickets {
    fn new(plan: &Plan, thread: usize, start: Instant) -> Self {
        let (thread, threads) = (thread as u64, plan.threads as u64);
        match plan.pace {
            Pace::Saturate { requests, duration } => Self::Saturating {
                left: Cell::new(requests.map_or(u64::MAX, |all| share(all, thread, threads))),
                until: duration.map(|duration| start + duration),
            },
            Pace::Rate { per_second, requests } => Self::Paced {
                schedule: Schedule::new(per_second, requests, thread, threads),
                start,
                taken: Cell::new(0),
                due: Semaphore::new(0),
                slots: plan.connections * plan.streams,
            },
        }
    }

    /// When the next request is due, as soon as it is; `None` after the last.
    async fn next(&self) -> Option<Instant> {
        match self {
            Self::Saturating { left, until } => {
                let now = SystemClock.instant();
                let more = left.get() > 0 && until.is_none_or(|until| now < until);
                left.set(left.get().saturating_sub(1));
                more.then_some(now)
            }
            Self::Paced { schedule, start, taken, due, .. } => {
                // It is never closed.
                due.acquire().await.ok()?.forget();
                let nth = taken.replace(taken.get() + 1);
                (nth < schedule.count()).then(|| *start + schedule.due(nth))
            }
        }
    }

    /// Lets requests out as they become due.
    async fn release(&self) {
        let Self::Paced { schedule, start, due, slots, .. } = self else { return };
        let mut timer = Timer::new();
        let mut released = 0;
        while released < schedule.count() {
            let since = SystemClock.instant().saturating_duration_since(*start);
            let now = schedule.due_by(since);
            due.add_permits(usize::try_from(now - released).unwrap_or(Semaphore::MAX_PERMITS));
            released = now;
            timer.sleep(schedule.due(released).saturating_sub(since)).await;
        }
        // One more for each slot, to hear that there are no more.
        due.add_permits(*slots);
    }
}
