//! Traces, as a collector gets them: whose spans they are, what they tell, and that they are in nobody's way.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::Span,
};
use prost::Message;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::{
    Code, Request, Response, Status,
    transport::{Identity, Server, ServerTlsConfig},
};

use crate::{
    client::{Service, request, until},
    pki::Pki,
    support::tollgate::{command, ended},
};

/// The caller's trace and span.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A collector, and what it got.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(Resource, Span)>>>);

impl Collector {
    fn take(&self, request: ExportTraceServiceRequest) {
        for of in request.resource_spans {
            let resource = of.resource.unwrap_or_default();
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| (resource.clone(), span)));
        }
    }

    fn got(&self) -> Vec<(Resource, Span)> {
        self.0.lock().unwrap().clone()
    }

    async fn until(&self, count: usize) -> Vec<(Resource, Span)> {
        until("spans", async || self.got().len() >= count).await;
        self.got()
    }

    /// Over HTTP; its address.
    fn serve_http(&self) -> SocketAddr {
        let collector = self.clone();
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            assert_eq!(headers["x-token"], "a b");
            collector.take(ExportTraceServiceRequest::decode(body).unwrap());
            Ok::<_, Infallible>(ExportTraceServiceResponse::default().encode_to_vec())
        };
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
        address
    }

    /// Over gRPC, with TLS where there is a certificate; its address.
    fn serve_grpc(&self, tls: Option<(String, String)>) -> SocketAddr {
        let mut server = Server::builder();
        if let Some((cert, key)) = tls {
            let tls = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
            server = server.tls_config(tls).unwrap();
        }
        let listener = listener();
        let address = listener.local_addr().unwrap();
        let serving = server
            .add_service(TraceServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(async { serving.await.unwrap() });
        address
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn listener() -> tokio::net::TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    tokio::net::TcpListener::from_std(listener).unwrap()
}

/// The value of an attribute, as text.
fn attribute(of: &[KeyValue], key: &str) -> String {
    let value = of.iter().find(|attribute| attribute.key == key).and_then(|found| found.value.clone()?.value);
    match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{key} is {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Asks as somebody who sends these headers.
async fn ask(service: &Service, user: &str, headers: &[(&'static str, String)]) {
    let mut request = request("user", user);
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    service.client().await.should_rate_limit(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_under_its_callers_and_says_what_was_answered() {
    let collector = Collector::default();
    let endpoint = format!("http://{}", collector.serve_http());
    let service = Service::ready(&[
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "limits"),
        ("TRACING_SERVICE_NAMESPACE", "edge"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=a%20b"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
    ])
    .await;
    let caller = [("traceparent", format!("00-{TRACE}-{SPAN}-01"))];
    for _ in 0..4 {
        ask(&service, "ann", &caller).await;
    }
    let got = collector.until(4).await;
    for (resource, span) in &got {
        let who = ["service.name", "service.namespace", "service.instance.id"];
        assert_eq!(who.map(|key| attribute(&resource.attributes, key)), ["limits", "edge", "pod-1"]);
        assert_eq!(span.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), SPAN.to_owned()));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
        let told = ["rpc.method", "ratelimit.domain", "ratelimit.descriptors", "rpc.grpc.status_code"];
        let told = told.map(|key| attribute(&span.attributes, key));
        assert_eq!(told, ["ShouldRateLimit", "test", "1", "0"]);
        assert!(!format!("{span:?}").contains("ann"), "values of clients stay out of traces");
    }
    let codes: Vec<String> =
        got.iter().map(|(_, span)| attribute(&span.attributes, "ratelimit.code")).collect();
    assert_eq!(codes, ["OK", "OK", "OK", "OVER_LIMIT"]);

    let refused = service
        .client()
        .await
        .should_rate_limit(Request::new(RateLimitRequest::default()))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let (_, failed) = collector.until(5).await.pop().unwrap();
    assert_eq!(attribute(&failed.attributes, "rpc.grpc.status_code"), "3");
    assert!(failed.status.unwrap().message.contains("domain must not be empty"));
    assert!(failed.parent_span_id.is_empty() && hex(&failed.trace_id) != TRACE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_does_not_trace_is_not_traced_and_zipkins_headers_will_do() {
    let collector = Collector::default();
    let endpoint = format!("http://{}", collector.serve_grpc(None));
    let service = Service::ready(&[
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("TRACING_SAMPLING_RATE", "0"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
    ])
    .await;
    ask(&service, "ann", &[]).await;
    ask(&service, "ann", &[("traceparent", format!("00-{TRACE}-{SPAN}-00"))]).await;
    ask(&service, "ann", &[("b3", format!("{TRACE}-{SPAN}-0"))]).await;
    ask(&service, "ann", &[("b3", format!("{TRACE}-{SPAN}-1"))]).await;
    let got = collector.until(1).await;
    assert_eq!((got.len(), hex(&got[0].1.parent_span_id)), (1, SPAN.to_owned()));
    assert_eq!(attribute(&got[0].0.attributes, "service.name"), "RateLimit");
    assert_eq!(attribute(&got[0].0.attributes, "service.instance.id").len(), 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_spans_are_sent_before_the_process_ends_also_over_tls() {
    let (collector, pki) = (Collector::default(), Pki::new());
    let address = collector.serve_grpc(Some(pki.issue("localhost")));
    let endpoint = format!("https://localhost:{}", address.port());
    let mut service = Service::ready(&[
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &pki.path("ca.pem")),
        // Longer than this test.
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ])
    .await;
    ask(&service, "ann", &[]).await;
    assert_eq!(collector.got().len(), 0);
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
    assert_eq!(collector.got().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_silent_delays_no_answer_and_what_it_does_not_take_is_counted() {
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut service = Service::ready(&[
        ("TRACING_ENABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", silent.local_addr().unwrap())),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5"),
        // Longer than this test: what the first message holds is never given up.
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "3600000"),
    ])
    .await;
    let mut client = service.client().await;
    for _ in 0..100 {
        client.should_rate_limit(request("robot", "r2")).await.unwrap();
    }
    // Ten wait, and at most five are in the message that nobody answers.
    let dropped = service.get("/metrics").1;
    let dropped: u64 = dropped
        .lines()
        .find_map(|line| line.strip_prefix("tollgate_spans_dropped_total "))
        .and_then(|count| count.parse().ok())
        .unwrap();
    assert!((85..=90).contains(&dropped), "{dropped}");
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_is_told_once() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut service = Service::ready(&[
        ("TRACING_ENABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{closed}")),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "200"),
    ])
    .await;
    ask(&service, "ann", &[]).await;
    service.served.line("traces are lost, since the collector does not take them");
    until("the count", async || service.get("/metrics").1.contains("tollgate_spans_dropped_total 1\n")).await;
}

#[test]
fn a_wrong_variable_of_opentelemetry_ends_with_64_and_its_name() {
    let rules = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "::nowhere"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://ann:hunter2@no where"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/does/not/exist.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ] {
        for protocol in ["http", "grpc"] {
            let mut command = command();
            command.arg("serve").env("TOLLGATE_RULES", rules.path()).env(name, value);
            command.env("TRACING_ENABLED", "true").env("TRACING_EXPORTER_PROTOCOL", protocol);
            let told = ended(&mut command);
            assert_eq!(told.code, Some(64), "{name} {protocol}: {}", told.stderr);
            assert!(told.stderr.contains(name), "{protocol}: {}", told.stderr);
            assert!(!told.stderr.contains("hunter2"), "{protocol}: {}", told.stderr);
        }
    }
}

#[test]
fn a_timeout_of_the_collector_that_is_no_number_ends_the_start_with_64() {
    let rules = tempfile::tempdir().unwrap();
    let mut command = command();
    command.args(["serve", "--grpc-port", "0"]).env("TOLLGATE_RULES", rules.path());
    command.env("TRACING_ENABLED", "true").env("OTEL_EXPORTER_OTLP_TIMEOUT", "abc");
    let told = ended(&mut command);
    assert_eq!(told.code, Some(64), "{}", told.stderr);
    let last = told.stderr.lines().last().unwrap();
    assert_eq!(
        last,
        "tollgate: OTEL_EXPORTER_OTLP_TIMEOUT: `abc` is wrong: write milliseconds, such as `10000`"
    );
}
