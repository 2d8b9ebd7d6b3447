//! Where rules come from when they are not files: a management server, by the reference's variables.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use super::{
    raw::{Reader, SettingsError},
    redis::Secret,
    values,
};
use crate::rules::FILE_MAX;

/// The most that a wait may grow by from one to the next: beyond it a typing error is likelier.
const FACTOR_MAX: f64 = 100.0;

/// What each wait is multiplied by where `XDS_CLIENT_BACKOFF_RANDOM_FACTOR` does not say otherwise.
const GROWTH: f64 = 2.0;

/// Where rules come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files of a directory.
    Files,
    /// A management server that speaks xDS.
    Xds(Box<Xds>),
}

/// How to reach a management server, and what to tell it.
#[derive(Clone, Debug)]
pub struct Xds {
    /// By which the server chooses what it serves.
    pub node_id: String,
    /// What it is told about us besides.
    pub node_metadata: Vec<(String, String)>,
    /// `host:port`
    pub server: String,
    /// Headers of the stream, such as a token; names in lower case.
    pub headers: Vec<(String, Secret)>,
    /// `None` is plain text.
    pub tls: Option<XdsTls>,
    /// The first wait when there is no connection.
    pub connect_retry: Duration,
    /// The waits after a stream that ended.
    pub backoff: XdsBackoff,
    /// The largest response that is read, in bytes.
    pub message_max: usize,
}

/// How TLS to a management server is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdsTls {
    /// A PEM file of authorities to trust; the system's, where there is none.
    pub ca: Option<PathBuf>,
    /// PEM files of a certificate and its key, to show to the server.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have, where it is not the address's host.
    pub name: Option<String>,
}

/// How waits grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XdsBackoff {
    /// The first one after a stream that ended.
    pub initial: Duration,
    /// The longest.
    pub longest: Duration,
    /// What each is multiplied by, from 1.
    pub growth: f64,
    /// The part of each that is left to chance, from 0 to 1.
    pub spread: f64,
}

/// All of them are read even where rules are files: a wrong value is a mistake wherever it stands.
pub(super) fn source(read: &Reader<'_>) -> Result<Source, SettingsError> {
    let xds = xds(read)?;
    Ok(if read.one("CONFIG_TYPE", config_type)? { Source::Xds(Box::new(xds)) } else { Source::Files })
}

fn xds(read: &Reader<'_>) -> Result<Xds, SettingsError> {
    Ok(Xds {
        node_id: read.one("CONFIG_GRPC_XDS_NODE_ID", |text| Ok(text.to_owned()))?,
        node_metadata: read.opt("CONFIG_GRPC_XDS_NODE_METADATA", metadata)?.unwrap_or_default(),
        server: read.one("CONFIG_GRPC_XDS_SERVER_URL", server)?,
        headers: read.opt("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", headers)?.unwrap_or_default(),
        tls: tls(read)?,
        connect_retry: read
            .one("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", values::positive_duration)?,
        backoff: backoff(read)?,
        message_max: read.one("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", message_max)?,
    })
}

fn tls(read: &Reader<'_>) -> Result<Option<XdsTls>, SettingsError> {
    const CERT: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
    const KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";
    let on = read.one("CONFIG_GRPC_XDS_SERVER_USE_TLS", values::boolean)?;
    let ca = read.given("CONFIG_GRPC_XDS_SERVER_TLS_CACERT").map(PathBuf::from);
    let name = read.opt("CONFIG_GRPC_XDS_SERVER_TLS_SAN", values::certificate_name)?;
    let client = match (read.given(CERT), read.given(KEY)) {
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        (Some(_), None) => return Err(read.missing(KEY, "a certificate needs its key")),
        (None, Some(_)) => return Err(read.missing(CERT, "a key needs its certificate")),
    };
    Ok(on.then_some(XdsTls { ca, client, name }))
}

/// The reference says of its factor that it multiplies, and calls it random. Up to 1 it could not make anything grow, so
/// there it is the part that is left to chance; above 1 it multiplies.
fn backoff(read: &Reader<'_>) -> Result<XdsBackoff, SettingsError> {
    let initial = read.one("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", values::positive_duration)?;
    let longest = read.one("XDS_CLIENT_BACKOFF_MAX_INTERVAL", values::positive_duration)?;
    let factor = read.one("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", factor)?;
    let jitter = read.one("XDS_CLIENT_BACKOFF_JITTER", values::boolean)?;
    let growth = if factor > 1.0 { factor } else { GROWTH };
    let spread = if jitter { factor.min(1.0) } else { 0.0 };
    Ok(XdsBackoff { initial, longest, growth, spread })
}

/// The reference takes 0 for its library's default; ours is the size of the largest rule file.
fn message_max(text: &str) -> Result<usize, values::Want> {
    if text == "0" { Ok(FILE_MAX) } else { values::count(text).map(NonZeroUsize::get) }
}

/// Whether it is xDS.
fn config_type(text: &str) -> Result<bool, values::Want> {
    values::choose(text, &[("FILE", false), ("GRPC_XDS_SOTW", true)])
}

/// `key=value,key=value`
fn metadata(text: &str) -> Result<Vec<(String, String)>, values::Want> {
    pairs(text, '=').ok_or_else(|| "write `key=value,key=value`".to_owned())
}

/// `name:value,name:value`
fn headers(text: &str) -> Result<Vec<(String, Secret)>, values::Want> {
    let want = "write `name:value,name:value`";
    let pairs = pairs(text, ':').ok_or(want)?;
    pairs
        .into_iter()
        .map(|(name, value)| {
            let name = values::header_name(&name)?.to_ascii_lowercase();
            // Those of gRPC itself; and a binary header's value would have to be encoded.
            if name.starts_with("grpc-") || name.ends_with("-bin") {
                return Err(format!("{want}, where no name begins with `grpc-` or ends with `-bin`"));
            }
            if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                return Err(format!("{want}, with values of printable ASCII"));
            }
            Ok((name, Secret::new(value)))
        })
        .collect()
}

/// Names and values, with blanks around them cut off; `None` where a pair has no name.
fn pairs(text: &str, between: char) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once(between)?;
        let (name, value) = (name.trim(), value.trim());
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    text.split(',').map(pair).collect()
}

/// `host:port`, perhaps behind a scheme that gRPC libraries have for it.
fn server(text: &str) -> Result<String, values::Want> {
    let want = || "write `host:port`, such as `localhost:18000`".to_owned();
    let bare = ["dns:///", "passthrough:///"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let bare = bare.unwrap_or(text);
    let (host, port) = bare.rsplit_once(':').ok_or_else(want)?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    // An IPv6 address has its colons in brackets.
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match inside {
        Some(inside) => inside.parse::<std::net::Ipv6Addr>().is_ok(),
        None => values::is_name(host),
    };
    if is_port && is_host { Ok(bare.to_owned()) } else { Err(want()) }
}

fn factor(text: &str) -> Result<f64, values::Want> {
    text.parse().ok().filter(|factor| (0.0..=FACTOR_MAX).contains(factor)).ok_or_else(|| {
        format!("write a number from 0 to {FACTOR_MAX}: up to 1 the part left to chance, above it the growth")
    })
}
