//! TLS towards the management server: whom it trusts, who it is, and certificates that are renewed.

use std::{fs, path::Path};

use tollgate::rules::xds;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::{
    client::{Client, config, line, xds_settings},
    pki::Pki,
    server::Management,
};

/// The name in the server's certificate; the address is another.
const NAME: &str = "xds.example";

/// With `cert.pem` and `key.pem` of a client.
fn pki() -> Pki {
    let pki = Pki::new();
    issue_client(&pki);
    pki
}

fn issue_client(pki: &Pki) {
    let (cert, key) = pki.issue("client.example");
    pki.write("cert.pem", &cert);
    pki.write("key.pem", &key);
}

/// A server that only clients of this authority may ask.
fn server(pki: &Pki) -> Management {
    let (cert, key) = pki.issue(NAME);
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .client_ca_root(Certificate::from_pem(pki.ca()));
    Management::start_with(Some(tls))
}

fn client(pki: &Pki, server: &Management) -> Client {
    let (ca, cert, key) = (pki.path("ca.pem"), pki.path("cert.pem"), pki.path("key.pem"));
    Client::follow(server.address, &settings(&ca, &cert, &key, NAME))
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
    let pki = pki();
    let mut server = server(&pki);
    let mut client = client(&pki, &server);
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
}

#[tokio::test]
async fn files_are_read_for_each_connection_so_renewed_ones_need_no_restart() {
    let (pki, other) = (pki(), pki());
    let mut server = server(&pki);
    // Of an authority that the server does not know, and one that does not know the server.
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        fs::copy(other.file(file), pki.file(file)).unwrap();
    }
    let mut client = client(&pki, &server);
    issue_client(&pki);
    // Up to here the server's certificate is none for this client; from here on it is.
    assert!(!server.has_stream());
    pki.write("ca.pem", &pki.ca());
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
}

#[tokio::test]
async fn a_file_that_is_missing_or_holds_something_else_is_told_by_its_variable() {
    let pki = pki();
    let address = server(&pki).address;
    let said = |ca: &Path, cert: &Path, key: &Path| {
        let [ca, cert, key] = [ca, cert, key].map(|path| path.display().to_string());
        xds::check(&xds_settings(address, &settings(&ca, &cert, &key, NAME)))
    };
    let file = |name: &str| pki.file(name);
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
