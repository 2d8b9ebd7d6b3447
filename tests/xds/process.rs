//! The real binary under a management server: what it says, and when it serves.

use std::path::Path;

use crate::{
    client::{WAITS, config},
    server::{Management, SOON},
    tollgate::{Served, command, ended},
};

/// Files are not what rules come from here.
const NO_RULES: &str = "/nowhere";

fn serve(server: &Management, settings: &[(&str, &str)]) -> Served {
    let address = server.address.to_string();
    let mut all = vec![
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", address.as_str()),
        ("LOG_FORMAT", "text"),
    ];
    all.extend(WAITS);
    all.extend(settings);
    Served::start(Path::new(NO_RULES), &all)
}

/// Waits for a line of the log without holding up the test's other tasks.
async fn line(served: Served, wanted: &'static str) -> (Served, String) {
    let waited = tokio::task::spawn_blocking(move || {
        let mut served = served;
        let line = served.line(wanted);
        (served, line)
    });
    tokio::time::timeout(SOON * 2, waited).await.unwrap().unwrap()
}

#[tokio::test]
async fn it_serves_once_there_are_rules_and_says_what_becomes_of_the_server() {
    let mut server = Management::start();
    let served = serve(&server, &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "300")]);
    let mut talk = server.stream().await;
    talk.request().await;
    let (served, _) = line(served, "connected to the management server").await;
    assert!(!served.log().contains("SERVING"), "{}", served.log());
    talk.accepted("1", &[config("shop", 5)]).await;
    let (served, _) = line(served, "rules in force: 1 domains, 1 limits").await;
    let (served, _) = line(served, "health: SERVING").await;

    let mut wrong = config("shop", 5);
    wrong.domain.clear();
    let _ = talk.refused("2", "1", vec![crate::server::any(&wrong)]).await;
    let (served, told) = line(served, "refused version \"2\"").await;
    assert!(told.contains("ERROR"), "{told}");

    talk.send("3", &[config(&"shop".repeat(100), 5)]);
    let (served, told) = line(served, "OutOfRange").await;
    assert!(told.contains("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES is 300: raise it"), "{told}");
    assert!(told.contains("its last rules stay in force"), "{told}");

    server.stop();
    let (served, _) = line(served, "no connection").await;
    assert!(!served.log().contains("NOT_SERVING"), "{}", served.log());
}

#[tokio::test]
async fn health_need_not_wait_for_the_first_rules() {
    let mut server = Management::start();
    server.stop();
    let served = serve(&server, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    let (served, told) = line(served, "no connection").await;
    assert!(told.contains("no rules yet"), "{told}");
    line(served, "health: SERVING").await;
}

#[test]
fn a_missing_certificate_ends_with_64_and_one_line() {
    let ended = ended(command().arg("serve").envs([
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/nowhere/ca.pem"),
    ]));
    assert_eq!(ended.code, Some(64), "{}", ended.stderr);
    assert!(ended.stderr.contains("CONFIG_GRPC_XDS_SERVER_TLS_CACERT: cannot read /nowhere/ca.pem"));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}
