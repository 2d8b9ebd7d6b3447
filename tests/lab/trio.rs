//! Sentinels, and the primary that they watch.

use std::time::Duration;

use crate::{
    load::{Answer, Load, RATE},
    report::{failures, latest, row, settle},
    sentinel::{Passwords, Sentinels},
    service::Service,
};

const PASSWORDS: Passwords<'_> = Passwords { servers: Some("for-servers"), sentinels: Some("for-sentinels") };

fn before(all: &Sentinels) -> Service {
    let settings = [
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_URL", &all.url()),
        ("REDIS_AUTH", PASSWORDS.servers.unwrap()),
        ("REDIS_SENTINEL_AUTH", PASSWORDS.sentinels.unwrap()),
        ("STORE_TIMEOUT", "250ms"),
    ];
    Service::ready(30, "deny", &settings)
}

#[test]
fn a_killed_master_is_followed_to_the_promoted_replica() {
    follows("kill -9 the master of three sentinels", |all| {
        all.servers[0].kill();
        all.until_promoted(0);
    });
}

#[test]
fn a_failover_by_hand_is_followed() {
    follows("SENTINEL FAILOVER", |all| {
        all.fail_over();
    });
}

fn follows(fault: &str, happens: impl FnOnce(&mut Sentinels)) {
    let mut all = Sentinels::start(PASSWORDS);
    let service = before(&all);
    let load = Load::start(&service, RATE);
    let calm = load.go_on(Duration::from_secs(1));
    happens(&mut all);
    let promoted = load.now();
    let again = load.until_whole(50, |_| true);
    load.go_on(Duration::from_secs(1));
    let book = load.end();
    let settled = settle(&service, &book);
    let hurt = || book.iter().filter(|asked| (calm..again.max(calm)).contains(&asked.at));
    // What was granted last may not have reached the replica; and sentinels that are told to fail over promote the replica
    // first and tell others afterwards: what the old master grants in between is lost with it.
    let followed = promoted + Duration::from_secs(1);
    let last = book.iter().filter(|asked| asked.at < followed && asked.answer == Answer::Granted);
    let bound = last.filter(|asked| asked.at + Duration::from_secs(1) >= calm).count() as u32;
    row(
        fault,
        &[
            failures(hurt()).to_string(),
            latest(hurt(), Duration::from_millis(250)),
            format!("whole again {:.2} s after the promotion", again.saturating_sub(promoted).as_secs_f64()),
            format!("{settled}, bound {bound}"),
        ],
    );
    assert!(settled.over <= bound, "{settled}, bound {bound}");
    assert!(book.iter().all(|asked| asked.answer != Answer::Failed), "`deny` always answers");
}
