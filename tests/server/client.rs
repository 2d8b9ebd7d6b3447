//! Clients of all kinds, and a service with rules of its own.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tollgate::{
    clock::{Clock, SystemClock},
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
        },
    },
};
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::tollgate::Served;

/// So long is waited for what has to happen; only a failure takes it.
const SOON: Duration = Duration::from_secs(30);

/// Three a year for each user (whose window ends during no test), without limit for robots; what becomes of users when the store is lost is `allow`.
pub(crate) const RULES: &str = "\
domain: test
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 3, name: users, on_store_failure: allow}
- key: strict
  rate_limit: {unit: year, requests_per_unit: 3}
- key: robot
  rate_limit: {unlimited: true}
";

/// A service and its rules.
pub(crate) struct Service {
    pub(crate) served: Served,
    pub(crate) grpc: String,
    pub(crate) http: String,
    pub(crate) debug: String,
    pub(crate) rules: TempDir,
}

impl Service {
    /// With [`RULES`], once it is ready.
    pub(crate) async fn ready(settings: &[(&str, &str)]) -> Self {
        let service = Self::start(&[("rules.yaml", RULES)], settings);
        service.until_health(ServingStatus::Serving).await;
        service
    }

    /// With these files, not waited for.
    pub(crate) fn start(files: &[(&str, &str)], settings: &[(&str, &str)]) -> Self {
        let rules = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(rules.path().join(name), text).unwrap();
        }
        let mut served = Served::start(rules.path(), settings);
        let [grpc, http, debug] = ["grpc", "http", "debug"].map(|what| served.address(what));
        Self { served, grpc, http, debug, rules }
    }

    pub(crate) async fn channel(&self) -> Channel {
        let at = &self.grpc;
        let address = if at.starts_with("unix:") { at.clone() } else { format!("http://{at}") };
        Endpoint::from_shared(address).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }

    pub(crate) async fn ask(&self, key: &str, value: &str) -> Result<RateLimitResponse, Status> {
        self.client().await.should_rate_limit(request(key, value)).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn health(&self, service: &str) -> Result<ServingStatus, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = HealthClient::new(self.channel().await).check(request).await?;
        Ok(answer.into_inner().status())
    }

    pub(crate) async fn until_health(&self, status: ServingStatus) {
        until("health", async || self.health("").await.is_ok_and(|now| now == status)).await;
    }

    /// Status and body of a GET.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        http(&self.http, &format!("GET {path} HTTP/1.1\r\n"), "")
    }

    /// Status and body of a POST to `/json`.
    pub(crate) fn post_json(&self, body: &str) -> (u16, String) {
        http(&self.http, "POST /json HTTP/1.1\r\n", body)
    }
}

/// One hit on one entry in the domain of [`RULES`].
pub(crate) fn request(key: &str, value: impl Into<Vec<u8>>) -> Request<RateLimitRequest> {
    let entry = Entry { key: key.as_bytes().to_vec().into(), value: value.into().into() };
    Request::new(RateLimitRequest {
        domain: "test".to_owned(),
        descriptors: vec![RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }],
        hits_addend: 0,
    })
}

/// Asks again and again until it is so.
pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let began = now();
    while !so().await {
        assert!(now() - began < SOON, "waited {SOON:?} for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn now() -> Instant {
    SystemClock.instant()
}

/// One request on a connection of its own; status and body of the answer.
pub(crate) fn http(address: &str, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "{head}Host: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
