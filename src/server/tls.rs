//! TLS on the gRPC port: who we are, whom we let in, and certificates that are renewed while we serve.
//!
//! Certificates live for days or hours nowadays, and whoever renews them writes files: cert-manager switches a symbolic
//! link, others overwrite in place. File events miss some of these and mean little for the rest, so the files' contents
//! are compared once in [`LOOK_EVERY`]; they are a few kilobytes. A connection gets what is right when it is accepted.
//! Files that cannot be used change nothing: the certificate in use stays, and the log says why. A certificate that is
//! seen before its key is such a case, mended a moment later.

use std::{fs::File, io::Read, path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
        client::{danger::HandshakeSignatureValid, verify_server_name},
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
        server::{
            ParsedCertificate, WebPkiClientVerifier,
            danger::{ClientCertVerified, ClientCertVerifier},
        },
    },
};

use crate::settings::GrpcTls;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The largest file, in bytes: all authorities that a browser knows are a fifth of it.
const FILE_MAX: u64 = 1024 * 1024;

/// What HTTP/2 is called in a handshake (RFC 7301). Nothing else is spoken on this port.
const HTTP2: &[u8] = b"h2";

/// Certificates in use, for all threads.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    settings: GrpcTls,
    config: Arc<ArcSwap<ServerConfig>>,
    /// What was read last, usable or not.
    seen: Result<Files, String>,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which of them cannot be used and why, in one line that names the variable.
    pub(super) fn new(settings: &GrpcTls) -> Result<Self, String> {
        let files = Files::read(settings)?;
        let config = files.config(settings)?;
        let config = Arc::new(ArcSwap::from_pointee(config));
        Ok(Self { settings: settings.clone(), config, seen: Ok(files) })
    }

    /// What the next connection is accepted with.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Takes over renewed files, for ever.
    pub(super) async fn follow(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // A file may be on a network's disk, and probes are answered on this thread.
            let looked = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            match looked.await {
                Ok(back) => self = back,
                Err(defect) => {
                    return tracing::error!("certificates are not followed any more: {defect}");
                }
            }
        }
    }

    /// Looks at the files once.
    fn look(&mut self) {
        let files = Files::read(&self.settings);
        if files == self.seen {
            return;
        }
        match files.as_ref().map_err(String::clone).and_then(|files| files.config(&self.settings)) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!("new connections get the certificate of {}", self.settings.cert.display());
            }
            Err(why) => tracing::warn!("the certificate in use stays: {why}"),
        }
        self.seen = files;
    }
}

impl Files {
    fn read(settings: &GrpcTls) -> Result<Self, String> {
        let ca = settings.client.as_ref().map(|client| read("GRPC_CLIENT_TLS_CACERT", &client.ca));
        Ok(Self {
            cert: read("GRPC_SERVER_TLS_CERT", &settings.cert)?,
            key: read("GRPC_SERVER_TLS_KEY", &settings.key)?,
            ca: ca.transpose()?,
        })
    }

    fn config(&self, settings: &GrpcTls) -> Result<ServerConfig, String> {
        let chain = certificates("GRPC_SERVER_TLS_CERT", &settings.cert, &self.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| {
            format!("GRPC_SERVER_TLS_KEY: {} holds no PEM PRIVATE KEY", settings.key.display())
        })?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("GRPC_SERVER_USE_TLS: {error}"))?;
        let config = match self.clients(settings, provider)? {
            Some(clients) => config.with_client_cert_verifier(clients),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_single_cert(chain, key).map_err(|error| {
            let (cert, key) = (settings.cert.display(), settings.key.display());
            format!("GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY: {cert} with {key}: {error}")
        })?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    /// Who is let in; `None` is everybody.
    fn clients(
        &self,
        settings: &GrpcTls,
        provider: Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let (Some(client), Some(pem)) = (&settings.client, &self.ca) else { return Ok(None) };
        let wrong =
            |why: &dyn std::fmt::Display| format!("GRPC_CLIENT_TLS_CACERT: {}: {why}", client.ca.display());
        let mut roots = RootCertStore::empty();
        for ca in certificates("GRPC_CLIENT_TLS_CACERT", &client.ca, pem)? {
            roots.add(ca).map_err(|error| wrong(&error))?;
        }
        let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| wrong(&error))?;
        let Some(name) = &client.name else { return Ok(Some(signed)) };
        let name = ServerName::try_from(name.clone())
            .map_err(|_| format!("GRPC_CLIENT_TLS_SAN: `{name}` is no host's name"))?;
        Ok(Some(Arc::new(Named { signed, name })))
    }
}

impl std::fmt::Debug for Files {
    /// One of them is a private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("{setting}: cannot read {}: {error}", path.display()))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(format!("{setting}: {} is larger than {FILE_MAX} bytes", path.display()));
    }
    Ok(bytes)
}

fn certificates(setting: &str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{setting}: {} holds no PEM CERTIFICATE", path.display())),
    }
}

/// Clients whose certificate is signed by an authority of ours and has a certain name.
#[derive(Debug)]
struct Named {
    signed: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        // Names are compared alike whoever has the certificate; the library says "server" since clients ask mostly.
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
