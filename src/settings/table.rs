//! All settings, one row each.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it is about.
    pub group: Group,
    /// The variable in the environment.
    pub name: &'static str,
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// What stands for the value in the help.
    pub value: &'static str,
    /// How its value is written.
    pub kind: Kind,
    /// What holds when it is not given.
    pub default: Initial,
    /// What it does, and why the default is what it is.
    pub why: &'static str,
}

/// What a setting is about; the order is the help's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Group {
    Rules,
    Xds,
    Ports,
    Store,
    Redis,
    Answers,
    Metrics,
    Tracing,
    Running,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it stands.
    Text,
    /// A boolean; the flag alone means true.
    Switch,
    /// As it stands, and never shown.
    Secret,
}

/// What holds when a setting is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// As if this had been given.
    Text(&'static str),
    /// It follows from others; in words.
    Derived(&'static str),
    /// Nothing.
    Unset,
}

impl Group {
    /// As a heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Rules => "Rules",
            Self::Xds => "Rules from a management server",
            Self::Ports => "Ports",
            Self::Store => "Store",
            Self::Redis => "Redis",
            Self::Answers => "Answers",
            Self::Metrics => "Metrics",
            Self::Tracing => "Tracing",
            Self::Running => "Running",
        }
    }
}

impl Initial {
    /// As the help and the README show it.
    pub fn shown(self) -> &'static str {
        match self {
            Self::Text(text) | Self::Derived(text) => text,
            Self::Unset => "",
        }
    }
}

/// All settings in the order of the help.
pub fn table() -> &'static [Row] {
    TABLE
}

/// The row of a variable.
///
/// # Panics
/// When there is none: names are written in this crate only.
pub(super) fn row(name: &str) -> &'static Row {
    TABLE.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no setting is called {name}"))
}

const fn text(
    group: Group,
    name: &'static str,
    flag: &'static str,
    value: &'static str,
    default: Initial,
    why: &'static str,
) -> Row {
    Row { group, name, flag, value, kind: Kind::Text, default, why }
}

const fn switch(
    group: Group,
    name: &'static str,
    flag: &'static str,
    default: Initial,
    why: &'static str,
) -> Row {
    Row { group, name, flag, value: "BOOL", kind: Kind::Switch, default, why }
}

const fn secret(
    group: Group,
    name: &'static str,
    flag: &'static str,
    value: &'static str,
    why: &'static str,
) -> Row {
    Row { group, name, flag, value, kind: Kind::Secret, default: Initial::Unset, why }
}

use Group::{Answers, Metrics, Ports, Redis, Rules, Running, Store, Tracing, Xds};
use Initial::{Derived, Text, Unset};

#[rustfmt::skip]
const TABLE: &[Row] = &[
    text(Rules, "TOLLGATE_RULES", "rules", "DIR", Text("rules"),
        "the directory of the rule files; wins over the three RUNTIME_ paths"),
    text(Rules, "RUNTIME_ROOT", "runtime-root", "DIR", Unset,
        "the reference's: rules are in ROOT/SUBDIRECTORY/APPDIRECTORY; any of them may be a switched link"),
    text(Rules, "RUNTIME_SUBDIRECTORY", "runtime-subdirectory", "DIR", Unset,
        "the reference's: the second part of that path"),
    text(Rules, "RUNTIME_APPDIRECTORY", "runtime-appdirectory", "DIR", Text("config"),
        "the reference's: the last part of that path"),
    switch(Rules, "RUNTIME_IGNOREDOTFILES", "runtime-ignoredotfiles", Derived("true; false in compat"),
        "pass over names that begin with a dot: swap files, ..data; without compat they are never rules"),
    switch(Rules, "RUNTIME_WATCH_ROOT", "runtime-watch-root", Text("true"),
        "accepted for the reference's sake; a switched link and files changed in place are both watched always"),
    text(Rules, "RULES_POLL", "rules-poll", "DURATION", Text("5s"),
        "how often the files are looked at without an event: network disks tell of no change"),
    switch(Rules, "MERGE_DOMAIN_CONFIG", "merge-domain-config", Text("false"),
        "let several files name one domain; off, since two teams that use one name rarely mean to"),
    switch(Rules, "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "healthy-with-at-least-one-config-loaded", Text("false"),
        "health says NOT_SERVING while there is no domain; off, since a directory may be meant to be empty"),
    switch(Rules, "FORCE_START_WITHOUT_INITIAL_CONFIG", "force-start-without-initial-config", Text("false"),
        "let health say SERVING before the first rules; off, since requests get UNAVAILABLE until then"),
    text(Rules, "TOLLGATE_COMPAT", "compat", "none|reference", Text("none"),
        "`reference` restores each answer of envoyproxy/ratelimit that is deliberately different here"),

    text(Xds, "CONFIG_TYPE", "config-type", "FILE|GRPC_XDS_SOTW", Text("FILE"),
        "where rules come from: files, or a management server such as Envoy Gateway's"),
    text(Xds, "CONFIG_GRPC_XDS_SERVER_URL", "config-grpc-xds-server-url", "HOST:PORT", Text("localhost:18000"),
        "the management server"),
    text(Xds, "CONFIG_GRPC_XDS_NODE_ID", "config-grpc-xds-node-id", "TEXT", Text("default"),
        "by which the server chooses what it serves"),
    text(Xds, "CONFIG_GRPC_XDS_NODE_METADATA", "config-grpc-xds-node-metadata", "K=V,...", Unset,
        "what the server is told about this process besides"),
    secret(Xds, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "config-grpc-xds-client-additional-headers", "NAME:VALUE,...",
        "headers of the stream, such as a token"),
    switch(Xds, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "config-grpc-xds-server-use-tls", Text("false"), "speak TLS"),
    text(Xds, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "config-grpc-xds-server-tls-cacert", "FILE", Derived("the system's"),
        "PEM file of authorities to trust; this file and the next two are read again for each connection"),
    text(Xds, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "config-grpc-xds-client-tls-cert", "FILE", Unset,
        "PEM file of a certificate to show; needs its key"),
    text(Xds, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "config-grpc-xds-client-tls-key", "FILE", Unset,
        "PEM file of that certificate's key"),
    text(Xds, "CONFIG_GRPC_XDS_SERVER_TLS_SAN", "config-grpc-xds-server-tls-san", "NAME", Derived("the address's host"),
        "the name that the server's certificate must have"),
    text(Xds, "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "config-grpc-xds-server-connect-retry-interval", "DURATION",
        Text("3s"), "the wait after a connection that could not be made; it doubles each time"),
    text(Xds, "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "xds-client-backoff-initial-interval", "DURATION", Text("10s"),
        "the wait after a stream that ended; it doubles each time, and the last good rules serve meanwhile"),
    text(Xds, "XDS_CLIENT_BACKOFF_MAX_INTERVAL", "xds-client-backoff-max-interval", "DURATION", Text("60s"),
        "the longest wait of both kinds"),
    text(Xds, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "xds-client-backoff-random-factor", "NUMBER", Text("0.5"),
        "up to 1: the part of each wait that is left to chance; above 1: what waits grow by, instead of 2"),
    switch(Xds, "XDS_CLIENT_BACKOFF_JITTER", "xds-client-backoff-jitter", Text("true"),
        "leave a part of each wait to chance, so that clients do not return together"),
    text(Xds, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "xds-client-max-msg-size-in-bytes", "BYTES", Text("0"),
        "the largest response that is read; 0 is 64 MiB, as the largest rule file (the reference: 4 MiB)"),

    text(Ports, "GRPC_HOST", "grpc-host", "IP", Text("0.0.0.0"), "where gRPC listens: Envoys come from other hosts"),
    text(Ports, "GRPC_PORT", "grpc-port", "PORT", Text("8081"), "gRPC; 0 is any free port, which the log names"),
    text(Ports, "GRPC_UDS", "grpc-uds", "PATH", Unset,
        "gRPC on a Unix socket instead of the port; `@name` is one without a file"),
    text(Ports, "GRPC_UDS_MODE", "grpc-uds-mode", "MODE", Derived("what the umask leaves"),
        "permissions of that socket, such as `666` for an Envoy that runs as another user"),
    switch(Ports, "GRPC_SERVER_USE_TLS", "grpc-server-use-tls", Text("false"),
        "speak TLS on the gRPC port, and nothing else; TLS 1.2 and 1.3"),
    text(Ports, "GRPC_SERVER_TLS_CERT", "grpc-server-tls-cert", "FILE", Unset,
        "PEM file of our certificate, with those between it and its authority; this file, its key and the authorities are read again when they change"),
    text(Ports, "GRPC_SERVER_TLS_KEY", "grpc-server-tls-key", "FILE", Unset,
        "PEM file of that certificate's key"),
    text(Ports, "GRPC_CLIENT_TLS_CACERT", "grpc-client-tls-cacert", "FILE", Unset,
        "PEM file of authorities; clients must show a certificate that one of them signed"),
    text(Ports, "GRPC_CLIENT_TLS_SAN", "grpc-client-tls-san", "NAME", Unset,
        "the name that a client's certificate must have besides"),
    text(Ports, "GRPC_MAX_CONNECTION_AGE", "grpc-max-connection-age", "DURATION", Text("24h"),
        "how old a connection becomes before its client is told to open another, give or take a tenth; 0 is without end"),
    text(Ports, "GRPC_MAX_CONNECTION_AGE_GRACE", "grpc-max-connection-age-grace", "DURATION", Text("1h"),
        "how long what is in flight on it has from then on, health watches too; then it is cut; 0 is without end"),
    text(Ports, "HOST", "host", "IP", Text("0.0.0.0"), "where HTTP listens: probes come from other hosts"),
    text(Ports, "PORT", "port", "PORT", Text("8080"), "HTTP: /healthcheck, /ready, /metrics, /json"),
    text(Ports, "DEBUG_HOST", "debug-host", "IP", Derived("127.0.0.1; 0.0.0.0 in compat"),
        "where the debug port listens; only this host, since it shows the rules (the reference: all)"),
    text(Ports, "DEBUG_PORT", "debug-port", "PORT", Text("6070"), "HTTP: /rlconfig, /rules, /stats"),

    text(Store, "BACKEND_TYPE", "backend-type", "memory|redis", Derived("redis when REDIS_URL is set, else memory"),
        "where budgets are kept; several Tollgates share them only through Redis"),
    text(Store, "MEMORY_KEYS_MAX", "memory-keys-max", "N", Text("1000000"),
        "the most counters in memory, about 90 MB of them; the one nearest to full makes room"),
    text(Store, "STORE_TIMEOUT", "store-timeout", "DURATION", Derived("5ms; REDIS_TIMEOUT in compat"),
        "a call that takes longer has failed; Envoy itself gives up after 20 ms"),
    text(Store, "ON_STORE_FAILURE", "on-store-failure", "error|allow|deny|local", Text("error"),
        "for rules that do not say it; `error` lets Envoy's own failure mode decide"),
    text(Store, "FLEET_SIZE", "fleet-size", "N", Text("4"),
        "while the store is lost, `local` grants a limit divided by this: how many Tollgates there are, at most"),
    text(Store, "LOCAL_CACHE_SIZE_IN_BYTES", "local-cache-size-in-bytes", "BYTES", Derived("16 MiB; 0 in compat"),
        "what is known to be over is refused here, without asking Redis again for up to a second; 0 asks always"),
    text(Store, "LEASE_ABOVE", "lease-above", "N", Text("0"),
        "keys of more requests a second in one process are leased as if their rule said so; 0, since what is left is told less exactly then"),

    secret(Redis, "REDIS_URL", "redis-url", "ADDRESS",
        "`host:port`, `redis://…`, `rediss://…` or a socket's path; for a cluster `host:port,…` or `redis-cluster://…`, for sentinels `name,host:port,…` or `redis-sentinel://…`"),
    text(Redis, "REDIS_TYPE", "redis-type", "single|cluster|sentinel", Derived("what the address says, else what the server is"),
        "`single` is one server, or a proxy that looks like one, even where it is of a cluster"),
    secret(Redis, "REDIS_AUTH", "redis-auth", "SECRET", "`password` or `user:password`"),
    text(Redis, "REDIS_AUTH_FILE", "redis-auth-file", "FILE", Unset,
        "a file with the same, read again for each connection: a new password needs no restart"),
    secret(Redis, "REDIS_SENTINEL_AUTH", "redis-sentinel-auth", "SECRET",
        "`password` or `user:password` of the sentinels, which is not that of Redis"),
    text(Redis, "REDIS_SENTINEL_AUTH_FILE", "redis-sentinel-auth-file", "FILE", Unset, "a file with the same"),
    text(Redis, "REDIS_SOCKET_TYPE", "redis-socket-type", "tcp|unix", Derived("unix for a path, else tcp"),
        "what the address is"),
    text(Redis, "REDIS_TIMEOUT", "redis-timeout", "DURATION", Text("10s"),
        "how long connecting may take, TLS and authentication included; calls have STORE_TIMEOUT"),
    switch(Redis, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "redis-health-check-active-connection", Text("false"),
        "let health follow the connection; off, since failure modes answer without it"),
    switch(Redis, "REDIS_TLS", "redis-tls", Text("false"), "speak TLS, also to sentinels"),
    text(Redis, "REDIS_TLS_CACERT", "redis-tls-cacert", "FILE", Derived("the system's"),
        "PEM file of authorities to trust; this file and the next two are read again for each connection"),
    text(Redis, "REDIS_TLS_CLIENT_CERT", "redis-tls-client-cert", "FILE", Unset,
        "PEM file of a certificate to show; needs its key"),
    text(Redis, "REDIS_TLS_CLIENT_KEY", "redis-tls-client-key", "FILE", Unset, "PEM file of that certificate's key"),
    switch(Redis, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "redis-tls-skip-hostname-verification", Text("false"),
        "accept a certificate for any name"),
    text(Redis, "REDIS_TLS_SERVER_NAME", "redis-tls-server-name", "NAME", Derived("the host that is dialled"),
        "the name that the certificates of all its servers must have, for clusters that announce addresses"),
    switch(Redis, "REDIS_PERSECOND", "redis-persecond", Text("false"),
        "keep limits of a second and less in another Redis; a request that spends from both is all or nothing even so"),
    secret(Redis, "REDIS_PERSECOND_URL", "redis-persecond-url", "ADDRESS", "as REDIS_URL, of that other one"),
    text(Redis, "REDIS_PERSECOND_TYPE", "redis-persecond-type", "single|cluster|sentinel",
        Derived("what the address says, else what the server is"), "as REDIS_TYPE"),
    secret(Redis, "REDIS_PERSECOND_AUTH", "redis-persecond-auth", "SECRET", "as REDIS_AUTH"),
    text(Redis, "REDIS_PERSECOND_AUTH_FILE", "redis-persecond-auth-file", "FILE", Unset, "as REDIS_AUTH_FILE"),
    secret(Redis, "REDIS_PERSECOND_SENTINEL_AUTH", "redis-persecond-sentinel-auth", "SECRET", "as REDIS_SENTINEL_AUTH"),
    text(Redis, "REDIS_PERSECOND_SENTINEL_AUTH_FILE", "redis-persecond-sentinel-auth-file", "FILE", Unset,
        "as REDIS_SENTINEL_AUTH_FILE"),
    text(Redis, "REDIS_PERSECOND_SOCKET_TYPE", "redis-persecond-socket-type", "tcp|unix",
        Derived("unix for a path, else tcp"), "as REDIS_SOCKET_TYPE"),
    text(Redis, "REDIS_PERSECOND_TIMEOUT", "redis-persecond-timeout", "DURATION", Text("10s"), "as REDIS_TIMEOUT"),
    switch(Redis, "REDIS_PERSECOND_TLS", "redis-persecond-tls", Text("false"),
        "as REDIS_TLS; the files of both are the same"),
    text(Redis, "CACHE_KEY_PREFIX", "cache-key-prefix", "TEXT", Unset, "stands before every key"),
    text(Redis, "KEY_FORMAT", "key-format", "tollgate|reference", Text("tollgate"),
        "`reference` keeps fixed windows under the reference's keys, so that both share them during an upgrade"),
    text(Redis, "EXPIRATION_JITTER_MAX_SECONDS", "expiration-jitter-max-seconds", "N", Text("300"),
        "with KEY_FORMAT=reference: counters expire spread over so many seconds, as there"),

    text(Answers, "LIMIT_HEADERS", "limit-headers", "ietf|draft-03|x-ratelimit|none",
        Derived("ietf; draft-03 with LIMIT_RESPONSE_HEADERS_ENABLED; none in compat"),
        "which headers tell clients their limit; `none` sends none at all"),
    text(Answers, "RETRY_AFTER_JITTER", "retry-after-jitter", "DURATION", Text("0s"),
        "up to so much is added to Retry-After, so that refused clients do not return together"),
    switch(Answers, "LIMIT_RESPONSE_HEADERS_ENABLED", "limit-response-headers-enabled", Unset,
        "the reference's switch for its three headers; LIMIT_HEADERS wins over it"),
    text(Answers, "LIMIT_LIMIT_HEADER", "limit-limit-header", "NAME", Text("RateLimit-Limit"),
        "draft-03: the name of the header with the limit"),
    text(Answers, "LIMIT_REMAINING_HEADER", "limit-remaining-header", "NAME", Text("RateLimit-Remaining"),
        "draft-03: the name of the header with what is left"),
    text(Answers, "LIMIT_RESET_HEADER", "limit-reset-header", "NAME", Text("RateLimit-Reset"),
        "draft-03: the name of the header with the seconds until the limit is whole"),
    switch(Answers, "SHADOW_MODE", "shadow-mode", Text("false"),
        "answer OK always, and count: for a first day in production"),
    switch(Answers, "QUOTA_MODE", "quota-mode", Text("false"),
        "make every rule a quota: a request is refused when all of its limits are over"),
    switch(Answers, "RESPONSE_DYNAMIC_METADATA", "response-dynamic-metadata", Text("false"),
        "repeat what was asked, with the `metadata` of rules, in the answer, for Envoy's access log"),
    switch(Answers, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "stop-cache-key-increment-when-overlimit", Text("false"),
        "in compat: a refused request leaves the limits alone that would have let it pass; else it always does"),

    switch(Metrics, "USE_STATSD", "use-statsd",
        Derived("true where a STATSD_ variable is set, and in compat; else false"),
        "send metrics under the reference's names to statsd"),
    text(Metrics, "STATSD_HOST", "statsd-host", "HOST", Text("localhost"), "where statsd is"),
    text(Metrics, "STATSD_PORT", "statsd-port", "PORT", Text("8125"), "statsd's port"),
    text(Metrics, "STATSD_PROTOCOL", "statsd-protocol", "tcp|udp", Text("tcp"),
        "how to get there; tcp is the reference's default, and loses nothing"),
    switch(Metrics, "USE_DOG_STATSD", "use-dog-statsd", Text("false"),
        "send them as dogstatsd, over UDP, with its tags"),
    text(Metrics, "USE_DOG_STATSD_MOGRIFIERS", "use-dog-statsd-mogrifiers", "NAME,...", Unset,
        "names of DOG_STATSD_MOGRIFIER_<name>_PATTERN, _NAME and _TAGS, which make tags of parts of names"),
    text(Metrics, "EXTRA_TAGS", "extra-tags", "NAME:VALUE,...", Unset,
        "tags of all metrics under the reference's names"),
    text(Metrics, "STATS_FLUSH_INTERVAL", "stats-flush-interval", "DURATION", Text("10s"),
        "how often statsd is told; what it did not take is kept for the next time"),
    switch(Metrics, "DISABLE_STATS", "disable-stats", Text("false"),
        "no metrics under the reference's names, whatever the other settings say"),
    switch(Metrics, "USE_PROMETHEUS", "use-prometheus", Text("false"),
        "metrics under the reference's names on a port of their own, beside ours on PORT"),
    text(Metrics, "PROMETHEUS_ADDR", "prometheus-addr", "ADDRESS", Text(":9090"), "that port"),
    text(Metrics, "PROMETHEUS_PATH", "prometheus-path", "PATH", Text("/metrics"), "their path there"),
    text(Metrics, "PROMETHEUS_MAPPER_YAML", "prometheus-mapper-yaml", "FILE", Derived("the reference's mappings"),
        "mappings of names to metrics and labels, as statsd_exporter has them"),
    switch(Metrics, "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "prometheus-response-time-as-milliseconds",
        Text("false"), "durations in milliseconds instead of seconds"),
    text(Metrics, "NEAR_LIMIT_RATIO", "near-limit-ratio", "RATIO", Text("0.8"),
        "hits above this part of a limit count as near_limit"),
    text(Metrics, "METRICS_SERIES_MAX", "metrics-series-max", "N", Text("10000"),
        "the most rules, and the most names with clients' values, that are counted apart; more are `__overflow__`"),

    switch(Tracing, "TRACING_ENABLED", "tracing-enabled", Text("false"),
        "tell a collector of OpenTelemetry of each request; where it is say OTEL_EXPORTER_OTLP_ENDPOINT and its like"),
    text(Tracing, "TRACING_EXPORTER_PROTOCOL", "tracing-exporter-protocol", "http|grpc", Text("http"),
        "what is spoken to it"),
    text(Tracing, "TRACING_SERVICE_NAME", "tracing-service-name", "NAME", Text("RateLimit"), "what we are called there"),
    text(Tracing, "TRACING_SERVICE_NAMESPACE", "tracing-service-namespace", "NAME", Unset, "and in which namespace"),
    text(Tracing, "TRACING_SERVICE_INSTANCE_ID", "tracing-service-instance-id", "NAME", Derived("a random UUID"),
        "what this process is called there, such as its pod"),
    text(Tracing, "TRACING_SAMPLING_RATE", "tracing-sampling-rate", "RATIO", Text("1"),
        "the part, from 0 to 1, of requests that are traced; where Envoy sends its own trace along, that decides"),

    text(Running, "THREADS", "threads", "N|cores", Text("cores"),
        "how many threads answer, each with its own connections; one a core needs no hand-overs"),
    text(Running, "IN_FLIGHT_MAX", "in-flight-max", "N", Text("16384"),
        "how many requests are worked on at a time; more wait, as long as their deadline lets them"),
    text(Running, "SHUTDOWN_TIMEOUT", "shutdown-timeout", "DURATION", Text("10s"),
        "how long requests in flight have after SIGTERM; Kubernetes kills after 30 s"),
    text(Running, "LOG_LEVEL", "log-level", "LEVEL", Text("info"),
        "trace, debug, info, warn, error, fatal or panic (the last three are one)"),
    text(Running, "LOG_FORMAT", "log-format", "text|json", Text("text"), "for people or for machines"),
];
