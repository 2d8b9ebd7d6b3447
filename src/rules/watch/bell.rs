//! What the watcher's thread waits on: the one place where it meets the thread of events and the handle.
//!
//! A bell is a few flags, however often it is rung: events that nobody has looked after yet take no memory.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Options, Status};
use crate::clock::{Clock, SystemClock};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

/// What is known on both sides.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Something happened in a watched folder.
    pub(super) touched: bool,
    /// A watched folder itself went away, and its watch with it.
    pub(super) stale: bool,
    /// The handle was dropped.
    pub(super) stop: bool,
    pub(super) status: Status,
}

/// Why the waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    Touched,
    Poll,
    Stop,
}

impl Bell {
    /// Changes the state and wakes who waits.
    pub(super) fn ring(&self, change: impl FnOnce(&mut State)) {
        self.see(change);
        self.changed.notify_all();
    }

    /// Looks at the state, or changes what nobody waits for.
    pub(super) fn see<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.lock())
    }

    /// Waits until the handle is dropped, until events came and have paused, or until it is time for a look without any.
    pub(super) fn wait(&self, options: &Options) -> Rung {
        let idle = |state: &mut State| !state.touched && !state.stop;
        let wait = |state, span| {
            self.changed.wait_timeout_while(state, span, idle).unwrap_or_else(PoisonError::into_inner)
        };
        let (mut state, _) = wait(self.lock(), options.poll);
        if !state.touched && !state.stop {
            return Rung::Poll;
        }
        let first = SystemClock.instant();
        while !state.stop {
            state.touched = false;
            let left = options.longest.saturating_sub(SystemClock.instant() - first);
            let (waited, pause) = wait(state, options.quiet.min(left));
            if pause.timed_out() || left.is_zero() {
                return Rung::Touched;
            }
            state = waited;
        }
        Rung::Stop
    }

    /// A panic elsewhere leaves plain flags and texts behind, which stay usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
