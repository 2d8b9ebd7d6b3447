//! Traces: a span of OpenTelemetry for each ShouldRateLimit, under that of the caller.
//!
//! Envoy sends the span that it asks from along (`traceparent`, or Zipkin's `b3`); what its caller traces is traced here,
//! what it does not is not, and of the rest a part (TRACING_SAMPLING_RATE).
//!
//! An answer never waits for any of this. A span that has ended goes into a bounded queue; a thread of its own sends what is
//! there, at most a few seconds later. What does not fit, and what no collector takes, is dropped and counted
//! (`tollgate_spans_dropped_total`). That is why the library's own queue is not used: it counts for itself alone.
//!
//! Where the collector is say the specification's variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `…_HEADERS`, `…_TIMEOUT`,
//! `…_COMPRESSION`, `…_CERTIFICATE`, `…_CLIENT_CERTIFICATE`, `…_CLIENT_KEY`, each with `_TRACES_` inside too, and
//! `OTEL_BSP_…` for the queue), as in the reference.

use std::{
    env,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::Duration,
};

use http::HeaderMap;
use opentelemetry::{
    Context, KeyValue,
    propagation::TextMapPropagator,
    trace::{Span, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter as _, SpanProcessor},
};
use prometheus_client::metrics::counter::Counter;
use tokio::{
    runtime::{self, Runtime},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Instant, timeout, timeout_at},
};
use tonic::Code;

use super::{b3, collector};
use crate::settings::Tracing;

/// What the one method is called in traces, and its parts.
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const METHOD_PARTS: (&str, &str) = ("envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit");

/// Spans that wait to be sent, spans in one message, and how long the first of a message waits: the specification's.
const QUEUE_MAX: (&str, u64) = ("OTEL_BSP_MAX_QUEUE_SIZE", 2048);
const BATCH_MAX: (&str, u64) = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512);
const DELAY_MS: (&str, u64) = ("OTEL_BSP_SCHEDULE_DELAY", 5000);

/// How long a message may take with all attempts, the specification's `OTEL_BSP_EXPORT_TIMEOUT`.
const EXPORT_MS: (&str, u64) = ("OTEL_BSP_EXPORT_TIMEOUT", 30_000);

/// How long an ending process waits for its last spans to be taken.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Where spans are made. A clone makes them for the same collector.
#[derive(Clone, Debug)]
pub struct Spans {
    tracer: SdkTracer,
    from_caller: TraceContextPropagator,
}

/// The span of a request that is being answered.
#[derive(Debug)]
pub struct Asked(opentelemetry_sdk::trace::Span);

/// The last spans are sent when this is dropped.
#[derive(Debug)]
pub struct Flush {
    queue: Sender<Item>,
}

#[derive(Debug)]
enum Item {
    Span(Box<SpanData>),
    Flush(SyncSender<()>),
}

impl Spans {
    /// Starts to trace. What does not reach a collector is counted in `dropped`.
    ///
    /// # Errors
    /// Which variable is wrong, and why, in one line.
    pub fn start(settings: &Tracing, dropped: Counter) -> Result<(Self, Flush), String> {
        let sizes = Sizes::read()?;
        let no_runtime = |error| format!("no runtime for traces: {error}");
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
        let resource = resource(settings);
        let mut exporter = {
            let _within = runtime.enter();
            collector::exporter(settings.protocol)?
        };
        exporter.set_resource(&resource);
        let (queue, spans) = channel(sizes.queue);
        let sender = Sending { exporter, spans, sizes, dropped: dropped.clone() };
        let send = move || sender.run(&runtime);
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(send)
            .map_err(|error| format!("no thread for traces: {error}"))?;
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.ratio))))
            .with_span_processor(Queue { queue: queue.clone(), dropped })
            .with_resource(resource)
            .build();
        let spans = Self { tracer: provider.tracer("tollgate"), from_caller: TraceContextPropagator::new() };
        Ok((spans, Flush { queue }))
    }

    /// Begins the span of a request with these headers, where it is traced.
    pub fn begin(&self, headers: &HeaderMap) -> Option<Asked> {
        let mut caller = self.from_caller.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        if !caller.has_active_span()
            && let Some(span) = b3::span(headers)
        {
            caller = caller.with_remote_span_context(span);
        }
        let builder = SpanBuilder::from_name(METHOD).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(builder, &caller);
        if !span.is_recording() {
            return None;
        }
        let (service, method) = METHOD_PARTS;
        span.set_attribute(KeyValue::new("rpc.system", "grpc"));
        span.set_attribute(KeyValue::new("rpc.service", service));
        span.set_attribute(KeyValue::new("rpc.method", method));
        Some(Asked(span))
    }
}

impl Asked {
    /// What is asked. Values of clients stay out of traces.
    pub fn about(&mut self, domain: &str, descriptors: usize) {
        self.0.set_attribute(KeyValue::new("ratelimit.domain", domain.to_owned()));
        let descriptors = i64::try_from(descriptors).unwrap_or(i64::MAX);
        self.0.set_attribute(KeyValue::new("ratelimit.descriptors", descriptors));
    }

    /// Ends it with an answer: whether it refuses.
    pub fn answered(mut self, refused: bool) {
        let code = if refused { "OVER_LIMIT" } else { "OK" };
        self.0.set_attribute(KeyValue::new("ratelimit.code", code));
        self.ended(Code::Ok);
    }

    /// Ends it without one.
    pub fn failed(mut self, code: Code, why: &str) {
        self.0.set_status(Status::error(why.to_owned()));
        self.ended(code);
    }

    fn ended(&mut self, code: Code) {
        self.0.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(code as i32)));
        self.0.end();
    }
}

/// Who we are: the reference's settings, besides what `OTEL_RESOURCE_ATTRIBUTES` says.
fn resource(settings: &Tracing) -> Resource {
    let instance = settings.service_instance.clone().unwrap_or_else(random_uuid);
    let mut attributes = vec![
        KeyValue::new("service.name", settings.service_name.clone()),
        KeyValue::new("service.instance.id", instance),
    ];
    attributes
        .extend(settings.service_namespace.clone().map(|name| KeyValue::new("service.namespace", name)));
    Resource::builder().with_attributes(attributes).build()
}

/// Version 4 of RFC 9562, by the generator of the spans' own numbers.
fn random_uuid() -> String {
    use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
    let bits = u128::from_be_bytes(RandomIdGenerator::default().new_trace_id().to_bytes());
    let bits = bits & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let digits = format!("{bits:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// The way of spans that have ended, on whichever thread that was.
#[derive(Debug)]
struct Queue {
    queue: Sender<Item>,
    dropped: Counter,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.queue.try_send(Item::Span(Box::new(span))).is_err() {
            self.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Bounds of the queue and of a message.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    queue: usize,
    batch: usize,
    delay: Duration,
    export: Duration,
}

impl Sizes {
    fn read() -> Result<Self, String> {
        let size = |of| number(of).map(|number| usize::try_from(number.max(1)).unwrap_or(usize::MAX));
        // A bound beyond a million is a typing error, and takes its memory at once.
        const SIZE_MAX: usize = 1_000_000;
        Ok(Self {
            queue: size(QUEUE_MAX)?.min(SIZE_MAX),
            batch: size(BATCH_MAX)?.min(SIZE_MAX),
            delay: Duration::from_millis(number(DELAY_MS)?),
            export: Duration::from_millis(number(EXPORT_MS)?),
        })
    }
}

/// A variable of the specification, or its default. One that is empty is not set.
fn number((name, default): (&str, u64)) -> Result<u64, String> {
    match env::var(name) {
        Ok(text) if !text.is_empty() => text
            .parse()
            .map_err(|_| format!("{name}: `{}` is wrong: write a whole number", text.escape_debug())),
        _ => Ok(default),
    }
}

/// What the thread of traces has.
struct Sending {
    exporter: SpanExporter,
    spans: Receiver<Item>,
    sizes: Sizes,
    dropped: Counter,
}

impl Sending {
    fn run(mut self, runtime: &Runtime) {
        runtime.block_on(async {
            let mut failing = false;
            while let Some(first) = self.spans.recv().await {
                let (batch, flush) = self.gather(first).await;
                if !batch.is_empty() {
                    failing = self.send(batch, failing).await.is_err();
                }
                if let Some(flushed) = flush {
                    let _ = flushed.send(());
                }
            }
        });
    }

    /// Sends once; the library tries again, within its time. An outage is told when it begins and when it ends, and the
    /// metric tells how much is lost.
    async fn send(&self, batch: Vec<SpanData>, failing: bool) -> Result<(), ()> {
        let count = batch.len() as u64;
        let why = match timeout(self.sizes.export, self.exporter.export(batch)).await {
            Ok(Ok(())) => {
                if failing {
                    tracing::info!("the collector takes traces again");
                }
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {:?}", self.sizes.export),
        };
        self.dropped.inc_by(count);
        if !failing {
            tracing::warn!(
                "traces are lost, since the collector does not take them: {why} (OTEL_EXPORTER_OTLP_ENDPOINT, else localhost)"
            );
        }
        Err(())
    }

    /// What is sent together: as many as fit, and no more than come in time.
    async fn gather(&mut self, first: Item) -> (Vec<SpanData>, Option<SyncSender<()>>) {
        let mut batch = Vec::new();
        let until = Instant::now() + self.sizes.delay;
        let mut next = Some(first);
        loop {
            match next {
                Some(Item::Span(span)) => batch.push(*span),
                Some(Item::Flush(flushed)) => return (batch, Some(flushed)),
                None => return (batch, None),
            }
            if batch.len() >= self.sizes.batch {
                return (batch, None);
            }
            next = timeout_at(until, self.spans.recv()).await.unwrap_or(None);
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let (flushed, wait) = sync_channel(1);
        if self.queue.try_send(Item::Flush(flushed)).is_ok() {
            let _ = wait.recv_timeout(FLUSH_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_has_no_name_gets_a_random_uuid() {
        let (one, other) = (random_uuid(), random_uuid());
        assert_ne!(one, other);
        let parts: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{one}");
        assert!(one[14..].starts_with('4') && "89ab".contains(&one[19..20]), "{one}");
    }
}
