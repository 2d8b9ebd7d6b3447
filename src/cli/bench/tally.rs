//! What became of requests: answers, latencies, and errors by kind.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tonic::Code;

/// The longest latency that is told apart; longer ones count as this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// Digits of a latency that are kept, over its whole range.
const DIGITS: u8 = 3;

/// What a service said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted,
    Refused,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// In words, such as the service's own.
    pub(super) told: String,
}

/// Kinds of faults, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// No connection could be made.
    NoConnection,
    /// A connection ended with the request in flight.
    ConnectionLost,
    /// The service gave the one request up.
    StreamReset,
    /// No answer came in time.
    Late,
    /// It was due, and until too late all streams were busy.
    NotSent,
    /// A gRPC status other than OK.
    Status(i32),
    /// An HTTP status other than 200.
    Http(u16),
    /// An answer that is none of this service.
    Garbled,
}

impl Kind {
    /// Whether another request at once would fare no better.
    pub(super) fn is_of_the_connection(self) -> bool {
        matches!(self, Self::NoConnection | Self::ConnectionLost)
    }

    /// Whether the caller waited as long as he would, so that it is a latency, too.
    fn is_a_wait(self) -> bool {
        match self {
            Self::Late | Self::NotSent => true,
            // A service may end at our timeout by its own clock, and says either; tonic says CANCELLED.
            Self::Status(code) => matches!(Code::from_i32(code), Code::DeadlineExceeded | Code::Cancelled),
            _ => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConnection => f.write_str("no connection"),
            Self::ConnectionLost => f.write_str("connection lost"),
            Self::StreamReset => f.write_str("stream reset"),
            Self::Late => f.write_str("no answer in time"),
            Self::NotSent => f.write_str("not sent in time"),
            Self::Status(code) => write!(f, "gRPC {:?}", Code::from_i32(*code)),
            Self::Http(status) => write!(f, "HTTP {status}"),
            Self::Garbled => f.write_str("not an answer"),
        }
    }
}

/// All requests of a thread, or of a run.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) granted: u64,
    pub(super) refused: u64,
    /// How many of each kind, and the first in words.
    pub(super) faults: BTreeMap<Kind, (u64, String)>,
    /// Nanoseconds from when a request was due to its answer, or to when its caller gave up.
    pub(super) latency: Histogram<u64>,
    /// Nanoseconds from when a request was due to when it was sent.
    pub(super) sent_late: Histogram<u64>,
    /// When the last one ended.
    pub(super) last: Option<Instant>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let max = nanos(LATENCY_MAX);
        let histogram = || Histogram::new_with_max(max, DIGITS).expect("an hour has three digits");
        Self {
            granted: 0,
            refused: 0,
            faults: BTreeMap::new(),
            latency: histogram(),
            sent_late: histogram(),
            last: None,
        }
    }

    /// Counts a request that was due, was sent and has ended.
    pub(super) fn count(
        &mut self,
        due: Instant,
        sent: Instant,
        ended: Instant,
        asked: Result<Answer, Fault>,
    ) {
        let waited = match &asked {
            Ok(_) => true,
            // A quick failure would make a service that fails look fast.
            Err(fault) => fault.kind.is_a_wait(),
        };
        if waited {
            self.latency.saturating_record(nanos(ended.saturating_duration_since(due)));
        }
        self.sent_late.saturating_record(nanos(sent.saturating_duration_since(due)));
        self.last = self.last.max(Some(ended));
        match asked {
            Ok(Answer::Granted) => self.granted += 1,
            Ok(Answer::Refused) => self.refused += 1,
            Err(Fault { kind, told }) => self.faults.entry(kind).or_insert((0, told)).0 += 1,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.granted += other.granted;
        self.refused += other.refused;
        for (kind, (count, told)) in other.faults {
            self.faults.entry(kind).or_insert((0, told)).0 += count;
        }
        for (own, others) in [(&mut self.latency, other.latency), (&mut self.sent_late, other.sent_late)] {
            own.add(others).expect("all have the same range");
        }
        self.last = self.last.max(other.last);
    }

    /// Requests that were answered.
    pub(super) fn answers(&self) -> u64 {
        self.granted + self.refused
    }

    /// Requests that were not.
    pub(super) fn errors(&self) -> u64 {
        self.faults.values().map(|(count, _)| count).sum()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    const MS: Duration = Duration::from_millis(1);

    fn fault(kind: Kind) -> Result<Answer, Fault> {
        Err(Fault { kind, told: format!("{kind}, in words") })
    }

    /// In whole milliseconds.
    fn longest(histogram: &Histogram<u64>) -> u64 {
        (histogram.max() + 500_000) / 1_000_000
    }

    #[test]
    fn latency_begins_when_a_request_was_due() {
        let (mut tally, due) = (Tally::new(), SystemClock.instant());
        tally.count(due, due + 290 * MS, due + 300 * MS, Ok(Answer::Granted));
        assert_eq!((longest(&tally.latency), longest(&tally.sent_late)), (300, 290));
    }

    #[test]
    fn who_gave_up_waiting_counts_as_slow_and_who_failed_at_once_not_as_fast() {
        let (mut tally, due) = (Tally::new(), SystemClock.instant());
        tally.count(due, due, due + MS, fault(Kind::Status(Code::Unavailable as i32)));
        tally.count(due, due, due + MS, fault(Kind::ConnectionLost));
        assert_eq!(tally.latency.len(), 0);
        tally.count(due, due, due + 1000 * MS, fault(Kind::Late));
        tally.count(due, due + 1000 * MS, due + 1000 * MS, fault(Kind::NotSent));
        tally.count(due, due, due + 999 * MS, fault(Kind::Status(Code::DeadlineExceeded as i32)));
        assert_eq!((tally.latency.len(), longest(&tally.latency)), (3, 1000));
        assert_eq!((tally.answers(), tally.errors()), (0, 5));
    }

    #[test]
    fn threads_add_up() {
        let (mut one, mut other, due) = (Tally::new(), Tally::new(), SystemClock.instant());
        one.count(due, due, due + MS, Ok(Answer::Granted));
        one.count(due, due, due + MS, fault(Kind::Late));
        other.count(due, due, due + 9 * MS, Ok(Answer::Refused));
        other.count(due, due, due + MS, fault(Kind::Late));
        other.count(due, due, due + MS, fault(Kind::Http(404)));
        one.add(other);
        assert_eq!((one.granted, one.refused, one.errors(), one.latency.len()), (1, 1, 3, 4));
        assert_eq!(one.last, Some(due + 9 * MS));
        let faults: Vec<_> =
            one.faults.iter().map(|(kind, (n, told))| format!("{kind}: {n} ({told})")).collect();
        assert_eq!(
            faults,
            ["no answer in time: 2 (no answer in time, in words)", "HTTP 404: 1 (HTTP 404, in words)"]
        );
    }
}
