//! Settings of metrics under the reference's names: whether, where to and how.

use std::{path::PathBuf, time::Duration};

use super::{
    Endpoint, SettingsError,
    raw::Reader,
    values::{self, Want},
};
use crate::metrics::mogrifier::Mogrifier;

/// Metrics under the reference's names.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Hits above this part of a limit are near.
    pub near_limit_ratio: f32,
    /// The most names of each kind that are kept.
    pub series_max: usize,
    /// Tags of all of them, in order.
    pub tags: Vec<(String, String)>,
    /// Where they are sent, if anywhere.
    pub statsd: Option<Statsd>,
    /// Where they are asked for, if anywhere.
    pub prometheus: Option<Prometheus>,
}

/// Where statsd is.
#[derive(Clone, Debug)]
pub struct Statsd {
    /// Looked up whenever a connection is made.
    pub host: String,
    /// Of `host`.
    pub port: u16,
    /// How to get there.
    pub protocol: Protocol,
    /// Whether tags are dogstatsd's.
    pub dogstatsd: bool,
    /// What makes tags of parts of names, with dogstatsd.
    pub mogrifiers: Vec<Mogrifier>,
    /// How often what was counted is sent.
    pub every: Duration,
}

/// How packets get to statsd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// Where Prometheus asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prometheus {
    /// A port of its own.
    pub listen: Endpoint,
    /// The path there.
    pub path: String,
    /// A file of mappings instead of the reference's own.
    pub mapper: Option<PathBuf>,
    /// Durations in milliseconds instead of seconds.
    pub milliseconds: bool,
}

impl Stats {
    /// Whether anybody wants the reference's names.
    pub fn wanted(&self) -> bool {
        self.statsd.is_some() || self.prometheus.is_some()
    }
}

pub(super) fn stats(read: &Reader<'_>, compat: bool) -> Result<Stats, SettingsError> {
    let prometheus = Prometheus {
        listen: read.one("PROMETHEUS_ADDR", address)?,
        path: read.one("PROMETHEUS_PATH", web_path)?,
        mapper: read.opt("PROMETHEUS_MAPPER_YAML", values::path)?,
        milliseconds: read.one("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", values::boolean)?,
    };
    let wants_prometheus = read.one("USE_PROMETHEUS", values::boolean)?;
    let statsd = statsd(read, compat && !wants_prometheus)?;
    let disabled = read.one("DISABLE_STATS", values::boolean)?;
    Ok(Stats {
        near_limit_ratio: read.one("NEAR_LIMIT_RATIO", ratio)?,
        series_max: read.one("METRICS_SERIES_MAX", values::count)?.get(),
        tags: read.opt("EXTRA_TAGS", tags)?.unwrap_or_default(),
        statsd: statsd.filter(|_| !disabled),
        prometheus: (wants_prometheus && !disabled).then_some(prometheus),
    })
}

/// `by_default`: whether statsd is spoken to where no setting is about it.
fn statsd(read: &Reader<'_>, by_default: bool) -> Result<Option<Statsd>, SettingsError> {
    let dogstatsd = read.one("USE_DOG_STATSD", values::boolean)?;
    let plain = read.opt("USE_STATSD", values::boolean)?;
    if dogstatsd && plain == Some(true) {
        return Err(read.missing(
            "USE_DOG_STATSD",
            "`true` beside USE_STATSD=true, and a host speaks one of the two: set one of them to `false`",
        ));
    }
    let named =
        ["STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL"].iter().any(|name| read.given(name).is_some());
    let statsd = Statsd {
        host: read.one("STATSD_HOST", host)?,
        port: read.one("STATSD_PORT", values::port)?,
        protocol: read.one("STATSD_PROTOCOL", protocol)?,
        dogstatsd,
        mogrifiers: mogrifiers(read)?,
        every: read.one("STATS_FLUSH_INTERVAL", values::positive_duration)?,
    };
    // Dogstatsd is spoken over UDP, in the reference whatever the protocol says.
    let statsd = Statsd { protocol: if dogstatsd { Protocol::Udp } else { statsd.protocol }, ..statsd };
    let wanted = dogstatsd || plain.unwrap_or(by_default || named);
    Ok(wanted.then_some(statsd))
}

/// USE_DOG_STATSD_MOGRIFIERS=A,B lists names; of each there is DOG_STATSD_MOGRIFIER_A_PATTERN, a regular expression,
/// DOG_STATSD_MOGRIFIER_A_NAME, what a name becomes that matches it, and maybe DOG_STATSD_MOGRIFIER_A_TAGS.
fn mogrifiers(read: &Reader<'_>) -> Result<Vec<Mogrifier>, SettingsError> {
    let names = read.given("USE_DOG_STATSD_MOGRIFIERS").unwrap_or_default();
    let wrong = |want: String| read.missing("USE_DOG_STATSD_MOGRIFIERS", &want);
    let mogrifier = |name: &str| {
        let variable = |what| format!("DOG_STATSD_MOGRIFIER_{name}_{what}");
        let needed = |what| {
            let variable = variable(what);
            read.listed(&variable)
                .ok_or_else(|| wrong(format!("it lists {name}, so {variable} has to be set")))
        };
        let mut tags = Vec::new();
        for tag in read.listed(&variable("TAGS")).unwrap_or_default().split(',').filter(|tag| !tag.is_empty())
        {
            match tag.split_once(':').filter(|(tag, value)| !tag.is_empty() && !value.is_empty()) {
                Some((tag, value)) => tags.push((tag.to_owned(), value.to_owned())),
                None => return Err(wrong(format!("write {} as `domain:$1,key:$2`", variable("TAGS")))),
            }
        }
        Mogrifier::new(needed("PATTERN")?, needed("NAME")?.to_owned(), tags)
            .map_err(|why| wrong(format!("{} is no regular expression: {why}", variable("PATTERN"))))
    };
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(mogrifier).collect()
}

fn host(text: &str) -> Result<String, Want> {
    let fits = !text.is_empty() && !text.contains(['/', ' ']) && (!text.contains(':') || text.contains("::"));
    let want = "write a host's name or address, without a port (STATSD_PORT)";
    if fits { Ok(text.to_owned()) } else { Err(want.to_owned()) }
}

fn protocol(text: &str) -> Result<Protocol, Want> {
    values::choose(text, &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)])
}

/// As Go writes it: `:9090` is every interface.
fn address(text: &str) -> Result<Endpoint, Want> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let host = if host.is_empty() { "0.0.0.0" } else { host.trim_matches(['[', ']']) };
        Some(Endpoint { host: values::host(host).ok()?, port: values::port(port).ok()? })
    });
    parsed.ok_or_else(|| "write an address such as `:9090` or `127.0.0.1:9090`".to_owned())
}

fn web_path(text: &str) -> Result<String, Want> {
    let fits = text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && !b"{}?#*".contains(&b));
    if fits { Ok(text.to_owned()) } else { Err("write a path such as `/metrics`".to_owned()) }
}

fn ratio(text: &str) -> Result<f32, Want> {
    match text.parse::<f32>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("write a number from 0 to 1, such as `0.8`".to_owned()),
    }
}

/// `env:prod,zone:eu`. As in the reference what would end a value becomes `_`, and a tag without a name or value is none.
pub(super) fn tags(text: &str) -> Result<Vec<(String, String)>, Want> {
    let clean = |text: &str| text.replace(['.', ':', '|', ',', '=', '#'], "_").replace(char::is_control, "_");
    let mut tags = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let Some((name, value)) = pair.split_once(':') else {
            return Err("write names and values such as `env:prod,zone:eu`".to_owned());
        };
        if !name.is_empty() && !value.is_empty() {
            tags.push((clean(name), clean(value)));
        }
    }
    tags.sort();
    tags.dedup_by(|later, earlier| later.0 == earlier.0);
    Ok(tags)
}
