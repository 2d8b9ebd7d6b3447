//! Values that clients invent cost a bounded memory: the reference keeps statistics of each for ever.

use std::fs;

use tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
};
use tonic::transport::Channel;

use crate::{
    asking::{Service, overriding},
    hosts::get,
};

/// Requests in flight at a time.
const CLIENTS: u64 = 64;

/// Descriptors of one request, the most that there may be; so 300,000 take a moment only.
const DESCRIPTORS: u64 = 64;

const VALUES: u64 = 300_000;

const GROWTH_MAX_BYTES: u64 = 50 << 20;

/// As long as many values are, and never twice the same.
fn request(first: u64) -> RateLimitRequest {
    let value = |n: u64| overriding("test", "user", format!("{n:0>32}"));
    let mut request = value(first);
    request.descriptors.extend((first + 1..first + DESCRIPTORS).flat_map(|n| value(n).descriptors));
    request
}

async fn ask(mut client: RateLimitServiceClient<Channel>, values: std::ops::Range<u64>, client_number: u64) {
    let step = DESCRIPTORS * CLIENTS;
    let mut first = values.start + client_number * DESCRIPTORS;
    while first < values.end {
        client.should_rate_limit(request(first)).await.unwrap();
        first += step;
    }
}

async fn ask_all(service: &Service, values: std::ops::Range<u64>) {
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| tokio::spawn(ask(service.client(), values.clone(), number))).collect();
    for client in clients {
        client.await.unwrap();
    }
}

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn three_hundred_thousand_values_with_a_limit_of_their_own_grow_it_by_less_than_50_mb() {
    let settings = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        // The counters of limits have a bound of their own.
        ("MEMORY_KEYS_MAX", "20000"),
        ("STORE_TIMEOUT", "10s"),
    ];
    let mut service = Service::start("domain: test\ndescriptors: []\n", &settings).await;
    let pid = service.served.pid();
    let before = resident_bytes(pid);
    ask_all(&service, 0..VALUES).await;
    let grown = resident_bytes(pid).saturating_sub(before);
    println!("{VALUES} values: from {} MB by {} MB", before >> 20, grown >> 20);
    assert!(grown < GROWTH_MAX_BYTES, "it grew by {grown} bytes");

    let told = get(&service.served.address("prometheus"), "/metrics").1;
    let asked: u64 = told
        .lines()
        .filter_map(|line| line.strip_prefix("ratelimit_service_rate_limit_total_hits{")?.rsplit_once(' '))
        .map(|(_, value)| value.parse::<u64>().unwrap())
        .sum();
    assert_eq!(asked, VALUES.next_multiple_of(DESCRIPTORS), "each of them was counted");
    let overflow = "ratelimit_service_rate_limit_total_hits{domain=\"test\",key1=\"__overflow__\"} ";
    assert!(told.contains(overflow), "nothing went over");
}
