//! One Redis that stays, and treats its clients badly.

use std::time::Duration;

use crate::{
    load::{Load, RATE},
    report::{GROWS_MAX_KB, Settled, against_calm, failures, latest, row, settle, whole},
    service::Service,
    support::redis::RedisServer,
};

/// Four calls of 256 charges at most are in flight on a connection.
const IN_FLIGHT_MAX: u32 = 4 * 256;

/// Where nobody is to fail, on a busy machine too.
pub(crate) const PATIENT: &str = "2s";

#[test]
fn script_flush_is_noticed_by_nobody() {
    let redis = RedisServer::start(&[]);
    let service = Service::ready(20, "error", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", PATIENT)]);
    let load = Load::start(&service, RATE);
    let calm = load.go_on(Duration::from_secs(1));
    for _ in 0..5 {
        assert_eq!(redis.command(&["SCRIPT", "FLUSH"]), "OK");
        load.go_on(Duration::from_millis(300));
    }
    let book = load.end();
    let failed = failures(&book);
    let settled = settle(&service, &book);
    let (before, after): (Vec<_>, Vec<_>) = book.iter().partition(|asked| asked.at < calm);
    row("SCRIPT FLUSH, 5 times", &[failed.to_string(), against_calm(after, before), settled.to_string()]);
    assert_eq!((failed.failed, settled.over, settled.lost), (0, 0, 0));
}

#[test]
fn client_pause_costs_nobody_more_than_the_store_timeout_and_leaves_no_bill() {
    let redis = RedisServer::start(&[]);
    let service = Service::ready(60, "error", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", "25ms")]);
    let load = Load::start(&service, 2 * RATE);
    let calm = load.go_on(Duration::from_secs(2));
    let before = service.memory();
    let span = whole(8, 3);
    assert_eq!(redis.command(&["CLIENT", "PAUSE", &span.as_millis().to_string(), "ALL"]), "OK");
    let mut most = before;
    let end = load.now() + span;
    while load.now() < end {
        load.go_on(Duration::from_millis(100));
        most = most.max(service.memory());
    }
    let again = load.until_whole(100, |_| true);
    let book = load.end();
    let settled = settle(&service, &book);
    let paused = || book.iter().filter(|asked| (calm..end).contains(&asked.at));
    let grown = most.saturating_sub(before) >> 10;
    row(
        &format!("CLIENT PAUSE {} s at {}/s", span.as_secs(), 2 * RATE),
        &[
            failures(paused()).to_string(),
            latest(paused(), Duration::from_millis(25)),
            format!("memory +{grown} kB"),
            format!("whole again {:.2} s after", again.saturating_sub(end).as_secs_f64()),
            settled.to_string(),
        ],
    );
    assert_eq!(settled.over, 0);
    // The calls that were in flight when it froze, and probes; nothing that was asked later.
    assert!(settled.lost <= IN_FLIGHT_MAX, "{settled}");
    assert!(grown < GROWS_MAX_KB, "memory grew by {grown} kB");
}

#[test]
fn client_kill_fails_only_who_was_on_his_way() {
    let redis = RedisServer::start(&[]);
    let service = Service::ready(20, "error", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", PATIENT)]);
    let load = Load::start(&service, RATE);
    load.go_on(Duration::from_secs(1));
    for _ in 0..5 {
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        load.until_whole(50, |_| true);
    }
    let book = load.end();
    let (failed, settled) = (failures(&book), settle(&service, &book));
    row("CLIENT KILL of all, 5 times", &[failed.to_string(), settled.to_string()]);
    assert_eq!(settled.over, 0);
}

#[test]
fn a_full_redis_spends_nothing_that_it_does_not_grant() {
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    refuses_for_a_while(
        "maxmemory reached, noeviction",
        &redis,
        || redis.command(&["CONFIG", "SET", "maxmemory", "1"]),
        || redis.command(&["CONFIG", "SET", "maxmemory", "0"]),
    );
}

#[test]
fn a_redis_that_becomes_a_replica_for_a_moment_spends_nothing_that_it_does_not_grant() {
    let redis = RedisServer::start(&[]);
    refuses_for_a_while(
        "READONLY",
        &redis,
        // Of nobody, so that it keeps what it has.
        || redis.command(&["REPLICAOF", "127.0.0.1", "1"]),
        || redis.command(&["REPLICAOF", "NO", "ONE"]),
    );
}

/// The store answers all the time, with errors for a second.
fn refuses_for_a_while(
    fault: &str,
    redis: &RedisServer,
    begin: impl Fn() -> String,
    end: impl Fn() -> String,
) -> Settled {
    let service = Service::ready(20, "error", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", PATIENT)]);
    let load = Load::start(&service, RATE);
    let calm = load.go_on(Duration::from_secs(1));
    assert_eq!(begin(), "OK");
    let ended = load.go_on(Duration::from_secs(1));
    assert_eq!(end(), "OK");
    let again = load.until_whole(50, |_| true);
    let book = load.end();
    let settled = settle(&service, &book);
    let failed = failures(book.iter().filter(|asked| (calm..ended).contains(&asked.at)));
    row(
        fault,
        &[
            failed.to_string(),
            format!("whole again {:.2} s after", again.saturating_sub(ended).as_secs_f64()),
            settled.to_string(),
        ],
    );
    assert!(failed.failed > 0);
    assert_eq!((settled.over, settled.lost), (0, 0));
    settled
}
