//! Every setting: its default, its flag, its variable, and what is said of a wrong value.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{collections::BTreeSet, fmt::Debug, process::Command};

use clap::{Args, FromArgMatches};
use tollgate::settings::{
    Backend, Headers, Level, Numbers, Prometheus, RawSettings, Reset, RetryAfter, Settings, Source, Statsd,
    ignored, shown, strange, table, table::Kind, told, values,
};

/// What one row of the table does.
struct Case {
    name: &'static str,
    /// `{:?}` of what the setting is about, without it.
    default: &'static str,
    /// A value, and what it makes of that.
    given: (&'static str, &'static str),
    /// A wrong value, and a word of what is said then; `None` where nothing can be wrong.
    wrong: Option<(&'static str, &'static str)>,
    look: fn(&Settings) -> String,
}

fn case(
    name: &'static str,
    default: &'static str,
    given: (&'static str, &'static str),
    wrong: impl Into<Option<(&'static str, &'static str)>>,
    look: fn(&Settings) -> String,
) -> Case {
    Case { name, default, given, wrong: wrong.into(), look }
}

fn d(value: impl Debug) -> String {
    format!("{value:?}")
}

fn redis(settings: &Settings) -> String {
    match &settings.backend {
        Backend::Redis(redis) => d(redis),
        Backend::Memory { .. } => "memory".to_owned(),
    }
}

fn second(settings: &Settings) -> String {
    match &settings.backend {
        Backend::Redis(redis) => d(&redis.per_second),
        Backend::Memory { .. } => "memory".to_owned(),
    }
}

fn xds(settings: &Settings) -> String {
    match &settings.rules.source {
        Source::Xds(xds) => d(xds),
        Source::Files => "files".to_owned(),
    }
}

fn statsd(settings: &Settings) -> String {
    let Some(Statsd { host, port, protocol, dogstatsd, every, mogrifiers }) = &settings.stats.statsd else {
        return d(None::<()>);
    };
    let dogstatsd = if *dogstatsd { " dogstatsd" } else { "" };
    let mogrifiers = if mogrifiers.is_empty() { "" } else { " mogrified" };
    format!("{protocol:?} {host}:{port} every {every:?}{dogstatsd}{mogrifiers}")
}

fn prometheus(settings: &Settings) -> String {
    let Some(Prometheus { listen, path, mapper, milliseconds }) = &settings.stats.prometheus else {
        return d(None::<()>);
    };
    let mapper = mapper.as_ref().map_or(String::new(), |file| format!(" by {}", file.display()));
    format!("{listen}{path}{}{mapper}", if *milliseconds { " ms" } else { "" })
}

fn grpc_tls(settings: &Settings) -> String {
    format!("tls: {:?}", settings.listen.grpc_tls)
}

fn tracing(settings: &Settings) -> String {
    d(&settings.tracing)
}

fn part(text: &str, of: &str) -> String {
    let (_, rest) = text.split_once(of).unwrap_or_else(|| panic!("no {of} in {text}"));
    rest.split([',', '}']).next().unwrap().trim().to_owned()
}

/// Settings that others need to show an effect.
fn beside(name: &str) -> RawSettings {
    let raw = RawSettings::default();
    match name {
        name if name.starts_with("REDIS_TLS_") => raw
            .with("REDIS_URL", "r:1")
            .with("REDIS_TLS", "1")
            .with("REDIS_TLS_CLIENT_CERT", "c")
            .with("REDIS_TLS_CLIENT_KEY", "k"),
        name if name.starts_with("REDIS_PERSECOND") => {
            let raw = raw.with("REDIS_URL", "r:1").with("REDIS_PERSECOND_URL", "r:2");
            if name == "REDIS_PERSECOND" { raw } else { raw.with("REDIS_PERSECOND", "true") }
        }
        name if name.starts_with("REDIS_") && name != "REDIS_URL" => raw.with("REDIS_URL", "r:1"),
        name if name.starts_with("TRACING_") && name != "TRACING_ENABLED" => raw.with("TRACING_ENABLED", "1"),
        "GRPC_UDS_MODE" => raw.with("GRPC_UDS", "/run/r.sock"),
        name if name.starts_with("GRPC_SERVER_") || name.starts_with("GRPC_CLIENT_") => {
            let raw = raw.with("GRPC_SERVER_TLS_CERT", "c").with("GRPC_SERVER_TLS_KEY", "k");
            match name {
                "GRPC_SERVER_USE_TLS" => raw,
                "GRPC_CLIENT_TLS_SAN" => {
                    raw.with("GRPC_SERVER_USE_TLS", "1").with("GRPC_CLIENT_TLS_CACERT", "a")
                }
                _ => raw.with("GRPC_SERVER_USE_TLS", "1"),
            }
        }
        name if name.starts_with("CONFIG_GRPC_XDS_") || name.starts_with("XDS_CLIENT_") => {
            let raw = raw.with("CONFIG_TYPE", "GRPC_XDS_SOTW");
            match name {
                "CONFIG_GRPC_XDS_SERVER_USE_TLS" => raw,
                _ => raw
                    .with("CONFIG_GRPC_XDS_SERVER_USE_TLS", "1")
                    .with("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "c")
                    .with("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "k"),
            }
        }
        "LIMIT_LIMIT_HEADER" | "LIMIT_REMAINING_HEADER" | "LIMIT_RESET_HEADER" => {
            raw.with("LIMIT_HEADERS", "draft-03")
        }
        "EXPIRATION_JITTER_MAX_SECONDS" => raw.with("KEY_FORMAT", "reference"),
        "USE_DOG_STATSD_MOGRIFIERS" => raw
            .with("USE_DOG_STATSD", "true")
            .with_listed("DOG_STATSD_MOGRIFIER_KEYS_PATTERN", "a(.*)")
            .with_listed("DOG_STATSD_MOGRIFIER_KEYS_NAME", "a"),
        "STATS_FLUSH_INTERVAL" | "DISABLE_STATS" => raw.with("USE_STATSD", "true"),
        name if name.starts_with("PROMETHEUS_") => raw.with("USE_PROMETHEUS", "true"),
        "RUNTIME_SUBDIRECTORY" | "RUNTIME_APPDIRECTORY" => raw.with("RUNTIME_ROOT", "/r"),
        _ => raw,
    }
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let dir = |s: &Settings| s.rules.dir.display().to_string();
    let names = |s: &Settings| match &s.answers.headers.numbers { Numbers::Triple { names, .. } => names.join(" "), other => d(other) };
    vec![
        case("TOLLGATE_RULES", "rules", ("/etc/limits", "/etc/limits"), None, dir),
        case("RUNTIME_ROOT", "rules", ("/data", "/data/config"), None, dir),
        case("RUNTIME_SUBDIRECTORY", "/r/config", ("ratelimit", "/r/ratelimit/config"), None, dir),
        case("RUNTIME_APPDIRECTORY", "/r/config", ("limits", "/r/limits"), None, dir),
        case("RUNTIME_IGNOREDOTFILES", "Yaml", ("0", "Yaml"), ("maybe", "`true` or `false`"), |s| d(s.rules.which)),
        case("RUNTIME_WATCH_ROOT", "-", ("false", "-"), ("no", "`true` or `false`"), |_| "-".into()),
        case("RULES_POLL", "5s", ("100ms", "100ms"), ("99ms", "at least 100ms"), |s| d(s.rules.poll)),
        case("MERGE_DOMAIN_CONFIG", "false", ("TRUE", "true"), ("yes", "`true` or `false`"), |s| d(s.rules.merge_domains)),
        case("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", ("true", "true"), ("ok", "`true` or `false`"), |s| d(s.rules.needed_for_health)),
        case("FORCE_START_WITHOUT_INITIAL_CONFIG", "true", ("true", "false"), ("yes", "`true` or `false`"), |s| d(s.rules.awaited)),
        case("CONFIG_TYPE", "Files", ("grpc_xds_sotw", "Xds"), ("XDS", "`FILE` or `GRPC_XDS_SOTW`"), |s| if matches!(s.rules.source, Source::Files) { "Files".into() } else { "Xds".into() }),
        case("CONFIG_GRPC_XDS_SERVER_URL", "\"localhost:18000\"", ("dns:///[::1]:1", "\"[::1]:1\""), ("http://x", "`host:port`"), |s| part(&xds(s), "server: ")),
        case("CONFIG_GRPC_XDS_NODE_ID", "\"default\"", ("gateway", "\"gateway\""), None, |s| part(&xds(s), "node_id: ")),
        case("CONFIG_GRPC_XDS_NODE_METADATA", "[]", ("team=search", "[(\"team\""), ("team:search", "`key=value,key=value`"), |s| part(&xds(s), "node_metadata: ")),
        case("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "[]", ("Authorization:Bearer a:b", "[(\"authorization\""), None, |s| part(&xds(s), "headers: ")),
        case("CONFIG_GRPC_XDS_SERVER_USE_TLS", "None", ("true", "Some(XdsTls { ca: None"), ("on", "`true` or `false`"), |s| part(&xds(s), "tls: ")),
        case("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "None", ("ca.pem", "Some(\"ca.pem\")"), None, |s| part(&xds(s), "ca: ")),
        case("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "Some((\"c\"", ("d.pem", "Some((\"d.pem\""), None, |s| part(&xds(s), "client: ")),
        case("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "\"k\"))", ("l.pem", "\"l.pem\"))"), None, |s| part(&xds(s), "\"c\", ")),
        case("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "None", ("xds.example", "Some(\"xds.example\")"), ("a b", "host's name"), |s| part(&xds(s), " name: ")),
        case("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", ("1m", "60s"), ("0", "longer than 0"), |s| part(&xds(s), "connect_retry: ")),
        case("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", ("1s", "1s"), ("1", "`1s` or `1ms`"), |s| part(&xds(s), "initial: ")),
        case("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", ("5m", "300s"), ("0s", "longer than 0"), |s| part(&xds(s), "longest: ")),
        case("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2.0, spread: 0.5", ("1.5", "1.5, spread: 1.0"), ("-1", "from 0 to 100"), |s| xds(s).split("growth: ").nth(1).unwrap().split(" }").next().unwrap().to_owned()),
        case("XDS_CLIENT_BACKOFF_JITTER", "0.5", ("false", "0.0"), ("no", "`true` or `false`"), |s| part(&xds(s), "spread: ")),
        case("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "67108864", ("1000", "1000"), ("4MiB", "from 1"), |s| part(&xds(s), "message_max: ")),
        case("TOLLGATE_COMPAT", "false", ("reference", "true"), ("true", "`none` or `reference`"), |s| d(s.compat)),
        case("GRPC_HOST", "0.0.0.0:8081", ("::1", "[::1]:8081"), ("example.org", "IP address"), |s| s.listen.grpc.to_string()),
        case("GRPC_PORT", "0.0.0.0:8081", ("0", "0.0.0.0:0"), ("65536", "0 to 65535"), |s| s.listen.grpc.to_string()),
        case("GRPC_UDS", "0.0.0.0:8081", ("/run/r.sock", "unix:/run/r.sock"), ("unix:/run/r.sock", "the path alone"), |s| s.listen.grpc.to_string()),
        case("GRPC_UDS_MODE", "None", ("0660", "Some(432)"), ("rw", "as chmod has them"), |s| part(&d(&s.listen.grpc), "mode: ")),
        case("GRPC_SERVER_USE_TLS", "None", ("true", "Some(GrpcTls { cert: \"c\""), ("on", "`true` or `false`"), |s| part(&grpc_tls(s), "tls: ")),
        case("GRPC_SERVER_TLS_CERT", "\"c\"", ("d.pem", "\"d.pem\""), None, |s| part(&grpc_tls(s), "cert: ")),
        case("GRPC_SERVER_TLS_KEY", "\"k\"", ("l.pem", "\"l.pem\""), None, |s| part(&grpc_tls(s), "key: ")),
        case("GRPC_CLIENT_TLS_CACERT", "None", ("ca.pem", "Some(GrpcClients { ca: \"ca.pem\""), None, |s| part(&grpc_tls(s), "client: ")),
        case("GRPC_CLIENT_TLS_SAN", "None", ("envoy.example", "Some(\"envoy.example\")"), ("a b", "host's name"), |s| part(&grpc_tls(s), "name: ")),
        case("GRPC_MAX_CONNECTION_AGE", "Some(86400s)", ("720h", "Some(2592000s)"), ("8761h", "above 8760h"), |s| d(s.listen.grpc_age.told)),
        case("GRPC_MAX_CONNECTION_AGE_GRACE", "Some(3600s)", ("0", "None"), ("1", "`1s`"), |s| d(s.listen.grpc_age.grace)),
        case("HOST", "0.0.0.0:8080", ("localhost", "127.0.0.1:8080"), ("0.0.0", "IP address"), |s| s.listen.http.to_string()),
        case("PORT", "0.0.0.0:8080", ("80", "0.0.0.0:80"), ("http", "0 to 65535"), |s| s.listen.http.to_string()),
        case("DEBUG_HOST", "127.0.0.1:6070", ("0.0.0.0", "0.0.0.0:6070"), ("*", "IP address"), |s| s.listen.debug.to_string()),
        case("DEBUG_PORT", "127.0.0.1:6070", ("6071", "127.0.0.1:6071"), ("-1", "0 to 65535"), |s| s.listen.debug.to_string()),
        case("BACKEND_TYPE", "memory", ("memory", "memory"), ("memcache", "not available"), redis),
        case("MEMORY_KEYS_MAX", "1000000", ("5", "5"), ("0", "from 1"), |s| match &s.backend { Backend::Memory { keys_max } => d(keys_max), other => d(other) }),
        case("STORE_TIMEOUT", "5ms", ("1.5ms", "1.5ms"), ("0", "longer than 0"), |s| d(s.store.timeout)),
        case("ON_STORE_FAILURE", "Error", ("LOCAL", "Local"), ("ignore", "`deny` or `local`"), |s| d(s.store.on_failure)),
        case("FLEET_SIZE", "4", ("12", "12"), ("4294967296", "1 to 4294967295"), |s| d(s.store.fleet_size)),
        case("LOCAL_CACHE_SIZE_IN_BYTES", "16777216", ("0", "0"), ("-1", "bytes from 0 to 17179869184"), |s| d(s.store.near_bytes)),
        case("LEASE_ABOVE", "0", ("500", "500"), ("-1", "0 to 4294967295"), |s| d(s.store.lease_above)),
        case("REDIS_URL", "memory", ("r:1", "(hidden)"), None, |s| if redis(s) == "memory" { redis(s) } else { part(&redis(s), "url: ") }),
        case("REDIS_AUTH", "None", ("user:geheim", "Some(Text((hidden)))"), None, |s| part(&redis(s), " auth: ")),
        case("REDIS_AUTH_FILE", "None", ("/run/auth", "Some(File(\"/run/auth\"))"), None, |s| part(&redis(s), " auth: ")),
        case("REDIS_SENTINEL_AUTH", "None", ("geheim", "Some(Text((hidden)))"), None, |s| part(&redis(s), "sentinel_auth: ")),
        case("REDIS_SENTINEL_AUTH_FILE", "None", ("/run/auth", "Some(File(\"/run/auth\"))"), None, |s| part(&redis(s), "sentinel_auth: ")),
        case("REDIS_TYPE", "None", ("SENTINEL", "Some(Sentinel)"), ("clster", "`single`, `cluster` or `sentinel`"), |s| part(&redis(s), "kind: ")),
        case("REDIS_SOCKET_TYPE", "None", ("unix", "Some(Unix)"), ("udp", "`tcp` or `unix`"), |s| part(&redis(s), "socket: ")),
        case("REDIS_TIMEOUT", "10s", ("1m30s", "90s"), ("10", "`10s` or `10ms`"), |s| part(&redis(s), "connect_timeout: ")),
        case("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", ("t", "true"), ("2", "`true` or `false`"), |s| part(&redis(s), "health_follows: ")),
        case("REDIS_TLS", "None", ("true", "Some(RedisTls { ca: None"), ("on", "`true` or `false`"), |s| part(&redis(s), "tls: ")),
        case("REDIS_TLS_CACERT", "None", ("ca.pem", "Some(\"ca.pem\")"), None, |s| part(&redis(s), "ca: ")),
        case("REDIS_TLS_CLIENT_CERT", "Some((\"c\"", ("d.pem", "Some((\"d.pem\""), None, |s| part(&redis(s), "client: ")),
        case("REDIS_TLS_CLIENT_KEY", "k", ("l.pem", "l.pem"), None, |s| if redis(s).contains("\"k\"") { "k".into() } else { "l.pem".into() }),
        case("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", ("true", "true"), ("ja", "`true` or `false`"), |s| part(&redis(s), "skip_hostname: ")),
        case("REDIS_TLS_SERVER_NAME", "None", ("redis.example", "Some(\"redis.example\")"), None, |s| part(&redis(s), "server_name: ")),
        case("REDIS_PERSECOND", "None", ("true", "Some"), ("on", "`true` or `false`"), |s| second(s).split('(').next().unwrap().to_owned()),
        case("REDIS_PERSECOND_URL", "(hidden)", ("r:3", "(hidden)"), None, |s| part(&second(s), "url: ")),
        case("REDIS_PERSECOND_AUTH", "None", ("user:geheim", "Some(Text((hidden)))"), None, |s| part(&second(s), " auth: ")),
        case("REDIS_PERSECOND_AUTH_FILE", "None", ("/run/auth", "Some(File(\"/run/auth\"))"), None, |s| part(&second(s), " auth: ")),
        case("REDIS_PERSECOND_SENTINEL_AUTH", "None", ("geheim", "Some(Text((hidden)))"), None, |s| part(&second(s), "sentinel_auth: ")),
        case("REDIS_PERSECOND_SENTINEL_AUTH_FILE", "None", ("/run/auth", "Some(File(\"/run/auth\"))"), None, |s| part(&second(s), "sentinel_auth: ")),
        case("REDIS_PERSECOND_TYPE", "None", ("Cluster", "Some(Cluster)"), ("clster", "`single`, `cluster` or `sentinel`"), |s| part(&second(s), "kind: ")),
        case("REDIS_PERSECOND_SOCKET_TYPE", "None", ("unix", "Some(Unix)"), ("udp", "`tcp` or `unix`"), |s| part(&second(s), "socket: ")),
        case("REDIS_PERSECOND_TIMEOUT", "10s", ("1m30s", "90s"), ("10", "`10s` or `10ms`"), |s| part(&second(s), "connect_timeout: ")),
        case("REDIS_PERSECOND_TLS", "None", ("true", "Some(RedisTls { ca: None"), ("on", "`true` or `false`"), |s| part(&second(s), "tls: ")),
        case("CACHE_KEY_PREFIX", "\"\"", ("blue:", "\"blue:\""), None, |s| d(&s.keys.prefix)),
        case("KEY_FORMAT", "None", ("reference", "Some(Jitter(300))"), ("redis", "`tollgate` or `reference`"), |s| d(s.keys.reference)),
        case("EXPIRATION_JITTER_MAX_SECONDS", "Some(Jitter(300))", ("0", "Some(Jitter(0))"), ("-1", "seconds from 0"), |s| d(s.keys.reference)),
        case("LIMIT_HEADERS", "Ietf", ("none", "Hidden"), ("rfc", "`x-ratelimit` or `none`"), |s| d(&s.answers.headers.numbers)),
        case("RETRY_AFTER_JITTER", "Shown { jitter: 0ns }", ("2s", "Shown { jitter: 2s }"), ("-2s", "duration such as"), |s| d(s.answers.headers.retry_after)),
        case("LIMIT_RESPONSE_HEADERS_ENABLED", "Ietf", ("true", "RateLimit-Limit RateLimit-Remaining RateLimit-Reset"), ("on", "`true` or `false`"), names),
        case("LIMIT_LIMIT_HEADER", "RateLimit-Limit RateLimit-Remaining RateLimit-Reset", ("X_Limit", "X_Limit RateLimit-Remaining RateLimit-Reset"), ("a b", "header's name"), names),
        case("LIMIT_REMAINING_HEADER", "RateLimit-Limit RateLimit-Remaining RateLimit-Reset", ("left", "RateLimit-Limit left RateLimit-Reset"), ("a:b", "header's name"), names),
        case("LIMIT_RESET_HEADER", "RateLimit-Limit RateLimit-Remaining RateLimit-Reset", ("when", "RateLimit-Limit RateLimit-Remaining when"), ("ä", "header's name"), names),
        case("SHADOW_MODE", "false", ("true", "true"), ("on", "`true` or `false`"), |s| d(s.answers.shadow_mode)),
        case("QUOTA_MODE", "false", ("true", "true"), ("on", "`true` or `false`"), |s| d(s.answers.quota_mode)),
        case("RESPONSE_DYNAMIC_METADATA", "false", ("true", "true"), ("on", "`true` or `false`"), |s| d(s.answers.dynamic_metadata)),
        case("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", ("true", "true"), ("on", "`true` or `false`"), |s| d(s.answers.stop_counting)),
        case("USE_STATSD", "None", ("true", "Tcp localhost:8125 every 10s"), ("on", "`true` or `false`"), statsd),
        case("STATSD_HOST", "None", ("stats.example.org", "Tcp stats.example.org:8125 every 10s"), ("stats:8125", "without a port"), statsd),
        case("STATSD_PORT", "None", ("9125", "Tcp localhost:9125 every 10s"), ("statsd", "0 to 65535"), statsd),
        case("STATSD_PROTOCOL", "None", ("UDP", "Udp localhost:8125 every 10s"), ("quic", "`tcp` or `udp`"), statsd),
        case("USE_DOG_STATSD", "None", ("true", "Udp localhost:8125 every 10s dogstatsd"), ("woof", "`true` or `false`"), statsd),
        case("STATS_FLUSH_INTERVAL", "Tcp localhost:8125 every 10s", ("1s", "Tcp localhost:8125 every 1s"), ("0s", "longer than 0"), statsd),
        case("DISABLE_STATS", "Tcp localhost:8125 every 10s", ("true", "None"), ("off", "`true` or `false`"), statsd),
        case("USE_DOG_STATSD_MOGRIFIERS", "Udp localhost:8125 every 10s dogstatsd", ("KEYS", "Udp localhost:8125 every 10s dogstatsd mogrified"), None, statsd),
        case("EXTRA_TAGS", "[]", ("b:x.y,a:1,c:", r#"[("a", "1"), ("b", "x_y")]"#), ("env=prod", "`env:prod,zone:eu`"), |s| d(&s.stats.tags)),
        case("USE_PROMETHEUS", "None", ("true", "0.0.0.0:9090/metrics"), ("on", "`true` or `false`"), prometheus),
        case("PROMETHEUS_ADDR", "0.0.0.0:9090/metrics", ("[::1]:9", "[::1]:9/metrics"), ("9090", "`127.0.0.1:9090`"), prometheus),
        case("PROMETHEUS_PATH", "0.0.0.0:9090/metrics", ("/stats", "0.0.0.0:9090/stats"), ("stats", "such as `/metrics`"), prometheus),
        case("PROMETHEUS_MAPPER_YAML", "0.0.0.0:9090/metrics", ("m.yaml", "0.0.0.0:9090/metrics by m.yaml"), None, prometheus),
        case("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "0.0.0.0:9090/metrics", ("true", "0.0.0.0:9090/metrics ms"), ("ms", "`true` or `false`"), prometheus),
        case("NEAR_LIMIT_RATIO", "0.8", ("0.5", "0.5"), ("80", "from 0 to 1"), |s| d(s.stats.near_limit_ratio)),
        case("METRICS_SERIES_MAX", "10000", ("1", "1"), ("0", "from 1"), |s| d(s.stats.series_max)),
        case("TRACING_ENABLED", "false", ("true", "true"), ("on", "`true` or `false`"), |s| d(s.tracing.is_some())),
        case("TRACING_EXPORTER_PROTOCOL", "Http", ("gRPC", "Grpc"), ("thrift", "`http` or `grpc`"), |s| part(&tracing(s), "protocol: ")),
        case("TRACING_SERVICE_NAME", "\"RateLimit\"", ("limits", "\"limits\""), None, |s| part(&tracing(s), "service_name: ")),
        case("TRACING_SERVICE_NAMESPACE", "None", ("edge", "Some(\"edge\")"), None, |s| part(&tracing(s), "service_namespace: ")),
        case("TRACING_SERVICE_INSTANCE_ID", "None", ("pod-1", "Some(\"pod-1\")"), None, |s| part(&tracing(s), "service_instance: ")),
        case("TRACING_SAMPLING_RATE", "1.0", ("0.25", "0.25"), ("25", "from 0 to 1"), |s| part(&tracing(s), "ratio: ")),
        case("THREADS", "cores", ("3", "3"), ("1025", "`cores`"), |s| if s.threads == values::threads("cores").unwrap() { "cores".into() } else { d(s.threads) }),
        case("IN_FLIGHT_MAX", "16384", ("1", "1"), ("1e3", "from 1"), |s| d(s.in_flight_max)),
        case("SHUTDOWN_TIMEOUT", "10s", ("0", "0ns"), ("25h", "24h"), |s| d(s.shutdown_timeout)),
        case("LOG_LEVEL", "Info", ("WARNING", "Warn"), ("verbose", "trace, debug, info"), |s| d(s.log.level)),
        case("LOG_FORMAT", "Text", ("json", "Json"), ("xml", "`text` or `json`"), |s| d(s.log.format)),
    ]
}

/// Through the flags, as the command line does.
fn flags(args: &[String]) -> RawSettings {
    let command = RawSettings::augment_args(clap::Command::new("tollgate").no_binary_name(true));
    RawSettings::from_arg_matches(&command.try_get_matches_from(args).unwrap()).unwrap()
}

#[test]
fn every_setting_has_its_default_its_flag_and_an_error_that_helps() {
    for case in cases() {
        let row = table().iter().find(|row| row.name == case.name).unwrap();
        let compile = |raw: &RawSettings| Settings::compile(raw).unwrap_or_else(|error| panic!("{error}"));

        assert_eq!((case.look)(&compile(&beside(case.name))), case.default, "{}: default", case.name);
        let (value, seen) = case.given;
        assert_eq!((case.look)(&compile(&beside(case.name).with(case.name, value))), seen, "{}", case.name);
        let given = flags(&[format!("--{}={value}", row.flag)]);
        assert_eq!(
            format!("{given:?}"),
            format!("{:?}", RawSettings::default().with(case.name, value)),
            "--{}",
            row.flag
        );
        // Charts write an empty text for "not set".
        if !case.name.ends_with("_CLIENT_TLS_CERT")
            && !case.name.ends_with("_CLIENT_TLS_KEY")
            && !["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"].contains(&case.name)
            && !["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_PERSECOND_URL"].contains(&case.name)
        {
            assert_eq!(
                (case.look)(&compile(&beside(case.name).with(case.name, ""))),
                case.default,
                "{}=",
                case.name
            );
        }
        if let Some((value, words)) = case.wrong {
            let error = Settings::compile(&beside(case.name).with(case.name, value)).unwrap_err();
            let line = error.to_string();
            assert!(!line.contains('\n'), "{line}");
            for part in [case.name, &format!("--{}", row.flag), &format!("`{value}`"), words] {
                assert!(line.contains(part), "{line:?} does not contain {part:?}");
            }
        }
    }
}

#[test]
fn the_table_of_this_test_and_that_of_the_settings_name_the_same() {
    let tested: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
    let known: BTreeSet<&str> = table().iter().map(|row| row.name).collect();
    assert_eq!(tested, known);
    assert_eq!(known.len(), table().len(), "a name stands twice");
    let flags: BTreeSet<&str> = table().iter().map(|row| row.flag).collect();
    assert_eq!(flags.len(), table().len(), "a flag stands twice");
}

#[test]
fn a_wrong_variable_ends_with_64_and_one_line_before_any_port_is_bound() {
    for case in cases() {
        let Some((value, words)) = case.wrong else { continue };
        let out = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("serve")
            .env_clear()
            .env(case.name, value)
            .output()
            .unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(64), "{}={value}: {said}", case.name);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(case.name) && said.contains(words), "{said}");
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn a_flag_wins_over_its_variable_and_a_switch_needs_no_value() {
    let compiled = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Settings::compile(&flags(&args)).unwrap()
    };
    assert!(compiled(&["--shadow-mode"]).answers.shadow_mode);
    assert!(!compiled(&["--shadow-mode=false"]).answers.shadow_mode);
    assert_eq!(compiled(&["--grpc-port", "1"]).listen.grpc.to_string(), "0.0.0.0:1");

    let out = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--grpc-port", "flag"])
        .env("GRPC_PORT", "variable")
        .output()
        .unwrap();
    assert!(String::from_utf8(out.stderr).unwrap().contains("`flag`"));
}

#[test]
fn headers_follow_our_switch_then_the_references_then_the_mode() {
    let shown = RetryAfter::Shown { jitter: std::time::Duration::ZERO };
    let triple = |names: [&str; 3], reset| Numbers::Triple { names: names.map(str::to_owned), reset };
    let draft = || triple(["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"], Reset::Delta);
    let github = || triple(["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"], Reset::Epoch);
    type Given = [(&'static str, &'static str)];
    let cases: [(&Given, Numbers, RetryAfter); 11] = [
        (&[], Numbers::Ietf, shown),
        (&[("LIMIT_HEADERS", "draft-03")], draft(), shown),
        (&[("LIMIT_HEADERS", "X-RateLimit")], github(), shown),
        (&[("LIMIT_HEADERS", "none")], Numbers::Hidden, RetryAfter::Hidden),
        (&[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")], draft(), shown),
        (&[("LIMIT_RESPONSE_HEADERS_ENABLED", "false")], Numbers::Hidden, shown),
        (&[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_HEADERS", "ietf")], Numbers::Ietf, shown),
        (&[("TOLLGATE_COMPAT", "reference")], Numbers::Hidden, RetryAfter::Hidden),
        (
            &[("TOLLGATE_COMPAT", "reference"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
            draft(),
            RetryAfter::Hidden,
        ),
        (&[("TOLLGATE_COMPAT", "reference"), ("LIMIT_HEADERS", "ietf")], Numbers::Ietf, shown),
        (&[("LIMIT_HEADERS", "ietf"), ("LIMIT_LIMIT_HEADER", "unused")], Numbers::Ietf, shown),
    ];
    for (given, numbers, retry_after) in cases {
        let raw = given.iter().fold(RawSettings::default(), |raw, (name, value)| raw.with(name, *value));
        let headers = Settings::compile(&raw).unwrap().answers.headers;
        assert_eq!(headers, Headers { numbers, retry_after }, "{given:?}");
    }
}

#[test]
fn the_store_is_redis_as_soon_as_there_is_an_address() {
    let compile = |given: &[(&str, &str)]| {
        let raw = given.iter().fold(RawSettings::default(), |raw, (name, value)| raw.with(name, *value));
        Settings::compile(&raw)
    };
    let is_redis = |given: &[(&str, &str)]| matches!(compile(given).unwrap().backend, Backend::Redis(_));
    assert!(!is_redis(&[]));
    assert!(is_redis(&[("REDIS_URL", "redis:6379")]));
    assert!(is_redis(&[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "redis")]));
    assert!(!is_redis(&[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memory")]));
    let error = compile(&[("BACKEND_TYPE", "redis")]).unwrap_err().to_string();
    assert!(error.contains("REDIS_URL") && error.contains("localhost:6379"), "{error}");
    let second = [("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "redis:6380")];
    let error = compile(&second).unwrap_err().to_string();
    assert!(error.starts_with("REDIS_URL") && error.contains("the other limits"), "{error}");
    for half in ["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"] {
        assert!(compile(&[(half, "x.pem")]).unwrap_err().to_string().contains("needs its"), "{half}");
    }
}

#[test]
fn passwords_are_shown_nowhere() {
    let raw = RawSettings::default().with("REDIS_URL", "redis://u:geheim@r").with("REDIS_AUTH", "u:geheim");
    assert!(!format!("{raw:?}").contains("geheim"));
    assert!(!format!("{:?}", Settings::compile(&raw).unwrap()).contains("geheim"));
    let secrets: Vec<&str> =
        table().iter().filter(|row| row.kind == Kind::Secret).map(|row| row.name).collect();
    assert_eq!(
        secrets,
        [
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "REDIS_URL",
            "REDIS_AUTH",
            "REDIS_SENTINEL_AUTH",
            "REDIS_PERSECOND_URL",
            "REDIS_PERSECOND_AUTH",
            "REDIS_PERSECOND_SENTINEL_AUTH",
        ]
    );

    let out = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--help"])
        .env("REDIS_AUTH", "geheim")
        .env("REDIS_URL", "redis://u:geheim@r")
        .output()
        .unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    assert!(help.contains("REDIS_AUTH") && !help.contains("geheim"));
}

#[test]
fn headers_for_the_management_server_are_right_or_refused_and_never_shown() {
    const NAME: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let compile = |text| Settings::compile(&RawSettings::default().with(NAME, text));
    for wrong in
        ["geheim", ":geheim", "a:b,geheim", "a b:geheim", "grpc-timeout:geheim", "x-bin:geheim", "x:gehe\tim"]
    {
        let line = compile(wrong).unwrap_err().to_string();
        assert!(line.contains(NAME) && !line.contains("geheim") && !line.contains("tim"), "{wrong}: {line}");
    }
    let given = RawSettings::default().with(NAME, "X-A: geheim:1 ,x-b:").with("CONFIG_TYPE", "GRPC_XDS_SOTW");
    let settings = Settings::compile(&given).unwrap();
    assert!(!d(&settings).contains("geheim"));
    let Source::Xds(xds) = settings.rules.source else { panic!("it is xDS") };
    let headers: Vec<_> = xds.headers.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(headers, [("x-a", "geheim:1"), ("x-b", "")]);
}

#[test]
fn a_certificate_for_the_management_server_needs_its_key() {
    for half in ["CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"] {
        let error = Settings::compile(&RawSettings::default().with(half, "x.pem")).unwrap_err();
        assert!(error.to_string().contains("needs its"), "{half}");
    }
}

#[test]
fn tls_for_clients_needs_a_certificate_with_its_key_and_a_clients_name_an_authority() {
    let given =
        [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", "c"), ("GRPC_SERVER_TLS_KEY", "k")];
    let of = |given: &[(&str, &str)]| {
        let raw = given.iter().fold(RawSettings::default(), |raw, (name, value)| raw.with(name, *value));
        Settings::compile(&raw).map_err(|error| error.to_string())
    };
    let named = [&given[..], &[("GRPC_CLIENT_TLS_SAN", "n")]].concat();
    for (given, missing) in [
        (&given[..1], "GRPC_SERVER_TLS_CERT"),
        (&given[..2], "GRPC_SERVER_TLS_KEY"),
        (&*named, "GRPC_CLIENT_TLS_CACERT"),
    ] {
        let line = of(given).unwrap_err();
        assert!(line.contains(missing), "{line}");
    }
    // Charts leave paths in place when TLS is switched off.
    assert!(of(&named[1..]).unwrap().listen.grpc_tls.is_none());
}

#[test]
fn durations_and_booleans_are_those_of_go() {
    use std::time::Duration;
    for (text, nanos) in [
        ("0", 0),
        ("0s", 0),
        ("10s", 10_000_000_000),
        ("5ms", 5_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("1us", 1_000),
        ("1\u{b5}s", 1_000),
        ("1\u{3bc}s", 1_000),
        ("7ns", 7),
        ("0.3ns", 0),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006),
        ("24h", 86_400_000_000_000),
    ] {
        assert_eq!(values::duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
    }
    let wrong = [
        "",
        "s",
        "10",
        "-1s",
        "+1s",
        "1 s",
        "1d",
        "1S",
        ".s",
        ".",
        "1..5s",
        "1e3s",
        "24h1ns",
        "10s5",
        "99999999999999999999h",
        "0.0000000000000000001s",
    ];
    for text in wrong {
        assert!(values::duration(text).is_err(), "{text}");
    }
    for (text, value) in
        [("1", true), ("T", true), ("True", true), ("0", false), ("f", false), ("FALSE", false)]
    {
        assert_eq!(values::boolean(text), Ok(value));
    }
    for text in ["yes", "on", "tRUE", "", "2"] {
        assert!(values::boolean(text).is_err(), "{text}");
    }
}

#[test]
fn a_rediss_address_takes_its_authorities_and_certificates_without_redis_tls() {
    let tls = |url: &str| {
        let raw = RawSettings::default()
            .with("REDIS_URL", url)
            .with("REDIS_TLS_CACERT", "ca.pem")
            .with("REDIS_TLS_CLIENT_CERT", "c.pem")
            .with("REDIS_TLS_CLIENT_KEY", "k.pem")
            .with("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
        let seen = redis(&Settings::compile(&raw).unwrap());
        ["ca.pem", "c.pem", "k.pem", "skip_hostname: true"].iter().all(|part| seen.contains(part))
    };
    assert!(tls("rediss://h:1") && tls("REDISS://h:1"));
    assert!(!tls("redis://h:1"));
}

/// The reference's variables and their defaults there.
fn of_the_reference() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("fixtures/reference.env").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once('=').unwrap()).collect()
}

#[test]
fn a_misspelt_variable_is_told_with_the_name_that_was_meant() {
    let names = [
        "TOLLGATE_RULE",
        "TOLLGATE_REDIS_URL",
        "TOLLGATE_COLOUR",
        "TOLLGATE_REDIS_ULR",
        "REDIS_ULR",
        "LIMIT_HEADER",
        "GRPCPORT",
        // Settings, other people's, and what Kubernetes sets beside a service of our name.
        "TOLLGATE_RULES",
        "REDIS_URL",
        "REDIS_POOL_SIZE",
        "PATH",
        "HOSTS",
        "REDIS_HOST",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "TOLLGATE_PORT",
        "TOLLGATE_SERVICE_HOST",
        "TOLLGATE_SERVICE_PORT_GRPC",
        "TOLLGATE_PORT_8081_TCP",
        "TOLLGATE_GRPC_PORT_8081_TCP_ADDR",
        "TOLLGATE_GRPC_PORT",
        "REDIS_URLS_PORT_6379_TCP",
    ];
    assert_eq!(
        told(&strange(names)),
        "GRPCPORT (did you mean GRPC_PORT?), LIMIT_HEADER (did you mean LIMIT_HEADERS?), \
         REDIS_ULR (did you mean REDIS_URL?), TOLLGATE_COLOUR, TOLLGATE_REDIS_ULR (did you mean REDIS_URL?), \
         TOLLGATE_REDIS_URL (did you mean REDIS_URL?), TOLLGATE_RULE (did you mean TOLLGATE_RULES?)"
    );
    for row in table() {
        assert_eq!(strange([row.name]), [], "{}", row.name);
    }
    for (name, _) in of_the_reference() {
        assert_eq!(strange([name]), [], "{name}");
    }
}

#[test]
fn permissions_of_a_socket_that_is_not_there_are_told() {
    let idle = |raw: RawSettings| Settings::compile(&raw).unwrap().idle;
    let mode = RawSettings::default().with("GRPC_UDS_MODE", "660");
    assert!(matches!(idle(mode.clone())[..], [line] if line.contains("set GRPC_UDS, or take it away")));
    assert_eq!(idle(mode.with("GRPC_UDS", "/run/grpc.sock")), [""; 0]);
}

#[test]
fn each_variable_of_the_reference_is_a_setting_or_is_told_with_the_reason() {
    let set = [
        ("REDIS_STARTUP_MAX_INTERVAL", "30s"),
        ("REDIS_POOL_SIZE", "5"),
        ("MEMCACHE_HOST_PORT", ""),
        ("PATH", "/bin"),
        ("REDIS_PERSECOND_PIPELINE_WINDOW", "150us"),
        ("GRPC_PORT", "1"),
    ];
    assert_eq!(
        shown(&ignored(set)),
        "REDIS_PERSECOND_PIPELINE_WINDOW, REDIS_POOL_SIZE (a few connections carry calls that batch themselves); \
         REDIS_STARTUP_MAX_INTERVAL (it starts without its store, and has it as soon as it is there)"
    );
    for (name, _) in of_the_reference() {
        let is_setting = table().iter().any(|row| row.name == name);
        assert_eq!(ignored([(name, "x")]).len(), usize::from(!is_setting), "{name}");
    }
}

#[test]
fn a_deployment_that_sets_each_of_them_to_its_default_there_starts() {
    let ours = of_the_reference().into_iter().filter(|(name, _)| table().iter().any(|row| row.name == *name));
    let raw = ours.fold(RawSettings::default(), |raw, (name, default)| raw.with(name, default));
    let settings = Settings::compile(&raw).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (settings.log.level, settings.listen.grpc.to_string()),
        (Level::Warn, "0.0.0.0:8081".to_owned())
    );
}

#[test]
fn statsd_is_spoken_to_by_default_in_compat_only_and_in_one_dialect() {
    let compiled = |given: &[(&str, &str)]| {
        let raw = given.iter().fold(RawSettings::default(), |raw, (name, value)| raw.with(name, *value));
        Settings::compile(&raw)
    };
    let compat = ("TOLLGATE_COMPAT", "reference");
    for (given, wanted) in [
        (&[][..], false),
        (&[compat], true),
        (&[compat, ("USE_STATSD", "false")], false),
        (&[compat, ("USE_PROMETHEUS", "true")], false),
        (&[compat, ("USE_DOG_STATSD", "true")], true),
        (&[("STATSD_HOST", "h")], true),
        (&[("STATSD_HOST", "h"), ("USE_STATSD", "false")], false),
        (&[("USE_STATSD", "true"), ("USE_PROMETHEUS", "true")], true),
    ] {
        assert_eq!(compiled(given).unwrap().stats.statsd.is_some(), wanted, "{given:?}");
    }
    let both = compiled(&[("USE_STATSD", "true"), ("USE_DOG_STATSD", "true")]).unwrap_err();
    assert!(
        both.to_string().contains("USE_DOG_STATSD") && both.to_string().contains("USE_STATSD=true"),
        "{both}"
    );
}

#[test]
fn compat_brings_back_the_references_time_for_its_store_and_its_debug_port() {
    let compat = RawSettings::default().with("TOLLGATE_COMPAT", "reference");
    let of = |raw: &RawSettings| {
        let settings = Settings::compile(raw).unwrap();
        (settings.store.timeout.as_millis(), settings.listen.debug.to_string())
    };
    assert_eq!(of(&RawSettings::default()), (5, "127.0.0.1:6070".to_owned()));
    assert_eq!(of(&compat), (10_000, "0.0.0.0:6070".to_owned()));
    let given = compat.with("REDIS_TIMEOUT", "3s").with("DEBUG_HOST", "::1");
    assert_eq!(of(&given), (3_000, "[::1]:6070".to_owned()));
    assert_eq!(of(&given.with("STORE_TIMEOUT", "7ms")).0, 7);
}

#[test]
fn mogrifiers_are_whole_or_refused() {
    let listed = |given: &[(&str, &str)]| {
        let raw = RawSettings::default().with("USE_DOG_STATSD", "1").with("USE_DOG_STATSD_MOGRIFIERS", "A");
        let name = |end: &str| format!("DOG_STATSD_MOGRIFIER_A_{end}");
        Settings::compile(&given.iter().fold(raw, |raw, (end, text)| raw.with_listed(&name(end), *text)))
    };
    let whole = [("PATTERN", "^(.*)$"), ("NAME", "n"), ("TAGS", "all:$1,b:c")];
    let settings = listed(&whole).unwrap();
    let (name, tags) = settings.stats.statsd.unwrap().mogrifiers[0].apply("x").unwrap();
    assert_eq!((name.as_str(), d(tags).as_str()), ("n", r#"[("all", "x"), ("b", "c")]"#));
    for (given, words) in [
        (&whole[..1], "DOG_STATSD_MOGRIFIER_A_NAME has to be set"),
        (&whole[1..], "DOG_STATSD_MOGRIFIER_A_PATTERN has to be set"),
        (&[("PATTERN", "("), ("NAME", "n")], "unclosed group"),
        (&[("PATTERN", "a"), ("NAME", "n"), ("TAGS", "a")], "DOG_STATSD_MOGRIFIER_A_TAGS as"),
    ] {
        let error = listed(given).unwrap_err().to_string();
        assert!(error.starts_with("USE_DOG_STATSD_MOGRIFIERS") && error.contains(words), "{error}");
    }
}
