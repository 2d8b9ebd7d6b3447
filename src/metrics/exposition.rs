//! Counters under the reference's names as Prometheus reads them: text format 0.0.4, as the reference serves it.
//!
//! OpenMetrics, which ours are told in, would have counters end in `_total`, and dashboards ask for the names without it.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    mapper::{Kind, Mapped, Mapper, label_name},
    reference::Reference,
};

/// What a scraper is told that it gets.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of a histogram, as all clients of Prometheus have them.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// Labels and their values.
type Labels = Vec<(String, String)>;

/// All that is not 0, by metric and labels.
pub fn text(reference: &Reference, mapper: &Mapper, tags: &[(String, String)]) -> String {
    let mut metrics: BTreeMap<String, BTreeMap<Labels, u64>> = BTreeMap::new();
    for sample in reference.samples() {
        let Some(mapped) = mapper.map(&sample.name(), Kind::Counter) else { continue };
        let labels = labels(mapped.labels, tags);
        *metrics.entry(mapped.name).or_default().entry(labels).or_insert(0) += sample.total;
    }
    let mut out = String::new();
    // Writing to a String cannot fail.
    for (name, series) in &metrics {
        let _ = writeln!(out, "# HELP {name} As envoyproxy/ratelimit counts it.\n# TYPE {name} counter");
        for (labels, total) in series {
            let _ = writeln!(out, "{name}{} {total}", shown(labels, None));
        }
    }
    for (name, value) in reference.gauges.measured() {
        let Some(Mapped { name, labels: own, .. }) = mapper.map(name, Kind::Gauge) else { continue };
        let _ = writeln!(out, "# HELP {name} As envoyproxy/ratelimit measures it.\n# TYPE {name} gauge");
        let _ = writeln!(out, "{name}{} {value}", shown(&labels(own, tags), None));
    }
    let times = mapper.map(RESPONSE_TIME, Kind::Timer);
    if let Some(times) = times.filter(|times| !metrics.contains_key(&times.name)) {
        histogram(&mut out, reference, times, tags);
    }
    out
}

fn histogram(out: &mut String, reference: &Reference, mapped: Mapped, tags: &[(String, String)]) {
    let Mapped { name, labels: own, scale } = mapped;
    let seen: Vec<(f64, u64)> =
        reference.times.seen().map(|(ms, count)| (ms as f64 * scale, count)).collect();
    if seen.is_empty() {
        return;
    }
    let labels = labels(own, tags);
    let count: u64 = seen.iter().map(|(_, count)| count).sum();
    let sum: f64 = seen.iter().map(|(value, count)| value * *count as f64).sum();
    let _ = writeln!(out, "# HELP {name} As envoyproxy/ratelimit measures it.\n# TYPE {name} histogram");
    for bound in BUCKETS {
        let below: u64 = seen.iter().filter(|(value, _)| *value <= bound).map(|(_, count)| count).sum();
        let _ = writeln!(out, "{name}_bucket{} {below}", shown(&labels, Some(&bound.to_string())));
    }
    let _ = writeln!(out, "{name}_bucket{} {count}", shown(&labels, Some("+Inf")));
    let _ = writeln!(out, "{name}_sum{} {sum}", shown(&labels, None));
    let _ = writeln!(out, "{name}_count{} {count}", shown(&labels, None));
}

/// A mapping's labels and the tags; one that a mapping has wins.
fn labels(mut labels: Labels, tags: &[(String, String)]) -> Labels {
    for (tag, value) in tags {
        let tag = label_name(tag);
        if labels.iter().all(|(label, _)| *label != tag) {
            labels.push((tag, value.clone()));
        }
    }
    labels
}

fn shown(labels: &[(String, String)], bound: Option<&str>) -> String {
    let mut shown = String::new();
    let own = labels.iter().map(|(label, value)| (label.as_str(), value.as_str()));
    for (label, value) in own.chain(bound.map(|bound| ("le", bound))) {
        let before = if shown.is_empty() { '{' } else { ',' };
        let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        let _ = write!(shown, "{before}{label}=\"{value}\"");
    }
    if !shown.is_empty() {
        shown.push('}');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Cost, Entry};
    use std::{num::NonZeroU64, time::Duration};

    #[test]
    fn counters_and_durations() {
        let reference = Reference::new(0.8, 10);
        let entry = Entry { key: "k".into(), value: "say \"hi\"\\\n".into() };
        let group = reference.of_override(b"d", &[entry]);
        reference.wanted(&group, Cost::Spend(NonZeroU64::MIN));
        reference.called(Duration::from_millis(5));
        reference.called(Duration::from_millis(6));
        let text = text(&reference, &Mapper::of_the_reference(false), &[("a.b".into(), "c".into())]);
        for line in [
            r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="k_say \"hi\"\\_",a_b="c"} 1"#,
            r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit",a_b="c"} 2"#,
            "# TYPE ratelimit_service_response_time_seconds histogram",
            r#"ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",a_b="c",le="0.005"} 1"#,
            r#"ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",a_b="c",le="0.01"} 2"#,
            r#"ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",a_b="c",le="+Inf"} 2"#,
            r#"ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit",a_b="c"} 0.011"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
