//! What both forms say of a limit in the same words: periods and rates, algorithms, modes, what to do without a store.

use std::num::NonZeroU8;

use super::{
    FailureMode, Unit,
    fields::{Fields, Reader},
    lease::{self, Lease},
    mistake::quote,
    shards,
    words::list_of,
    yaml::Node,
};
use crate::limit::{Algorithm, Limit, LimitError, OnRefusal, Role, WAIT_MAX_US, WINDOW_MAX_US};

/// Algorithms that are there.
pub(super) const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("token_bucket", Algorithm::TokenBucket),
    ("gcra", Algorithm::Gcra),
    ("sliding_window", Algorithm::SlidingWindow),
    ("fixed_window", Algorithm::FixedWindow),
];

/// Algorithms that will be there one day.
const LATER_ALGORITHMS: [&str; 3] = ["sliding_log", "leaky_bucket", "concurrency"];

/// What can be done without a store.
pub(super) const FAILURE_MODES: [(&str, FailureMode); 4] = [
    ("allow", FailureMode::Allow),
    ("deny", FailureMode::Deny),
    ("local", FailureMode::Local),
    ("error", FailureMode::Error),
];

/// What a limit is for.
pub(super) const MODES: [(&str, Mode); 3] =
    [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("record", Mode::Record)];

/// `mode:` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Refuses, strictly all or nothing.
    Enforce,
    /// Never refuses; charged like the others.
    Shadow,
    /// Never refuses; counts always, also beyond full.
    Record,
}

impl Mode {
    /// What it says in the answer.
    pub(super) fn role(self) -> Role {
        match self {
            Self::Enforce => Role::Enforce,
            Self::Shadow | Self::Record => Role::Shadow,
        }
    }

    /// What becomes of refused hits.
    pub(super) fn on_refusal(self) -> OnRefusal {
        match self {
            Self::Enforce | Self::Shadow => OnRefusal::Keep,
            Self::Record => OnRefusal::Count,
        }
    }
}

/// What a limit says besides its numbers. `None` is not said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    pub(super) mode: Option<Mode>,
    pub(super) on_store_failure: Option<FailureMode>,
    pub(super) headers: Option<bool>,
    pub(super) lease: Option<Lease>,
    pub(super) shards: Option<NonZeroU8>,
}

impl Terms {
    /// Reads them off a limit.
    pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Self {
        let mode = fields.get("mode").and_then(|node| reader.word(node, "`mode`", &MODES));
        let on_store_failure = fields
            .get("on_store_failure")
            .and_then(|node| reader.word(node, "`on_store_failure`", &FAILURE_MODES));
        let headers = fields.get("headers").filter(|node| !reader.is_null(node));
        let headers = headers.map(|node| reader.flag(node, "`headers`"));
        let (lease, shards) = (lease::read(reader, fields), shards::read(reader, fields));
        Self { mode, on_store_failure, headers, lease, shards }
    }

    /// Whether any of them is said.
    pub(super) fn says_anything(self) -> bool {
        self.mode.is_some()
            || self.on_store_failure.is_some()
            || self.headers.is_some()
            || self.lease.is_some()
            || self.shards.is_some()
    }

    /// What is not said here is as said there.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            mode: self.mode.or(other.mode),
            on_store_failure: self.on_store_failure.or(other.on_store_failure),
            headers: self.headers.or(other.headers),
            lease: self.lease.or(other.lease),
            shards: self.shards.or(other.shards),
        }
    }
}

/// The algorithm that a limit names.
pub(super) fn algorithm(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Algorithm> {
    let node = fields.get("algorithm")?;
    if let Some(text) = node.scalar().filter(|text| LATER_ALGORITHMS.contains(text)) {
        let names = ALGORITHMS.map(|(name, _)| name);
        let message = format!("the algorithm `{text}` is not available yet");
        reader.mistake(node, message, format!("it is one of {}", list_of(&names)));
        return None;
    }
    reader.word(node, "`algorithm`", &ALGORITHMS)
}

/// Numbers that are read, with the places to blame.
pub(super) struct Numbers<'n> {
    pub(super) algorithm: Algorithm,
    pub(super) requests: u32,
    pub(super) window_us: u64,
    /// Where the window stands.
    pub(super) window_at: &'n Node,
    pub(super) burst: Option<(u32, &'n Node)>,
}

/// `burst:` of a limit.
pub(super) fn burst<'n>(reader: &mut Reader<'_>, fields: &Fields<'n>) -> Option<(u32, &'n Node)> {
    let node = fields.get("burst").filter(|node| !reader.is_null(node))?;
    Some((reader.number(node, "`burst`")?, node))
}

/// Makes a limit of numbers.
pub(super) fn limit(reader: &mut Reader<'_>, numbers: &Numbers<'_>) -> Option<Limit> {
    let burst = numbers.burst.map(|(burst, _)| burst);
    let error = match Limit::new(numbers.algorithm, numbers.requests, numbers.window_us, burst) {
        Ok(limit) if forgets_its_debt(&limit) => {
            let at = numbers.burst.map_or(numbers.window_at, |(_, node)| node);
            let message =
                "this burst takes more than 142 years to come back, which is all that gcra remembers";
            reader.mistake(
                at,
                message,
                "write a smaller one, or `algorithm: token_bucket`, which remembers tokens",
            );
            return None;
        }
        Ok(limit) => return Some(limit),
        Err(error) => error,
    };
    let burst_at = numbers.burst.map_or(numbers.window_at, |(_, node)| node);
    let (at, help) = match error {
        LimitError::WindowIsZero => (numbers.window_at, "to block, write a limit of 0 requests"),
        LimitError::WindowTooLong => (numbers.window_at, "write a shorter one"),
        LimitError::BurstIsZero => (burst_at, "to block, write a limit of 0 requests"),
        LimitError::BurstOfNothing => (burst_at, "take `burst` out"),
        LimitError::BurstWithoutBucket(_) => (
            burst_at,
            "take `burst` out, or add `algorithm: token_bucket` (or `gcra`), which fill continuously",
        ),
    };
    reader.mistake(at, error.to_string(), help);
    None
}

/// Whether the debt of a whole burst is more time than gcra keeps: it would silently grant less than it says.
pub(super) fn forgets_its_debt(limit: &Limit) -> bool {
    let (tokens, us) = limit.reduced();
    let whole_us = u128::from(limit.burst()) * u128::from(us) / u128::from(tokens.max(1));
    limit.algorithm() == Algorithm::Gcra && limit.requests() > 0 && whole_us >= u128::from(WAIT_MAX_US)
}

/// The smallest unit that is not shorter than a window, for `current_limit`, which knows units only.
pub(super) fn unit_of(window_us: u64) -> Unit {
    let fits = |unit: &Unit| unit.window_us() >= window_us;
    Unit::ALL.into_iter().find(fits).unwrap_or(Unit::Year)
}

/// Why a text is no period or no rate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) message: String,
    pub(super) help: String,
}

/// A period: `30s`, `1h30m`, `500ms`. In microseconds.
pub(super) fn period(text: &str) -> Result<u64, Unreadable> {
    let unreadable = |help: String| Unreadable { message: format!("`{}` is no period", quote(text)), help };
    let usual = || unreadable("write a number and a unit: `500ms`, `30s`, `1h30m`, `7d`".into());
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(unreadable(format!("give it a unit: `{text}s`, `{text}m`, `{text}h`")));
    }
    let mut rest = text;
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(usual)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (word, tail) = tail.split_at(letters);
        let unit = unit_us(word.trim()).ok_or_else(usual)?;
        let number: u64 =
            if number.is_empty() { return Err(usual()) } else { number.parse().unwrap_or(u64::MAX) };
        sum = sum.saturating_add(number.saturating_mul(unit));
        rest = tail;
    }
    match sum {
        _ if text.is_empty() => Err(usual()),
        too_long if too_long > WINDOW_MAX_US => Err(Unreadable {
            message: LimitError::WindowTooLong.to_string(),
            help: "write a shorter one".into(),
        }),
        sum => Ok(sum),
    }
}

/// The words for units, short ones first.
fn unit_us(word: &str) -> Option<u64> {
    Some(match word {
        "us" => 1,
        "ms" => 1_000,
        "s" | "sec" | "second" | "seconds" => Unit::Second.window_us(),
        "m" | "min" | "minute" | "minutes" => Unit::Minute.window_us(),
        "h" | "hour" | "hours" => Unit::Hour.window_us(),
        "d" | "day" | "days" => Unit::Day.window_us(),
        "w" | "week" | "weeks" => Unit::Week.window_us(),
        "month" | "months" => Unit::Month.window_us(),
        "y" | "year" | "years" => Unit::Year.window_us(),
        _ => return None,
    })
}

/// A rate: `10/s`, `100/minute`, `3/10s`. Requests, and a window in microseconds.
pub(super) fn rate(text: &str) -> Result<(u32, u64), Unreadable> {
    let unreadable = |help: String| Unreadable { message: format!("`{}` is no rate", quote(text)), help };
    let usual = || unreadable("write requests and a period: `10/s`, `100/minute`, `3/10s`".into());
    let (number, per) = text.split_once('/').ok_or_else(usual)?;
    let (number, per) = (number.trim(), per.trim());
    let window_us = match unit_us(per) {
        Some(window) => window,
        None if per.starts_with(|c: char| c.is_ascii_digit()) => period(per)?,
        None => return Err(usual()),
    };
    if let Some((whole, fraction)) = number.split_once('.') {
        return Err(whole_rate(whole, fraction, per).map_or_else(usual, |rate| Unreadable {
            message: format!("`{}` has a fraction of a request", quote(text)),
            help: format!("write whole requests in a longer period: `{rate}`"),
        }));
    }
    let digits = number.replace('_', "");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(usual());
    }
    match digits.parse::<u32>() {
        Ok(requests) => Ok((requests, window_us)),
        Err(_) => Err(Unreadable {
            message: format!("{} requests are too many", quote(number)),
            help: format!("at most {} are counted; to let all pass, write `unlimited: true`", u32::MAX),
        }),
    }
}

/// `0.5` per `s` is `1/2s`: the fraction as a ratio of whole numbers, where that is short.
fn whole_rate(whole: &str, fraction: &str, per: &str) -> Option<String> {
    let fraction = fraction.trim_end_matches('0');
    let below = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let above = whole.parse::<u64>().ok()?.checked_mul(below)?;
    let above = above.checked_add(if fraction.is_empty() { 0 } else { fraction.parse().ok()? })?;
    let (mut a, mut b) = (above, below);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    let (above, below) = (above / a, below / a);
    match below {
        1 => Some(format!("{above}/{per}")),
        below if per.starts_with(|c: char| c.is_ascii_digit()) => {
            let us = period(per).ok()?.checked_mul(below)?;
            let unit = [("d", Unit::Day), ("h", Unit::Hour), ("m", Unit::Minute), ("s", Unit::Second)]
                .into_iter()
                .find(|(_, unit)| us.is_multiple_of(unit.window_us()));
            unit.map(|(word, unit)| format!("{above}/{}{word}", us / unit.window_us()))
        }
        below => Some(format!("{above}/{below}{per}")),
    }
}

/// The name that headers show: printable ASCII without `"` and `\`, since it stands in a quoted string there, and of
/// a length that no proxy minds.
pub(super) fn policy_name(name: &str) -> Box<str> {
    const POLICY_MAX: usize = 128;
    let clean = |c: char| if matches!(c, ' '..='~') && c != '"' && c != '\\' { c } else { '_' };
    name.chars().take(POLICY_MAX).map(clean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods() {
        for (text, us) in [
            ("30s", 30_000_000),
            ("1h30m", 5_400_000_000),
            ("500ms", 500_000),
            ("1us", 1),
            ("7d", 7 * 86_400_000_000),
            ("0s", 0),
            ("3650d", WINDOW_MAX_US),
        ] {
            assert_eq!(period(text), Ok(us), "{text}");
        }
        for text in ["", "30", "s", "1h30", "1.5h", "-1s", "1x", "3651d", "99999999999999999999d", "1hour30"]
        {
            assert!(period(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, requests, window_us) in [
            ("10/s", 10, 1_000_000),
            ("10/second", 10, 1_000_000),
            ("10/m", 10, 60_000_000),
            ("10/min", 10, 60_000_000),
            ("1 / h", 1, 3_600_000_000),
            ("5_000_000/d", 5_000_000, 86_400_000_000),
            ("2/w", 2, 604_800_000_000),
            ("2/month", 2, 30 * 86_400_000_000),
            ("2/y", 2, 365 * 86_400_000_000),
            ("3/10s", 3, 10_000_000),
            ("1/1h30m", 1, 5_400_000_000),
            ("0/s", 0, 1_000_000),
            ("4294967295/s", u32::MAX, 1_000_000),
        ] {
            assert_eq!(rate(text), Ok((requests, window_us)), "{text}");
        }
        for text in
            ["10", "10/", "/s", "-1/s", "+1/s", "1e3/s", "10/x", "10/s/s", "4294967296/s", "ten/s", "1/-1s"]
        {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_fraction_is_refused_with_the_rate_that_was_meant() {
        for (text, meant) in [
            ("0.5/s", "1/2s"),
            ("2.5/m", "5/2m"),
            ("1.0/s", "1/s"),
            ("0.25/10s", "1/40s"),
            ("0.1/h", "1/10h"),
        ] {
            let help = rate(text).unwrap_err().help;
            assert!(help.ends_with(&format!("`{meant}`")), "{text}: {help}");
        }
    }

    #[test]
    fn the_shown_unit_is_the_smallest_that_is_not_shorter() {
        for (window_us, unit) in [
            (1, Unit::Second),
            (1_000_000, Unit::Second),
            (1_000_001, Unit::Minute),
            (40_000_000, Unit::Minute),
            (7 * 86_400_000_000, Unit::Week),
            (8 * 86_400_000_000, Unit::Month),
            (WINDOW_MAX_US, Unit::Year),
        ] {
            assert_eq!(unit_of(window_us), unit, "{window_us}");
        }
    }
}
