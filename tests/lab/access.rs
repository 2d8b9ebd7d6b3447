//! Passwords: rotated, wrong, and never shown.

use std::time::Duration;

use crate::{
    load::{Load, RATE},
    report::{failures, row},
    service::Service,
    single::PATIENT,
    support::redis::RedisServer,
    wait::until,
};

const RIGHT: &str = "Right-Horse-Battery";
const WRONG: &str = "Wrong-Horse-Battery";

#[test]
fn a_password_that_changes_hurts_no_connection_that_is_up() {
    let mut redis = RedisServer::start(&["--requirepass", RIGHT]);
    redis.log_in(&[RIGHT]);
    let settings =
        [("REDIS_URL", redis.address()), ("REDIS_AUTH", RIGHT.into()), ("STORE_TIMEOUT", PATIENT.into())];
    let service =
        Service::ready(20, "error", &settings.each_ref().map(|(name, value)| (*name, value.as_str())));
    let load = Load::start(&service, RATE);
    load.go_on(Duration::from_secs(1));
    assert_eq!(redis.command(&["CONFIG", "SET", "requirepass", WRONG]), "OK");
    load.go_on(Duration::from_secs(1));
    let book = load.end();
    row("password changed under open connections", &[failures(&book).to_string()]);
    assert_eq!(failures(&book).failed, 0);
    // Who connects anew is refused, in words that name no password, and comes back when it is right again.
    redis.log_in(&[WRONG]);
    redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until("it says what is wrong", || service.get("/ready").1.contains("WRONGPASS"));
    assert_eq!(redis.command(&["CONFIG", "SET", "requirepass", RIGHT]), "OK");
    until("it is connected again", || !service.get("/ready").1.contains("WRONGPASS"));
}

#[test]
fn no_password_is_ever_shown() {
    let mut redis = RedisServer::start(&["--requirepass", RIGHT]);
    redis.log_in(&[RIGHT]);
    for password in [RIGHT, WRONG] {
        let in_url = format!("redis://:{password}@{}", redis.address());
        for (url, auth) in [(in_url, None), (redis.address(), Some(password)), (redis.address(), None)] {
            let mut settings =
                vec![("REDIS_URL", url.as_str()), ("LOG_LEVEL", "trace"), ("STORE_TIMEOUT", "500ms")];
            settings.extend(auth.map(|auth| ("REDIS_AUTH", auth)));
            let told = all_that_is_told(&redis, &settings);
            for secret in [RIGHT, WRONG, "Horse"] {
                assert!(!told.contains(secret), "{settings:?}: {}", around(&told, secret));
            }
        }
    }
}

/// Whatever a person could see of a service with these settings, in good times and when its Redis is lost.
fn all_that_is_told(redis: &RedisServer, settings: &[(&str, &str)]) -> String {
    let service = Service::start(5, "error", settings);
    let ask = || format!("{:?}\n", service.ask(&[0]));
    until("its first try", || {
        let body = service.get("/ready").1;
        ["WRONGPASS", "NOAUTH", ": OK"].iter().any(|word| body.contains(word))
    });
    let mut told = ask();
    for _ in 0..3 {
        redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        told += &ask();
    }
    for path in ["/ready", "/metrics", "/rules", "/healthcheck"] {
        told += &service.get(path).1;
    }
    assert!(told.contains("ratelimit") || told.contains("tollgate"), "{told}");
    told + &service.end()
}

/// Some of the text before and behind a word.
fn around(text: &str, word: &str) -> String {
    let at = text.find(word).unwrap_or(0);
    let from = text.floor_char_boundary(at.saturating_sub(200));
    text[from..text.ceil_char_boundary((at + 200).min(text.len()))].to_owned()
}
