//! A timer that goes off in time.
//!
//! Tokio's timers tick in milliseconds, and round up twice: to the next tick, and from the tick before. So they are up to
//! two milliseconds late. That is more than the whole latency that `bench` measures, and it is what an answer would come
//! later than a deadline says. The kernel's timers are good to some microseconds, and one of them serves a connection or a
//! thread. Where there is no timerfd (it is Linux's), or no file descriptor is left for one, tokio's has to do.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::time::Sleep;

use crate::clock::{Clock, SystemClock};

/// Goes off at a moment, never before it. Belongs to the runtime that it was made in.
#[derive(Debug)]
pub struct Timer {
    at: Instant,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// To the microsecond.
    #[cfg(target_os = "linux")]
    Kernel(tokio::net::unix::pipe::Receiver),
    /// To the millisecond.
    Tokio(Pin<Box<Sleep>>),
}

impl Timer {
    /// It is not set yet, and goes off at once.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new() -> Self {
        let at = SystemClock.instant();
        #[cfg(target_os = "linux")]
        if let Ok(descriptor) = kernel::new() {
            let mut timer = Self { at, kind: Kind::Kernel(descriptor) };
            timer.set(at);
            return timer;
        }
        Self { at, kind: tokio_at(at) }
    }

    /// Goes off at this moment instead, also when it has gone off before.
    pub fn set(&mut self, at: Instant) {
        self.at = at;
        let set = match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Kernel(descriptor) => kernel::set(descriptor, at),
            Kind::Tokio(sleep) => {
                sleep.as_mut().reset(at.into());
                Ok(())
            }
        };
        if set.is_err() {
            self.kind = tokio_at(at);
        }
    }

    /// Ends when it goes off, once for each time that it was set. Nothing is lost by leaving it early.
    pub async fn goes_off(&mut self) {
        poll_fn(|cx| self.poll_goes_off(cx)).await;
    }

    /// The same, polled.
    pub fn poll_goes_off(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(target_os = "linux")]
        if let Kind::Kernel(descriptor) = &mut self.kind {
            match ready!(kernel::poll_gone_off(descriptor, cx)) {
                Ok(()) => return Poll::Ready(()),
                Err(_) => self.kind = tokio_at(self.at),
            }
        }
        match &mut self.kind {
            #[cfg(target_os = "linux")]
            Kind::Kernel(_) => Poll::Pending,
            Kind::Tokio(sleep) => sleep.as_mut().poll(cx),
        }
    }

    /// Waits for so long.
    pub async fn sleep(&mut self, time: Duration) {
        let now = SystemClock.instant();
        self.set(now.checked_add(time).unwrap_or(now));
        self.goes_off().await;
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

fn tokio_at(at: Instant) -> Kind {
    Kind::Tokio(Box::pin(tokio::time::sleep_until(at.into())))
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::{
        io,
        pin::Pin,
        task::{Context, Poll},
        time::Instant,
    };

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::{
        io::{AsyncRead, ReadBuf},
        net::unix::pipe::Receiver,
    };

    use crate::clock::{Clock, SystemClock};

    /// It is read like a pipe: eight bytes when it has gone off, and nothing before.
    pub(super) fn new() -> io::Result<Receiver> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Receiver::from_owned_fd_unchecked(timerfd_create(TimerfdClockId::Monotonic, flags)?)
    }

    pub(super) fn set(descriptor: &Receiver, at: Instant) -> io::Result<()> {
        let after = at.saturating_duration_since(SystemClock.instant());
        let after = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            // 0 would turn it off.
            tv_nsec: i64::from(after.subsec_nanos()).max(i64::from(after.as_secs() == 0)),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: after };
        timerfd_settime(descriptor, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    pub(super) fn poll_gone_off(descriptor: &mut Receiver, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Not ready when it was set anew since.
        Pin::new(descriptor).poll_read(cx, &mut ReadBuf::new(&mut [0; 8]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timer_goes_off_again_and_again_and_never_early() {
        for kind in ["kernel", "tokio"] {
            let mut timer = Timer::new();
            if kind == "tokio" {
                timer.kind = tokio_at(timer.at);
            }
            timer.goes_off().await;
            for micros in [0, 1, 100, 2_000, 0, 50] {
                let (began, time) = (SystemClock.instant(), Duration::from_micros(micros));
                timer.sleep(time).await;
                assert!(SystemClock.instant() - began >= time, "{kind}: {micros}");
            }
        }
    }

    #[tokio::test]
    async fn a_timer_that_is_set_anew_forgets_the_moment_before_also_if_that_has_passed() {
        let mut timer = Timer::new();
        let now = SystemClock.instant();
        let far = now + Duration::from_secs(86_400);
        timer.set(far);
        timer.set(now);
        timer.goes_off().await;
        timer.set(now);
        timer.set(far);
        let gone_off = async {
            tokio::select! {
                biased;
                () = timer.goes_off() => true,
                () = tokio::time::sleep(Duration::from_millis(5)) => false,
            }
        };
        assert!(!gone_off.await);
    }
}
