//! Which Redis, and how to talk to it.
//!
//! The settings are those of envoyproxy/ratelimit, by name and by form, so that a deployment changes nothing but the
//! image. They arrive here as text, as people write them into an environment, and leave as a [`Target`] that cannot be
//! wrong any more: what can be found out without a network is found out before any port is bound.
//!
//! | setting | here |
//! |---|---|
//! | `REDIS_URL` | `host:port`, `redis://` or `rediss://[user[:password]@]host[:port][/database]`, or a socket's path |
//! | `REDIS_SOCKET_TYPE` | `tcp` or `unix`; by default what the URL looks like (the reference's default is `unix`) |
//! | `REDIS_AUTH` | `password`, or `user:password` of an ACL user |
//! | `REDIS_TLS`, `REDIS_TLS_CACERT`, `REDIS_TLS_CLIENT_CERT`, `REDIS_TLS_CLIENT_KEY`, `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION` | [`RedisTls`] |
//! | `REDIS_TIMEOUT` | [`RedisConfig::connect_timeout`] |
//! | `STORE_TIMEOUT` | [`RedisConfig::timeout`] |
//!
//! A password is a [`Secret`] from the moment it arrives: it has no `Display`, its `Debug` hides it, and no error
//! repeats a URL, since the mistake in a URL is often an unescaped character of the password in it.

use std::{fmt, num::NonZeroUsize, path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;

use crate::settings::{Secret, Socket};

/// The port of a Redis that names none.
const DEFAULT_PORT: u16 = 6379;

/// How to write an address, for the help in errors.
const FORMS: &str =
    "write host:port, redis://user:password@host:port/0, rediss://… for TLS, or the path of a unix socket";

/// The Redis part of the settings, as written. [`RedisStore::new`](super::RedisStore::new) checks it.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `REDIS_URL`. May hold a password.
    pub url: Secret,
    /// `REDIS_SOCKET_TYPE`; `None`: what `url` looks like.
    pub socket: Option<Socket>,
    /// `REDIS_AUTH`: `password` or `user:password`.
    pub auth: Option<Secret>,
    /// `REDIS_TLS` and what belongs to it. A `rediss://` URL implies the default of it.
    pub tls: Option<RedisTls>,
    /// `STORE_TIMEOUT`: the longest wait for an answer.
    pub timeout: Duration,
    /// `REDIS_TIMEOUT`: the longest wait for a connection, which includes TLS and the password.
    pub connect_timeout: Duration,
    /// The most connections of this process; runtimes beyond this number share.
    pub connections: NonZeroUsize,
}

impl RedisConfig {
    /// 5 ms for an answer: Envoy itself gives up after 20 ms by default, and a healthy Redis answers in a tenth of
    /// one.
    pub const TIMEOUT: Duration = Duration::from_millis(5);
    /// The reference's default of `REDIS_TIMEOUT`.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
    /// Redis serves all connections with one thread, so more of them give it nothing but smaller batches.
    pub const CONNECTIONS: NonZeroUsize = NonZeroUsize::new(4).expect("4 is not 0");

    /// All defaults with this address.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            socket: None,
            auth: None,
            tls: None,
            timeout: Self::TIMEOUT,
            connect_timeout: Self::CONNECT_TIMEOUT,
            connections: Self::CONNECTIONS,
        }
    }
}

/// `REDIS_TLS*`. The default trusts the system's authorities and shows no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// `REDIS_TLS_CACERT`: a PEM file of the authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// `REDIS_TLS_CLIENT_CERT`: a PEM file with our certificate and its chain.
    pub client_cert: Option<PathBuf>,
    /// `REDIS_TLS_CLIENT_KEY`: a PEM file with the certificate's key.
    pub client_key: Option<PathBuf>,
    /// `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION`
    pub hostname: Hostname,
}

/// Whether the name in the server's certificate must be the one that was dialled. Its chain must be good either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hostname {
    /// It must.
    #[default]
    Verified,
    /// `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true`: it need not.
    Skipped,
}

/// Why settings make no Redis store. Names the setting, and how to mend it; repeats no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {why}")]
pub struct RedisConfigError {
    /// The setting's name, such as `REDIS_URL`.
    pub setting: &'static str,
    /// What is wrong, and how to mend it.
    pub why: String,
}

impl RedisConfigError {
    pub(super) fn new(setting: &'static str, why: impl Into<String>) -> Self {
        Self { setting, why: why.into() }
    }
}

/// Where to connect, and as whom: a [`RedisConfig`] without mistakes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) address: Address,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: Option<u8>,
    pub(super) tls: Option<RedisTls>,
}

/// Where a Redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Target {
    pub(super) fn parse(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let text = config.url.expose().trim();
        if text.is_empty() {
            return Err(RedisConfigError::new("REDIS_URL", format!("is empty; {FORMS}")));
        }
        let mut target = match socket_path(text, config.socket) {
            Some(path) => Self::unix(path, config)?,
            None => Self::tcp(text, config)?,
        };
        if let Some(auth) = &config.auth {
            target.authenticate(auth.expose())?;
        }
        Ok(target)
    }

    fn unix(path: &str, config: &RedisConfig) -> Result<Self, RedisConfigError> {
        if path.contains("://") || !path.contains('/') {
            let why =
                "REDIS_SOCKET_TYPE is unix, but this is no path; write /path/of/redis.sock, or set it to tcp";
            return Err(RedisConfigError::new("REDIS_URL", why));
        }
        if config.tls.is_some() {
            return Err(RedisConfigError::new(
                "REDIS_TLS",
                "a unix socket speaks no TLS; remove one of the two",
            ));
        }
        let address = Address::Unix(PathBuf::from(path));
        Ok(Self { address, user: None, password: None, database: None, tls: None })
    }

    fn tcp(text: &str, config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let wrong = |why: &str| RedisConfigError::new("REDIS_URL", format!("{why}; {FORMS}"));
        if text.contains(',') && !text.contains('@') {
            return Err(wrong("names several servers, but REDIS_TYPE=single takes one"));
        }
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("redis://{text}") };
        let url = url::Url::parse(&with_scheme).map_err(|e| {
            let hint = if text.contains('@') {
                " (in a password, / ? # @ and : are written as %2F %3F %23 %40 %3A)"
            } else {
                ""
            };
            wrong(&format!("is no address: {e}{hint}"))
        })?;
        let tls = match url.scheme() {
            "rediss" => Some(config.tls.clone().unwrap_or_default()),
            "redis" => config.tls.clone(),
            other => return Err(wrong(&format!("has the unknown scheme {other}://"))),
        };
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("has a part after ? or #, which means nothing here"));
        }
        let host = match url.host() {
            Some(url::Host::Domain(name)) if !name.is_empty() => decoded(name),
            Some(url::Host::Ipv4(ip)) => ip.to_string(),
            Some(url::Host::Ipv6(ip)) => ip.to_string(),
            _ => return Err(wrong("names no host")),
        };
        let database = match url.path().trim_matches('/') {
            "" => None,
            number => Some(
                number.parse().map_err(|_| wrong("ends in a database that is no number from 0 to 255"))?,
            ),
        };
        Ok(Self {
            address: Address::Tcp { host, port: url.port().unwrap_or(DEFAULT_PORT) },
            user: Some(decoded(url.username())).filter(|user| !user.is_empty()),
            password: url.password().filter(|p| !p.is_empty()).map(|p| Secret::new(decoded(p))),
            database,
            tls,
        })
    }

    /// The reference's rule: what stands before the first colon is the user.
    fn authenticate(&mut self, auth: &str) -> Result<(), RedisConfigError> {
        let (user, password) = match auth.split_once(':') {
            Some((user, password)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), password),
            None => (None, auth),
        };
        if password.is_empty() {
            let why = "holds no password; write password or user:password, or remove it";
            return Err(RedisConfigError::new("REDIS_AUTH", why));
        }
        if self.password.is_some() || self.user.is_some() {
            let why = "REDIS_URL names a user or a password too; keep one of the two";
            return Err(RedisConfigError::new("REDIS_AUTH", why));
        }
        self.user = user;
        self.password = Some(Secret::new(password));
        Ok(())
    }
}

/// The path, where `url` is one.
fn socket_path(url: &str, socket: Option<Socket>) -> Option<&str> {
    let path = url.strip_prefix("unix://").unwrap_or(url);
    match socket {
        Some(Socket::Unix) => Some(path),
        Some(Socket::Tcp) => None,
        None => path.starts_with('/').then_some(path),
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, auth: Option<&str>) -> Result<Target, String> {
        let config = RedisConfig { auth: auth.map(Secret::new), ..RedisConfig::new(url) };
        Target::parse(&config).map_err(|e| e.to_string())
    }

    /// Address, user, password, database, TLS.
    fn parts(url: &str, auth: Option<&str>) -> (String, Option<String>, Option<String>, Option<u8>, bool) {
        let t = parse(url, auth).unwrap();
        (
            t.address.to_string(),
            t.user,
            t.password.map(|p| p.expose().to_owned()),
            t.database,
            t.tls.is_some(),
        )
    }

    #[test]
    fn the_references_forms_of_an_address_are_understood() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(parts("redis:6379", None), ("redis:6379".into(), None, None, None, false));
        assert_eq!(parts("10.0.0.1:7000", None), ("10.0.0.1:7000".into(), None, None, None, false));
        assert_eq!(parts("[::1]:7000", None), ("[::1]:7000".into(), None, None, None, false));
        assert_eq!(parts("redis", None), ("redis:6379".into(), None, None, None, false));
        assert_eq!(parts("redis://h/3", None), ("h:6379".into(), None, None, Some(3), false));
        assert_eq!(
            parts("rediss://ann:p%40%2Fs@h:1/0", None),
            ("h:1".into(), some("ann"), some("p@/s"), Some(0), true)
        );
        assert_eq!(parts("redis://:pw@h:1", None), ("h:1".into(), None, some("pw"), None, false));
        assert_eq!(parts("h:1", Some("pw")), ("h:1".into(), None, some("pw"), None, false));
        assert_eq!(parts("h:1", Some("ann:p:w")), ("h:1".into(), some("ann"), some("p:w"), None, false));
        assert_eq!(parts("/run/redis.sock", None), ("unix:/run/redis.sock".into(), None, None, None, false));
        assert_eq!(parts("unix:///run/redis.sock", Some("pw")).0, "unix:/run/redis.sock");
    }

    #[test]
    fn a_wrong_address_says_how_to_write_one_and_repeats_no_password() {
        for (url, auth, setting, why) in [
            ("", None, "REDIS_URL", "is empty"),
            ("h:99999", None, "REDIS_URL", "port"),
            (":6379", None, "REDIS_URL", "host"),
            ("redis:///1", None, "REDIS_URL", "no host"),
            ("redis://h/one", None, "REDIS_URL", "database"),
            ("redis://h/256", None, "REDIS_URL", "database"),
            ("http://h", None, "REDIS_URL", "unknown scheme http"),
            ("a:1,b:2", None, "REDIS_URL", "REDIS_TYPE=single"),
            ("redis://u:hunter2/x@h:1", None, "REDIS_URL", "%2F"),
            ("redis://u:hunter2@h:1?db=1", None, "REDIS_URL", "after ?"),
            ("redis://u:hunter2@h:1", Some("hunter2"), "REDIS_AUTH", "keep one"),
            ("h:1", Some(""), "REDIS_AUTH", "no password"),
            ("h:1", Some("ann:"), "REDIS_AUTH", "no password"),
        ] {
            let error = parse(url, auth).unwrap_err();
            assert!(error.starts_with(setting) && error.contains(why), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
        let config = RedisConfig { socket: Some(Socket::Unix), ..RedisConfig::new("h:1") };
        assert!(Target::parse(&config).unwrap_err().to_string().contains("set it to tcp"));
        let config = RedisConfig { tls: Some(RedisTls::default()), ..RedisConfig::new("/run/redis.sock") };
        assert_eq!(Target::parse(&config).unwrap_err().setting, "REDIS_TLS");
    }

    #[test]
    fn debug_output_hides_passwords() {
        let config =
            RedisConfig { auth: Some(Secret::new("hunter2")), ..RedisConfig::new("redis://:hunter2@h") };
        let target = parse("redis://u:hunter2@h", None).unwrap();
        assert!(!format!("{config:?} {target:?}").contains("hunter2"));
    }
}
