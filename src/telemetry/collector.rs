//! How a collector is reached: over HTTP or gRPC, with or without TLS, as the specification's variables say
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>). The library reads all but those of TLS.

use std::{env, fs, sync::Arc};

use hyper_rustls::{ConfigBuilderExt, HttpsConnectorBuilder};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig, WithTonicConfig};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::settings::TracingProtocol;

/// # Errors
/// Which variable is wrong, and why, in one line.
pub(super) fn exporter(protocol: TracingProtocol) -> Result<SpanExporter, String> {
    check_timeout()?;
    let files = Files::read()?;
    let built = match protocol {
        TracingProtocol::Grpc => {
            let exporter = SpanExporter::builder().with_tonic();
            // A plain address must be left without: the library takes TLS as a wish.
            if is_https() { exporter.with_tls_config(files.for_grpc()).build() } else { exporter.build() }
        }
        TracingProtocol::Http => {
            let connector = HttpsConnectorBuilder::new()
                .with_tls_config(files.for_http()?)
                .https_or_http()
                .enable_http1()
                .build();
            // The library has a timeout of its own around it.
            let client = HyperClient::new(connector, TIMEOUT_MAX, None);
            SpanExporter::builder().with_http().with_http_client(client).build()
        }
    };
    built.map_err(|error| format!("TRACING_ENABLED: {}", shown(error.to_string())))
}

/// The library takes its default in place of what it cannot read, and says nothing.
fn check_timeout() -> Result<(), String> {
    match variable("TIMEOUT") {
        Some((name, text)) if text.parse::<u64>().is_err() => {
            Err(format!("{name}: `{}` is wrong: write milliseconds, such as `10000`", text.escape_debug()))
        }
        _ => Ok(()),
    }
}

/// An error repeats the address that it is about, and in that there may be a password.
fn shown(error: String) -> String {
    match variable("ENDPOINT") {
        Some((_, address)) if address.contains('@') => error.replace(&address, "(hidden)"),
        _ => error,
    }
}

/// Longer than any timeout that the specification's variables are set to.
const TIMEOUT_MAX: std::time::Duration = std::time::Duration::from_secs(300);

/// A variable with `_TRACES_` inside, or the general one.
fn variable(what: &str) -> Option<(String, String)> {
    let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
    names
        .into_iter()
        .find_map(|name| Some((env::var(&name).ok().filter(|text| !text.is_empty())?, name)))
        .map(|(value, name)| (name, value))
}

fn is_https() -> bool {
    variable("ENDPOINT").is_some_and(|(_, address)| address.to_ascii_lowercase().starts_with("https://"))
}

/// PEM files of an authority, and of a certificate to show.
struct Files {
    ca: Option<(String, Vec<u8>)>,
    client: Option<[(String, Vec<u8>); 2]>,
}

impl Files {
    fn read() -> Result<Self, String> {
        let read = |what| match variable(what) {
            Some((name, path)) => match fs::read(&path) {
                Ok(bytes) => Ok(Some((name, bytes))),
                Err(error) => Err(format!("{name}: cannot read {path}: {error}")),
            },
            None => Ok(None),
        };
        let client = match (read("CLIENT_CERTIFICATE")?, read("CLIENT_KEY")?) {
            (Some(cert), Some(key)) => Some([cert, key]),
            (None, None) => None,
            (Some((name, _)), None) => return Err(format!("{name}: a certificate needs its key")),
            (None, Some((name, _))) => return Err(format!("{name}: a key needs its certificate")),
        };
        let files = Self { ca: read("CERTIFICATE")?, client };
        // Both protocols want the same of them.
        files.for_http()?;
        Ok(files)
    }

    fn for_grpc(&self) -> ClientTlsConfig {
        let mut config = match &self.ca {
            Some((_, pem)) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some([(_, cert), (_, key)]) = &self.client {
            config = config.identity(Identity::from_pem(cert, key));
        }
        config
    }

    fn for_http(&self) -> Result<ClientConfig, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("no TLS for traces: {error}"))?;
        let config = match &self.ca {
            Some((name, pem)) => {
                let mut roots = RootCertStore::empty();
                for ca in certificates(name, pem)? {
                    roots.add(ca).map_err(|error| format!("{name}: {error}"))?;
                }
                config.with_root_certificates(roots)
            }
            None => match config.clone().with_native_roots() {
                Ok(config) => config,
                // A container may have none, and needs none for plain HTTP.
                Err(_) => config.with_root_certificates(RootCertStore::empty()),
            },
        };
        match &self.client {
            Some([(name, cert), (key_name, key)]) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| format!("{key_name}: it holds no PEM PRIVATE KEY"))?;
                config
                    .with_client_auth_cert(certificates(name, cert)?, key)
                    .map_err(|error| format!("{name}: {error}"))
            }
            None => Ok(config.with_no_client_auth()),
        }
    }
}

fn certificates(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{name}: it holds no PEM CERTIFICATE")),
    }
}
