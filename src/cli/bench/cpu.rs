//! CPU that the kernel has charged to a process, all of its threads together (`utime` and `stime` of `/proc/PID/stat`).
//!
//! A time on a clock says little where client and service share cores, and is another one on another day. CPU a request
//! is what a service costs. The kernel tells it in ticks of 10 ms, so a run should last for a second or more.

use std::{fs, io, time::Duration};

/// A process that was there when it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// What the kernel calls it: the first bytes of the program's name.
    pub(super) name: String,
}

impl Process {
    /// # Errors
    /// There is no such process, or no `/proc`.
    pub(super) fn of(pid: u32) -> Result<Self, String> {
        let (name, _) = stat(&pid.to_string()).map_err(|why| format!("there is no process {pid}: {why}"))?;
        Ok(Self { pid, name })
    }

    /// What was charged to it so far; `None` when it has ended.
    pub(super) fn cpu(&self) -> Option<Duration> {
        stat(&self.pid.to_string()).ok().map(|(_, cpu)| cpu)
    }
}

/// What was charged to this process so far; `None` where there is no `/proc`.
pub(super) fn own() -> Option<Duration> {
    stat("self").ok().map(|(_, cpu)| cpu)
}

fn stat(process: &str) -> io::Result<(String, Duration)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (name, ticks) = parse(&text).ok_or(io::ErrorKind::InvalidData)?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok((name, Duration::from_micros(ticks * 1_000_000 / per_second)))
}

/// Name and ticks. The name stands in parentheses and may hold anything, also parentheses; utime and stime are the 12th
/// and 13th field behind it.
fn parse(text: &str) -> Option<(String, u64)> {
    let (before, fields) = text.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((name.to_owned(), user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let fields = "S 1 7 7 0 -1 4194304 100 0 0 0 12 30 0 0 20 0 4 0 99 1000 20 18446744073709551615";
        for name in ["redis-server", "a) b", "((", ""] {
            assert_eq!(parse(&format!("7 ({name}) {fields}\n")), Some((name.to_owned(), 42)));
        }
        for text in ["", "7", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4194304 100 0 0 0 x 30"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_is_there() {
        assert!(own().is_some());
        assert!(Process::of(std::process::id()).is_ok_and(|process| process.cpu().is_some()));
        assert!(Process::of(u32::MAX).is_err_and(|why| why.contains("no process 4294967295")));
    }
}
