//! A bad network between Tollgate and a Redis that is fine.

use std::time::Duration;

use crate::{
    chaos::{Proxy, Weather},
    load::{Answer, Load, RATE, judged},
    report::{failures, latest, row, settle},
    service::Service,
    single::PATIENT,
    support::redis::RedisServer,
    wait::until,
};

#[test]
fn late_replies_are_waited_for_until_the_store_timeout_and_no_longer() {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::start(redis.port);
    let service = Service::ready(30, "error", &[("REDIS_URL", &proxy.address()), ("STORE_TIMEOUT", "100ms")]);
    let load = Load::start(&service, RATE);
    proxy.set(Weather::Late(Duration::from_millis(5)));
    let late = load.go_on(Duration::from_secs(2));
    proxy.set(Weather::Late(Duration::from_millis(500)));
    let too_late = load.go_on(Duration::from_secs(2));
    proxy.set(Weather::Fair);
    let again = load.until_whole(50, |_| true);
    let book = load.end();
    let settled = settle(&service, &book);
    let slow = || book.iter().filter(|asked| (late..too_late).contains(&asked.at));
    row(
        "replies 5 ms late, then 500 ms",
        &[
            failures(book.iter().filter(|asked| asked.at < late)).to_string(),
            failures(slow()).to_string(),
            latest(slow(), Duration::from_millis(100)),
            format!("whole again {:.2} s after", again.saturating_sub(too_late).as_secs_f64()),
            settled.to_string(),
        ],
    );
    assert_eq!(settled.over, 0);
}

#[test]
fn a_connection_that_breaks_in_mid_reply_and_garbage_are_never_a_grant() {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::start(redis.port);
    let service = Service::ready(20, "error", &[("REDIS_URL", &proxy.address()), ("STORE_TIMEOUT", PATIENT)]);
    let load = Load::start(&service, RATE);
    load.go_on(Duration::from_millis(500));
    for weather in [Weather::CutNext, Weather::GarbageNext, Weather::CutNext, Weather::GarbageNext] {
        proxy.set(weather);
        until("it has happened", || proxy.is_fair());
        load.until_whole(50, |_| true);
    }
    let book = load.end();
    let (failed, settled) = (failures(&book), settle(&service, &book));
    let corrupt = service.metric("tollgate_store_failures_total{kind=\"corrupt\"");
    row(
        "a reply cut, a reply of garbage, twice each",
        &[failed.to_string(), format!("{corrupt} counted as corrupt"), settled.to_string()],
    );
    assert_eq!(settled.over, 0);
    assert!(failed.failed > 0, "nobody noticed");
    assert!(corrupt > 0, "garbage is told apart from a lost connection");
}

#[test]
fn a_swallowed_reply_is_one_spend_counted_once_and_nothing_sent_twice() {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::start(redis.port);
    let service =
        Service::ready(10_000, "deny", &[("REDIS_URL", &proxy.address()), ("STORE_TIMEOUT", "50ms")]);
    let once = || service.ask(&[0]).expect("`deny` always answers");
    assert_eq!(once().statuses[0].limit_remaining, 9_999);
    proxy.set(Weather::Swallow);
    assert_eq!(judged(&once()), Answer::Degraded { granted: false });
    proxy.set(Weather::Fair);
    let mut asked = 2;
    let mut left = 0;
    until("the service is whole again", || {
        let answer = once();
        (asked, left) = (asked + 1, answer.statuses[0].limit_remaining);
        judged(&answer).is_whole()
    });
    // One at a time, so each call of the script is one spend.
    let (sent, spent) = (proxy.spends(), service.limit - left);
    row("a swallowed reply", &[format!("asked {asked} times, sent {sent}, spent {spent}")]);
    assert_eq!(spent as usize, sent, "each that was sent was spent once");
    assert!(sent <= asked, "{sent} sent for {asked}");
}
