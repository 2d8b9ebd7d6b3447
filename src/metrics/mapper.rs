//! From dotted names to Prometheus: what the reference leaves to statsd_exporter, which it has built in.
//!
//! A mapping has a pattern and says which metric a name is counted under, and with which labels. Patterns whose `*` stands
//! for one part between dots are tried first, then regular expressions, each in their order; the first that matches holds.
//! A name that none matches is a metric of its own, with `_` for what may not stand in one. Several names may be one
//! series: what the default mappings have no label for (a third key and what follows) is summed up.

use regex::Regex;

use super::mogrifier::{fill, regex};

pub use super::mapping_file::from_file;

/// All mappings.
#[derive(Clone, Debug, Default)]
pub struct Mapper {
    pub(super) globs: Vec<Mapping>,
    pub(super) regexes: Vec<Mapping>,
}

/// One mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub(super) pattern: Regex,
    /// Of the metric; may hold `$1` and so on, as labels may. `None` drops what matches.
    pub(super) name: Option<String>,
    pub(super) labels: Vec<(String, String)>,
    pub(super) kind: Option<Kind>,
    pub(super) scale: f64,
}

/// What a name counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Kind {
    Counter,
    Gauge,
    Timer,
}

/// A series, and what its values are multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapped {
    /// A valid name of a metric.
    pub name: String,
    /// Valid names of labels, and any values.
    pub labels: Vec<(String, String)>,
    /// Of durations in milliseconds.
    pub scale: f64,
}

impl Mapper {
    /// The reference's own mappings: domain and two keys as labels. Durations are in seconds, or in `milliseconds` under
    /// the same name.
    pub fn of_the_reference(milliseconds: bool) -> Self {
        let mut mapper = Self::default();
        let part = r"([^.]*)";
        for end in ["near_limit", "over_limit", "total_hits", "within_limit", "shadow_mode"] {
            let name = format!("ratelimit_service_rate_limit_{end}");
            let front = "ratelimit.service.rate_limit";
            mapper.glob(&format!("{front}.*.*.{end}"), &name, &["domain", "key1"], None);
            let front = front.replace('.', r"\.");
            let deep = format!(r"{front}\.{part}\.{part}\.{part}(\..*)?\.{end}");
            let labels = ["domain", "key1", "key2"].map(str::to_owned).into();
            mapper.regexes.push(Mapping::new(&deep, &name, labels).expect("it is a regular expression"));
        }
        let counter = Some(Kind::Counter);
        let errors = "ratelimit_service_should_rate_limit_error";
        mapper.glob("ratelimit.service.call.should_rate_limit.*", errors, &["err_type"], counter);
        let requests = "ratelimit_service_total_requests";
        mapper.glob("ratelimit_server.*.total_requests", requests, &["grpc_method"], counter);
        let times = "ratelimit_service_response_time_seconds";
        mapper.glob("ratelimit_server.*.response_time", times, &["grpc_method"], None);
        if let (Some(last), false) = (mapper.globs.last_mut(), milliseconds) {
            last.scale = 0.001;
        }
        for load in ["config_load_success", "config_load_error"] {
            let name = format!("ratelimit_service_{load}");
            mapper.glob(&format!("ratelimit.service.{load}"), &name, &[], counter);
        }
        mapper
    }

    /// Labels are the pattern's parts in order.
    fn glob(&mut self, pattern: &str, name: &str, labels: &[&str], kind: Option<Kind>) {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        let mapping = Mapping::new(&glob(pattern), name, labels).expect("globs become regular expressions");
        self.globs.push(Mapping { kind, ..mapping });
    }

    /// The series of a name; `None` where a mapping drops it.
    pub fn map(&self, name: &str, kind: Kind) -> Option<Mapped> {
        let mappings = self.globs.iter().chain(&self.regexes);
        let mut fitting = mappings.filter(|mapping| mapping.kind.is_none_or(|only| only == kind));
        let mapped = fitting.find_map(|mapping| mapping.apply(name));
        mapped.unwrap_or_else(|| Some(Mapped { name: metric_name(name), labels: Vec::new(), scale: 1.0 }))
    }
}

impl Mapping {
    /// The labels' values are the pattern's groups.
    fn new(pattern: &str, name: &str, labels: Vec<String>) -> Result<Self, String> {
        let labels = labels.into_iter().zip(1..).map(|(label, group)| (label, format!("${group}"))).collect();
        Ok(Self { pattern: regex(pattern)?, name: Some(name.to_owned()), labels, kind: None, scale: 1.0 })
    }

    fn apply(&self, name: &str) -> Option<Option<Mapped>> {
        let found = self.pattern.captures(name)?;
        let label = |(label, value): &(String, String)| (label.clone(), fill(value, &found));
        let Some(name) = &self.name else { return Some(None) };
        Some(Some(Mapped {
            name: metric_name(&fill(name, &found)),
            labels: self.labels.iter().map(label).collect(),
            scale: self.scale,
        }))
    }
}

/// A pattern of parts, as a regular expression.
pub(super) fn glob(pattern: &str) -> String {
    let part = |part: &str| if part == "*" { "([^.]*)".to_owned() } else { regex::escape(part) };
    format!("^{}$", pattern.split('.').map(part).collect::<Vec<_>>().join(r"\."))
}

/// `_` for what may not stand in the name of a metric.
pub(super) fn metric_name(name: &str) -> String {
    valid(name, |c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// The same for a label.
pub(super) fn label_name(name: &str) -> String {
    valid(name, |c| c.is_ascii_alphanumeric() || c == '_')
}

fn valid(name: &str, may: impl Fn(char) -> bool) -> String {
    let mut valid: String = name.chars().map(|c| if may(c) { c } else { '_' }).collect();
    if valid.starts_with(|c: char| c.is_ascii_digit()) {
        valid.insert(0, '_');
    }
    valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_references_mappings() {
        let mapper = Mapper::of_the_reference(false);
        for (name, kind, series) in [
            (
                "ratelimit.service.rate_limit.d.k_v.over_limit",
                Kind::Counter,
                "rate_limit_over_limit domain=d key1=k_v",
            ),
            (
                "ratelimit.service.rate_limit.d.a.b.near_limit",
                Kind::Counter,
                "rate_limit_near_limit domain=d key1=a key2=b",
            ),
            (
                "ratelimit.service.rate_limit.d.a.b.c.e.near_limit",
                Kind::Counter,
                "rate_limit_near_limit domain=d key1=a key2=b",
            ),
            (
                "ratelimit.service.rate_limit.d.domain_not_found",
                Kind::Counter,
                "rate_limit_d_domain_not_found",
            ),
            ("ratelimit.service.global_shadow_mode", Kind::Counter, "global_shadow_mode"),
            (
                "ratelimit.service.call.should_rate_limit.redis_error",
                Kind::Counter,
                "should_rate_limit_error err_type=redis_error",
            ),
            (
                "ratelimit_server.ShouldRateLimit.total_requests",
                Kind::Counter,
                "total_requests grpc_method=ShouldRateLimit",
            ),
            (
                "ratelimit_server.ShouldRateLimit.response_time",
                Kind::Timer,
                "response_time_seconds grpc_method=ShouldRateLimit",
            ),
        ] {
            let mapped = mapper.map(name, kind).unwrap();
            let labels: String =
                mapped.labels.iter().map(|(label, value)| format!(" {label}={value}")).collect();
            assert_eq!(format!("{}{labels}", mapped.name), format!("ratelimit_service_{series}"), "{name}");
            assert_eq!(mapped.scale, if kind == Kind::Timer { 0.001 } else { 1.0 });
        }
        assert_eq!(metric_name("1.é-x"), "_1___x");
    }
}
