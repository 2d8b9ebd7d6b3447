//! A timer for a pace.
//!
//! Tokio's timers tick in milliseconds. At 2,000 requests a second that is two requests a tick, and up to a millisecond
//! of our own lateness in every latency, more than what is measured. The kernel's timers are good to some microseconds,
//! and one of them a thread is enough. Where there is no timerfd (it is Linux's), tokio's has to do.

use std::{io, time::Duration};

/// Waits to the microsecond. Belongs to the runtime that it was made in.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct Timer {
    descriptor: std::os::fd::OwnedFd,
    /// A timer is read like a pipe: eight bytes when it has gone off, and nothing before.
    expirations: tokio::net::unix::pipe::Receiver,
}

#[cfg(target_os = "linux")]
impl Timer {
    /// # Errors
    /// The system gives no further file descriptor.
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let read = descriptor.try_clone()?;
        Ok(Self { descriptor, expirations: tokio::net::unix::pipe::Receiver::from_owned_fd_unchecked(read)? })
    }

    /// # Errors
    /// Those of the kernel; none is expected.
    pub(super) async fn sleep(&mut self, time: Duration) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        use tokio::io::AsyncReadExt;
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let after = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            // 0 would turn it off.
            tv_nsec: i64::from(time.subsec_nanos()).max(i64::from(time.as_secs() == 0)),
        };
        let after = Itimerspec { it_interval: once, it_value: after };
        timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &after)?;
        self.expirations.read_exact(&mut [0; 8]).await?;
        Ok(())
    }
}

/// Waits to the millisecond.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    /// # Errors
    /// None.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    /// # Errors
    /// None.
    pub(super) async fn sleep(&mut self, time: Duration) -> io::Result<()> {
        tokio::time::sleep(time).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[tokio::test]
    async fn a_timer_goes_off_again_and_again_and_never_early() {
        let mut timer = Timer::new().unwrap();
        for micros in [0, 1, 100, 2_000, 0, 50] {
            let (began, time) = (SystemClock.instant(), Duration::from_micros(micros));
            timer.sleep(time).await.unwrap();
            assert!(SystemClock.instant() - began >= time);
        }
    }
}
