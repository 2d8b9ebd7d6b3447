//! Zipkin's headers, which an Envoy that traces to Zipkin sends instead of `traceparent`: `b3`, or several `x-b3-…`
//! (<https://github.com/openzipkin/b3-propagation>).

use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The caller's span.
pub(super) fn span(headers: &HeaderMap) -> Option<SpanContext> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    // The one header wins over the several.
    if let Some(one) = header("b3") {
        let mut parts = one.split('-');
        return of(parts.next()?, parts.next()?, parts.next());
    }
    let sampled = header("x-b3-flags").filter(|flags| *flags == "1").or_else(|| header("x-b3-sampled"));
    of(header("x-b3-traceid")?, header("x-b3-spanid")?, sampled)
}

/// A trace's number has 64 or 128 bits.
fn of(trace: &str, span: &str, sampled: Option<&str>) -> Option<SpanContext> {
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    if !matches!(trace.len(), 16 | 32) || span.len() != 16 || !is_hex(trace) || !is_hex(span) {
        return None;
    }
    let flags = match sampled {
        Some("1" | "d" | "true") => TraceFlags::SAMPLED,
        _ => TraceFlags::NOT_SAMPLED,
    };
    let trace = TraceId::from_hex(trace).ok()?;
    let context = SpanContext::new(trace, SpanId::from_hex(span).ok()?, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn one_header_or_several_name_the_callers_span() {
        let (long, short, span_id) =
            ("4bf92f3577b34da6a3ce929d0e0e4736", "a3ce929d0e0e4736", "00f067aa0ba902b7");
        let found = |pairs: &[(&'static str, String)]| {
            let headers = pairs
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::try_from(value).unwrap()));
            span(&headers.collect()).map(|span| (span.trace_id().to_string(), span.is_sampled()))
        };
        let several = |sampled: &str| {
            vec![
                ("x-b3-traceid", long.to_owned()),
                ("x-b3-spanid", span_id.to_owned()),
                ("x-b3-sampled", sampled.to_owned()),
            ]
        };
        assert_eq!(found(&[("b3", format!("{long}-{span_id}-1"))]), Some((long.to_owned(), true)));
        assert_eq!(found(&[("b3", format!("{long}-{span_id}-0-{span_id}"))]), Some((long.to_owned(), false)));
        assert_eq!(found(&[("b3", format!("{short}-{span_id}-d"))]), Some((format!("{short:0>32}"), true)));
        assert_eq!(found(&several("1")), Some((long.to_owned(), true)));
        assert_eq!(found(&several("0")), Some((long.to_owned(), false)));
        for wrong in ["0", "-", "xyz", &format!("{long}-1"), &format!("{}-{span_id}-1", "0".repeat(32))] {
            assert_eq!(found(&[("b3", wrong.to_owned())]), None, "{wrong}");
        }
    }
}
