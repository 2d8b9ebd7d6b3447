//! Statsd and dogstatsd: the reference's lines, and a host that is not there.

use std::{collections::BTreeMap, net::TcpListener};

use crate::{
    asking::{Service, fixture, overriding},
    hosts::{self, get, now, sums},
};

const TAGS: (&str, &str) = ("EXTRA_TAGS", "zone:eu.1,env:prod");

/// Same names, same sums; a difference is shown side by side.
fn same(recorded: &str, ours: BTreeMap<String, u64>) {
    let reference = sums(&fixture(recorded));
    let mut different = Vec::new();
    for name in reference.keys().chain(ours.keys().filter(|name| !reference.contains_key(*name))) {
        let (theirs, ours) = (reference.get(name), ours.get(name));
        if theirs != ours {
            different.push(format!("{name}: the reference {theirs:?}, we {ours:?}"));
        }
    }
    assert!(reference.len() > 90, "the recording has {} names", reference.len());
    println!("{recorded}: {} names, {} differences", reference.len(), different.len());
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[tokio::test]
async fn after_the_same_requests_statsd_has_the_references_names_and_numbers() {
    let (taken, port) = hosts::tcp(0);
    let mut service = Service::as_the_reference(&[("STATSD_PORT", &port.to_string())]).await;
    service.ask_all().await;
    service.end().await;
    taken.wait_for("ratelimit_server.ShouldRateLimit.total_requests", 1000).await;
    same("statsd.txt", taken.counters());
    let times = taken.text().lines().filter(|line| line.starts_with("ratelimit_server.")).count();
    assert_eq!(times, 1001, "a line for each call, and their sum");
}

#[tokio::test]
async fn under_the_global_modes_too() {
    for (recorded, settings) in [
        ("statsd-shadow.txt", &[("SHADOW_MODE", "true")][..]),
        (
            "statsd-shadow-and-quota.txt",
            &[("SHADOW_MODE", "true"), ("QUOTA_MODE", "true"), ("NEAR_LIMIT_RATIO", "0.55")],
        ),
    ] {
        let (taken, port) = hosts::tcp(0);
        let port = port.to_string();
        let settings: Vec<_> = [("STATSD_PORT", &*port)].iter().chain(settings).copied().collect();
        let mut service = Service::as_the_reference(&settings).await;
        service.ask_all().await;
        service.end().await;
        taken.wait_for("ratelimit_server.ShouldRateLimit.total_requests", 1000).await;
        same(recorded, taken.counters());
    }
}

#[tokio::test]
async fn a_lost_store_and_bad_rules_are_counted() {
    let (taken, port) = hosts::tcp(0);
    let port = port.to_string();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let settings = [("STATSD_PORT", &*port), ("REDIS_URL", &*nobody), ("STATS_FLUSH_INTERVAL", "20ms")];
    let mut service = Service::as_the_reference(&settings).await;
    assert!(!service.ask(overriding("shop", "a", "b")).await);
    taken.wait_for("ratelimit.service.call.should_rate_limit.redis_error", 1).await;
    taken.wait_for("ratelimit.service.rate_limit.shop.a_b.total_hits", 1).await;
    service.rules("domain: [");
    taken.wait_for("ratelimit.service.config_load_error", 1).await;
    service.end().await;
}

#[tokio::test]
async fn mogrifiers_make_tags_of_names() {
    let (taken, port) = hosts::udp();
    let port = port.to_string();
    let settings = [
        ("STATSD_PORT", &*port),
        ("USE_DOG_STATSD", "true"),
        ("USE_DOG_STATSD_MOGRIFIERS", "KEYS"),
        ("DOG_STATSD_MOGRIFIER_KEYS_PATTERN", r"^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$"),
        ("DOG_STATSD_MOGRIFIER_KEYS_NAME", "ratelimit.service.rate_limit.$3"),
        ("DOG_STATSD_MOGRIFIER_KEYS_TAGS", "domain:$1,descriptor:$2"),
    ];
    let mut service = Service::as_the_reference(&settings).await;
    assert!(service.ask(overriding("shop", "a", "b")).await);
    service.end().await;
    taken.wait_for("ratelimit.service.rate_limit.total_hits|#domain:shop,descriptor:a_b", 1).await;
}

#[tokio::test]
async fn over_udp_with_tags_too_and_no_datagram_is_taken_apart() {
    let (taken, port) = hosts::udp();
    let port = port.to_string();
    let settings =
        [("STATSD_PORT", &*port), ("STATSD_PROTOCOL", "udp"), TAGS, ("STATS_FLUSH_INTERVAL", "50ms")];
    let mut service = Service::as_the_reference(&settings).await;
    service.ask_all().await;
    service.end().await;
    taken.wait_for("ratelimit_server.ShouldRateLimit.total_requests.__env=prod.__zone=eu_1", 1000).await;
    same("statsd-tagged.txt", taken.counters());
    assert!(taken.longest() <= 1432);
}

#[tokio::test]
async fn dogstatsd_has_them_with_its_own_tags() {
    let (taken, port) = hosts::udp();
    let port = port.to_string();
    let mut service =
        Service::as_the_reference(&[("STATSD_PORT", &port), ("USE_DOG_STATSD", "true"), TAGS]).await;
    service.ask_all().await;
    service.end().await;
    taken.wait_for("ratelimit_server.ShouldRateLimit.total_requests|#env:prod,zone:eu_1", 1000).await;
    same("dogstatsd.txt", taken.counters());
}

#[tokio::test]
async fn a_dead_host_delays_no_answer_and_is_told_everything_when_it_is_back() {
    // Nobody listens there any more.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = port.to_string();
    let settings = [("STATSD_PORT", &*text), ("STATS_FLUSH_INTERVAL", "20ms")];
    let mut service = Service::as_the_reference(&settings).await;
    service.served.line("takes nothing");
    assert!(service.ask(overriding("shop", "a", "b")).await);
    let (taken, _) = hosts::tcp(port);
    service.served.line("is back");
    taken.wait_for("ratelimit.service.rate_limit.shop.a_b.total_hits", 1).await;
    taken.wait_for("ratelimit.service.config_load_success", 1).await;
    let stats = get(&service.served.address("debug"), "/stats").1;
    assert!(stats.contains("\nratelimit.service.rate_limit.shop.a_b.total_hits: 1\n"), "{stats}");
    let warned = service.served.log().matches("takes nothing").count();
    assert_eq!(warned, 1, "{}", service.served.log());
    service.end().await;
    assert_eq!(taken.counters()["ratelimit.service.rate_limit.shop.a_b.total_hits"], 1);
}

#[tokio::test]
async fn a_host_that_takes_nothing_more_holds_nobody_up() {
    // Connections are accepted by the kernel alone, and nobody reads.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hung.local_addr().unwrap().port().to_string();
    let settings = [("STATSD_PORT", &*port), ("STATS_FLUSH_INTERVAL", "1ms")];
    let mut service = Service::as_the_reference(&settings).await;
    for n in 0..500 {
        assert!(service.ask(overriding("shop", "user", format!("{n}"))).await);
    }
    let began = now();
    service.end().await;
    assert!(now() - began < hosts::SOON);
}

#[tokio::test]
async fn without_a_setting_about_it_nothing_is_sent_but_in_compat() {
    let (taken, port) = hosts::tcp(0);
    let port = port.to_string();
    for (settings, wanted) in [
        (&[("USE_STATSD", "false"), ("STATSD_PORT", &*port)][..], false),
        (&[("DISABLE_STATS", "true"), ("USE_STATSD", "true"), ("STATSD_PORT", &*port)][..], false),
        (&[("STATSD_PORT", &*port)][..], true),
    ] {
        let mut service = Service::start(&fixture("rules.yaml"), settings).await;
        assert!(service.ask(overriding("shop", "a", "b")).await);
        service.end().await;
        if wanted {
            taken.wait_for("ratelimit.service.rate_limit.shop.a_b.total_hits", 1).await;
        } else {
            assert_eq!(taken.text(), "");
        }
    }
}
