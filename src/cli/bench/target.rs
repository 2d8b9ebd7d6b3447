//! Whom to ask, with what a connection needs made once: certificates are read before the first request, not for each
//! connection.

use std::{error::Error, io, sync::Arc};

use hyper_rustls::ConfigBuilderExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use super::super::{
    Failure,
    connect::{Dialed, Service, pem},
};

/// What is spoken over TLS.
const ALPN: &[u8] = b"h2";

/// A service, and how to reach it.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) service: Service,
    /// Where requests say that they go.
    pub(super) origin: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection, whatever it is made of.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

impl Target {
    /// # Errors
    /// Wrong addresses, files and names.
    pub(super) fn new(service: &Service) -> Result<Self, Failure> {
        let endpoint = service.endpoint().map_err(Failure::usage)?;
        let origin = endpoint.uri().to_string().trim_end_matches('/').to_owned();
        let tls = service.wants_tls().then(|| tls(service)).transpose().map_err(Failure::usage)?;
        Ok(Self { service: service.clone(), origin, tls })
    }

    pub(super) fn shown(&self) -> String {
        self.service.shown()
    }

    /// # Errors
    /// Why there is no connection, in words.
    pub(super) async fn dial(&self) -> Result<Box<dyn Stream>, String> {
        let why = |why: io::Error| self.service.unreachable(&why as &(dyn Error + 'static));
        let dialed = self.service.dial().await.map_err(why)?;
        Ok(match (dialed, &self.tls) {
            (Dialed::Port(stream), None) => Box::new(stream),
            (Dialed::Socket(stream), None) => Box::new(stream),
            (Dialed::Port(stream), Some((tls, name))) => {
                Box::new(tls.connect(name.clone(), stream).await.map_err(why)?)
            }
            (Dialed::Socket(stream), Some((tls, name))) => {
                Box::new(tls.connect(name.clone(), stream).await.map_err(why)?)
            }
        })
    }
}

fn tls(service: &Service) -> Result<(TlsConnector, ServerName<'static>), String> {
    let (files, name) = service.tls();
    let wrong = |flag: &str, why: &dyn std::fmt::Display| format!("{flag}: {why}");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| wrong("--tls", &why))?;
    let config = match &files.ca {
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates("--ca", &pem("--ca", file, "CERTIFICATE")?)? {
                roots.add(authority).map_err(|why| wrong("--ca", &why))?;
            }
            config.with_root_certificates(roots)
        }
        None => config.with_native_roots().map_err(|why| wrong("--tls", &why))?,
    };
    let mut config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let cert = certificates("--cert", &pem("--cert", cert, "CERTIFICATE")?)?;
            let key = PrivateKeyDer::from_pem_slice(&pem("--key", key, "PRIVATE KEY")?);
            let key = key.map_err(|why| wrong("--key", &why))?;
            config.with_client_auth_cert(cert, key).map_err(|why| wrong("--cert, --key", &why))?
        }
        _ => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    let name = ServerName::try_from(name.to_owned()).map_err(|why| wrong("--name", &why))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn certificates(flag: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|why| format!("{flag}: {why}"))
}
