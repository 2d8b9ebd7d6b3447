//! How to reach Redis: the reference's variables, all of them optional but the address.

use std::{fmt, path::PathBuf, time::Duration};

use super::{
    raw::{Reader, SettingsError},
    values,
};

/// How to reach Redis.
#[derive(Clone, Debug)]
pub struct Redis {
    /// `host:port`, `redis://…`, `rediss://…` or a socket's path. Secret, since it may hold a password.
    pub url: Secret,
    /// `password` or `user:password`.
    pub auth: Option<Secret>,
    /// What the address is; `None` where it shows itself.
    pub socket: Option<Socket>,
    /// `None` is plain text.
    pub tls: Option<RedisTls>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Health follows the connection, instead of being SERVING once it was there.
    pub health_follows: bool,
}

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// A host and a port.
    Tcp,
    /// A path.
    Unix,
}

/// How TLS to Redis is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// A PEM file of authorities to trust; the system's, where there is none.
    pub ca: Option<PathBuf>,
    /// PEM files of a certificate and its key, to show to the server.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether any name in the server's certificate will do.
    pub skip_hostname: bool,
}

/// A text that no `{:?}` and no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Shows it; the name is to be noticed in reviews.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// `None` where no address is set. All of them are read even so: a wrong value is a mistake wherever it stands.
pub(super) fn redis(read: &Reader<'_>) -> Result<Option<Redis>, SettingsError> {
    read.one("REDIS_TYPE", redis_type)?;
    let socket = read.opt("REDIS_SOCKET_TYPE", socket_type)?;
    let auth = read.given("REDIS_AUTH").map(Secret::new);
    let tls = tls(read)?;
    let connect_timeout = read.one("REDIS_TIMEOUT", values::positive_duration)?;
    let health_follows = read.one("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", values::boolean)?;
    let Some(url) = read.given("REDIS_URL") else { return Ok(None) };
    Ok(Some(Redis { url: Secret::new(url), auth, socket, tls, connect_timeout, health_follows }))
}

fn tls(read: &Reader<'_>) -> Result<Option<RedisTls>, SettingsError> {
    // What belongs to TLS belongs to it whichever way it was asked for.
    let rediss = read.given("REDIS_URL").is_some_and(is_rediss);
    let on = read.one("REDIS_TLS", values::boolean)? || rediss;
    let skip_hostname = read.one("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", values::boolean)?;
    let ca = read.given("REDIS_TLS_CACERT").map(PathBuf::from);
    let client = match (read.given("REDIS_TLS_CLIENT_CERT"), read.given("REDIS_TLS_CLIENT_KEY")) {
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        (Some(_), None) => return Err(read.missing("REDIS_TLS_CLIENT_KEY", "a certificate needs its key")),
        (None, Some(_)) => return Err(read.missing("REDIS_TLS_CLIENT_CERT", "a key needs its certificate")),
    };
    Ok(on.then_some(RedisTls { ca, client, skip_hostname }))
}

/// A URL's scheme is read in any case (RFC 3986, 3.1).
fn is_rediss(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("rediss"))
}

fn redis_type(text: &str) -> Result<(), values::Want> {
    if ["sentinel", "cluster"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Err("it is not available yet; write `single`".to_owned());
    }
    values::choose(text, &[("single", ())])
}

fn socket_type(text: &str) -> Result<Socket, values::Want> {
    // The reference knows no `tls` here, but `REDIS_TLS`.
    values::choose(text, &[("tcp", Socket::Tcp), ("unix", Socket::Unix)])
}
