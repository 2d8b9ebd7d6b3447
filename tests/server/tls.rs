//! TLS on the gRPC port: whom it lets in, who it is, and certificates that are renewed.

use std::net::TcpStream;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use crate::{
    client::{RULES, Service, request, until},
    pki::Pki,
    support::tollgate::{command, ended},
};
use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

/// The name in the server's certificate.
const NAME: &str = "limits.example";

/// That of the clients which are let in.
const CLIENT: &str = "envoy.example";

/// Writes a certificate for the server.
fn issue_server(pki: &Pki, authority: &Pki) {
    let (cert, key) = authority.issue(NAME);
    pki.write("cert.pem", &cert);
    pki.write("key.pem", &key);
}

/// A service with the certificate in `pki`, once it is ready.
fn serve(pki: &Pki, settings: &[(&str, &str)]) -> Service {
    let (cert, key) = (pki.path("cert.pem"), pki.path("key.pem"));
    let mut all = vec![
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &*cert),
        ("GRPC_SERVER_TLS_KEY", &*key),
    ];
    all.extend(settings);
    let mut service = Service::start(&[("rules.yaml", RULES)], &all);
    service.served.line("health: SERVING");
    service
}

/// What a client trusts, and what it shows.
fn trusting(authority: &Pki, shown: Option<(String, String)>) -> ClientTlsConfig {
    let tls = ClientTlsConfig::new().domain_name(NAME).ca_certificate(Certificate::from_pem(authority.ca()));
    match shown {
        Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
        None => tls,
    }
}

async fn connect(
    service: &Service,
    tls: &ClientTlsConfig,
) -> Result<RateLimitServiceClient<Channel>, tonic::transport::Error> {
    let endpoint = Channel::from_shared(format!("https://{}", service.grpc)).unwrap();
    Ok(RateLimitServiceClient::new(endpoint.tls_config(tls.clone())?.connect().await?))
}

/// Whether a client of its own connection gets an answer. In TLS 1.3 a client hears that it is refused only after it
/// believes to be connected.
async fn is_answered(service: &Service, tls: &ClientTlsConfig) -> bool {
    match connect(service, tls).await {
        Ok(mut client) => client.should_rate_limit(request("robot", "r2")).await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_over_tls_and_only_over_tls() {
    let (pki, other) = (Pki::new(), Pki::new());
    issue_server(&pki, &pki);
    let service = serve(&pki, &[]);
    assert!(is_answered(&service, &trusting(&pki, None)).await);
    assert!(!is_answered(&service, &trusting(&other, None)).await, "the certificate is another authority's");
    let plain = Channel::from_shared(format!("http://{}", service.grpc)).unwrap().connect().await;
    if let Ok(plain) = plain {
        let answer = RateLimitServiceClient::new(plain).should_rate_limit(request("robot", "r2")).await;
        assert!(answer.is_err(), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_authority_for_clients_only_those_it_signed_are_let_in() {
    let (pki, other) = (Pki::new(), Pki::new());
    issue_server(&pki, &pki);
    let service = serve(&pki, &[("GRPC_CLIENT_TLS_CACERT", &pki.path("ca.pem"))]);
    for (shown, let_in) in
        [(None, false), (Some(other.issue(CLIENT)), false), (Some(pki.issue("any.example")), true)]
    {
        assert_eq!(is_answered(&service, &trusting(&pki, shown)).await, let_in);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_name_for_clients_only_those_with_that_name_are_let_in() {
    let (pki, other) = (Pki::new(), Pki::new());
    issue_server(&pki, &pki);
    let ca = pki.path("ca.pem");
    let service = serve(&pki, &[("GRPC_CLIENT_TLS_CACERT", &ca), ("GRPC_CLIENT_TLS_SAN", CLIENT)]);
    for (shown, let_in) in [
        (None, false),
        (Some(other.issue(CLIENT)), false),
        (Some(pki.issue("any.example")), false),
        (Some(pki.issue(CLIENT)), true),
    ] {
        assert_eq!(is_answered(&service, &trusting(&pki, shown)).await, let_in);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_need_no_restart_and_unusable_ones_change_nothing() {
    let (pki, renewed) = (Pki::new(), Pki::new());
    issue_server(&pki, &pki);
    let mut service = serve(&pki, &[("GRPC_CLIENT_TLS_CACERT", &pki.path("ca.pem"))]);
    let old = trusting(&pki, Some(pki.issue(CLIENT)));
    let mut open = connect(&service, &old).await.unwrap();
    assert!(open.should_rate_limit(request("robot", "r2")).await.is_ok());

    pki.write("cert.pem", "half a certif");
    let line = service.served.line("the certificate in use stays");
    assert!(line.contains("GRPC_SERVER_TLS_CERT") && line.contains("holds no PEM CERTIFICATE"), "{line}");
    assert!(is_answered(&service, &old).await);

    // Of another authority, as is who may come.
    issue_server(&pki, &renewed);
    pki.write("ca.pem", &renewed.ca());
    let new = trusting(&renewed, Some(renewed.issue(CLIENT)));
    until("the renewed certificate", async || is_answered(&service, &new).await).await;
    assert!(!is_answered(&service, &old).await);
    assert!(!is_answered(&service, &trusting(&renewed, Some(pki.issue(CLIENT)))).await);
    assert!(open.should_rate_limit(request("robot", "r2")).await.is_ok(), "what is open stays open");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_hold_up_neither_others_nor_the_end() {
    let pki = Pki::new();
    issue_server(&pki, &pki);
    let mut service = serve(&pki, &[("SHUTDOWN_TIMEOUT", "1h")]);
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&service.grpc).unwrap()).collect();
    assert!(is_answered(&service, &trusting(&pki, None)).await);
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
}

#[test]
fn files_that_cannot_be_used_end_the_start_with_64_and_the_variable() {
    let (pki, rules) = (Pki::new(), tempfile::tempdir().unwrap());
    issue_server(&pki, &pki);
    let path = |file: &str| pki.path(file);
    pki.write("other.pem", &pki.issue(NAME).1);
    pki.write("large.pem", &"x".repeat(1024 * 1024 + 1));
    for (cert, key, ca, wanted) in [
        ("none.pem", "key.pem", "ca.pem", ["GRPC_SERVER_TLS_CERT", "cannot read"]),
        ("key.pem", "key.pem", "ca.pem", ["GRPC_SERVER_TLS_CERT", "holds no PEM CERTIFICATE"]),
        ("large.pem", "key.pem", "ca.pem", ["GRPC_SERVER_TLS_CERT", "larger than"]),
        ("cert.pem", "cert.pem", "ca.pem", ["GRPC_SERVER_TLS_KEY", "holds no PEM PRIVATE KEY"]),
        ("cert.pem", "other.pem", "ca.pem", ["GRPC_SERVER_TLS_KEY", "other.pem"]),
        ("cert.pem", "key.pem", "key.pem", ["GRPC_CLIENT_TLS_CACERT", "holds no PEM CERTIFICATE"]),
    ] {
        let mut command = command();
        command.arg("serve").env("TOLLGATE_RULES", rules.path()).env("GRPC_SERVER_USE_TLS", "true");
        command.env("GRPC_SERVER_TLS_CERT", path(cert)).env("GRPC_SERVER_TLS_KEY", path(key));
        let ended = ended(command.env("GRPC_CLIENT_TLS_CACERT", path(ca)));
        assert_eq!(ended.code, Some(64), "{cert} {key} {ca}: {}", ended.stderr);
        let said = ended.stderr.trim_end();
        assert!(wanted.iter().all(|words| said.contains(words)) && !said.contains('\n'), "{said}");
    }
}
