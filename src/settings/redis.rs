//! How to reach Redis: the reference's variables, all of them optional but the address.

use std::{fmt, path::PathBuf, time::Duration};

use super::{
    raw::{Reader, SettingsError},
    values,
};

/// How to reach Redis.
#[derive(Clone, Debug)]
pub struct Redis {
    /// The main one; the only one, where there is no other.
    pub main: RedisServer,
    /// Another one for limits of a second and less.
    pub per_second: Option<RedisServer>,
    /// Health follows the connection, instead of being SERVING once it was there.
    pub health_follows: bool,
}

/// How to reach one Redis, of one server or more.
#[derive(Clone, Debug)]
pub struct RedisServer {
    /// `host:port`, `redis://…` and its like, or a socket's path. Secret, since it may hold a password.
    pub url: Secret,
    /// `None` where the address or the server says it.
    pub kind: Option<RedisType>,
    /// `password` or `user:password`, or a file with it.
    pub auth: Option<RedisAuth>,
    /// The same for its sentinels.
    pub sentinel_auth: Option<RedisAuth>,
    /// What the address is; `None` where it shows itself.
    pub socket: Option<Socket>,
    /// `None` is plain text.
    pub tls: Option<RedisTls>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

/// How many servers there are, and who knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisType {
    /// One, or a proxy that looks like one.
    Single,
    /// Redis Cluster.
    Cluster,
    /// One at a time, which sentinels name.
    Sentinel,
}

impl fmt::Display for RedisType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        })
    }
}

/// `password` or `user:password`, or a file with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAuth {
    /// The text.
    Text(Secret),
    /// A file with it, read for each connection.
    File(PathBuf),
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
    /// The name that it must be for; the host that is dialled, where there is none.
    pub server_name: Option<String>,
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
    let main = server(read, &MAIN)?;
    let second = server(read, &PER_SECOND)?;
    let per_second = match (read.one("REDIS_PERSECOND", values::boolean)?, second) {
        (true, None) => {
            let want = "REDIS_PERSECOND=true needs the address of a second Redis, such as `localhost:6380`";
            return Err(read.missing(PER_SECOND.url, want));
        }
        (true, second) => second,
        (false, _) => None,
    };
    let health_follows = read.one("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", values::boolean)?;
    Ok(main.map(|main| Redis { main, per_second, health_follows }))
}

/// What the settings of one Redis are called.
struct Names {
    url: &'static str,
    kind: &'static str,
    socket: &'static str,
    auth: [&'static str; 2],
    sentinel_auth: [&'static str; 2],
    tls: &'static str,
    timeout: &'static str,
}

const MAIN: Names = Names {
    url: "REDIS_URL",
    kind: "REDIS_TYPE",
    socket: "REDIS_SOCKET_TYPE",
    auth: ["REDIS_AUTH", "REDIS_AUTH_FILE"],
    sentinel_auth: ["REDIS_SENTINEL_AUTH", "REDIS_SENTINEL_AUTH_FILE"],
    tls: "REDIS_TLS",
    timeout: "REDIS_TIMEOUT",
};

const PER_SECOND: Names = Names {
    url: "REDIS_PERSECOND_URL",
    kind: "REDIS_PERSECOND_TYPE",
    socket: "REDIS_PERSECOND_SOCKET_TYPE",
    auth: ["REDIS_PERSECOND_AUTH", "REDIS_PERSECOND_AUTH_FILE"],
    sentinel_auth: ["REDIS_PERSECOND_SENTINEL_AUTH", "REDIS_PERSECOND_SENTINEL_AUTH_FILE"],
    tls: "REDIS_PERSECOND_TLS",
    timeout: "REDIS_PERSECOND_TIMEOUT",
};

fn server(read: &Reader<'_>, names: &Names) -> Result<Option<RedisServer>, SettingsError> {
    let kind = read.opt(names.kind, redis_type)?;
    let socket = read.opt(names.socket, socket_type)?;
    let auth = auth(read, names.auth)?;
    let sentinel_auth = self::auth(read, names.sentinel_auth)?;
    let tls = tls(read, names)?;
    let connect_timeout = read.one(names.timeout, values::positive_duration)?;
    let url = read.given(names.url).map(Secret::new);
    Ok(url.map(|url| RedisServer { url, kind, auth, sentinel_auth, socket, tls, connect_timeout }))
}

fn auth(read: &Reader<'_>, [text, file]: [&str; 2]) -> Result<Option<RedisAuth>, SettingsError> {
    match (read.given(text), read.given(file)) {
        (None, None) => Ok(None),
        (Some(secret), None) => Ok(Some(RedisAuth::Text(Secret::new(secret)))),
        (None, Some(path)) => Ok(Some(RedisAuth::File(PathBuf::from(path)))),
        (Some(_), Some(_)) => Err(read.missing(file, &format!("{text} is set too; keep one of the two"))),
    }
}

fn tls(read: &Reader<'_>, names: &Names) -> Result<Option<RedisTls>, SettingsError> {
    // What belongs to TLS belongs to it whichever way it was asked for.
    let rediss = read.given(names.url).is_some_and(is_rediss);
    let on = read.one(names.tls, values::boolean)? || rediss;
    // The files are those of both, as in the reference.
    let skip_hostname = read.one("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", values::boolean)?;
    let server_name = read.given("REDIS_TLS_SERVER_NAME").map(str::to_owned);
    let ca = read.given("REDIS_TLS_CACERT").map(PathBuf::from);
    let client = match (read.given("REDIS_TLS_CLIENT_CERT"), read.given("REDIS_TLS_CLIENT_KEY")) {
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        (Some(_), None) => return Err(read.missing("REDIS_TLS_CLIENT_KEY", "a certificate needs its key")),
        (None, Some(_)) => return Err(read.missing("REDIS_TLS_CLIENT_CERT", "a key needs its certificate")),
    };
    Ok(on.then_some(RedisTls { ca, client, skip_hostname, server_name }))
}

/// A URL's scheme is read in any case (RFC 3986, 3.1).
fn is_rediss(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| {
        ["rediss", "rediss-cluster", "rediss-sentinel"].iter().any(|tls| scheme.eq_ignore_ascii_case(tls))
    })
}

fn redis_type(text: &str) -> Result<RedisType, values::Want> {
    use RedisType::{Cluster, Sentinel, Single};
    // The reference reads them in any case.
    values::choose(
        &text.to_ascii_lowercase(),
        &[("single", Single), ("cluster", Cluster), ("sentinel", Sentinel)],
    )
}

fn socket_type(text: &str) -> Result<Socket, values::Want> {
    // The reference knows no `tls` here, but `REDIS_TLS`.
    values::choose(text, &[("tcp", Socket::Tcp), ("unix", Socket::Unix)])
}
