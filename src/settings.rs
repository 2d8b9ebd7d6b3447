//! Settings: from flags and the environment to values that nothing downstream has to doubt.
//!
//! Every setting is one row of [`table()`]: its variable, its flag, its default and why it has that default. The command
//! line, its help, the README and the parser below all read the same rows, so they cannot tell different stories.
//!
//! - Where envoyproxy/ratelimit has a variable for something, ours has that name and reads the same texts (Go's
//!   durations and booleans, see `settings::values`), so that a deployment changes its image and nothing else. Names of
//!   the reference that do nothing here are told at start (see [`ignored`]), not passed over in silence.
//! - A flag wins over its variable. A variable that is set but empty is as if it were not set: charts write
//!   `REDIS_AUTH=""` for "no password".
//! - A wrong value ends the process with exit code 64 and one line that says which setting, which value and what would
//!   be right, before any port is bound. Nothing is guessed.
//! - What came in is [`RawSettings`], texts; what goes out is [`Settings`], whole. Passwords are [`Secret`]s, which no
//!   `{:?}` shows.

pub mod table;
pub mod values;

mod raw;
mod redis;
mod xds;
mod stats;
mod traces;
mod listen;
mod ignored;
mod strange;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

pub use ignored::{Ignored, ignored, shown};
pub use listen::{Endpoint, GrpcAge, GrpcAt, GrpcClients, GrpcTls, Listen, is_abstract, socket_path};
pub use raw::{RawSettings, SettingsError};
pub use redis::{Redis, RedisAuth, RedisServer, RedisTls, RedisType, Secret, Socket};
pub use stats::{Prometheus, Protocol, Stats, Statsd};
pub use strange::{Strange, strange, told};
pub use table::table;
pub use traces::{Tracing, TracingProtocol};
pub use xds::{Source, Xds, XdsBackoff, XdsTls};

use crate::{
    key::{Format, Jitter},
    rules::{Dialect, FailureMode, Which},
};
use raw::Reader;

/// The exit code for wrong settings, unknown flags and missing paths: EX_USAGE of sysexits.h, which no code of our own
/// commands collides with.
pub const EXIT_USAGE: u8 = 64;

/// How long a call of the store may take. Envoy itself gives up after 20 ms.
const STORE_TIMEOUT: Duration = Duration::from_millis(5);

/// 64,000 keys that are over at the same moment.
const NEAR_BYTES: usize = 16 << 20;

/// Where the reference looks for rules when only `RUNTIME_SUBDIRECTORY` is set: its own default of `RUNTIME_ROOT`.
const REFERENCE_ROOT: &str = "/srv/runtime_data/current";

/// Everything that can be set, parsed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the rules are and how they are read.
    pub rules: Rules,
    /// Which ports are opened.
    pub listen: Listen,
    /// Where budgets are kept.
    pub backend: Backend,
    /// What counters are called: `KEY_FORMAT`, `CACHE_KEY_PREFIX`.
    pub keys: Format,
    /// What is done when the store gives no answer.
    pub store: Store,
    /// What answers say.
    pub answers: Answers,
    /// `TOLLGATE_COMPAT=reference`: the old ways of envoyproxy/ratelimit where ours are deliberately better.
    pub compat: bool,
    /// Metrics under the reference's names.
    pub stats: Stats,
    /// How requests are traced; `None` is not at all.
    pub tracing: Option<Tracing>,
    /// What is logged and how.
    pub log: Log,
    /// How many threads answer, each with a runtime of its own.
    pub threads: NonZeroUsize,
    /// How many requests are worked on at the same time, in the whole process; more wait.
    pub in_flight_max: NonZeroUsize,
    /// How long requests in flight have after SIGTERM.
    pub shutdown_timeout: Duration,
    /// What is set and has no effect beside the others, a line each.
    pub idle: Vec<&'static str>,
}

/// Where the rules are and how they are read.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Files, or a management server.
    pub source: Source,
    /// The directory of the rule files. Any part of the path may be a symbolic link that is switched later.
    pub dir: PathBuf,
    /// How often the files are looked at without an event.
    pub poll: Duration,
    /// Whether several files may name one domain.
    pub merge_domains: bool,
    /// Which files of the directory are rules.
    pub which: Which,
    /// Whether health says NOT_SERVING while there is no domain.
    pub needed_for_health: bool,
    /// Whether health waits for the first rules; requests before them get UNAVAILABLE in any case.
    pub awaited: bool,
}

/// Where budgets are kept.
#[derive(Clone, Debug)]
pub enum Backend {
    /// In this process.
    Memory {
        /// The most keys that are kept; the one nearest to full makes room.
        keys_max: NonZeroUsize,
    },
    /// In Redis.
    Redis(Box<Redis>),
}

/// What is done when the store gives no answer.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// A call that takes longer has failed.
    pub timeout: Duration,
    /// For rules that do not say it themselves.
    pub on_failure: FailureMode,
    /// By how much `local` divides a limit.
    pub fleet_size: NonZeroU32,
    /// How much memory near answers may take; 0 asks the store always.
    pub near_bytes: usize,
    /// Keys are leased without being asked to above so many requests a second in this process; 0 for none.
    pub lease_above: u32,
}

/// What answers say.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Which headers Envoy is asked to add.
    pub headers: Headers,
    /// `SHADOW_MODE`: every answer's overall code is OK.
    pub shadow_mode: bool,
    /// `QUOTA_MODE`: every rule is a quota.
    pub quota_mode: bool,
    /// `RESPONSE_DYNAMIC_METADATA`: answers repeat what was asked, with the rules' `metadata`.
    pub dynamic_metadata: bool,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: in compat, too, a refused request leaves the limits alone that would
    /// have let it pass.
    pub stop_counting: bool,
}

/// Which headers an answer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// How the limit's numbers are told.
    pub numbers: Numbers,
    /// Whether refused clients are told when to come back.
    pub retry_after: RetryAfter,
}

/// How the limit's numbers are told. One convention a deployment: two would contradict each other's rounding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Not at all.
    Hidden,
    /// `RateLimit-Policy` and `RateLimit` as structured fields.
    Ietf,
    /// A limit, what is left and when it is whole again: three headers.
    Triple {
        /// Of limit, remaining and reset, in this order.
        names: [String; 3],
        /// What the third one counts.
        reset: Reset,
    },
}

/// What a reset header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Seconds from now, as draft-03 and the reference have it.
    Delta,
    /// Seconds since the Unix epoch, as GitHub's `x-ratelimit-reset`.
    Epoch,
}

/// Whether refused clients are told when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// Never.
    Hidden,
    /// In whole seconds, rounded up, plus up to `jitter`, so that refused clients do not return together.
    Shown {
        /// The most that is added.
        jitter: Duration,
    },
}

/// What is logged and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Lines below this level are not written.
    pub level: Level,
    /// For people or for machines.
    pub format: LogFormat,
}

/// The reference's levels; it knows three kinds of error, which all end up in [`Level::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Settings {
    /// How rule files are read.
    pub fn dialect(&self) -> Dialect {
        Dialect {
            compat: self.compat,
            on_store_failure: self.store.on_failure,
            merge_domains: self.rules.merge_domains,
            reference_keys: self.keys.reference.is_some(),
        }
    }

    /// Parses what came in.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn compile(raw: &RawSettings) -> Result<Self, SettingsError> {
        let read = Reader(raw);
        let compat = read.one("TOLLGATE_COMPAT", values::compat)?;
        Ok(Self {
            rules: rules(&read, compat)?,
            listen: listen::listen(&read, compat)?,
            backend: backend(&read)?,
            keys: keys(&read)?,
            store: Store {
                timeout: store_timeout(&read, compat)?,
                on_failure: read.one("ON_STORE_FAILURE", values::failure_mode)?,
                fleet_size: read.one("FLEET_SIZE", values::count32)?,
                lease_above: read.one("LEASE_ABOVE", values::count32_or_none)?,
                near_bytes: read.opt("LOCAL_CACHE_SIZE_IN_BYTES", values::size)?.unwrap_or(if compat {
                    0
                } else {
                    NEAR_BYTES
                }),
            },
            answers: Answers {
                headers: headers(&read, compat)?,
                shadow_mode: read.one("SHADOW_MODE", values::boolean)?,
                quota_mode: read.one("QUOTA_MODE", values::boolean)?,
                dynamic_metadata: read.one("RESPONSE_DYNAMIC_METADATA", values::boolean)?,
                stop_counting: read.one("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", values::boolean)?,
            },
            compat,
            stats: stats::stats(&read, compat)?,
            tracing: traces::tracing(&read)?,
            log: Log {
                level: read.one("LOG_LEVEL", values::level)?,
                format: read.one("LOG_FORMAT", values::log_format)?,
            },
            threads: read.one("THREADS", values::threads)?,
            in_flight_max: read.one("IN_FLIGHT_MAX", values::count)?,
            shutdown_timeout: read.one("SHUTDOWN_TIMEOUT", values::duration)?,
            idle: listen::idle(&read),
        })
    }
}

/// In compat a call has as long as the reference gives it.
fn store_timeout(read: &Reader<'_>, compat: bool) -> Result<Duration, SettingsError> {
    let reference = read.one("REDIS_TIMEOUT", values::positive_duration)?;
    let ours = read.opt("STORE_TIMEOUT", values::positive_duration)?;
    Ok(ours.unwrap_or(if compat { reference } else { STORE_TIMEOUT }))
}

/// The reference keeps rules in ROOT/SUBDIRECTORY/APPDIRECTORY. Who sets none of the first two gets `rules/`.
fn rules(read: &Reader<'_>, compat: bool) -> Result<Rules, SettingsError> {
    // Accepted and not needed: both kinds of change are watched, whatever it says.
    read.one("RUNTIME_WATCH_ROOT", values::boolean)?;
    // The reference reads files of all names unless told otherwise; nobody ever wanted a README or an editor's swap file
    // as rules.
    let ignore_hidden = read.opt("RUNTIME_IGNOREDOTFILES", values::boolean)?;
    let which = match ignore_hidden {
        _ if !compat => Which::Yaml,
        Some(true) => Which::Shown,
        Some(false) | None => Which::All,
    };
    let (root, below) = (read.given("RUNTIME_ROOT"), read.given("RUNTIME_SUBDIRECTORY"));
    let dir = match read.given("TOLLGATE_RULES") {
        Some(dir) => PathBuf::from(dir),
        None if root.is_none() && below.is_none() => read.one("TOLLGATE_RULES", values::path)?,
        None => PathBuf::from(root.unwrap_or(REFERENCE_ROOT))
            .join(below.unwrap_or_default())
            .join(read.one("RUNTIME_APPDIRECTORY", values::path)?),
    };
    Ok(Rules {
        source: xds::source(read)?,
        dir,
        poll: read.one("RULES_POLL", values::poll)?,
        merge_domains: read.one("MERGE_DOMAIN_CONFIG", values::boolean)?,
        which,
        needed_for_health: read.one("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", values::boolean)?,
        awaited: !read.one("FORCE_START_WITHOUT_INITIAL_CONFIG", values::boolean)?,
    })
}

fn backend(read: &Reader<'_>) -> Result<Backend, SettingsError> {
    let keys_max = read.one("MEMORY_KEYS_MAX", values::count)?;
    let redis = redis::redis(read)?;
    let wants_redis = read.opt("BACKEND_TYPE", values::backend)?;
    match (wants_redis, redis) {
        (None, None) if read.one("REDIS_PERSECOND", values::boolean)? => Err(read.missing(
            "REDIS_URL",
            "REDIS_PERSECOND=true needs a Redis for the other limits, too, such as `localhost:6379`",
        )),
        (Some(values::BackendType::Memory), _) | (None, None) => Ok(Backend::Memory { keys_max }),
        (_, Some(redis)) => Ok(Backend::Redis(Box::new(redis))),
        (Some(values::BackendType::Redis), None) => Err(read.missing(
            "REDIS_URL",
            "BACKEND_TYPE=redis needs the address of a Redis, such as `localhost:6379`",
        )),
    }
}

fn keys(read: &Reader<'_>) -> Result<Format, SettingsError> {
    let jitter = read.one("EXPIRATION_JITTER_MAX_SECONDS", values::seconds)?;
    let as_there = read.one("KEY_FORMAT", values::key_format)?;
    Ok(Format {
        prefix: read.given("CACHE_KEY_PREFIX").unwrap_or_default().to_owned(),
        reference: as_there.then_some(Jitter(jitter)),
    })
}

/// `LIMIT_HEADERS` wins. Without it the reference's switch decides, and without both the IETF's headers are sent, which
/// the reference does not know: in compat there are none.
fn headers(read: &Reader<'_>, compat: bool) -> Result<Headers, SettingsError> {
    let style = read.opt("LIMIT_HEADERS", values::header_style)?;
    let enabled = read.opt("LIMIT_RESPONSE_HEADERS_ENABLED", values::boolean)?;
    let jitter = read.one("RETRY_AFTER_JITTER", values::duration)?;
    let names = [
        read.one("LIMIT_LIMIT_HEADER", values::header_name)?,
        read.one("LIMIT_REMAINING_HEADER", values::header_name)?,
        read.one("LIMIT_RESET_HEADER", values::header_name)?,
    ];
    use values::HeaderStyle as Style;
    let numbers = match (style, enabled) {
        (Some(Style::None), _) => Numbers::Hidden,
        (Some(Style::Ietf), _) => Numbers::Ietf,
        (Some(Style::Draft03), _) | (None, Some(true)) => Numbers::Triple { names, reset: Reset::Delta },
        (Some(Style::XRateLimit), _) => {
            let names = ["limit", "remaining", "reset"].map(|what| format!("x-ratelimit-{what}"));
            Numbers::Triple { names, reset: Reset::Epoch }
        }
        (None, Some(false)) => Numbers::Hidden,
        (None, None) if compat => Numbers::Hidden,
        (None, None) => Numbers::Ietf,
    };
    // `none` means none. The reference never sends Retry-After, with or without its three headers.
    let silent = style == Some(Style::None) || (style.is_none() && compat);
    let retry_after = if silent { RetryAfter::Hidden } else { RetryAfter::Shown { jitter } };
    Ok(Headers { numbers, retry_after })
}
