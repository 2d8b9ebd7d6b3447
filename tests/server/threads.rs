//! Which thread serves which connection, seen as the kernel sees it: a thread that answers one question after the other
//! goes to sleep after each.

use std::{collections::BTreeMap, fs, path::PathBuf};

use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::client::{Service, request, until};

/// More than any other thread sleeps meanwhile, for timers or by chance.
const QUESTIONS: usize = 200;

/// How often each of the threads that answer went to sleep.
fn sleeps(pid: u32) -> BTreeMap<String, u64> {
    let read = |task: PathBuf| {
        let name = fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
        let status = fs::read_to_string(task.join("status")).ok()?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        name.starts_with("answers-").then(|| (name, sleeps.trim().parse().unwrap()))
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| read(task.unwrap().path())).collect()
}

/// The thread that serves a connection.
async fn thread_of(service: &Service, connection: &Channel) -> String {
    let mut client = RateLimitServiceClient::new(connection.clone());
    let before = sleeps(service.served.pid());
    for _ in 0..QUESTIONS {
        client.should_rate_limit(request("robot", "r2")).await.unwrap();
    }
    let after = sleeps(service.served.pid());
    after.into_iter().max_by_key(|(name, slept)| slept - before[name]).unwrap().0
}

/// Connections that the service has not closed, as the kernel lists them.
fn open(service: &Service) -> usize {
    let count = |file: &str, is_one: &dyn Fn(&[&str]) -> bool| {
        let text = fs::read_to_string(file).unwrap();
        text.lines().filter(|line| is_one(&line.split_whitespace().collect::<Vec<&str>>())).count()
    };
    match service.grpc.strip_prefix("unix:") {
        Some(path) => count("/proc/net/unix", &|line| line[5] == "03" && line.last() == Some(&path)),
        None => {
            let port: u16 = service.grpc.rsplit_once(':').unwrap().1.parse().unwrap();
            let port = format!(":{port:04X}");
            // Established, or left by the client and not yet by the service.
            count("/proc/net/tcp", &|line| line[1].ends_with(&port) && ["01", "08"].contains(&line[3]))
        }
    }
}

async fn until_open(service: &Service, connections: usize) {
    until("the end of a connection", async || open(service) == connections).await;
}

async fn two_connections_are_on_two_threads(settings: &[(&str, &str)]) {
    let settings = [&[("THREADS", "2")], settings].concat();
    let service = Service::ready(&settings).await;
    for short_ones in 0..4 {
        until_open(&service, 0).await;
        let first = service.channel().await;
        let first_thread = thread_of(&service, &first).await;
        for _ in 0..short_ones {
            service.ask("robot", "r2").await.unwrap();
            until_open(&service, 1).await;
        }
        let second = service.channel().await;
        assert_ne!(thread_of(&service, &second).await, first_thread, "after {short_ones} short ones");
        // Neither moves while others come and go.
        service.ask("robot", "r2").await.unwrap();
        assert_eq!(thread_of(&service, &first).await, first_thread);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_with_two_connections_gets_two_threads() {
    two_connections_are_on_two_threads(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_on_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grpc.sock").display().to_string();
    two_connections_are_on_two_threads(&[("GRPC_UDS", &path)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_stays_does_not_send_two_connections_to_one_thread() {
    let service = Service::ready(&[("THREADS", "2")]).await;
    until_open(&service, 0).await;
    let first = service.channel().await;
    let first_thread = thread_of(&service, &first).await;
    // A watch stays open, on the other thread.
    let asked = HealthCheckRequest { service: String::new() };
    let mut watch = HealthClient::new(service.channel().await).watch(asked).await.unwrap().into_inner();
    watch.message().await.unwrap();
    let second = service.channel().await;
    assert_ne!(thread_of(&service, &second).await, first_thread);
}
