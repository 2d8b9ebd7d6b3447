//! Which Redis, and how to talk to it: the settings as they are written.
//!
//! They are those of envoyproxy/ratelimit, by name and by form, so that a deployment changes nothing but the image. They
//! arrive as text, as people write them into an environment, and `address.rs` makes a [`Target`](super::address::Target)
//! of them that cannot be wrong any more: what can be found out without a network is found out before any port is bound.
//!
//! | setting | here |
//! |---|---|
//! | `REDIS_URL` | [`RedisConfig::url`]; its forms are in `address.rs` |
//! | `REDIS_TYPE` | [`RedisConfig::kind`]; by default what the URL says, else what the server does |
//! | `REDIS_SOCKET_TYPE` | `tcp` or `unix`; by default what the URL looks like (the reference's default is `unix`) |
//! | `REDIS_AUTH`, `REDIS_AUTH_FILE` | `password`, or `user:password` of an ACL user |
//! | `REDIS_SENTINEL_AUTH`, `REDIS_SENTINEL_AUTH_FILE` | the same for the sentinels |
//! | `REDIS_TLS`, `REDIS_TLS_CACERT`, `REDIS_TLS_CLIENT_CERT`, `REDIS_TLS_CLIENT_KEY`, `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION` | [`RedisTls`] |
//! | `REDIS_TIMEOUT` | [`RedisConfig::connect_timeout`] |
//! | `STORE_TIMEOUT` | [`RedisConfig::timeout`] |
//! | `REDIS_PERSECOND` and its like | [`RedisConfig::per_second`] |
//!
//! A password is a [`Secret`] from the moment it arrives: it has no `Display`, its `Debug` hides it, and no error
//! repeats a URL, since the mistake in a URL is often an unescaped character of the password in it.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use crate::{
    metrics::Counted,
    settings::{RedisType, Secret, Socket},
};

/// The Redis part of the settings, as written. [`RedisStore::new`](super::RedisStore::new) checks it.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `REDIS_URL`. May hold a password.
    pub url: Secret,
    /// `REDIS_TYPE`; `None`: what `url` says, or where that does not, what the server turns out to be.
    pub kind: Option<RedisType>,
    /// `REDIS_SOCKET_TYPE`; `None`: what `url` looks like.
    pub socket: Option<Socket>,
    /// `REDIS_AUTH` or `REDIS_AUTH_FILE`.
    pub auth: Option<Auth>,
    /// `REDIS_SENTINEL_AUTH` or `REDIS_SENTINEL_AUTH_FILE`.
    pub sentinel_auth: Option<Auth>,
    /// `REDIS_TLS` and what belongs to it. A `rediss://` URL implies the default of it.
    pub tls: Option<RedisTls>,
    /// `STORE_TIMEOUT`: the longest wait for an answer.
    pub timeout: Duration,
    /// `REDIS_TIMEOUT`: the longest wait for a connection, which includes TLS and the password.
    pub connect_timeout: Duration,
    /// The most connections of this process to each server; runtimes beyond this number share.
    pub connections: NonZeroUsize,
    /// `REDIS_PERSECOND`: another Redis, for limits of a second and less. Its `timeout` and `connections` are this one's.
    pub per_second: Option<Box<RedisConfig>>,
    /// Counts what refused requests had taken on one server and could not give back there. It comes back by itself with
    /// the limit's own refill.
    pub give_backs_lost: Counted,
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
            kind: None,
            socket: None,
            auth: None,
            sentinel_auth: None,
            tls: None,
            timeout: Self::TIMEOUT,
            connect_timeout: Self::CONNECT_TIMEOUT,
            connections: Self::CONNECTIONS,
            per_second: None,
            give_backs_lost: Counted::default(),
        }
    }
}

/// `password` or `user:password`, or where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// The text itself.
    Text(Secret),
    /// A file that holds it, read again for each connection, so that a password can change without a restart.
    File(PathBuf),
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
    /// `REDIS_TLS_SERVER_NAME`: the name that certificates must have; `None`: the host that is dialled.
    pub server_name: Option<String>,
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

/// How settings are called: each one of the second Redis has a name of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub(super) url: &'static str,
    pub(super) kind: &'static str,
    pub(super) socket: &'static str,
    pub(super) auth: &'static str,
    pub(super) auth_file: &'static str,
    pub(super) sentinel_auth: &'static str,
    pub(super) sentinel_auth_file: &'static str,
    pub(super) tls: &'static str,
}

impl Names {
    pub(super) const MAIN: Self = Self {
        url: "REDIS_URL",
        kind: "REDIS_TYPE",
        socket: "REDIS_SOCKET_TYPE",
        auth: "REDIS_AUTH",
        auth_file: "REDIS_AUTH_FILE",
        sentinel_auth: "REDIS_SENTINEL_AUTH",
        sentinel_auth_file: "REDIS_SENTINEL_AUTH_FILE",
        tls: "REDIS_TLS",
    };
    pub(super) const PER_SECOND: Self = Self {
        url: "REDIS_PERSECOND_URL",
        kind: "REDIS_PERSECOND_TYPE",
        socket: "REDIS_PERSECOND_SOCKET_TYPE",
        auth: "REDIS_PERSECOND_AUTH",
        auth_file: "REDIS_PERSECOND_AUTH_FILE",
        sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
        sentinel_auth_file: "REDIS_PERSECOND_SENTINEL_AUTH_FILE",
        tls: "REDIS_PERSECOND_TLS",
    };
}
