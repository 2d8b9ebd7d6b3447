//! The recorded requests, and a service that is asked them.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
};
use tonic::transport::Channel;

use crate::{
    hosts::{PAUSE, SOON, get, now},
    tollgate_process::Served,
};

/// The number of YEAR among Envoy's units.
const YEAR: i32 = 6;

/// A text of `tests/fixtures/metrics`.
pub(crate) fn fixture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/metrics");
    fs::read_to_string(dir.join(name)).unwrap()
}

/// A service with rules.
pub(crate) struct Service {
    pub(crate) served: Served,
    pub(crate) http: String,
    client: RateLimitServiceClient<Channel>,
    rules: TempDir,
}

impl Service {
    /// With the recorded rules, as the reference answers.
    pub(crate) async fn as_the_reference(settings: &[(&str, &str)]) -> Self {
        let settings: Vec<_> = [("TOLLGATE_COMPAT", "reference")].iter().chain(settings).copied().collect();
        Self::start(&fixture("rules.yaml"), &settings).await
    }

    pub(crate) async fn start(rules: &str, settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        let mut served = Served::start(dir.path(), settings);
        let [grpc, http] = ["grpc", "http"].map(|what| served.address(what));
        let began = now();
        while !get(&http, "/ready").1.contains("rules: loaded") {
            assert!(now() - began < SOON, "{}", served.log());
            tokio::time::sleep(PAUSE).await;
        }
        let channel = Channel::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        Self { served, http, client: RateLimitServiceClient::new(channel), rules: dir }
    }

    /// Asks all recorded requests, one after the other.
    pub(crate) async fn ask_all(&mut self) {
        for line in fixture("requests.jsonl").lines() {
            let _ = self.ask(request(&serde_json::from_str(line).unwrap())).await;
        }
    }

    /// Whether there was an answer.
    pub(crate) async fn ask(&mut self, request: RateLimitRequest) -> bool {
        self.client.should_rate_limit(request).await.is_ok()
    }

    /// Other rules from now on.
    pub(crate) fn rules(&self, text: &str) {
        fs::write(self.rules.path().join("rules.yaml"), text).unwrap();
    }

    pub(crate) fn client(&self) -> RateLimitServiceClient<Channel> {
        self.client.clone()
    }

    /// Ends it, so that it sends what is left.
    pub(crate) async fn end(self) {
        let Self { mut served, client, .. } = self;
        drop(client);
        // Not on this thread, which has the connection to close.
        let ended = tokio::task::spawn_blocking(move || {
            served.signal("TERM");
            (served.exit_code(), served.log())
        });
        let (code, log) = ended.await.unwrap();
        assert_eq!(code, Some(0), "{log}");
    }
}

/// `{"domain":…, "descriptors":[{"entries":[[key, value]], "hits":…, "limit":[…, "YEAR"]}], "hits":…}`
fn request(asked: &Value) -> RateLimitRequest {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let descriptor = |value: &Value| RateLimitDescriptor {
        entries: value["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| Entry {
                key: text(&entry[0]).into_bytes().into(),
                value: text(&entry[1]).into_bytes().into(),
            })
            .collect(),
        limit: value.get("limit").map(|limit| RateLimitOverride {
            requests_per_unit: u32::try_from(limit[0].as_u64().unwrap()).unwrap(),
            unit: YEAR,
        }),
        hits_addend: value.get("hits").map(|hits| hits.as_u64().unwrap()),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: text(&asked["domain"]),
        descriptors: asked["descriptors"].as_array().unwrap().iter().map(descriptor).collect(),
        hits_addend: u32::try_from(asked["hits"].as_u64().unwrap_or(0)).unwrap(),
    }
}

/// One hit in a domain on a descriptor of one entry, with a limit that is brought along.
pub(crate) fn overriding(domain: &str, key: &str, value: impl Into<Vec<u8>>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: key.as_bytes().to_vec().into(), value: value.into().into() }],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: YEAR }),
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    }
}
