//! Traces: whether and how requests are told to a collector of OpenTelemetry, by the reference's variables.
//!
//! Where the collector is, and how it is reached, the specification's own variables say (`OTEL_EXPORTER_OTLP_ENDPOINT` and
//! its like), which the library reads, here as there.

use super::{
    raw::{Reader, SettingsError},
    values,
};

/// How requests are traced.
#[derive(Clone, Debug, PartialEq)]
pub struct Tracing {
    /// What is spoken to the collector.
    pub protocol: TracingProtocol,
    /// Who we are there: `service.name`.
    pub service_name: String,
    /// `service.namespace`
    pub service_namespace: Option<String>,
    /// `service.instance.id`; a random one, where there is none.
    pub service_instance: Option<String>,
    /// The part, from 0 to 1, of the requests without a traced caller. Others are traced as their caller is.
    pub ratio: f64,
}

/// What is spoken to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracingProtocol {
    /// Protobuf over HTTP.
    Http,
    /// gRPC.
    Grpc,
}

/// `None` where nothing is traced. All of them are read even so: a wrong value is a mistake wherever it stands.
pub(super) fn tracing(read: &Reader<'_>) -> Result<Option<Tracing>, SettingsError> {
    let on = read.one("TRACING_ENABLED", values::boolean)?;
    let tracing = Tracing {
        protocol: read.one("TRACING_EXPORTER_PROTOCOL", protocol)?,
        service_name: read.one("TRACING_SERVICE_NAME", |text| Ok(text.to_owned()))?,
        service_namespace: read.given("TRACING_SERVICE_NAMESPACE").map(str::to_owned),
        service_instance: read.given("TRACING_SERVICE_INSTANCE_ID").map(str::to_owned),
        ratio: read.one("TRACING_SAMPLING_RATE", ratio)?,
    };
    Ok(on.then_some(tracing))
}

fn protocol(text: &str) -> Result<TracingProtocol, values::Want> {
    values::choose(text, &[("http", TracingProtocol::Http), ("grpc", TracingProtocol::Grpc)])
}

fn ratio(text: &str) -> Result<f64, values::Want> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("write a number from 0 to 1, such as `0.01` for one in a hundred".to_owned()),
    }
}
