//! One timer for all deadlines of a connection.
//!
//! To set a timer costs more than to be woken too early now and then. So it is only ever set to an earlier time, and when it
//! goes off for somebody who was answered meanwhile, it is set to the next one.

use std::{
    task::{Context, Poll, ready},
    time::Instant,
};

use crate::timer::Timer;

/// Goes off at the time that it was set to, or earlier.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    timer: Timer,
    armed: Option<Instant>,
}

impl Alarm {
    /// Ready when it is time to look; `at` is when it has to be at the latest.
    pub(super) fn poll(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(at) = at.filter(|at| self.armed.is_none_or(|armed| *at < armed)) {
            self.armed = Some(at);
            self.timer.set(at);
        }
        if self.armed.is_none() {
            return Poll::Pending;
        }
        ready!(self.timer.poll_goes_off(cx));
        self.armed = None;
        Poll::Ready(())
    }
}
