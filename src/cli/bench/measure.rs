//! One run: threads that ask, what they counted, and what it cost the processes that were named.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
};

use super::{
    super::Failure,
    cpu::{self, Process},
    load::Plan,
    tally::Tally,
    worker::{self, Progress, Wires},
};
use crate::clock::{Clock, SystemClock};

/// From when all are connected to the first request, so that threads begin together.
const LEAD: Duration = Duration::from_millis(5);

/// How often the progress line is written.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What a run has shown.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) tally: Tally,
    /// From the start to the last answer.
    pub(super) took: Duration,
    /// Of each process that was named; `None` for one that has ended.
    pub(super) cpu: Vec<Option<Duration>>,
    /// Of this client.
    pub(super) own_cpu: Option<Duration>,
    /// Whether somebody ended it.
    pub(super) interrupted: bool,
}

/// Ctrl-C, which ends a run and not this process: what was measured is worth to be told.
pub(super) struct Interrupt(Signal);

impl Interrupt {
    /// # Errors
    /// The system has no such signal. Needs a runtime.
    pub(super) fn new() -> Result<Self, Failure> {
        let signal = signal(SignalKind::interrupt());
        signal.map(Self).map_err(|why| Failure::call(format!("the system gives no signals: {why}")))
    }
}

/// Puts the load on.
///
/// # Errors
/// Why there is no connection, or what the system does not give.
pub(super) async fn measure(
    plan: &Plan,
    processes: &[Process],
    interrupt: &mut Interrupt,
    title: &str,
) -> Result<Measured, Failure> {
    let (quit, quits) = watch::channel(());
    let progress = Arc::new(Progress::default());
    let (mut opens, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for thread in 0..plan.threads {
        let (open, opened) = oneshot::channel();
        let (start, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let wires = Wires { progress: Arc::clone(&progress), open, start: started, quit: quits.clone() };
        let plan = plan.clone();
        thread::Builder::new()
            .name(format!("bench-{thread}"))
            // Nobody listens any more where another thread has failed.
            .spawn(move || end.send(worker::work(&plan, thread, wires)).is_ok())
            .map_err(|why| Failure::call(format!("the system gives no thread: {why}")))?;
        opens.push(opened);
        starts.push(start);
        ends.push(ended);
    }
    for open in opens {
        open.await.map_err(|_| defect())?.map_err(Failure::call)?;
    }

    let before = snapshot(processes);
    let start = SystemClock.instant() + LEAD;
    for begin in starts {
        // One that has gone tells why at its end.
        let _ = begin.send(start);
    }
    let mut line = ProgressLine::new(title, plan.duration(), start, &progress);
    let mut tally = Tally::new();
    let mut interrupted = false;
    for mut end in ends {
        let ended = loop {
            tokio::select! {
                ended = &mut end => break ended,
                _ = interrupt.0.recv() => {
                    interrupted = true;
                    quit.send_replace(());
                }
                () = tokio::time::sleep(PROGRESS_EVERY) => line.write(SystemClock.instant()),
            }
        };
        tally.add(ended.map_err(|_| defect())?.map_err(Failure::call)?);
    }
    line.clear();
    let after = snapshot(processes);
    let took = tally.last.map_or(Duration::ZERO, |last| last.saturating_duration_since(start));
    let spent = |(before, after): (Option<Duration>, Option<Duration>)| Some(after?.saturating_sub(before?));
    Ok(Measured {
        tally,
        took,
        cpu: before.0.into_iter().zip(after.0).map(spent).collect(),
        own_cpu: spent((before.1, after.1)),
        interrupted,
    })
}

fn defect() -> Failure {
    Failure::call("a thread of this client ended by a defect")
}

fn snapshot(processes: &[Process]) -> (Vec<Option<Duration>>, Option<Duration>) {
    (processes.iter().map(Process::cpu).collect(), cpu::own())
}

/// One line on a terminal that says how far a run is; on stderr, so that it is no part of what is printed.
struct ProgressLine<'r> {
    shown: bool,
    title: &'r str,
    duration: Option<Duration>,
    progress: &'r Progress,
    start: Instant,
    /// Answers when it was last written, and when that was.
    last: (u64, Instant),
}

impl<'r> ProgressLine<'r> {
    fn new(title: &'r str, duration: Option<Duration>, start: Instant, progress: &'r Progress) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let shown = io::stderr().is_terminal() && !dumb;
        Self { shown, title, duration, progress, start, last: (0, start) }
    }

    fn write(&mut self, now: Instant) {
        if !self.shown {
            return;
        }
        let (answers, errors) =
            (self.progress.answers.load(Ordering::Relaxed), self.progress.errors.load(Ordering::Relaxed));
        let span = now.saturating_duration_since(self.last.1).as_secs_f64().max(0.001);
        let per_second = (answers - self.last.0) as f64 / span;
        self.last = (answers, now);
        let at = now.saturating_duration_since(self.start).as_secs();
        let of = self.duration.map(|all| format!(" of {} s", all.as_secs_f64().round())).unwrap_or_default();
        let errors = if errors > 0 { format!(", {errors} errors") } else { String::new() };
        let title = self.title;
        // Who closed stderr wants no progress.
        let _ = write!(io::stderr(), "\r\x1b[K{title}{at} s{of}, {per_second:.0} answers a second{errors}");
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
