//! gRPC on a Unix socket: who finds it, who takes it over, and what is left behind.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
};

use tempfile::TempDir;

use crate::{
    client::Service,
    support::tollgate::{Ended, command, ended},
};

/// A directory for a socket, and the socket's path.
fn place() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grpc.sock").display().to_string();
    (dir, path)
}

/// What becomes of a service that cannot start on this socket.
fn refused(path: &str) -> Ended {
    let rules = tempfile::tempdir().unwrap();
    let mut command = command();
    command.arg("serve").env("TOLLGATE_RULES", rules.path()).env("GRPC_UDS", path);
    ended(command.env("PORT", "0").env("DEBUG_PORT", "0"))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_on_a_socket_and_its_file_goes_with_the_process() {
    let (_dir, path) = place();
    let mut service = Service::ready(&[("GRPC_UDS", &path)]).await;
    assert_eq!(service.grpc, format!("unix:{path}"));
    assert_eq!(service.ask("user", "ann").await.unwrap().statuses[0].limit_remaining, 2);
    assert!(Path::new(&path).exists());
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
    assert!(!Path::new(&path).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_of_a_process_that_was_killed_keeps_nobody_from_starting() {
    let (_dir, path) = place();
    let mut killed = Service::ready(&[("GRPC_UDS", &path)]).await;
    killed.served.signal("KILL");
    assert_eq!(killed.served.exit_code(), None);
    assert!(Path::new(&path).exists(), "what this test is about");
    let service = Service::ready(&[("GRPC_UDS", &path)]).await;
    assert!(service.ask("user", "ann").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_somebody_listens_on_is_left_to_them() {
    let (_dir, path) = place();
    let service = Service::ready(&[("GRPC_UDS", &path)]).await;
    let told = refused(&path);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    assert!(told.stderr.contains(&format!("cannot listen on unix:{path}: another process does")), "{told:?}");
    assert!(service.ask("user", "ann").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_may_have_taken_the_path_while_the_old_one_drained() {
    let (_dir, path) = place();
    let mut service = Service::ready(&[("GRPC_UDS", &path)]).await;
    fs::remove_file(&path).unwrap();
    let _next = UnixListener::bind(&path).unwrap();
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
    assert!(Path::new(&path).exists(), "it is the next one's");
}

#[test]
fn what_is_no_socket_is_never_replaced() {
    let (_dir, path) = place();
    fs::write(&path, "precious").unwrap();
    let told = refused(&path);
    assert_eq!(told.code, Some(64), "{}", told.stderr);
    assert!(told.stderr.contains("is there and is no socket"), "{told:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_path_that_cannot_be_one_ends_with_64() {
    let (dir, _) = place();
    let nowhere = dir.path().join("no/such/dir.sock").display().to_string();
    for (path, why) in [
        (nowhere, "does not exist"),
        (format!("/tmp/{}.sock", "x".repeat(98)), "at most 107 bytes, and this one 108"),
        ("/tmp/".to_owned(), "write a file's path"),
        ("unix:/tmp/x.sock".to_owned(), "write the path alone"),
    ] {
        let told = refused(&path);
        assert_eq!(told.code, Some(64), "{path}: {}", told.stderr);
        assert!(told.stderr.contains("GRPC_UDS") && told.stderr.contains(why), "{path}: {}", told.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_what_the_setting_says() {
    let (_dir, path) = place();
    let service = Service::ready(&[("GRPC_UDS", &path), ("GRPC_UDS_MODE", "662")]).await;
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o662);
    assert!(service.ask("user", "ann").await.is_ok());
}
