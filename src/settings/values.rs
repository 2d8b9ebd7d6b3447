//! Texts to values. Each function answers with what would have been right when a text is wrong.
//!
//! The reference is a Go program, so durations and booleans are what Go's `time.ParseDuration` and `strconv.ParseBool`
//! read; names are taken in any case.

use std::{
    net::{IpAddr, Ipv4Addr},
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    thread,
    time::Duration,
};

use super::{Level, LogFormat};
use crate::rules::FailureMode;

/// What would be right, in words that complete "… is wrong: ".
pub type Want = String;

/// The longest duration of a setting, a day: whoever writes more has mistaken the unit.
const DURATION_MAX: Duration = Duration::from_secs(86_400);

/// The oldest that anything becomes, a year: beyond it `0` says what is meant.
const AGE_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The shortest time between two looks at the rule files, since each reads all of them.
const POLL_MIN: Duration = Duration::from_millis(100);

/// The most threads: beyond it a typing error is likelier than such a machine.
const THREADS_MAX: usize = 1024;

/// `BACKEND_TYPE`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum BackendType {
    Memory,
    Redis,
}

/// `LIMIT_HEADERS`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum HeaderStyle {
    Ietf,
    Draft03,
    XRateLimit,
    None,
}

/// A duration as Go writes it: `10s`, `5ms`, `1m30s`, `1.5h`, `0`.
///
/// # Errors
/// When it is none, negative, or above a day.
pub fn duration(text: &str) -> Result<Duration, Want> {
    duration_up_to(DURATION_MAX, text)
}

/// How old something may become: as [`duration`], up to a year; 0 is without end, as gRPC has it.
///
/// # Errors
/// As [`duration`], and when it is above a year.
pub fn age(text: &str) -> Result<Option<Duration>, Want> {
    Ok(Some(duration_up_to(AGE_MAX, text)?).filter(|age| !age.is_zero()))
}

fn duration_up_to(longest: Duration, text: &str) -> Result<Duration, Want> {
    let want = || {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            format!("a duration needs a unit: `{text}s` or `{text}ms`")
        } else {
            "write a duration such as `10s`, `5ms` or `1m30s`".to_owned()
        }
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut nanos) = (text, 0_u128);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let part = unit_nanos(unit).and_then(|unit| decimal_times(number, unit)).ok_or_else(want)?;
        nanos = nanos.saturating_add(part);
        rest = after;
    }
    if text.is_empty() {
        return Err(want());
    }
    match u64::try_from(nanos).map(Duration::from_nanos) {
        Ok(duration) if duration <= longest => Ok(duration),
        _ => Err(format!("no duration may be above {}h", longest.as_secs() / 3600)),
    }
}

/// As [`duration`], and not 0.
///
/// # Errors
/// As [`duration`], and when it is 0.
pub fn positive_duration(text: &str) -> Result<Duration, Want> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// How often to look at files: as [`duration`], at least `POLL_MIN`.
///
/// # Errors
/// As [`duration`], and when it is shorter.
pub fn poll(text: &str) -> Result<Duration, Want> {
    match duration(text)? {
        often if often < POLL_MIN => Err("it must be at least 100ms: each look reads all files".to_owned()),
        duration => Ok(duration),
    }
}

fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        // Both characters that look like a micro sign, as in Go.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `number · unit`, where the number may have decimals; what is below a nanosecond is cut off.
fn decimal_times(number: &str, unit: u128) -> Option<u128> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && decimals.is_empty()) || whole.len() > 18 || decimals.len() > 18 {
        return None;
    }
    let integer = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let scale = 10_u128.pow(u32::try_from(decimals.len()).ok()?);
    Some(integer(whole)? * unit + integer(decimals)? * unit / scale)
}

/// A boolean as Go reads it.
///
/// # Errors
/// When it is none.
pub fn boolean(text: &str) -> Result<bool, Want> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("write `true` or `false`".to_owned()),
    }
}

/// # Errors
/// When it is no number from 0 to 65535.
pub fn port(text: &str) -> Result<u16, Want> {
    text.parse().map_err(|_| "write a port from 0 to 65535 (0: any free one)".to_owned())
}

/// An interface's address; `localhost` is one of them.
///
/// # Errors
/// When it is no IP address: a name could mean several, or another one tomorrow.
pub fn host(text: &str) -> Result<IpAddr, Want> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse()
        .map_err(|_| "write an IP address to listen on, such as `0.0.0.0`, `127.0.0.1` or `::`".to_owned())
}

/// A host's name or address, as certificates have it.
///
/// # Errors
/// When it is neither.
pub fn certificate_name(text: &str) -> Result<String, Want> {
    let is_host = is_name(text) || text.parse::<IpAddr>().is_ok();
    is_host.then(|| text.to_owned()).ok_or_else(|| "write a host's name, such as `xds.example`".to_owned())
}

/// Whether these are letters of a host's name.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// # Errors
/// When it is no whole number from 1.
pub fn count(text: &str) -> Result<NonZeroUsize, Want> {
    text.parse().map_err(|_| "write a whole number from 1 on".to_owned())
}

/// The most memory that a setting may ask for: 16 GiB.
const SIZE_MAX: usize = 16 << 30;

/// Bytes of memory.
///
/// # Errors
/// When it is no whole number from 0 to 16 GiB.
pub fn size(text: &str) -> Result<usize, Want> {
    let size = text.parse().ok().filter(|size| *size <= SIZE_MAX);
    size.ok_or_else(|| format!("write a whole number of bytes from 0 to {SIZE_MAX}, such as 16777216"))
}

/// # Errors
/// When it is no whole number from 1 to 4294967295.
pub fn count32(text: &str) -> Result<NonZeroU32, Want> {
    text.parse().map_err(|_| format!("write a whole number from 1 to {}", u32::MAX))
}

/// # Errors
/// When it is no whole number from 0 to 4294967295.
pub fn count32_or_none(text: &str) -> Result<u32, Want> {
    text.parse().map_err(|_| format!("write a whole number from 0 to {}", u32::MAX))
}

/// A number, or `cores` for as many as this process may use.
///
/// # Errors
/// When it is neither, or above 1024.
pub fn threads(text: &str) -> Result<NonZeroUsize, Want> {
    if text.eq_ignore_ascii_case("cores") {
        return Ok(thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
    }
    match text.parse::<NonZeroUsize>() {
        Ok(threads) if threads.get() <= THREADS_MAX => Ok(threads),
        _ => Err(format!("write a whole number from 1 to {THREADS_MAX}, or `cores`")),
    }
}

/// # Errors
/// Never; the table's functions have one shape.
pub fn path(text: &str) -> Result<PathBuf, Want> {
    Ok(PathBuf::from(text))
}

/// A header's name: a token of RFC 9110, 5.6.2. What it looks like is kept, since clients may compare it.
///
/// # Errors
/// When it is none.
pub fn header_name(text: &str) -> Result<String, Want> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if text.is_empty() || !text.bytes().all(is_token) {
        return Err("write a header's name, such as `RateLimit-Limit`".to_owned());
    }
    Ok(text.to_owned())
}

/// # Errors
/// When it is no level of the reference.
pub fn level(text: &str) -> Result<Level, Want> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Level::Error,
        "warn" | "warning" => Level::Warn,
        "info" => Level::Info,
        "debug" => Level::Debug,
        "trace" => Level::Trace,
        _ => return Err("write one of trace, debug, info, warn, error, fatal, panic".to_owned()),
    })
}

/// # Errors
/// When it is neither `text` nor `json`.
pub fn log_format(text: &str) -> Result<LogFormat, Want> {
    choose(text, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
}

/// # Errors
/// When it is no failure mode.
pub fn failure_mode(text: &str) -> Result<FailureMode, Want> {
    choose(
        text,
        &[
            ("error", FailureMode::Error),
            ("allow", FailureMode::Allow),
            ("deny", FailureMode::Deny),
            ("local", FailureMode::Local),
        ],
    )
}

/// # Errors
/// When it is neither `none` nor `reference`.
pub fn compat(text: &str) -> Result<bool, Want> {
    choose(text, &[("none", false), ("reference", true)])
}

/// `KEY_FORMAT`: whether keys are the reference's.
///
/// # Errors
/// When it is neither `tollgate` nor `reference`.
pub fn key_format(text: &str) -> Result<bool, Want> {
    choose(text, &[("tollgate", false), ("reference", true)])
}

/// # Errors
/// When it is no whole number of seconds below 2^32.
pub fn seconds(text: &str) -> Result<u32, Want> {
    text.parse().map_err(|_| format!("write a whole number of seconds from 0 to {}", u32::MAX))
}

/// # Errors
/// When it is no way to keep budgets, or one of the reference's that is not there.
pub fn backend(text: &str) -> Result<BackendType, Want> {
    if text.eq_ignore_ascii_case("memcache") {
        return Err(
            "memcache is not available, since it cannot decide and spend in one step; write `redis` or \
                    `memory`"
                .to_owned(),
        );
    }
    choose(text, &[("memory", BackendType::Memory), ("redis", BackendType::Redis)])
}

/// # Errors
/// When it is no convention for headers.
pub fn header_style(text: &str) -> Result<HeaderStyle, Want> {
    choose(
        text,
        &[
            ("ietf", HeaderStyle::Ietf),
            ("draft-03", HeaderStyle::Draft03),
            ("x-ratelimit", HeaderStyle::XRateLimit),
            ("none", HeaderStyle::None),
        ],
    )
}

/// One of several words, in any case.
pub(super) fn choose<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Want> {
    choices.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, value)| *value).ok_or_else(
        || {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
            match words.split_last() {
                Some((last, [])) => format!("write {last}"),
                Some((last, others)) => format!("write {} or {last}", others.join(", ")),
                None => String::new(),
            }
        },
    )
}
