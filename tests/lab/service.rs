//! A real Tollgate before a store of the lab, with limits that the lab's load uses up.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;
use tollgate::{
    clock::{Clock, SystemClock},
    proto::envoy::service::ratelimit::v3::RateLimitResponse,
};
use tonic::{Response, Status};

use crate::{
    cluster::slot_of,
    load::{Answer, Asked, ask, connect, request_of},
    support::tollgate::{Served, ended},
    wait::until,
};

/// One rule each, so that a fault is seen through every algorithm.
pub(crate) const ALGORITHMS: [&str; 4] = ["token_bucket", "gcra", "sliding_window", "fixed_window"];

/// How many keys the load asks for.
pub(crate) const KEYS: usize = 300;

/// A descriptor's value, and where its counter lies.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    /// The descriptor's key, which is the algorithm's name.
    pub(crate) rule: &'static str,
    pub(crate) value: String,
    /// Of its key in Redis.
    pub(crate) slot: u16,
}

/// A running service.
pub(crate) struct Service {
    pub(crate) served: Served,
    pub(crate) grpc: String,
    pub(crate) http: String,
    /// All that have a rule of their own to count by.
    pub(crate) counters: Vec<Counter>,
    /// Of each counter, for a year.
    pub(crate) limit: u32,
    _rules: TempDir,
}

impl Service {
    /// Starts it, and waits until it says that it is ready.
    pub(crate) fn ready(limit: u32, mode: &str, settings: &[(&str, &str)]) -> Self {
        let service = Self::start(limit, mode, settings);
        until("the service is ready", || service.is_ready());
        service
    }

    /// `mode` is what `on_store_failure` says.
    pub(crate) fn start(limit: u32, mode: &str, settings: &[(&str, &str)]) -> Self {
        let rules = tempfile::tempdir().unwrap();
        let rule = |algorithm: &str| {
            format!(
                "- key: {algorithm}\n  rate_limit: {{unit: year, requests_per_unit: {limit}, algorithm: {algorithm}, \
                 on_store_failure: {mode}}}\n"
            )
        };
        let text = format!("domain: lab\ndescriptors:\n{}", ALGORITHMS.map(rule).concat());
        fs::write(rules.path().join("lab.yaml"), text).unwrap();
        let counters = counters(&rules);
        let mut served = Served::start(rules.path(), settings);
        let [grpc, http] = ["grpc", "http"].map(|what| served.address(what));
        Self { served, grpc, http, counters, limit, _rules: rules }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.get("/ready").0 == 200
    }

    /// Status and body of a GET.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// One request with a hit on each of these counters, on a connection of its own.
    pub(crate) fn ask(&self, counters: &[usize]) -> Result<RateLimitResponse, Status> {
        let counters: Vec<&Counter> = counters.iter().map(|&i| &self.counters[i]).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = connect(&self.grpc).await;
            client.should_rate_limit(request_of(&counters)).await.map(Response::into_inner)
        })
    }

    /// The same, with the time that it took.
    pub(crate) fn time(&self, counters: &[usize]) -> Asked {
        let all: Vec<&Counter> = counters.iter().map(|&i| &self.counters[i]).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = connect(&self.grpc).await;
            let began = SystemClock.instant();
            let answer = ask(&mut client, request_of(&all)).await.unwrap_or(Answer::Failed);
            let took = SystemClock.instant() - began;
            Asked { at: Duration::ZERO, took, counter: counters[0], answer }
        })
    }

    /// A number of `/metrics`, by the beginning of its line; all that begin so are added up.
    pub(crate) fn metric(&self, begins: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let values = text.lines().filter(|line| line.starts_with(begins));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.served.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Ends it and gives back all that it said.
    pub(crate) fn end(mut self) -> String {
        self.served.signal("TERM");
        self.served.exit_code();
        self.served.log()
    }
}

/// Values in turn for each rule. The keys are those that `explain` tells for one of them.
fn counters(rules: &TempDir) -> Vec<Counter> {
    let templates = ALGORITHMS.map(|rule| {
        let mut command = crate::support::tollgate::command();
        let told = ended(explain(&mut command, rules, rule)).stdout;
        let line = told.lines().find_map(|line| line.trim().strip_prefix("key "));
        line.unwrap_or_else(|| panic!("no key in {told}")).trim().to_owned()
    });
    let counter = |i: usize| {
        let (rule, value) = (i % ALGORITHMS.len(), format!("v{i}"));
        let key = templates[rule].replace("VALUE", &value);
        Counter { rule: ALGORITHMS[rule], slot: slot_of(key.as_bytes()), value }
    };
    (0..KEYS).map(counter).collect()
}

fn explain<'c>(command: &'c mut Command, rules: &TempDir, rule: &str) -> &'c mut Command {
    command.arg("explain").arg(rules.path()).args(["lab", &format!("{rule}=VALUE")])
}
