//! An answer in words. `call` shows what a service said, `explain` what it would say; both show the
//! message that Envoy gets, so that neither can tell something that the service does not.

use std::time::Duration;

use super::{
    ask::Descriptor,
    terminal::{Paint, Terminal, columns, human},
};
use crate::{
    proto::envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        },
    },
    service::metadata,
};

/// Whether the request is refused.
pub(super) fn refused(response: &RateLimitResponse) -> bool {
    response.overall_code() == Code::OverLimit
}

/// All of an answer.
pub(super) fn show(terminal: &mut Terminal, request: &RateLimitRequest, response: &RateLimitResponse) {
    let paint = terminal.paint();
    terminal.line(headline(paint, response));
    if let Some(told) = degraded(response) {
        terminal.line(format!("  {}", paint.warning(told)));
    }
    let rows: Vec<[String; 3]> = response
        .statuses
        .iter()
        .enumerate()
        .map(|(index, status)| {
            // A service that answers more statuses than were asked for is not ours.
            let asked = request.descriptors.get(index);
            let name = asked.map_or("?".into(), |asked| Descriptor(asked.entries.clone()).to_string());
            [name, word(status).into(), limit(status)]
        })
        .collect();
    for ([name, word, limit], status) in columns(&rows).iter().zip(&response.statuses) {
        let word = if status.code() == Code::OverLimit { paint.bad(word) } else { paint.good(word) };
        terminal.line(format!("  {name}  {word}  {limit}").trim_end());
    }
    if !response.response_headers_to_add.is_empty() {
        terminal.line("");
        for header in &response.response_headers_to_add {
            terminal.line(format!("  {} {}", paint.faint(format!("{}:", header.key)), value(header)));
        }
    }
}

/// An answer in one line, for many in a row.
pub(super) fn brief(paint: Paint, response: &RateLimitResponse) -> String {
    let limits: Vec<String> = response.statuses.iter().map(limit).collect();
    let told = degraded(response).map_or(String::new(), |told| format!("  ({})", paint.warning(told)));
    format!("{}{told}  {}", headline(paint, response), paint.faint(limits.join(" | ")))
}

/// That the store had no part in it. A refusal of a limit of 0 needs no store.
fn degraded(response: &RateLimitResponse) -> Option<String> {
    let (cause, mode) = metadata::degraded(response.dynamic_metadata.as_ref()?)?;
    let why = match cause {
        "timeout" => "did not answer in time",
        "unavailable" => "cannot be reached",
        "refused" => "refused the call",
        "corrupt" => "answered what makes no sense",
        "overload" => "has too much to do",
        other => other,
    };
    Some(format!("the store {why}; answered by on_store_failure: {mode}"))
}

fn headline(paint: Paint, response: &RateLimitResponse) -> String {
    match response.overall_code() {
        Code::Ok => paint.good("allowed"),
        Code::OverLimit => match retry_after(response) {
            Some(seconds) => {
                format!("{}, try again in {}", paint.bad("refused"), human(Duration::from_secs(seconds)))
            }
            None => paint.bad("refused"),
        },
        Code::Unknown => paint.warning("answered neither OK nor OVER_LIMIT"),
    }
}

fn retry_after(response: &RateLimitResponse) -> Option<u64> {
    let headers = &response.response_headers_to_add;
    let header = headers.iter().find(|header| header.key.eq_ignore_ascii_case("retry-after"))?;
    value(header).parse().ok()
}

/// Envoy takes either field.
fn value(header: &HeaderValue) -> String {
    if header.value.is_empty() {
        String::from_utf8_lossy(&header.raw_value).into_owned()
    } else {
        header.value.clone()
    }
}

fn word(status: &DescriptorStatus) -> &'static str {
    match status.code() {
        Code::Ok => "ok",
        Code::OverLimit => "over",
        Code::Unknown => "?",
    }
}

/// `3 left, limit 10 a second (name), whole again in 700 ms`. A bucket may hold more than the limit's number.
fn limit(status: &DescriptorStatus) -> String {
    let left = status.limit_remaining;
    let Some(limit) = &status.current_limit else {
        return if left == u32::MAX { "unlimited" } else { "no limit" }.into();
    };
    let RateLimit { requests_per_unit, name, .. } = limit;
    let unit = unit(limit.unit());
    // A limit of 0 is whole at each window's end, and grants nothing then.
    let until = status.duration_until_reset.as_ref().filter(|_| *requests_per_unit > 0);
    let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
    let whole = match until.map(span) {
        Some(span) if !span.is_zero() => format!(", whole again in {}", human(span)),
        _ => String::new(),
    };
    format!("{left} left, limit {requests_per_unit} {unit}{name}{whole}")
}

fn span(of: &prost_types::Duration) -> Duration {
    Duration::try_from(*of).unwrap_or_default()
}

pub(super) fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Unknown => "an unknown unit",
        Unit::Second => "a second",
        Unit::Minute => "a minute",
        Unit::Hour => "an hour",
        Unit::Day => "a day",
        Unit::Month => "a month",
        Unit::Year => "a year",
        Unit::Week => "a week",
    }
}
