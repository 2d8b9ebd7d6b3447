//! Mappings from a file, in the form of statsd_exporter: PROMETHEUS_MAPPER_YAML.
//!
//! ```yaml
//! mappings:
//! - match: ratelimit.service.rate_limit.*.*.over_limit
//!   name: over_limit_total
//!   labels: {domain: $1, key: $2}
//! - match: ratelimit\.service\.(.*)
//!   match_type: regex
//!   action: drop
//! ```
//!
//! `match_metric_type` and `scale` hold too. What is about kinds of metrics that are not there (quantiles, lifetimes), and
//! help texts, is passed over; durations are histograms of the usual buckets. The reference passes over a file that it
//! cannot read; here that is a mistake, and told before anything is served.

use serde_json::{Map, Value};

use super::{
    mapper::{Kind, Mapper, Mapping, glob, label_name},
    mogrifier::regex,
};

/// Fields of a mapping without effect.
const PASSED_OVER: &[&str] = &[
    "help",
    "ttl",
    "timer_type",
    "observer_type",
    "buckets",
    "quantiles",
    "histogram_options",
    "summary_options",
];

/// Reads mappings; scalars of `file` are texts.
///
/// # Errors
/// The first mistake, in one line.
pub fn from_file(file: &Value) -> Result<Mapper, String> {
    let defaults = file.get("defaults").and_then(|defaults| text(defaults, "match_type")).unwrap_or("glob");
    let Some(mappings) = file.get("mappings").and_then(Value::as_array) else {
        return Err("it has no list `mappings`".to_owned());
    };
    let mut mapper = Mapper::default();
    for (mapping, number) in mappings.iter().zip(1..) {
        let place = |why: String| format!("mapping {number}: {why}");
        let Value::Object(fields) = mapping else { return Err(place("it is no map of fields".to_owned())) };
        let is_regex = match text(mapping, "match_type").unwrap_or(defaults) {
            "regex" => true,
            "glob" | "" => false,
            other => return Err(place(format!("`match_type` is `glob` or `regex`, not `{other}`"))),
        };
        let mapping = read(fields, is_regex).map_err(place)?;
        if is_regex { mapper.regexes.push(mapping) } else { mapper.globs.push(mapping) }
    }
    Ok(mapper)
}

fn read(fields: &Map<String, Value>, is_regex: bool) -> Result<Mapping, String> {
    let (mut pattern, mut name, mut labels, mut kind, mut scale, mut drop) =
        ("", None, Vec::new(), None, 1.0, false);
    for (field, value) in fields {
        let text = value.as_str();
        match (field.as_str(), text) {
            ("match", Some(text)) => pattern = text,
            ("match_type", Some(_)) => {}
            ("name", Some(text)) => name = Some(text.to_owned()),
            ("labels", None) => labels = pairs(value)?,
            ("match_metric_type", Some("counter")) => kind = Some(Kind::Counter),
            ("match_metric_type", Some("timer" | "observer")) => kind = Some(Kind::Timer),
            ("match_metric_type", Some("gauge")) => kind = Some(Kind::Gauge),
            ("scale", Some(text)) => {
                scale = text.parse().map_err(|_| format!("`scale` is a number, not `{text}`"))?;
            }
            ("action", Some(action @ ("map" | "drop"))) => drop = action == "drop",
            (passed_over, _) if PASSED_OVER.contains(&passed_over) => {}
            (field, _) => return Err(format!("`{field}` is unknown, or has no value that it may have")),
        }
    }
    if pattern.is_empty() {
        return Err("it has no `match`".to_owned());
    }
    if name.is_none() && !drop {
        return Err(format!("`{pattern}` has no `name`"));
    }
    let pattern = if is_regex { regex(pattern) } else { regex(&glob(pattern)) };
    let pattern = pattern.map_err(|why| format!("`match` is no regular expression: {why}"))?;
    Ok(Mapping { pattern, name: name.filter(|_| !drop), labels, kind, scale })
}

fn pairs(labels: &Value) -> Result<Vec<(String, String)>, String> {
    let pair = |(label, value): (&String, &Value)| {
        let value = value.as_str().ok_or_else(|| format!("the label `{label}` has no value"))?;
        Ok((label_name(label), value.to_owned()))
    };
    labels.as_object().into_iter().flatten().map(pair).collect()
}

fn text<'v>(map: &'v Value, field: &str) -> Option<&'v str> {
    map.get(field).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mappings_hold_in_their_order_globs_first() {
        let file = json!({"mappings": [
            {"match": "a\\.(.*)", "match_type": "regex", "name": "rest", "labels": {"what": "$1"}},
            {"match": "a.*.hits", "name": "hits_${1}", "labels": {"of": "$1"}, "help": "Hits"},
            {"match": "a.secret", "action": "drop"},
            {"match": "a.time", "name": "time", "match_metric_type": "timer", "scale": "0.001"},
        ]});
        let mapper = from_file(&file).unwrap();
        let told = |name, kind| {
            mapper
                .map(name, kind)
                .map(|mapped| format!("{} {:?} {}", mapped.name, mapped.labels, mapped.scale))
        };
        let counter = |name| told(name, Kind::Counter);
        assert_eq!(counter("a.b.hits").unwrap(), r#"hits_b [("of", "b")] 1"#);
        assert_eq!(counter("a.b.c.hits").unwrap(), r#"rest [("what", "b.c.hits")] 1"#);
        assert_eq!(counter("a.secret"), None);
        assert_eq!(counter("a.time").unwrap(), r#"rest [("what", "time")] 1"#);
        assert_eq!(told("a.time", Kind::Timer).unwrap(), "time [] 0.001");
        assert_eq!(counter("other.name").unwrap(), "other_name [] 1");
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        for (file, words) in [
            (json!({}), "no list `mappings`"),
            (
                json!({"mappings": [{"match": "a", "name": "b"}, {"name": "b"}]}),
                "mapping 2: it has no `match`",
            ),
            (json!({"mappings": [{"match": "a"}]}), "`a` has no `name`"),
            (json!({"mappings": [{"match": "(", "match_type": "regex", "name": "b"}]}), "unclosed group"),
            (json!({"mappings": [{"match": "a", "name": "b", "lables": {}}]}), "`lables`"),
            (json!({"mappings": [{"match": "a", "name": "b", "match_type": "fuzzy"}]}), "not `fuzzy`"),
        ] {
            let why = from_file(&file).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
