//! The client under test, with short waits, and rules to send to it.

use std::net::SocketAddr;

use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tollgate::{
    rules::{
        Dialect, RuleSet,
        xds::{
            self, News,
            wire::ratelimit::config::ratelimit::v3::{
                RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
            },
        },
    },
    settings::{RawSettings, Settings, Source, Xds},
};

use crate::server::SOON;

/// A running client.
pub(crate) struct Client {
    changes: mpsc::UnboundedReceiver<Result<RuleSet, String>>,
    running: JoinHandle<()>,
}

impl Client {
    /// Follows the server at `address`, with these settings besides.
    pub(crate) fn follow(address: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let xds = xds_settings(address, settings);
        let (told, changes) = mpsc::unbounded_channel();
        let running = tokio::spawn(async move {
            let tell = |news| {
                let change = match news {
                    News::Rules(compiled) => Ok(compiled.rules),
                    News::Refused(why) => Err(why.to_string()),
                    News::Found | News::Lost => return,
                };
                let _ = told.send(change);
            };
            match xds::follow(&xds, Dialect::default(), tell).await {}
        });
        Self { changes, running }
    }

    /// What comes next: rules, or why there are none.
    pub(crate) async fn change(&mut self) -> Result<RuleSet, String> {
        timeout(SOON, self.changes.recv()).await.expect("something changes soon").expect("it never ends")
    }

    /// The next rules, a line for each limit.
    pub(crate) async fn rules(&mut self) -> Vec<String> {
        self.change().await.expect("the rules are right").describe()
    }

    /// Whether there is a change that the test has not taken.
    pub(crate) fn has_change(&self) -> bool {
        !self.changes.is_empty()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Waits of milliseconds.
pub(crate) const WAITS: [(&str, &str); 3] = [
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "10ms"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "50ms"),
];

pub(crate) fn xds_settings(address: SocketAddr, settings: &[(&str, &str)]) -> Xds {
    let raw = RawSettings::default()
        .with("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .with("CONFIG_GRPC_XDS_SERVER_URL", address.to_string());
    let raw = WAITS.iter().chain(settings).fold(raw, |raw, (name, value)| raw.with(name, *value));
    match Settings::compile(&raw).unwrap().rules.source {
        Source::Xds(xds) => *xds,
        Source::Files => unreachable!("CONFIG_TYPE says so"),
    }
}

/// A domain with one rule: so many an hour for each `user`.
pub(crate) fn config(domain: &str, requests: u32) -> RateLimitConfig {
    let limit = RateLimitPolicy {
        unit: RateLimitUnit::Hour as i32,
        requests_per_unit: requests,
        ..Default::default()
    };
    let descriptor =
        RateLimitDescriptor { key: "user".into(), rate_limit: Some(limit), ..Default::default() };
    RateLimitConfig {
        name: format!("gateway/{domain}"),
        domain: domain.into(),
        descriptors: vec![descriptor],
    }
}

/// What `describe` says about [`config`].
pub(crate) fn line(domain: &str, requests: u32) -> String {
    format!("{domain}.user: unit=HOUR requests_per_unit={requests}, shadow_mode: false, quota_mode: false")
}
