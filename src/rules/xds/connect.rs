//! The connection to a management server: where it is, whom to trust, who we are.

use std::{error::Error, fs, path::Path, time::Duration};

use tonic::{
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use crate::settings::{Xds, XdsTls};

/// How long connecting may take, TLS included: any network that works needs less.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A connection that is silent for so long is probed, so often, so many times: a host that is gone without a word is
/// found after a minute.
const PROBE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Whether a connection could be tried with these settings: files that they name are there and hold what they should.
///
/// # Errors
/// What is wrong, in one line that names the variable.
pub fn check(xds: &Xds) -> Result<(), String> {
    endpoint(xds).map(drop)
}

/// Connects.
///
/// # Errors
/// Why that failed, in words.
pub(super) async fn connect(xds: &Xds) -> Result<Channel, String> {
    let endpoint = endpoint(xds)?;
    match tokio::time::timeout(CONNECT_MAX, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(format!("no connection: {}", causes(&error))),
        Err(_) => Err(format!("no connection within {CONNECT_MAX:?}")),
    }
}

/// Adds the headers of the settings, which are known to be such.
pub(super) fn add_headers(metadata: &mut MetadataMap, xds: &Xds) {
    for (name, value) in &xds.headers {
        if let (Ok(name), Ok(value)) =
            (AsciiMetadataKey::from_bytes(name.as_bytes()), AsciiMetadataValue::try_from(value.expose()))
        {
            metadata.append(name, value);
        }
    }
}

fn endpoint(xds: &Xds) -> Result<Endpoint, String> {
    let scheme = if xds.tls.is_some() { "https" } else { "http" };
    let (idle, every, times) = PROBE;
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", xds.server))
        .map_err(|error| format!("CONFIG_GRPC_XDS_SERVER_URL: `{}`: {}", xds.server, causes(&error)))?
        .connect_timeout(CONNECT_MAX)
        .tcp_keepalive(Some(idle))
        .tcp_keepalive_interval(Some(every))
        .tcp_keepalive_retries(Some(times));
    match &xds.tls {
        None => Ok(endpoint),
        Some(tls) => endpoint
            .tls_config(tls_config(tls)?)
            .map_err(|error| format!("CONFIG_GRPC_XDS_SERVER_USE_TLS: {}", causes(&error))),
    }
}

fn tls_config(tls: &XdsTls) -> Result<ClientTlsConfig, String> {
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(ca) => {
            let pem = read("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca, "CERTIFICATE")?;
            config.ca_certificate(Certificate::from_pem(pem))
        }
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &tls.client {
        let cert = read("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert, "CERTIFICATE")?;
        let key = read("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key, "PRIVATE KEY")?;
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = &tls.name {
        config = config.domain_name(name);
    }
    Ok(config)
}

/// A PEM file that holds at least one of what it should.
fn read(setting: &str, path: &Path, what: &str) -> Result<Vec<u8>, String> {
    let pem =
        fs::read(path).map_err(|error| format!("{setting}: cannot read {}: {error}", path.display()))?;
    let ends = format!("{what}-----");
    let holds = String::from_utf8_lossy(&pem)
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&ends));
    if holds { Ok(pem) } else { Err(format!("{setting}: {} holds no PEM {what}", path.display())) }
}

/// An error with all that caused it: the outermost of a library says little.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut words = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        // Wrappers repeat what they wrap.
        if words.last() != Some(&text) {
            words.push(text);
        }
        next = error.source();
    }
    words.join(": ")
}
