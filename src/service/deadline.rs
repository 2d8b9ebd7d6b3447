//! Until when a caller waits: the `grpc-timeout` header.

use std::time::{Duration, Instant};

use http::HeaderMap;

/// The longest wait for a store where the caller names none: a store has a far shorter timeout of its own.
const WITHIN_MAX: Duration = Duration::from_secs(10);

/// What stays for the way back, at most: 1 ms, a local network's round trip and the encoding. Of very short timeouts an
/// eighth is kept.
const WAY_BACK_MAX: Duration = Duration::from_millis(1);

/// A moment on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline of a request that came at `now`. A timeout that cannot be read is none, as in other servers: no
    /// request is refused for it.
    pub fn of(headers: &HeaderMap, now: Instant) -> Self {
        let asked = headers.get("grpc-timeout").and_then(|value| parse(value.as_bytes()));
        Self::after(asked.unwrap_or(WITHIN_MAX), now)
    }

    /// The deadline of a caller who waits for so long.
    pub fn after(timeout: Duration, now: Instant) -> Self {
        let timeout = timeout.min(WITHIN_MAX);
        Self(now + timeout - (timeout / 8).min(WAY_BACK_MAX))
    }

    /// How long that is from now; zero when it has passed.
    pub fn left(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }
}

/// gRPC's `TimeoutValue TimeoutUnit`: up to eight digits and one of `H M S m u n`.
fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_grpc_timeout_is_read_and_nothing_else() {
        let ms = Duration::from_millis;
        for (text, want) in [
            ("20m", Some(ms(20))),
            ("1S", Some(ms(1000))),
            ("2M", Some(ms(120_000))),
            ("1H", Some(ms(3_600_000))),
            ("5000u", Some(ms(5))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("0m", Some(Duration::ZERO)),
            ("", None),
            ("m", None),
            ("20", None),
            ("20s", None),
            ("-1m", None),
            ("1.5S", None),
            ("123456789m", None),
        ] {
            assert_eq!(parse(text.as_bytes()), want, "{text:?}");
        }
    }

    #[test]
    fn the_store_gets_a_little_less_than_the_caller_gives() {
        use crate::clock::{Clock, SystemClock};
        let now = SystemClock.instant();
        let left = |timeout| Deadline::after(timeout, now).left(now);
        assert_eq!(left(Duration::from_millis(20)), Duration::from_millis(19));
        assert_eq!(left(Duration::from_micros(800)), Duration::from_micros(700));
        assert_eq!(left(Duration::ZERO), Duration::ZERO);
        assert_eq!(left(Duration::from_secs(3_600)), WITHIN_MAX - WAY_BACK_MAX);
        assert_eq!(Deadline::after(Duration::ZERO, now).left(now + Duration::from_secs(1)), Duration::ZERO);
    }
}
