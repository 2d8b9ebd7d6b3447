//! TLS towards the management server: whom it trusts, who it is, and certificates that are renewed.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tollgate::rules::xds;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::{
    client::{Client, config, line, xds_settings},
    server::Management,
};

/// The name in the server's certificate; the address is another.
const NAME: &str = "xds.example";

/// An authority, and PEM files of a client with a certificate of it.
struct Pki {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pki = Self { dir: tempfile::tempdir().unwrap(), authority };
        pki.write("ca.pem", &pki.authority.pem());
        pki.issue_client();
        pki
    }

    /// A certificate and its key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.authority).unwrap().pem(), key.serialize_pem())
    }

    fn issue_client(&self) {
        let (cert, key) = self.issue("client.example");
        self.write("cert.pem", &cert);
        self.write("key.pem", &key);
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.path().join(file), text).unwrap();
    }

    fn path(&self, file: &str) -> String {
        self.dir.path().join(file).display().to_string()
    }

    /// A server that only clients of this authority may ask.
    fn server(&self) -> Management {
        let (cert, key) = self.issue(NAME);
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(cert, key))
            .client_ca_root(Certificate::from_pem(self.authority.pem()));
        Management::start_with(Some(tls))
    }

    fn client(&self, server: &Management) -> Client {
        let (ca, cert, key) = (self.path("ca.pem"), self.path("cert.pem"), self.path("key.pem"));
        Client::follow(server.address, &settings(&ca, &cert, &key, NAME))
    }
}

fn settings<'s>(ca: &'s str, cert: &'s str, key: &'s str, name: &'s str) -> [(&'s str, &'s str); 5] {
    [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", name),
    ]
}

#[tokio::test]
async fn rules_come_over_tls_with_a_client_certificate() {
    let pki = Pki::new();
    let mut server = pki.server();
    let mut client = pki.client(&server);
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
}

#[tokio::test]
async fn files_are_read_for_each_connection_so_renewed_ones_need_no_restart() {
    let (pki, other) = (Pki::new(), Pki::new());
    let mut server = pki.server();
    // Of an authority that the server does not know, and one that does not know the server.
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        fs::copy(other.path(file), pki.path(file)).unwrap();
    }
    let mut client = pki.client(&server);
    pki.issue_client();
    // Up to here the server's certificate is none for this client; from here on it is.
    assert!(!server.has_stream());
    pki.write("ca.pem", &pki.authority.pem());
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
}

#[tokio::test]
async fn a_file_that_is_missing_or_holds_something_else_is_told_by_its_variable() {
    let pki = Pki::new();
    let address = pki.server().address;
    let said = |ca: &Path, cert: &Path, key: &Path| {
        let [ca, cert, key] = [ca, cert, key].map(|path| path.display().to_string());
        xds::check(&xds_settings(address, &settings(&ca, &cert, &key, NAME)))
    };
    let file = |name: &str| pki.dir.path().join(name);
    let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    assert_eq!(said(&ca, &cert, &key), Ok(()));
    for (wrong, variable, why) in [
        (said(&file("none"), &cert, &key), "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "cannot read"),
        (said(&key, &cert, &key), "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "holds no PEM CERTIFICATE"),
        (said(&ca, &key, &key), "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "holds no PEM CERTIFICATE"),
        (said(&ca, &cert, &cert), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "holds no PEM PRIVATE KEY"),
    ] {
        let line = wrong.unwrap_err();
        assert!(line.starts_with(variable) && line.contains(why) && !line.contains('\n'), "{line}");
    }
}
