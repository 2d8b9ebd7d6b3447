//! Rules that follow their files.
//!
//! Someone edits a file, a ConfigMap is updated, a release is swapped: within a second the new rules are in force. Three
//! things make the obvious answer (on an event, load again) fail:
//!
//! - **Events lie.** They come in the middle of a write, before it, several for one change, for reading, and not at all
//!   from a network disk, from a folder that replaced the one that is watched, or when the system's watches are used
//!   up. So an event only says "look", and a look compares what is there with what was compiled, by hash. A look
//!   comes too, without any event, every few seconds.
//! - **Files are not written at once.** A reader sees half of a file, or half of a directory. Events are collected until
//!   they pause; a file that changes while it is read is read again; and after compiling, the directory is compared
//!   once more, so that what is delivered was there as a whole. What is half written all the same will not compile,
//!   mostly, and then:
//! - **Bad rules are worse than old rules.** The rules are compiled whole or not at all. A mistake is told, counted and
//!   kept in [`Status::last_error`] until it is mended, and the last good rules keep serving. To that end a directory that
//!   vanishes, cannot be listed, or holds nothing any more is a mistake as well: taken literally, it would let
//!   everything pass.
//!
//! All of it happens on one thread of its own. Reading and compiling block, and must not hold up answers. Nothing ends
//! that thread but its handle: a panic while compiling is one more mistake.
//!
//! What is compiled, and to what, is the caller's: [`watch`] takes a function. Only this module knows `notify`.

mod dir;
mod plan;
mod reading;
mod bell;

use std::{
    any::Any,
    fmt::Display,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use self::{
    bell::{Bell, Rung},
    plan::Watches,
    reading::Record,
};
pub use self::{
    dir::{DEPTH_MAX, Dir, DirError, FILE_BYTES_MAX, FILES_MAX, FOLDERS_MAX},
    plan::Plan,
    reading::Reading,
};
use crate::rules::{Compiled, Dialect, Mistakes, compile};

/// How events are collected, and how often one looks without any.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Events are waited for until none came for this long: an editor's or a copy's several steps are one change.
    pub quiet: Duration,
    /// But not longer than this after the first, so that a directory that never rests is followed too.
    pub longest: Duration,
    /// A look without an event: for network disks, lost watches and folders too many to watch.
    pub poll: Duration,
    /// Whether to ask the system for events at all.
    pub events: bool,
    /// Whether a directory whose last rule file was taken away means "no rules", as in the reference, and not a mistake.
    pub may_empty: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            longest: Duration::from_millis(500),
            poll: Duration::from_secs(5),
            events: true,
            may_empty: false,
        }
    }
}

/// Looks at a directory that changes while it is looked at, one after the other, before what is there is delivered
/// all the same. Whoever changes it causes another event.
const ROUNDS_MAX: usize = 4;

/// Compiles what is in `dir` at once, and again whenever it has changed.
///
/// Returns what came of the first time, which is not passed to `on_change`, and the handle that keeps watching. A first
/// failure is no reason to stop: as soon as it is mended, `on_change` gets the rules.
///
/// `on_change` is called on the watcher's thread, for each change that compiles and for each new mistake; not for
/// files that were touched and say the same. Mistakes are logged here.
///
/// # Errors
/// When the system gives no thread.
pub fn watch<T, E, C, F>(dir: Dir, options: Options, compile: C, on_change: F) -> io::Result<First<T, E>>
where
    T: 'static,
    E: Display + 'static,
    C: FnMut(&Reading<'_>) -> Result<T, E> + Send + 'static,
    F: FnMut(Result<T, Failure<E>>) + Send + 'static,
{
    let bell = Arc::new(Bell::default());
    let mut watcher = Watcher {
        dir,
        options,
        compile,
        bell: Arc::clone(&bell),
        record: None,
        watched: None,
        watches: None,
        trouble: None,
        had_rules: false,
    };
    let first = watcher.look().expect("nothing was recorded before, so the first look differs");
    let handle = Watching { bell };
    thread::Builder::new().name("rules-watch".into()).spawn(move || watcher.run(on_change))?;
    Ok(First { rules: first, watching: handle })
}

/// Follows the rules in `dir`: [`watch`] with the rules compiler.
///
/// # Errors
/// When the system gives no thread.
pub fn rules<F>(
    dir: Dir,
    dialect: Dialect,
    options: Options,
    on_change: F,
) -> io::Result<First<Compiled, Mistakes>>
where
    F: FnMut(Result<Compiled, Failure<Mistakes>>) + Send + 'static,
{
    watch(dir, options, move |files| compile(files, dialect), on_change)
}

/// What [`watch`] begins with.
#[derive(Debug)]
pub struct First<T, E> {
    /// What is in the directory now.
    pub rules: Result<T, Failure<E>>,
    /// Keeps watching.
    pub watching: Watching,
}

/// Why there are no new rules.
#[derive(Debug, thiserror::Error)]
pub enum Failure<E> {
    /// The directory cannot be listed as a whole.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The files are no rules.
    #[error("{0}")]
    Rules(E),
    /// A mistake of ours, which is no reason to stop serving.
    #[error("the rules made Tollgate's compiler panic, which is a bug of Tollgate: {0}")]
    Panic(String),
}

/// Watches until it is dropped. A change that is being compiled at that moment may still be delivered.
#[derive(Debug)]
#[must_use = "watching ends when this is dropped"]
pub struct Watching {
    bell: Arc<Bell>,
}

/// How the rules have fared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Times that rules compiled, the first one included.
    pub loaded: u64,
    /// Times that something was refused, the first one included.
    pub refused: u64,
    /// Why what is in the directory now is not in force, in full; `None` when it is.
    pub last_error: Option<String>,
    /// Why the system's events cannot be relied on, so that changes wait for the poll.
    pub no_events: Option<String>,
}

impl Watching {
    /// How the rules have fared until now.
    pub fn status(&self) -> Status {
        self.bell.see(|state| state.status.clone())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // Not waited for: a network disk may hold its reader up for minutes.
        self.bell.ring(|state| state.stop = true);
    }
}

struct Watcher<C> {
    dir: Dir,
    options: Options,
    compile: C,
    bell: Arc<Bell>,
    /// What was seen when something was compiled last.
    record: Option<Record>,
    /// Where watches are set, which a failure may have thinned.
    watched: Option<Plan>,
    watches: Option<Watches>,
    /// What is wrong with the watches.
    trouble: Option<String>,
    had_rules: bool,
}

impl<C> Watcher<C> {
    fn run<T, E>(mut self, mut on_change: impl FnMut(Result<T, Failure<E>>))
    where
        E: Display,
        C: FnMut(&Reading<'_>) -> Result<T, E>,
    {
        loop {
            let rung = self.bell.wait(&self.options);
            if rung == Rung::Stop {
                return;
            }
            // Neither a panic of the caller's function nor one of `notify` (when its thread has died) may end this.
            let looked = catch_unwind(AssertUnwindSafe(|| {
                let stale = self.bell.see(|state| std::mem::take(&mut state.stale));
                if stale || (rung == Rung::Poll && self.trouble.is_some()) {
                    self.watched = None;
                }
                if let Some(outcome) = self.look() {
                    self.tell(&outcome);
                    on_change(outcome);
                }
            }));
            if let Err(panic) = looked {
                tracing::error!("a bug of Tollgate: following the rules panicked: {}", words(&*panic));
            }
        }
    }

    /// What has become of the directory, or `None` where it is as before.
    fn look<T, E>(&mut self) -> Option<Result<T, Failure<E>>>
    where
        E: Display,
        C: FnMut(&Reading<'_>) -> Result<T, E>,
    {
        let mut outcome = None;
        let mut settled = false;
        for _ in 0..ROUNDS_MAX {
            let compared = self.record.as_ref().map(|record| record.compare(&self.dir));
            let plan = match compared {
                Some((true, plan)) if self.watched.as_ref() == Some(&plan) => {
                    settled = true;
                    break;
                }
                Some((true, plan)) => plan,
                _ => {
                    let (loaded, plan) = self.load();
                    outcome = Some(loaded);
                    plan
                }
            };
            // Watched first and compared afterwards, in the next round: nothing can slip in between.
            if self.watched.as_ref() != Some(&plan) {
                self.set_watches(plan);
            }
        }
        self.bell.ring(|state| {
            state.touched |= !settled;
            match &outcome {
                Some(Ok(_)) => {
                    state.status.loaded += 1;
                    state.status.last_error = None;
                }
                Some(Err(why)) => {
                    state.status.refused += 1;
                    state.status.last_error = Some(why.to_string());
                }
                None => {}
            }
        });
        outcome
    }

    fn load<T, E>(&mut self) -> (Result<T, Failure<E>>, Plan)
    where
        C: FnMut(&Reading<'_>) -> Result<T, E>,
    {
        let (reading, whole) = Reading::begin(&self.dir);
        let empty = reading.is_empty();
        let compiled = match whole {
            Err(why) => Err(why.into()),
            Ok(()) if empty && self.had_rules && !self.options.may_empty => {
                Err(DirError::Emptied { path: self.dir.path().to_owned() }.into())
            }
            Ok(()) => match catch_unwind(AssertUnwindSafe(|| (self.compile)(&reading))) {
                Ok(compiled) => compiled.map_err(Failure::Rules),
                Err(panic) => Err(Failure::Panic(words(&*panic))),
            },
        };
        self.had_rules |= compiled.is_ok() && !empty;
        let (record, plan) = reading.end();
        self.record = Some(record);
        (compiled, plan)
    }

    fn set_watches(&mut self, plan: Plan) {
        if self.options.events {
            // The old ones first: the system counts them, and the limit may be near.
            self.watches = None;
            let bell = Arc::clone(&self.bell);
            let (watches, trouble) = plan.watch(move |stale| {
                bell.ring(|state| {
                    state.touched = true;
                    state.stale |= stale;
                });
            });
            self.watches = watches;
            self.troubled(trouble);
        }
        self.watched = Some(plan);
    }

    /// Tells once that events cannot be relied on, and once that they are back.
    fn troubled(&mut self, trouble: Option<String>) {
        match (&self.trouble, &trouble) {
            (None, Some(why)) => {
                let poll = self.options.poll;
                tracing::warn!("no events for changes of rules ({why}); looking every {poll:?} instead");
            }
            (Some(_), None) => tracing::info!("events for changes of rules are back"),
            _ => {}
        }
        self.bell.ring(|state| state.status.no_events.clone_from(&trouble));
        self.trouble = trouble;
    }

    fn tell<T, E: Display>(&self, outcome: &Result<T, Failure<E>>) {
        let Err(why) = outcome else { return };
        if self.bell.see(|state| state.status.loaded > 0) {
            tracing::error!("the rules were not changed, the last good ones keep serving: {why}");
        } else {
            tracing::error!("there are no rules yet: {why}");
        }
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".into())
}
