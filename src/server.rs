//! The service as a whole: what is started, in which order, and how it ends.
//!
//! ```text
//! main thread (one runtime)                     thread 0..N (one runtime each)
//!   gRPC listener ── accepted connections, evenly ──> HTTP/2, limiter
//!   HTTP and debug ports        ┐
//!   health, signals             ┴── shared: rules, store, health, what is in flight
//! ```
//!
//! **Threads.** One runtime for all cores would hand each wake-up to whichever thread is idle, and a request costs twice
//! the CPU so. Here a connection lives on one thread from the first byte to the last. Connections are dealt to whoever has
//! fewest rather than by the kernel (SO_REUSEPORT hashes addresses, and four Envoys may well end up on one of four threads).
//!
//! **Start.** Settings are right before anything is opened (64 otherwise); ports are open before rules are read, so that
//! a probe gets "not yet" instead of silence; health says SERVING when rules are loaded and the store was reached.
//! Mistakes in the rules are no reason to stop: all of them are told, and it serves as soon as they are mended.
//!
//! **End.** SIGTERM or SIGINT: health says NOT_SERVING, also to open watches; listeners close; each connection gets a
//! GOAWAY and ends when its requests are answered; what is left after SHUTDOWN_TIMEOUT is cut, and the exit code is 0. A
//! second signal ends the process at once, with 1.

mod backend;
mod connection;
mod deal;
mod http2;
mod front;
mod awaited;
mod exchange;
mod held;
mod health;
mod listen;
mod unix;
mod socket;
mod statsd;
mod tls;
mod loading;
mod web;
mod worker;

use std::{
    env, fmt,
    process::{self, ExitCode},
    sync::Arc,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::{
    admin::{self, Admin},
    clock::SystemClock,
    limiter::Limiter,
    metrics::{
        Metrics,
        mapper::{Mapper, from_file},
        reference::Reference,
        statsd::Format,
    },
    rules,
    service::{InFlight, Service},
    settings::{self, Settings, Source},
    store::memory::MemoryStore,
    telemetry::{
        self,
        spans::{self, Spans},
    },
};
use backend::Backend;
pub(crate) use backend::redis_config;
use health::Health;
use listen::Listeners;
use loading::Loader;
use statsd::Flushing;
use tls::Tls;
use web::Web;
use worker::Workers;

/// The limiter as it is served.
type Served = Limiter<SystemClock, Backend>;

/// Keys of `on_store_failure: local`, at most: the callers of a few minutes, in 20 MB or so.
const LOCAL_KEYS_MAX: usize = 100_000;

/// Serves until a signal comes.
pub fn run(settings: &Settings) -> ExitCode {
    let stats = &settings.stats;
    let names = stats.wanted().then(|| Reference::new(stats.near_limit_ratio, stats.series_max));
    let metrics = Metrics::with(names, stats.series_max);
    let flush = telemetry::start(settings.log, metrics.dropped.log_lines.clone());
    let ended = start(settings, &metrics);
    drop(flush);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tollgate: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// Why the service did not start, or stopped, in one line.
#[derive(Debug)]
struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    /// Settings that ask for what is not there.
    fn usage(line: impl Into<String>) -> Self {
        Self { code: settings::EXIT_USAGE, line: line.into() }
    }

    /// The machine does not give what is needed, or took it away.
    fn machine(line: impl Into<String>) -> Self {
        Self { code: 1, line: line.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

fn start(settings: &Settings, metrics: &Arc<Metrics>) -> Result<(), Failure> {
    tell_ignored();
    settings.idle.iter().for_each(|line| tracing::warn!("{line}"));
    loading::check(settings)?;
    let mapper = mapper(settings)?;
    let (spans, _last_spans) = traces(settings, metrics)?;
    let tls = settings.listen.grpc_tls.as_ref().map(Tls::new).transpose().map_err(Failure::usage)?;
    let store = Backend::new(settings, metrics)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::machine(format!("no runtime: {error}")))?;
    // Within the runtime, since sockets and signals register with it.
    let ended = runtime.block_on(async {
        let listeners = Listeners::bind(settings)?;
        let signals = Signals::new()?;
        if let Some(tls) = tls.clone() {
            tokio::spawn(tls.follow());
        }
        let limiter = Arc::new(limiter(settings, store, metrics));
        let answers = settings.answers.clone();
        let service = Service::new(SystemClock, limiter, answers, Arc::clone(metrics), spans);
        serve(settings, metrics, service, mapper, listeners, tls, signals).await
    });
    // Rules that are still being read are not waited for.
    runtime.shutdown_background();
    ended
}

fn limiter(settings: &Settings, store: Backend, metrics: &Arc<Metrics>) -> Served {
    let local = MemoryStore::new(SystemClock, LOCAL_KEYS_MAX);
    Limiter::new(SystemClock, store, local, settings.into(), Arc::clone(metrics))
}

async fn serve(
    settings: &Settings,
    metrics: &Arc<Metrics>,
    service: Service<SystemClock, Backend>,
    mapper: Mapper,
    listeners: Listeners,
    tls: Option<Tls>,
    mut signals: Signals,
) -> Result<(), Failure> {
    let limiter = Arc::clone(service.limiter());
    let in_flight = InFlight::new(settings.in_flight_max);
    let health = Health::new(health::follows(settings), health::needs(settings)).await;
    let loader = Loader::new(&limiter, metrics, health.changed());
    let (mut workers, dealer) =
        Workers::start(settings, &service, &limiter, metrics, &health, &in_flight, tls.as_ref())?;
    let (stop_dealing, stop) = oneshot::channel();
    let dealing = tokio::spawn(listen::deal(listeners.grpc, dealer, stop));
    let admin = Admin::new(
        SystemClock,
        service,
        Arc::clone(&limiter),
        Arc::clone(metrics),
        in_flight,
        health.told(),
        loader.refused(),
    );
    let refused = loader.refused();
    let mut web = Web::new();
    web.serve(listeners.http, admin.http());
    web.serve(listeners.debug, admin.debug());
    if let (Some(port), Some(prometheus)) = (listeners.prometheus, &settings.stats.prometheus) {
        let tags = settings.stats.tags.clone();
        web.serve(port, admin::prometheus(&prometheus.path, Arc::clone(metrics), mapper, tags));
    }
    let flushing = flushing(settings, metrics);
    let pulse = tokio::spawn(health.clone().follow(Arc::clone(&limiter), refused));

    let ended = tokio::select! {
        name = signals.next() => {
            tracing::info!("{name}: draining for at most {:?}", settings.shutdown_timeout);
            Ok(())
        }
        why = workers.ended_one() => Err(Failure::machine(why)),
        failure = follow_rules(loader, settings) => Err(failure),
    };

    // The order is the promise: nobody new is invited, then nobody new is let in, then those inside are served.
    pulse.abort();
    health.stop().await;
    drop(stop_dealing);
    // With the dealer the threads' queues end, which is their sign to drain.
    let _ = dealing.await;
    health.end_watches().await;
    let drained = async { tokio::join!(workers.ended_all(), web.close()) };
    tokio::select! {
        _ = drained => tracing::info!("drained"),
        () = tokio::time::sleep(settings.shutdown_timeout) => {
            tracing::warn!("cut what was still in flight after {:?}", settings.shutdown_timeout);
        }
        name = signals.next() => {
            eprintln!("tollgate: {name} again: stopping at once");
            process::exit(1);
        }
    }
    if let Some(flushing) = flushing {
        flushing.stop().await;
    }
    ended
}

/// Where spans go, and what sends the last ones when the process ends.
///
/// # Errors
/// When a variable of OpenTelemetry's is wrong.
fn traces(settings: &Settings, metrics: &Metrics) -> Result<(Option<Spans>, Option<spans::Flush>), Failure> {
    let Some(tracing) = &settings.tracing else { return Ok((None, None)) };
    let (spans, flush) = Spans::start(tracing, metrics.dropped.spans.clone()).map_err(Failure::usage)?;
    Ok((Some(spans), Some(flush)))
}

/// # Errors
/// When PROMETHEUS_MAPPER_YAML names no file of mappings.
fn mapper(settings: &Settings) -> Result<Mapper, Failure> {
    let Some(prometheus) = &settings.stats.prometheus else { return Ok(Mapper::default()) };
    let Some(file) = &prometheus.mapper else {
        return Ok(Mapper::of_the_reference(prometheus.milliseconds));
    };
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let mapper = text.and_then(|text| from_file(&rules::yaml_texts(&text)?));
    mapper.map_err(|why| Failure::usage(format!("PROMETHEUS_MAPPER_YAML: {}: {why}", file.display())))
}

fn flushing(settings: &Settings, metrics: &Arc<Metrics>) -> Option<Flushing> {
    let statsd = settings.stats.statsd.clone()?;
    let tags = settings.stats.tags.clone();
    let format = Format { dogstatsd: statsd.dogstatsd, tags, mogrifiers: statsd.mogrifiers.clone() };
    Some(Flushing::start(statsd, format, Arc::clone(metrics)))
}

/// Loads the rules and keeps them in step with where they come from, for ever. Reading a million tenants takes a moment,
/// in which probes and signals are answered.
async fn follow_rules(loader: Loader, settings: &Settings) -> Failure {
    if let Source::Xds(xds) = &settings.rules.source {
        match loader.follow(xds, settings.dialect()).await {}
    }
    let settings = settings.clone();
    match tokio::task::spawn_blocking(move || loader.start(&settings)).await {
        Ok(Ok(_watching)) => std::future::pending().await,
        Ok(Err(failure)) => failure,
        Err(defect) => Failure::machine(format!("loading the rules ended by a defect: {defect}")),
    }
}

/// SIGTERM and SIGINT mean the same.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let of = |kind| {
            signal(kind).map_err(|error| Failure::machine(format!("cannot listen for signals: {error}")))
        };
        Ok(Self { terminate: of(SignalKind::terminate())?, interrupt: of(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// One line for all variables of the reference that have no effect here, and one for those that look like ours.
fn tell_ignored() {
    let variables: Vec<(String, String)> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let ignored = settings::ignored(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    if !ignored.is_empty() {
        tracing::warn!("without effect here, known from envoyproxy/ratelimit: {}", settings::shown(&ignored));
    }
    let strange = settings::strange(variables.iter().map(|(name, _)| name.as_str()));
    if !strange.is_empty() {
        tracing::warn!("no settings, and without effect: {}", settings::told(&strange));
    }
}
