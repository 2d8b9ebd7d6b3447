//! The headers of an answer: what clients read to know their limit and when to come back.
//!
//! One limit is described, which the limiter has chosen: the one that refused, else the one nearest to refusing. How it
//! is told is one convention a deployment ([`Numbers`]):
//!
//! | `LIMIT_HEADERS` | headers |
//! |---|---|
//! | `ietf` | `RateLimit-Policy: "NAME";q=20;w=1;burst=30` and `RateLimit: "NAME";r=7;t=2`, structured fields (RFC 9651) after draft-ietf-httpapi-ratelimit-headers-11 |
//! | `draft-03` | `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` in seconds from now |
//! | `x-ratelimit` | `x-ratelimit-limit`, `-remaining`, `-reset` in seconds since the Unix epoch |
//! | `none` | nothing, and no `Retry-After` |
//!
//! Times are whole seconds, rounded up: a client that comes back when it was told to is not refused once more for a
//! fraction. What the headers cannot say exactly they leave out: a window of half a second has no `w`, a limit that is
//! whole has no `t`, and a request that never fits has no `Retry-After`.
//!
//! The triple's limit is the most that can be left, a bucket's burst, so that `0 <= remaining <= limit` holds and
//! "reset" is when the two are equal again. For windows it is the number of the rule, as in the reference.

use smallvec::SmallVec;

use crate::{
    clock::Micros,
    limit::Few,
    limiter::{Answer, Described},
    settings::{Headers, Numbers, Reset, RetryAfter},
};

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const SF_INTEGER_MAX: u64 = 999_999_999_999_999;

/// What stands for the policy's name where a limit comes from the caller and no rule stands behind it.
const NAME_OF_OVERRIDES: &str = "override";

const SECOND_US: u64 = 1_000_000;

/// A value in printable ASCII, allocated only where a name is very long.
pub type Value = SmallVec<[u8; 88]>;

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// As the settings have it, or the standard.
    pub name: &'a str,
    /// Printable ASCII.
    pub value: Value,
}

/// The headers of an answer that is given at `now`. `dice` gives any number, from which the jitter of `Retry-After` is
/// drawn. Neither is asked where it does not matter.
pub fn headers<'a>(
    answer: &Answer<'_>,
    style: &'a Headers,
    now: impl FnOnce() -> Micros,
    dice: impl FnOnce() -> u64,
) -> Few<Header<'a>> {
    let mut out = Few::new();
    // `headers: false` on a rule hides its numbers, not its Retry-After.
    let shown = answer.described.as_ref().filter(|described| described.rule.is_none_or(|rule| rule.headers));
    if let Some(described) = shown {
        match &style.numbers {
            Numbers::Hidden => {}
            Numbers::Ietf => ietf(described, &mut out),
            Numbers::Triple { names, reset } => triple(described, names, *reset, now, &mut out),
        }
    }
    if let (true, Some(retry_us), RetryAfter::Shown { jitter }) =
        (answer.refused, answer.retry_us, style.retry_after)
    {
        let jitter_us = u64::try_from(jitter.as_micros()).unwrap_or(u64::MAX - 1);
        let jitter_us = if jitter_us == 0 { 0 } else { dice() % (jitter_us + 1) };
        // At least 1: `Retry-After: 0` reads as an invitation.
        let seconds = seconds_up(retry_us.saturating_add(jitter_us)).max(1);
        out.push(Header { name: "Retry-After", value: number(seconds) });
    }
    out
}

fn ietf<'a>(described: &Described<'_>, out: &mut Few<Header<'a>>) {
    let name = described.rule.map_or(NAME_OF_OVERRIDES, |rule| &rule.policy);
    let limit = &described.limit;
    let mut policy = Value::new();
    put_sf_string(&mut policy, name);
    let mut state = policy.clone();
    put(&mut policy, ";q=", limit.requests().into());
    if limit.window_us().is_multiple_of(SECOND_US) {
        put(&mut policy, ";w=", limit.window_us() / SECOND_US);
    }
    if limit.burst() != limit.requests() {
        put(&mut policy, ";burst=", limit.burst().into());
    }
    put(&mut state, ";r=", described.remaining);
    // A limit of 0 has nothing to wait for.
    if described.next_us > 0 && limit.requests() > 0 {
        put(&mut state, ";t=", seconds_up(described.next_us));
    }
    out.push(Header { name: "RateLimit-Policy", value: policy });
    out.push(Header { name: "RateLimit", value: state });
}

fn triple<'a>(
    described: &Described<'_>,
    [limit_name, remaining_name, reset_name]: &'a [String; 3],
    reset: Reset,
    now: impl FnOnce() -> Micros,
    out: &mut Few<Header<'a>>,
) {
    let reset = match reset {
        Reset::Delta => seconds_up(described.reset_us),
        Reset::Epoch => seconds_up(now().0.saturating_add(described.reset_us)),
    };
    out.push(Header { name: limit_name, value: number(described.limit.burst().into()) });
    out.push(Header { name: remaining_name, value: number(described.remaining) });
    out.push(Header { name: reset_name, value: number(reset) });
}

fn number(number: u64) -> Value {
    Value::from_slice(itoa::Buffer::new().format(number).as_bytes())
}

fn put(field: &mut Value, parameter: &str, value: u64) {
    field.extend_from_slice(parameter.as_bytes());
    field.extend_from_slice(itoa::Buffer::new().format(value.min(SF_INTEGER_MAX)).as_bytes());
}

fn seconds_up(us: u64) -> u64 {
    us.div_ceil(SECOND_US)
}

/// Appends a structured field's String (RFC 9651, 4.1.6): printable ASCII, with `"` and `\` escaped. Rules hold their policy
/// names to that; whatever else got here becomes `?` rather than a header that no client can parse.
fn put_sf_string(out: &mut Value, text: &str) {
    out.push(b'"');
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        out.extend_from_slice(text.as_bytes());
    } else {
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
                ' '..='~' => out.push(c as u8),
                _ => out.push(b'?'),
            }
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        limit::{Algorithm, Limit, OnRefusal, Role},
        rules::{FailureMode, Rule, Unit, Written},
    };

    const NOW: Micros = Micros(1_800_000_000_250_000);

    fn rule(policy: &str, headers: bool) -> Rule {
        Rule {
            limit: None,
            name: None,
            policy: policy.into(),
            shown: (20, Unit::Second),
            role: Role::Enforce,
            on_refusal: OnRefusal::Keep,
            on_store_failure: FailureMode::Error,
            headers,
            lease: None,
            shards: None,
            replaces: [].into(),
            metric: 0,
            detail: None,
            metadata: None,
            by_route: false,
            per: [].into(),
            key_name: None,
            at: ("rules.yaml".into(), 1),
            written: Written { requests: 20, shadow: false, quota: false },
        }
    }

    fn limit(algorithm: Algorithm, requests: u32, window_us: u64, burst: Option<u32>) -> Limit {
        Limit::new(algorithm, requests, window_us, burst).unwrap()
    }

    /// 20 a second, 30 at once; 7 are left, one more in 2 s, whole in 3.2 s.
    fn described(rule: Option<&Rule>) -> Described<'_> {
        Described {
            rule,
            limit: limit(Algorithm::TokenBucket, 20, 1_000_000, Some(30)),
            remaining: 7,
            reset_us: 3_200_000,
            next_us: 1_999_999,
        }
    }

    fn shown(numbers: Numbers) -> Headers {
        Headers { numbers, retry_after: RetryAfter::Shown { jitter: Duration::ZERO } }
    }

    fn names(names: [&str; 3]) -> [String; 3] {
        names.map(str::to_owned)
    }

    fn told(answer: &Answer<'_>, style: &Headers) -> Vec<String> {
        let text =
            |header: Header<'_>| format!("{}: {}", header.name, str::from_utf8(&header.value).unwrap());
        headers(answer, style, || NOW, || 0).into_iter().map(text).collect()
    }

    fn passed<'r>(described: Option<Described<'r>>) -> Answer<'r> {
        Answer::of_headers(false, described, None)
    }

    fn refused<'r>(described: Option<Described<'r>>, retry_us: Option<u64>) -> Answer<'r> {
        Answer::of_headers(true, described, retry_us)
    }

    #[test]
    fn each_convention_says_the_same_in_its_own_words() {
        let rule = rule("free.search", true);
        let draft = names(["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
        let github = names(["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]);
        let cases = [
            (
                Numbers::Ietf,
                vec![
                    "RateLimit-Policy: \"free.search\";q=20;w=1;burst=30",
                    "RateLimit: \"free.search\";r=7;t=2",
                ],
            ),
            (
                Numbers::Triple { names: draft, reset: Reset::Delta },
                vec!["RateLimit-Limit: 30", "RateLimit-Remaining: 7", "RateLimit-Reset: 4"],
            ),
            (
                Numbers::Triple { names: github, reset: Reset::Epoch },
                // 1800000000.25 + 3.2
                vec!["x-ratelimit-limit: 30", "x-ratelimit-remaining: 7", "x-ratelimit-reset: 1800000004"],
            ),
            (Numbers::Hidden, vec![]),
        ];
        for (numbers, mut want) in cases {
            let style = shown(numbers);
            assert_eq!(told(&passed(Some(described(Some(&rule)))), &style), want, "{style:?}");
            want.push("Retry-After: 1");
            assert_eq!(
                told(&refused(Some(described(Some(&rule))), Some(200_000)), &style),
                want,
                "{style:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_said_exactly_is_left_out() {
        let rule = rule("user", true);
        let style = shown(Numbers::Ietf);
        let policy =
            |limit| told(&passed(Some(Described { limit, ..described(Some(&rule)) })), &style)[0].clone();
        for (limit, want) in [
            (limit(Algorithm::FixedWindow, 5, 40_000_000, None), "\"user\";q=5;w=40"),
            (limit(Algorithm::SlidingWindow, 5, 500_000, None), "\"user\";q=5"),
            (limit(Algorithm::Gcra, 5, 1_500_000, Some(6)), "\"user\";q=5;burst=6"),
            (limit(Algorithm::FixedWindow, 0, 1_000_000, None), "\"user\";q=0;w=1"),
            (
                limit(Algorithm::FixedWindow, u32::MAX, 365 * 86_400 * 1_000_000, None),
                "\"user\";q=4294967295;w=31536000",
            ),
        ] {
            assert_eq!(policy(limit), format!("RateLimit-Policy: {want}"));
        }
        let whole = Described { next_us: 0, reset_us: 0, remaining: 30, ..described(Some(&rule)) };
        assert_eq!(told(&passed(Some(whole)), &style)[1], "RateLimit: \"user\";r=30");
        let nothing = limit(Algorithm::FixedWindow, 0, 1_000_000, None);
        let blocked = Described { limit: nothing, remaining: 0, ..described(Some(&rule)) };
        assert_eq!(told(&refused(Some(blocked), None), &style)[1], "RateLimit: \"user\";r=0");
        let debts = Described { remaining: u64::MAX, ..described(Some(&rule)) };
        assert_eq!(told(&passed(Some(debts)), &style)[1], "RateLimit: \"user\";r=999999999999999;t=2");
        // Never fits, or nothing is limited.
        assert_eq!(told(&refused(None, None), &style), [""; 0]);
        assert_eq!(told(&passed(None), &style), [""; 0]);
    }

    #[test]
    fn hidden_numbers_hide_no_retry_after_but_none_hides_all() {
        let rule = rule("user", false);
        let answer = refused(Some(described(Some(&rule))), Some(1_000_001));
        assert_eq!(told(&answer, &shown(Numbers::Ietf)), ["Retry-After: 2"]);
        let silent = Headers { numbers: Numbers::Hidden, retry_after: RetryAfter::Hidden };
        assert_eq!(told(&answer, &silent), [""; 0]);
        // The reference's three headers come without Retry-After.
        let names = names(["L", "R", "S"]);
        let reference = Headers {
            numbers: Numbers::Triple { names, reset: Reset::Delta },
            retry_after: RetryAfter::Hidden,
        };
        let answer = refused(Some(described(None)), Some(1));
        assert_eq!(told(&answer, &reference), ["L: 30", "R: 7", "S: 4"]);
    }

    #[test]
    fn retry_after_is_rounded_up_never_zero_and_only_told_to_the_refused() {
        let style = shown(Numbers::Hidden);
        for (us, seconds) in [
            (0_u64, 1_u64),
            (1, 1),
            (200_000, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (59_999_999, 60),
            (1 << 52, 4_503_599_628),
        ] {
            assert_eq!(
                told(&refused(None, Some(us)), &style),
                [format!("Retry-After: {seconds}")],
                "{us} µs"
            );
        }
        assert_eq!(told(&Answer::of_headers(false, None, Some(5)), &style), [""; 0]);
    }

    #[test]
    fn jitter_adds_up_to_its_bound_and_takes_nothing_away() {
        let jitter = Duration::from_secs(3);
        let style = Headers { numbers: Numbers::Hidden, retry_after: RetryAfter::Shown { jitter } };
        let answer = refused(None, Some(10_000_000));
        let seen: std::collections::BTreeSet<Value> = (0..4_000_000)
            .step_by(999)
            .map(|dice| headers(&answer, &style, || NOW, || dice)[0].value.clone())
            .collect();
        let seen: Vec<&[u8]> = seen.iter().map(|value| &value[..]).collect();
        assert_eq!(seen, [b"10", b"11", b"12", b"13"]);
        let longest = Headers { retry_after: RetryAfter::Shown { jitter: Duration::MAX }, ..style };
        assert_eq!(headers(&answer, &longest, || NOW, || u64::MAX).len(), 1);
    }

    #[test]
    fn a_name_is_a_structured_fields_string_whatever_it_holds() {
        for (name, want) in [
            ("api.search", r#""api.search""#),
            (r#"say "hi" \o/"#, r#""say \"hi\" \\o/""#),
            ("caf\u{e9}\r\nX: y", r#""caf???X: y""#),
            ("", r#""""#),
        ] {
            let mut put = Value::new();
            put_sf_string(&mut put, name);
            assert_eq!(str::from_utf8(&put).unwrap(), want);
        }
        let policy = &told(&passed(Some(described(None))), &shown(Numbers::Ietf))[0];
        assert_eq!(policy, "RateLimit-Policy: \"override\";q=20;w=1;burst=30");
    }
}
