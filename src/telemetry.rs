//! The log: for people or for machines, and never in the way of an answer.
//!
//! Writing to stderr can block for as long as whoever reads it likes. So threads that answer only put a formatted line
//! into a bounded queue; one thread of its own writes. What does not fit is dropped and counted
//! (`tollgate_log_lines_dropped_total`). That is forty lines here, and a dependency with a calendar and a second channel
//! elsewhere.
//!
//! `LOG_LEVEL` is about Tollgate's own lines. Libraries are heard from `warn` on (from `debug` on at `trace`), and the
//! Redis client never below `warn`: what it logs further down may hold what was sent, and passwords are hidden at every
//! level.

mod b3;
mod collector;
pub mod spans;

use std::{
    env,
    io::{self, IsTerminal, Write},
    panic,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer,
    filter::Targets,
    fmt::{self, MakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::settings::{Level, Log, LogFormat};

/// Lines that wait for the writing thread: a burst of a second or so, about 1 MB.
const LINES_MAX: usize = 4096;

/// How long an ending process waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Begins to log to stderr. The last lines are written when the returned value is dropped.
///
/// A second call in one process has no effect, which only tests do.
#[must_use = "the last lines are written when this is dropped"]
pub fn start(log: Log, dropped: Counter) -> Flush {
    let lines = Lines::to(io::stderr(), dropped);
    let flush = Flush { lines: lines.clone() };
    let coloured = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let layer = fmt::layer().with_writer(lines).with_target(false);
    let layer = match log.format {
        LogFormat::Text => layer.with_ansi(coloured).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(targets(log.level)));
    if subscriber.try_init().is_ok() {
        log_panics();
    }
    flush
}

fn targets(level: Level) -> Targets {
    let own = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let libraries = if level == Level::Trace { LevelFilter::DEBUG } else { own.min(LevelFilter::WARN) };
    Targets::new().with_target("tollgate", own).with_default(libraries)
}

/// A panic ends one request; it is a defect of ours all the same, and belongs into the log with its place.
fn log_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let words = payload.downcast_ref::<&str>().copied();
        let why =
            words.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no words)");
        tracing::error!(place, "a defect: {why}");
    }));
}

/// Writes what is left when dropped.
#[derive(Debug)]
pub struct Flush {
    lines: Lines,
}

impl Drop for Flush {
    fn drop(&mut self) {
        let (written, wait) = sync_channel(1);
        // Blocks only while the queue is full, and not at all when the writer is gone.
        if self.lines.queue.try_send(Item::Flush(written)).is_ok() {
            let _ = wait.recv_timeout(FLUSH_MAX);
        }
    }
}

/// Where formatted lines go.
#[derive(Clone, Debug)]
struct Lines {
    queue: SyncSender<Item>,
    dropped: Counter,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

impl Lines {
    fn to(mut out: impl Write + Send + 'static, dropped: Counter) -> Self {
        let (queue, items): (_, Receiver<Item>) = sync_channel(LINES_MAX);
        let write = move || {
            for item in items {
                // Nobody is left to tell when stderr is closed.
                match item {
                    Item::Line(line) => drop(out.write_all(&line)),
                    Item::Flush(written) => drop((out.flush(), written.send(()))),
                }
            }
        };
        // Without that thread lines are dropped and counted, which beats not serving.
        if let Err(error) = thread::Builder::new().name("log".to_owned()).spawn(write) {
            eprintln!("no thread for the log, so there is none: {error}");
        }
        Self { queue, dropped }
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

impl Write for &Lines {
    /// Called once for each line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(Item::Line(line.to_vec()))
        {
            self.dropped.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A stderr that nobody reads: each write waits for a permission.
    struct Stuck(Receiver<()>, std::sync::mpsc::Sender<Vec<u8>>);

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(line.to_vec());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_stderr_delays_nobody_and_what_does_not_fit_is_counted() {
        let (permit, permits) = channel();
        let (write, written) = channel();
        let dropped = Counter::default();
        let lines = Lines::to(Stuck(permits, write), dropped.clone());
        let more = 100;
        for n in 0..LINES_MAX + more {
            (&lines).write_all(format!("{n}").as_bytes()).unwrap();
        }
        // One line may be in the writer's hands.
        let lost = usize::try_from(dropped.get()).unwrap();
        assert!((more - 1..=more).contains(&lost), "{lost}");
        drop(permit);
        drop(lines);
        assert_eq!(written.iter().count(), LINES_MAX + more - lost);
    }

    #[test]
    fn libraries_are_quiet() {
        let shown = |level, target: &str, line| targets(level).would_enable(target, &line);
        assert!(shown(Level::Info, "tollgate::server", tracing::Level::INFO));
        assert!(!shown(Level::Info, "h2", tracing::Level::INFO));
        assert!(shown(Level::Info, "h2", tracing::Level::WARN));
        assert!(!shown(Level::Error, "h2", tracing::Level::WARN));
        assert!(shown(Level::Trace, "h2", tracing::Level::DEBUG));
    }
}
