//! HTTP: probes, metrics, the service for clients without gRPC, and what is in force.
//!
//! | port | path | |
//! |---|---|---|
//! | `PORT` | `/healthcheck` | 200 `OK` or 500, as in the reference |
//! | | `/ready` | the same status; the body tells the state of the rules and of each shard |
//! | | `/metrics` | OpenMetrics |
//! | | `/json` | the RPC in protobuf's JSON, see `admin::json`: 200 OK, 429 over the limit, 400 bad body, 503 no answer |
//! | `DEBUG_PORT` | `/rlconfig` | one line for each limit in force, as in the reference |
//! | | `/rules` | the same as JSON, with revision and version |
//! | | `/stats` | `name: value` lines, as in the reference, for people without a scraper: what `/metrics` has, and the reference's names where they are asked for |
//! | | `/` | what there is |
//!
//! With USE_PROMETHEUS one more port has metrics under the reference's names, and nothing else.
//!
//! Bodies and times are bounded here; connections and heads in `server::web`.

pub(crate) mod json;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::to_bytes,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use tokio::sync::watch;

use crate::{
    clock::Clock,
    limiter::{AskError, Limiter},
    metrics::{Metrics, exposition, mapper::Mapper, reference::Reference},
    service::{BUSY, Deadline, InFlight, MESSAGE_MAX_BYTES, Service},
    store::Store,
};

/// The longest that a request may take, its body included.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The type that scrapers ask for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const JSON: &str = "application/json";

/// What a body that is no request is answered with.
const REQUEST: &str = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "demo", "value": "me"}]}]}"#;

/// What the debug port has, as the reference lists it: sorted, a line for each path.
const DEBUG_PATHS: &str = "\
/rlconfig: the limits in force, one a line
/rules: the same as JSON, with revision and version
/stats: all counters
";

/// What is told over HTTP.
#[derive(Debug)]
pub struct Admin<C, S> {
    shared: Arc<Shared<C, S>>,
}

#[derive(Debug)]
struct Shared<C, S> {
    clock: C,
    service: Service<C, S>,
    limiter: Arc<Limiter<C, S>>,
    metrics: Arc<Metrics>,
    in_flight: InFlight,
    serving: watch::Receiver<bool>,
    refused: watch::Receiver<Option<String>>,
}

impl<C: Clock, S: Store> Admin<C, S> {
    /// `serving` is what health says, `refused` why the last change of the rules is not in force.
    pub fn new(
        clock: C,
        service: Service<C, S>,
        limiter: Arc<Limiter<C, S>>,
        metrics: Arc<Metrics>,
        in_flight: InFlight,
        serving: watch::Receiver<bool>,
        refused: watch::Receiver<Option<String>>,
    ) -> Self {
        Self { shared: Arc::new(Shared { clock, service, limiter, metrics, in_flight, serving, refused }) }
    }

    /// The routes of `PORT`.
    pub fn http(&self) -> Router {
        Router::new()
            .route("/healthcheck", get(healthcheck::<C, S>))
            .route("/ready", get(ready::<C, S>))
            .route("/metrics", get(metrics::<C, S>))
            // As the reference, any method: what counts is the body.
            .route("/json", any(ask::<C, S>))
            .route("/", get(async || "/healthcheck\n/ready\n/metrics\n/json\n"))
            .layer(middleware::from_fn(in_time))
            .with_state(Arc::clone(&self.shared))
    }

    /// The routes of `DEBUG_PORT`.
    pub fn debug(&self) -> Router {
        Router::new()
            .route("/rlconfig", get(rlconfig::<C, S>))
            .route("/rules", get(rules::<C, S>))
            .route("/stats", get(stats::<C, S>))
            .route("/", get(async || DEBUG_PATHS))
            .layer(middleware::from_fn(in_time))
            .with_state(Arc::clone(&self.shared))
    }
}

/// The routes of PROMETHEUS_ADDR: metrics under the reference's names.
pub fn prometheus(path: &str, metrics: Arc<Metrics>, mapper: Mapper, tags: Vec<(String, String)>) -> Router {
    let shared = Arc::new((metrics, mapper, tags));
    let scrape = async move || {
        // Thousands of names take a moment, in which probes are answered.
        let told = tokio::task::spawn_blocking(move || {
            let (metrics, mapper, tags) = &*shared;
            metrics.reference.as_ref().map(|names| exposition::text(names, mapper, tags))
        });
        let text = told.await.ok().flatten().unwrap_or_default();
        ([(header::CONTENT_TYPE, exposition::TEXT_FORMAT)], text)
    };
    Router::new().route(path, get(scrape)).layer(middleware::from_fn(in_time))
}

async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

async fn healthcheck<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>) -> Response {
    let (status, word) = admin.status();
    (status, word).into_response()
}

async fn ready<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>) -> Response {
    let (status, word) = admin.status();
    let loaded = if admin.limiter.loaded().is_some() { "loaded" } else { "none are loaded yet" };
    let mut body = format!("{word}\nrules: {loaded}\n");
    if let Some(why) = admin.refused.borrow().as_deref() {
        body.push_str(&format!("the last change of the rules is not in force: {}\n", headline(why)));
    }
    for shard in admin.limiter.store().health() {
        let state = shard.state.map_or_else(|why| why, |()| "OK".to_owned());
        // An error names its shard itself.
        let state = state.strip_prefix(&format!("the store {} ", shard.shard)).unwrap_or(&state);
        body.push_str(&format!("store {}: {state}\n", shard.shard));
    }
    for why in admin.limiter.troubles() {
        body.push_str(&format!("answered without the store in the last seconds: {why}\n"));
    }
    (status, body).into_response()
}

/// What is wrong first, and where. The log has all of it; here would be lines of rule files, and of whatever file they name
/// as tenants, for everybody who reaches the port.
fn headline(why: &str) -> String {
    let mut lines = why.lines();
    let first = lines.next().unwrap_or_default();
    match lines.next().map(str::trim).filter(|line| line.starts_with("--> ")) {
        Some(place) => format!("{first} {place} (the log has all of it)"),
        None => format!("{first} (the log has all of it)"),
    }
}

async fn metrics<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>) -> Response {
    admin.metrics.in_flight.set(i64::try_from(admin.in_flight.count()).unwrap_or(i64::MAX));
    ([(header::CONTENT_TYPE, OPEN_METRICS)], admin.metrics.text()).into_response()
}

async fn stats<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>) -> String {
    admin.metrics.in_flight.set(i64::try_from(admin.in_flight.count()).unwrap_or(i64::MAX));
    let text = admin.metrics.text();
    // A label's value may hold spaces, the number behind it none.
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let mut stats: String = samples.map(|(name, value)| format!("{name}: {value}\n")).collect();
    let names = admin.metrics.reference.iter().flat_map(Reference::samples);
    let mut names: Vec<_> = names.map(|sample| format!("{}: {}\n", sample.name(), sample.total)).collect();
    let gauges = admin.metrics.reference.iter().flat_map(|names| names.gauges.measured());
    names.extend(gauges.map(|(name, value)| format!("{name}: {value}\n")));
    names.sort_unstable();
    stats.extend(names);
    stats
}

async fn ask<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>, request: Request) -> Response {
    let deadline = Deadline::of(request.headers(), admin.clock.instant());
    let Some(_place) = admin.in_flight.enter(deadline.left(admin.clock.instant())).await else {
        admin.metrics.answered.unavailable.inc();
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{BUSY}\n")).into_response();
    };
    let Ok(body) = to_bytes(request.into_body(), MESSAGE_MAX_BYTES).await else {
        let why = format!("the body is longer than {MESSAGE_MAX_BYTES} bytes, or broke off\n");
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(why) => {
            let why = format!("the body is no request: {why}; one is {REQUEST}\n");
            return (StatusCode::BAD_REQUEST, why).into_response();
        }
    };
    match admin.service.answer(request, deadline).await {
        Ok(response) => {
            let over = response.overall_code() == json::OVER_LIMIT;
            let status = if over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            (status, [(header::CONTENT_TYPE, JSON)], json::response(&response)).into_response()
        }
        Err(error) => {
            let status = match error {
                AskError::Invalid(_) => StatusCode::BAD_REQUEST,
                // The reference has one status for all that is no answer.
                _ if admin.limiter.options().compat => StatusCode::BAD_REQUEST,
                AskError::NoRules | AskError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{error}\n")).into_response()
        }
    }
}

async fn rlconfig<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>) -> String {
    let mut lines = String::new();
    for line in admin.limiter.loaded().iter().flat_map(|loaded| loaded.rules.describe()) {
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

async fn rules<C: Clock, S: Store>(State(admin): State<Arc<Shared<C, S>>>) -> Response {
    let Some(loaded) = admin.limiter.loaded() else {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", AskError::NoRules)).into_response();
    };
    ([(header::CONTENT_TYPE, JSON)], format!("{:#}\n", loaded.rules.to_json())).into_response()
}

impl<C, S> Shared<C, S> {
    fn status(&self) -> (StatusCode, &'static str) {
        if *self.serving.borrow() {
            (StatusCode::OK, "OK")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "NOT_SERVING")
        }
    }
}
