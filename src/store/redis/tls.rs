//! TLS towards Redis: whom to trust, who we are.
//!
//! Files are read for each connection, so that they can be renewed; and once when the store is made, so that a missing one
//! is a wrong setting and not a connection that fails for ever.

use std::{path::Path, sync::Arc};

use rustls_native_certs::load_native_certs;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

use super::config::{Hostname, RedisConfigError, RedisTls};

/// Reads the files that `tls` names.
pub(super) fn config(tls: &RedisTls) -> Result<Arc<ClientConfig>, RedisConfigError> {
    // Named, not the process's default: that one is ambiguous as soon as a second provider is linked.
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| RedisConfigError::new("REDIS_TLS", e.to_string()))?;
    let verifier = verifier(tls, provider)?;
    // `dangerous` is what rustls calls any verifier of one's own; both of ours check the chain.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match client_certificate(tls)? {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|e| {
            RedisConfigError::new("REDIS_TLS_CLIENT_KEY", format!("does not fit REDIS_TLS_CLIENT_CERT: {e}"))
        })?,
    };
    Ok(Arc::new(config))
}

fn verifier(
    tls: &RedisTls,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, RedisConfigError> {
    let roots = Arc::new(roots(tls.ca.as_deref())?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|e| RedisConfigError::new("REDIS_TLS_CACERT", e.to_string()))?;
    Ok(match tls.hostname {
        Hostname::Verified => verifier,
        Hostname::Skipped => Arc::new(AnyName(verifier)),
    })
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, RedisConfigError> {
    let mut roots = RootCertStore::empty();
    let Some(ca) = ca else {
        // Some systems carry one broken file among hundreds of good ones; that is no reason to give up.
        roots.add_parsable_certificates(load_native_certs().certs);
        if roots.is_empty() {
            let why = "this system has no certificate authorities; name a PEM file of yours";
            return Err(RedisConfigError::new("REDIS_TLS_CACERT", why));
        }
        return Ok(roots);
    };
    for certificate in certificates("REDIS_TLS_CACERT", ca)? {
        roots.add(certificate).map_err(|e| unreadable("REDIS_TLS_CACERT", ca, e))?;
    }
    Ok(roots)
}

type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn client_certificate(tls: &RedisTls) -> Result<Option<ClientCertificate>, RedisConfigError> {
    match (&tls.client_cert, &tls.client_key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => {
            let chain = certificates("REDIS_TLS_CLIENT_CERT", cert)?;
            let key_der =
                PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable("REDIS_TLS_CLIENT_KEY", key, e))?;
            Ok(Some((chain, key_der)))
        }
        (Some(_), None) => {
            Err(RedisConfigError::new("REDIS_TLS_CLIENT_KEY", "is missing beside REDIS_TLS_CLIENT_CERT"))
        }
        (None, Some(_)) => {
            Err(RedisConfigError::new("REDIS_TLS_CLIENT_CERT", "is missing beside REDIS_TLS_CLIENT_KEY"))
        }
    }
}

fn certificates(
    setting: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, RedisConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match all.map_err(|e| unreadable(setting, path, e))? {
        none if none.is_empty() => Err(unreadable(setting, path, "it holds no PEM certificate")),
        some => Ok(some),
    }
}

fn unreadable(setting: &'static str, path: &Path, why: impl std::fmt::Display) -> RedisConfigError {
    RedisConfigError::new(setting, format!("cannot read {}: {why}", path.display()))
}

/// Checks all but the name: `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION`.
///
/// rustls checks the name last, after the chain and the dates, so a certificate that fails for its name alone is good
/// otherwise.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
