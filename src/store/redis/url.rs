//! The parts of `REDIS_URL`, and what `REDIS_TYPE` makes of them.
//!
//! Taken apart by hand: the lists of hosts that clusters and sentinels have are no URL that a library would read.

use percent_encoding::percent_decode_str;

use super::{
    address::{Address, Credentials, Source, Target},
    config::{Names, RedisConfig, RedisConfigError},
    slots::{Endpoint, is_host},
};
use crate::settings::{RedisType, Secret};

/// The port of a Redis that names none.
const REDIS_PORT: u16 = 6379;

/// The port of a sentinel that names none.
const SENTINEL_PORT: u16 = 26379;

/// How to write an address, for the help in errors.
pub(super) const FORMS: &str = "write host:port, redis://user:password@host:port/0, redis-cluster://host:port,host:port, \
                     redis-sentinel://host:port,host:port/name, rediss…:// for TLS, or the path of a unix socket";

/// The parts of a URL. No part but the hosts is ever repeated in an error.
pub(super) struct Url<'t> {
    /// What the scheme says, besides TLS.
    kind: Option<RedisType>,
    schemeless: bool,
    tls: bool,
    user: Option<String>,
    password: Option<Secret>,
    hosts: Vec<&'t str>,
    path: Vec<&'t str>,
    /// Of an error about hosts: what may be the matter with an unescaped password.
    hint: &'static str,
    names: &'t Names,
}

impl<'t> Url<'t> {
    pub(super) fn split(text: &'t str, names: &'t Names) -> Result<Self, RedisConfigError> {
        let wrong = |why: &str| RedisConfigError::new(names.url, format!("{why}; {FORMS}"));
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        // A URL's scheme is read in any case (RFC 3986, 3.1).
        let (kind, tls) = match scheme.to_ascii_lowercase().as_str() {
            "" | "redis" => (None, false),
            "rediss" => (None, true),
            "redis-cluster" => (Some(RedisType::Cluster), false),
            "rediss-cluster" => (Some(RedisType::Cluster), true),
            "redis-sentinel" => (Some(RedisType::Sentinel), false),
            "rediss-sentinel" => (Some(RedisType::Sentinel), true),
            other => return Err(wrong(&format!("has the unknown scheme {other}://"))),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hint = if text.contains('@') {
            " (in a password, / ? # @ and : are written as %2F %3F %23 %40 %3A)"
        } else {
            ""
        };
        if rest.contains(['?', '#']) {
            return Err(wrong(&format!("has a part after ? or #, which means nothing here{hint}")));
        }
        // Of a password with a /, what is behind it would be taken for a name or a number, and be shown.
        if path.contains('@') {
            return Err(wrong(&format!("has an @ behind a /{hint}")));
        }
        let (who, hosts) = authority.rsplit_once('@').map_or((None, authority), |(who, at)| (Some(who), at));
        if who.is_some_and(|who| who.split_once('@').is_some_and(|(_, more)| more.contains(','))) {
            return Err(wrong(&format!(
                "names who asks more than once; write it before the first host only{hint}"
            )));
        }
        let (user, password) = who.map_or((None, None), |who| {
            let (user, password) = who.split_once(':').unwrap_or((who, ""));
            (
                Some(decoded(user)).filter(|user| !user.is_empty()),
                Some(decoded(password)).filter(|password| !password.is_empty()).map(Secret::new),
            )
        });
        Ok(Self {
            kind,
            schemeless: scheme.is_empty(),
            tls,
            user,
            password,
            hosts: hosts.split(',').map(str::trim).collect(),
            path: path.split('/').filter(|part| !part.is_empty()).collect(),
            hint,
            names,
        })
    }

    pub(super) fn target(self, config: &RedisConfig) -> Result<Target, RedisConfigError> {
        let source = match self.kind(config.kind)? {
            Some(RedisType::Single) => Source::Single(Address::Tcp(self.one()?)),
            None => Source::Found(Address::Tcp(self.one()?)),
            Some(RedisType::Cluster) => Source::Cluster(self.endpoints(&self.hosts, REDIS_PORT)?),
            Some(RedisType::Sentinel) => self.sentinel()?,
        };
        let database = match (&source, self.database_text(&source)?) {
            (_, None) => None,
            (Source::Cluster(_), Some(text)) if text != "0" => {
                return Err(self.wrong("names a database, but a cluster has only 0"));
            }
            (_, Some(text)) => Some(
                text.parse().map_err(|_| self.wrong("ends in a database that is no number from 0 to 255"))?,
            ),
        };
        let tls = if self.tls { Some(config.tls.clone().unwrap_or_default()) } else { config.tls.clone() };
        Ok(Target {
            source,
            credentials: Credentials::Given { user: self.user, password: self.password },
            sentinel_credentials: Credentials::NOBODY,
            database,
            tls,
            connect_timeout: config.connect_timeout,
        })
    }

    /// What it is: as REDIS_TYPE says, else the scheme, else the commas.
    fn kind(&self, set: Option<RedisType>) -> Result<Option<RedisType>, RedisConfigError> {
        match (set, self.kind) {
            (Some(set), Some(scheme)) if set != scheme => {
                let why = format!(
                    "says {set}, but the scheme of {} is redis-{scheme}://; keep one",
                    self.names.url
                );
                Err(RedisConfigError::new(self.names.kind, why))
            }
            (Some(set), _) => Ok(Some(set)),
            (None, Some(scheme)) => Ok(Some(scheme)),
            (None, None) if self.hosts.len() == 1 => Ok(None),
            // `name,host:port,…`: a name has no port, and where its sentinels name none either, REDIS_TYPE has to say it.
            (None, None)
                if self.schemeless
                    && !self.hosts[0].contains(':')
                    && self.hosts[1..].iter().all(|host| host.contains(':')) =>
            {
                Ok(Some(RedisType::Sentinel))
            }
            (None, None) => Ok(Some(RedisType::Cluster)),
        }
    }

    fn one(&self) -> Result<Endpoint, RedisConfigError> {
        match self.hosts.as_slice() {
            [host] => self.endpoint(host, REDIS_PORT),
            _ => {
                let why = format!("names several servers, but {}=single takes one", self.names.kind);
                Err(self.wrong(&why))
            }
        }
    }

    /// The reference's form has the name first, a URL has it as its path.
    fn sentinel(&self) -> Result<Source, RedisConfigError> {
        let (name, hosts) = match (self.schemeless, self.hosts.as_slice(), self.path.first()) {
            (false, hosts, Some(name)) => (decoded(name), hosts),
            // Who forgot the name would lose a sentinel to it.
            (true, [name, hosts @ ..], _) if !hosts.is_empty() && !name.contains(':') => {
                ((*name).to_owned(), hosts)
            }
            _ => {
                let why = "names no master or no sentinel; write name,host:port,host:port or \
                           redis-sentinel://host:port,host:port/name";
                return Err(RedisConfigError::new(self.names.url, why));
            }
        };
        Ok(Source::Sentinel { name, sentinels: self.endpoints(hosts, SENTINEL_PORT)? })
    }

    /// What stands behind the hosts, and behind the name of a sentinel's master.
    fn database_text(&self, source: &Source) -> Result<Option<&'t str>, RedisConfigError> {
        let is_named = !self.schemeless && matches!(source, Source::Sentinel { .. });
        match self.path.get(usize::from(is_named)..).unwrap_or_default() {
            [] => Ok(None),
            [database] => Ok(Some(database)),
            _ => Err(self.wrong("has a part behind the database, which means nothing here")),
        }
    }

    fn endpoints(&self, hosts: &[&str], port: u16) -> Result<Vec<Endpoint>, RedisConfigError> {
        hosts.iter().map(|host| self.endpoint(host, port)).collect()
    }

    fn endpoint(&self, text: &str, default_port: u16) -> Result<Endpoint, RedisConfigError> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or_default())),
            None if text.matches(':').count() > 1 => {
                let why = "has more than one : in an address; write [::1]:6379 for IPv6";
                return Err(self.wrong(&format!("{why}{}", self.hint)));
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err(self.wrong(&format!("names no host{}", self.hint)));
        }
        let host = decoded(host);
        if !is_host(&host) {
            return Err(self.wrong(&format!("has a host with a space in it, or one too long{}", self.hint)));
        }
        let port = match port {
            None => default_port,
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                self.wrong(&format!("has a port that is no number from 1 to 65535{}", self.hint))
            })?,
        };
        Ok(Endpoint { host, port })
    }

    fn wrong(&self, why: &str) -> RedisConfigError {
        RedisConfigError::new(self.names.url, format!("{why}; {FORMS}"))
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
