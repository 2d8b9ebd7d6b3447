//! Leases before a real Redis: how seldom it is asked, and that no hit is granted twice or lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering},
    },
};

use tollgate::{
    clock::SystemClock,
    limit::Entry,
    limiter::{Descriptor, Limiter, Options, Question},
    metrics::Metrics,
    rules::{Dialect, FailureMode, compile},
    store::{memory::MemoryStore, redis::RedisStore},
};

use crate::{PATIENT, command_calls, config, connected, support::redis::RedisServer};

type Tollgate = Limiter<SystemClock, RedisStore>;

const OPTIONS: Options = Options {
    compat: false,
    shadow_mode: false,
    quota_mode: false,
    on_store_failure: FailureMode::Error,
    stop_counting: false,
    fleet_size: 4,
    near_bytes: 1 << 20,
    lease_above: 0,
    keys: tollgate::key::Format::OWN,
};

const YEAR: &str = "unit: year, requests_per_unit";

fn load(tollgate: &Tollgate, rate_limit: &str) {
    let text = format!("domain: d\ndescriptors:\n- {{key: k, rate_limit: {{{rate_limit}}}}}\n");
    let files = BTreeMap::from([("d.yaml".to_owned(), text.into_bytes())]);
    tollgate.load(Arc::new(compile(&files, Dialect::default()).unwrap().rules));
}

async fn tollgate(server: &RedisServer, rate_limit: &str, options: Options) -> Arc<Tollgate> {
    let store = connected(&config(server.address())).await;
    let local = MemoryStore::new(SystemClock, 10);
    let tollgate = Limiter::new(SystemClock, store, local, options, Metrics::new());
    load(&tollgate, rate_limit);
    Arc::new(tollgate)
}

async fn ask(tollgate: &Tollgate, value: &'static str) -> (bool, u32) {
    let entries = vec![Entry { key: "k".into(), value: value.into() }];
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    let question = Question { domain: "d".into(), descriptors, hits: 0 };
    let loaded = tollgate.loaded().unwrap();
    let answer = tollgate.ask(&loaded, &question, PATIENT).await.expect("a healthy store");
    (!answer.refused, answer.statuses[0].remaining)
}

/// How many hits the store has counted of a fixed window.
fn counted(server: &RedisServer, value: &str) -> u32 {
    let count = "local state = redis.call('GET', KEYS[1])
        return state and string.format('%.0f', (select(3, struct.unpack('<Bddd', state)))) or '0'";
    let key = format!("tg:d:k={value}:fixed_window/31536000s");
    server.command(&["EVAL", count, "1", &key]).trim().parse().unwrap()
}

#[tokio::test]
async fn a_hot_key_with_a_lease_of_50_costs_redis_one_call_in_50_decisions() {
    const CLIENTS: u32 = 16;
    const EACH: u32 = 625;
    let server = RedisServer::start(&[]);
    let tollgate = tollgate(&server, &format!("{YEAR}: 1000000, lease: 50"), OPTIONS).await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let tollgate = tollgate.clone();
        clients.spawn(async move {
            for _ in 0..EACH {
                assert!(ask(&tollgate, "hot").await.0);
            }
        });
    }
    clients.join_all().await;
    let calls = command_calls(&server, "evalsha");
    assert!(calls * 50 <= u64::from(CLIENTS * EACH), "{calls} calls for {} decisions", CLIENTS * EACH);
    tollgate.give_back_leases(true).await;
    assert_eq!(counted(&server, "hot"), CLIENTS * EACH, "what was taken and not spent is back");
}

#[tokio::test]
async fn a_key_above_lease_above_is_leased_without_being_asked_to_and_others_are_not() {
    let server = RedisServer::start(&[]);
    let options = Options { lease_above: 100, ..OPTIONS };
    let tollgate = tollgate(&server, &format!("{YEAR}: 1000000"), options).await;
    for _ in 0..50 {
        ask(&tollgate, "cold").await;
    }
    let cold = command_calls(&server, "evalsha");
    assert_eq!(cold, 50);
    for _ in 0..5_000 {
        assert!(ask(&tollgate, "hot").await.0);
    }
    let hot = command_calls(&server, "evalsha") - cold;
    assert!(hot < 1_500, "{hot} calls for 5000 decisions");
    tollgate.give_back_leases(true).await;
    assert_eq!(counted(&server, "hot"), 5_000);
}

#[test]
fn sixty_four_clients_of_four_tollgates_are_granted_all_of_a_leased_limit_and_no_more() {
    const LIMIT: u32 = 20_000;
    let server = RedisServer::start(&[]);
    for (key, algorithm) in [("b", "token_bucket"), ("g", "gcra"), ("f", "fixed_window")] {
        let before = command_calls(&server, "evalsha");
        let rule = format!("{YEAR}: {LIMIT}, algorithm: {algorithm}, lease: 50");
        let granted = AtomicU32::new(0);
        let all_connected = Barrier::new(4);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let tollgate = tollgate(&server, &rule, OPTIONS).await;
                        all_connected.wait();
                        let clients = (0..16).map(|_| async {
                            while ask(&tollgate, key).await.0 {
                                granted.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                        futures_util::future::join_all(clients).await;
                    });
                });
            }
        });
        let (granted, calls) = (granted.into_inner(), command_calls(&server, "evalsha") - before);
        println!("{algorithm}: {granted} of {LIMIT} granted, {calls} calls");
        assert!(granted <= LIMIT, "{algorithm}: {granted}");
        assert!(granted >= LIMIT / 100 * 98, "{algorithm}: {granted}");
    }
}

#[tokio::test]
async fn new_rules_end_leases_and_what_they_hold_goes_back() {
    let server = RedisServer::start(&[]);
    let tollgate = tollgate(&server, &format!("{YEAR}: 1000, lease: 5%"), OPTIONS).await;
    for left in [999, 998, 997] {
        assert_eq!(ask(&tollgate, "x").await, (true, left), "what is held counts as left");
    }
    assert_eq!(counted(&server, "x"), 3 + 49);
    load(&tollgate, &format!("{YEAR}: 1000, lease: 0"));
    tollgate.give_back_leases(false).await;
    assert_eq!(counted(&server, "x"), 3);
    let before = command_calls(&server, "evalsha");
    for _ in 0..5 {
        ask(&tollgate, "x").await;
    }
    assert_eq!(command_calls(&server, "evalsha"), before + 5, "none with `lease: 0`");
}

#[tokio::test]
async fn what_is_held_may_be_spent_while_redis_is_lost_for_it_is_paid_for() {
    let mut server = RedisServer::start(&[]);
    let tollgate =
        tollgate(&server, &format!("{YEAR}: 1000, lease: 20, on_store_failure: deny"), OPTIONS).await;
    ask(&tollgate, "x").await;
    ask(&tollgate, "x").await;
    server.kill();
    let mut granted = 0;
    while ask(&tollgate, "x").await.0 {
        granted += 1;
    }
    assert!((1..=20).contains(&granted), "{granted}: all, unless a second has passed");
}
