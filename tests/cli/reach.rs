//! How `tollgate call` and `tollgate bench` reach a service over TLS and over a Unix socket, and what it says when it does not.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

use super::{SHOP, rules};
use crate::{
    pki::Pki,
    tollgate::{Served, run},
};

/// A service on [`SHOP`] with these settings, and its address.
fn serve(dir: &Path, settings: &[(&str, &str)]) -> (Served, String) {
    let mut served = Served::start(dir, settings);
    let at = served.address("grpc");
    served.line("rules in force");
    (served, at)
}

/// Writes a certificate for `name` and its key; their paths.
fn issue(into: &Pki, authority: &Pki, name: &str) -> (String, String) {
    let (cert, key) = authority.issue(name);
    into.write(&format!("{name}.pem"), &cert);
    into.write(&format!("{name}.key"), &key);
    (into.path(&format!("{name}.pem")), into.path(&format!("{name}.key")))
}

/// Whoever asks a service reaches it alike.
const COMMANDS: [&[&str]; 2] = [&["call"], &["bench", "-n", "9"]];

fn answers(args: &[&str]) {
    for command in COMMANDS {
        let told = run([command, args, &["shop", "user=ann", "--hits", "0"]].concat());
        assert_eq!(told.code, Some(0), "{command:?} {args:?}: {}{}", told.stdout, told.stderr);
    }
}

fn fails(args: &[&str], why: &str) {
    for command in COMMANDS {
        let told = run([command, args, &["shop", "user=ann", "--hits", "0"]].concat());
        assert_eq!((told.code, &*told.stdout), (Some(2), ""), "{command:?} {args:?}: {}", told.stderr);
        assert!(told.stderr.contains(why), "{command:?} {args:?}: {}", told.stderr);
        assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
    }
}

#[test]
fn call_speaks_tls_and_says_whom_it_does_not_trust() {
    let (dir, pki, other) = (rules(&[("shop.yaml", SHOP)]), Pki::new(), Pki::new());
    let (cert, key) = issue(&pki, &pki, "limits.example");
    let tls =
        [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", &*cert), ("GRPC_SERVER_TLS_KEY", &*key)];
    let (_served, at) = serve(dir.path(), &tls);
    let (ca, wrong) = (pki.path("ca.pem"), other.path("ca.pem"));

    answers(&[&at, "--ca", &ca, "--name", "limits.example"]);
    answers(&[&format!("https://{at}"), "--ca", &ca, "--name", "limits.example"]);
    fails(&[&at, "--ca", &ca], "is not for that host");
    fails(&[&at, "--ca", &ca, "--name", "other.example"], "is not for other.example");
    fails(&[&at, "--ca", &wrong, "--name", "limits.example"], "is not signed by an authority in");
    fails(&[&at], "without TLS (--tls)?");

    let (_plain, plain) = serve(dir.path(), &[]);
    fails(&[&plain, "--ca", &ca], "speaks no TLS");
}

#[test]
fn a_service_that_shows_what_openssl_req_x509_makes_is_told_from_one_that_is_not_trusted() {
    let (dir, pki, own) = (rules(&[("shop.yaml", SHOP)]), Pki::new(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(vec!["limits.example".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    pki.write("own.pem", &params.self_signed(&own).unwrap().pem());
    pki.write("own.key", &own.serialize_pem());
    let (cert, key) = (pki.path("own.pem"), pki.path("own.key"));
    let tls =
        [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", &*cert), ("GRPC_SERVER_TLS_KEY", &*key)];
    let (_served, at) = serve(dir.path(), &tls);
    fails(&[&at, "--ca", &cert, "--name", "limits.example"], "make it with basicConstraints=CA:FALSE");
}

#[test]
fn call_shows_a_certificate_where_one_is_wanted_and_says_so_where_it_has_none() {
    let (dir, pki, other) = (rules(&[("shop.yaml", SHOP)]), Pki::new(), Pki::new());
    let (cert, key) = issue(&pki, &pki, "limits.example");
    let ca = pki.path("ca.pem");
    let (_served, at) = serve(
        dir.path(),
        &[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &cert),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_CLIENT_TLS_CACERT", &ca),
        ],
    );
    let (mine, my_key) = issue(&pki, &pki, "me.example");
    let (strange, strange_key) = issue(&pki, &other, "stranger.example");
    let trusting = [&*at, "--ca", &ca, "--name", "limits.example"];

    answers(&[&trusting[..], &["--cert", &mine, "--key", &my_key]].concat());
    fails(&trusting, "nobody in without a certificate");
    fails(
        &[&trusting[..], &["--cert", &strange, "--key", &strange_key]].concat(),
        "not accept the certificate in",
    );
}

#[test]
fn call_reaches_a_unix_socket_plain_or_over_tls_and_one_without_a_file() {
    let (dir, pki) = (rules(&[("shop.yaml", SHOP)]), Pki::new());
    let path = pki.path("grpc.sock");
    let (served, at) = serve(dir.path(), &[("GRPC_UDS", &path)]);
    assert_eq!(at, format!("unix:{path}"));
    answers(&[&at]);
    answers(&[&format!("unix://{path}")]);
    drop(served);
    fails(&[&at], "nothing listens on");
    fails(&["unix:/does/not/exist.sock"], "there is no unix:/does/not/exist.sock");

    let (cert, key) = issue(&pki, &pki, "limits.example");
    let tls = [
        ("GRPC_UDS", &*path),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
    ];
    let (_served, at) = serve(dir.path(), &tls);
    answers(&[&at, "--ca", &pki.path("ca.pem"), "--name", "limits.example"]);

    let name = format!("@tollgate-test-{}", std::process::id());
    let (_served, at) = serve(dir.path(), &[("GRPC_UDS", &name)]);
    answers(&[&at]);
}
