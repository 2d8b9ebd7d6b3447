//! Where Redis is, read off `REDIS_URL` and `REDIS_TYPE`.
//!
//! | what is written | what it means |
//! |---|---|
//! | `host:port`, `redis://[user[:password]@]host[:port][/database]` | one server; when it turns out to be of a cluster and `REDIS_TYPE` does not say `single`, the cluster |
//! | `redis-cluster://[…@]host:port,…`, `host:port,host:port` | a cluster; any of its nodes will do, and one is enough |
//! | `redis-sentinel://[…@]host:port,…/name[/database]`, `name,host:port,…` | the master that these sentinels call so |
//! | `rediss://`, `rediss-cluster://`, `rediss-sentinel://` | the same with TLS |
//! | a path, `unix:///path` | one server's socket |
//!
//! User and password are those of Redis, percent-encoded; sentinels have their own (`REDIS_SENTINEL_AUTH`). The forms
//! without a scheme are the reference's. `REDIS_TYPE` wins over a comma, and must not contradict a scheme.

use std::{fmt, path::PathBuf, time::Duration};

use super::{
    config::{Auth, Names, RedisConfig, RedisConfigError, RedisTls},
    slots::Endpoint,
    url::{FORMS, Url},
};
use crate::settings::{RedisType, Secret, Socket};

/// Where to connect, and as whom: a [`RedisConfig`] without mistakes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) source: Source,
    pub(super) credentials: Credentials,
    pub(super) sentinel_credentials: Credentials,
    pub(super) database: Option<u8>,
    pub(super) tls: Option<RedisTls>,
    pub(super) connect_timeout: Duration,
}

/// Which servers, and who knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// One server, or a proxy that looks like one; nobody is asked.
    Single(Address),
    /// The same, unless the server says that it is of a cluster.
    Found(Address),
    /// A cluster, known to any of these.
    Cluster(Vec<Endpoint>),
    /// The master of this name, known to these sentinels.
    Sentinel { name: String, sentinels: Vec<Endpoint> },
}

/// Where a Redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(Endpoint),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(endpoint) => endpoint.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// As whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// As nobody, or as somebody whose password the settings hold.
    Given { user: Option<String>, password: Option<Secret> },
    /// As who stands in a file; and the setting that names it.
    File { path: PathBuf, setting: &'static str },
}

impl Credentials {
    pub(super) const NOBODY: Self = Self::Given { user: None, password: None };

    /// User and password, read where they have to be.
    ///
    /// # Errors
    /// When the file cannot be read or is empty.
    pub(super) fn read(&self) -> Result<(Option<String>, Option<Secret>), RedisConfigError> {
        match self {
            Self::Given { user, password } => Ok((user.clone(), password.clone())),
            Self::File { path, setting } => {
                let text = std::fs::read_to_string(path).map_err(|e| {
                    RedisConfigError::new(setting, format!("cannot read {}: {e}", path.display()))
                })?;
                let (user, password) = user_and_password(text.trim_end_matches(['\r', '\n']));
                if password.is_empty() {
                    let why =
                        format!("{} holds no password; write password or user:password", path.display());
                    return Err(RedisConfigError::new(setting, why));
                }
                Ok((user, Some(Secret::new(password))))
            }
        }
    }
}

/// The reference's rule: what stands before the first colon is the user.
fn user_and_password(text: &str) -> (Option<String>, &str) {
    match text.split_once(':') {
        Some((user, password)) => (Some(user.to_owned()).filter(|user| !user.is_empty()), password),
        None => (None, text),
    }
}

impl Target {
    pub(super) fn parse(config: &RedisConfig, names: &Names) -> Result<Self, RedisConfigError> {
        let text = config.url.expose().trim();
        if text.is_empty() {
            return Err(RedisConfigError::new(names.url, format!("is empty; {FORMS}")));
        }
        let mut target = match socket_path(text, config.socket) {
            Some(path) => Self::unix(path, config, names)?,
            None => Url::split(text, names)?.target(config)?,
        };
        if let Some(auth) = &config.auth {
            if target.credentials != Credentials::NOBODY {
                let why = format!("{} names a user or a password too; keep one of the two", names.url);
                return Err(RedisConfigError::new(names.auth, why));
            }
            target.credentials = credentials(auth, names.auth, names.auth_file)?;
        }
        if let Some(auth) = &config.sentinel_auth {
            target.sentinel_credentials = credentials(auth, names.sentinel_auth, names.sentinel_auth_file)?;
        }
        Ok(target)
    }

    fn unix(path: &str, config: &RedisConfig, names: &Names) -> Result<Self, RedisConfigError> {
        if path.contains("://") || !path.contains('/') {
            let why = format!(
                "{} is unix, but this is no path; write /path/of/redis.sock, or set it to tcp",
                names.socket
            );
            return Err(RedisConfigError::new(names.url, why));
        }
        if config.tls.is_some() {
            return Err(RedisConfigError::new(
                names.tls,
                "a unix socket speaks no TLS; remove one of the two",
            ));
        }
        let address = Address::Unix(PathBuf::from(path));
        let source = match config.kind {
            None | Some(RedisType::Single) => Source::Single(address),
            Some(_) => {
                let why = "a unix socket is one server; write single, or the addresses of the others";
                return Err(RedisConfigError::new(names.kind, why));
            }
        };
        Ok(Self {
            source,
            credentials: Credentials::NOBODY,
            sentinel_credentials: Credentials::NOBODY,
            database: None,
            tls: None,
            connect_timeout: config.connect_timeout,
        })
    }
}

/// Checks that the password is there, also in a file.
fn credentials(
    auth: &Auth,
    text_name: &'static str,
    file_name: &'static str,
) -> Result<Credentials, RedisConfigError> {
    let credentials = match auth {
        Auth::Text(text) => {
            let (user, password) = user_and_password(text.expose());
            if password.is_empty() {
                let why = "holds no password; write password or user:password, or remove it";
                return Err(RedisConfigError::new(text_name, why));
            }
            Credentials::Given { user, password: Some(Secret::new(password)) }
        }
        Auth::File(path) => Credentials::File { path: path.clone(), setting: file_name },
    };
    credentials.read()?;
    Ok(credentials)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, auth: Option<&str>) -> Result<Target, String> {
        let auth = auth.map(|text| Auth::Text(Secret::new(text)));
        let config = RedisConfig { auth, ..RedisConfig::new(url) };
        Target::parse(&config, &Names::MAIN).map_err(|e| e.to_string())
    }

    /// Kind, hosts and what else there is to know, for each type that was set.
    fn source(kind: Option<RedisType>, url: &str) -> Result<String, String> {
        let config = RedisConfig { kind, ..RedisConfig::new(url) };
        let target = Target::parse(&config, &Names::MAIN).map_err(|e| e.to_string())?;
        let hosts = |all: &[Endpoint]| all.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(" ");
        let source = match &target.source {
            Source::Single(address) => format!("single {address}"),
            Source::Found(address) => format!("found {address}"),
            Source::Cluster(seeds) => format!("cluster {}", hosts(seeds)),
            Source::Sentinel { name, sentinels } => format!("sentinel {name}: {}", hosts(sentinels)),
        };
        let database = target.database.map_or(String::new(), |database| format!(" /{database}"));
        Ok(format!("{source}{database}{}", if target.tls.is_some() { " tls" } else { "" }))
    }

    #[test]
    fn the_type_is_what_is_set_or_what_the_address_says() {
        use RedisType::{Cluster, Sentinel, Single};
        for (kind, url, want) in [
            (None, "h:1", "found h:1"),
            (Some(Single), "h:1", "single h:1"),
            (Some(Cluster), "h:1", "cluster h:1"),
            (Some(Cluster), "redis://h:1", "cluster h:1"),
            (Some(Cluster), "a:1,b:2, c:3", "cluster a:1 b:2 c:3"),
            (None, "a:1,b:2", "cluster a:1 b:2"),
            (None, "redis-cluster://u:p@a:1,b", "cluster a:1 b:6379"),
            (None, "rediss-cluster://[::1]:7000/0", "cluster [::1]:7000 /0 tls"),
            (Some(Sentinel), "mymaster,a:1,b", "sentinel mymaster: a:1 b:26379"),
            (None, "mymaster,a:1,b:2", "sentinel mymaster: a:1 b:2"),
            (None, "redis-sentinel://a,b:2/mymaster", "sentinel mymaster: a:26379 b:2"),
            (None, "REDISS-SENTINEL://u:p@a:1/my%20master/3", "sentinel my master: a:1 /3 tls"),
            (Some(Sentinel), "redis://a:1/mymaster", "sentinel mymaster: a:1"),
            (None, "/run/redis.sock", "single unix:/run/redis.sock"),
        ] {
            assert_eq!(source(kind, url).as_deref(), Ok(want), "{url}");
        }
        for (kind, url, name, why) in [
            (Some(Single), "a:1,b:2", "REDIS_URL", "REDIS_TYPE=single takes one"),
            (Some(Single), "redis-cluster://a:1", "REDIS_TYPE", "says single"),
            (Some(Cluster), "redis-sentinel://a:1/m", "REDIS_TYPE", "redis-sentinel://"),
            (Some(Cluster), "/run/redis.sock", "REDIS_TYPE", "one server"),
            (Some(Cluster), "redis://a:1/3", "REDIS_URL", "a cluster has only 0"),
            (Some(Sentinel), "mymaster", "REDIS_URL", "name,host:port"),
            (None, "redis-sentinel://a:1", "REDIS_URL", "redis-sentinel://host:port,host:port/name"),
            (None, "redis-cluster://a:1,,b:2", "REDIS_URL", "no host"),
            (Some(Sentinel), "a:1,b:2", "REDIS_URL", "names no master"),
            (None, "redis://a:1/0/x", "REDIS_URL", "behind the database"),
            (None, "redis-sentinel://a:1/m/0/x", "REDIS_URL", "behind the database"),
            // Each of these would quietly have dialled another port or host than was meant.
            (None, "[::1]7000", "REDIS_URL", "port"),
            (None, "[::1]x:7000", "REDIS_URL", "port"),
            (None, "fe80::1:6379", "REDIS_URL", "[::1]:6379"),
            (None, "a b:1", "REDIS_URL", "a space"),
            (None, "redis-cluster://u:p@a:1,u:p@b:2", "REDIS_URL", "before the first host"),
        ] {
            let error = source(kind, url).unwrap_err();
            assert!(error.starts_with(&format!("{name}: ")) && error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn a_file_of_a_password_is_read_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("auth");
        let config = RedisConfig { auth: Some(Auth::File(path.clone())), ..RedisConfig::new("h:1") };
        let error = Target::parse(&config, &Names::PER_SECOND).unwrap_err();
        assert_eq!(error.setting, "REDIS_PERSECOND_AUTH_FILE");
        assert!(error.why.contains("cannot read"), "{error}");
        for (text, want) in [("pw\n", (None, "pw")), ("ann:p:w\r\n", (Some("ann"), "p:w"))] {
            std::fs::write(&path, text).unwrap();
            let (user, password) = Target::parse(&config, &Names::MAIN).unwrap().credentials.read().unwrap();
            assert_eq!((user.as_deref(), password.unwrap().expose()), want);
        }
        std::fs::write(&path, "ann:\n").unwrap();
        let error = Target::parse(&config, &Names::MAIN).unwrap_err();
        assert!(error.setting == "REDIS_AUTH_FILE" && error.why.contains("no password"), "{error}");
    }

    /// Address, user, password, database, TLS.
    fn parts(url: &str, auth: Option<&str>) -> (String, Option<String>, Option<String>, Option<u8>, bool) {
        let t = parse(url, auth).unwrap();
        let (user, password) = t.credentials.read().unwrap();
        let (Source::Found(address) | Source::Single(address)) = t.source else { panic!("{:?}", t.source) };
        (address.to_string(), user, password.map(|p| p.expose().to_owned()), t.database, t.tls.is_some())
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
            ("redis://u:hunter2/x@h:1", None, "REDIS_URL", "%2F"),
            // Its end would have been the master's name, which is shown.
            ("redis-sentinel://u:1/hunter2@h:1", None, "REDIS_URL", "%2F"),
            ("redis-cluster://u:hunter2@a:1,u:hunter2@b:2", None, "REDIS_URL", "%40"),
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
        assert!(Target::parse(&config, &Names::MAIN).unwrap_err().to_string().contains("set it to tcp"));
        let config = RedisConfig { tls: Some(RedisTls::default()), ..RedisConfig::new("/run/redis.sock") };
        assert_eq!(Target::parse(&config, &Names::MAIN).unwrap_err().setting, "REDIS_TLS");
    }

    #[test]
    fn debug_output_hides_passwords() {
        let config = RedisConfig {
            auth: Some(Auth::Text(Secret::new("hunter2"))),
            ..RedisConfig::new("redis://:hunter2@h")
        };
        let target = parse("redis://u:hunter2@h", None).unwrap();
        assert!(!format!("{config:?} {target:?}").contains("hunter2"));
    }
}
