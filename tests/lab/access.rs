//! Passwords: rotated, wrong, and never shown.

use std::{fs, time::Duration};

use crate::{
    cluster::{Cluster, Plan},
    load::{Load, RATE},
    report::{failures, row},
    sentinel::{Passwords, Sentinels},
    service::Service,
    single::PATIENT,
    support::{
        redis::RedisServer,
        tollgate::{command, ended},
    },
    wait::until,
};

const RIGHT: &str = "Right-Horse-Battery";
const WRONG: &str = "Wrong-Horse-Battery";
/// Of the sentinels.
const OTHER: &str = "Other-Horse-Battery";

#[test]
fn a_password_changes_in_its_file_without_a_restart_and_hurts_no_connection_that_is_up() {
    let mut redis = RedisServer::start(&["--requirepass", "the-first"]);
    redis.log_in(&["the-first"]);
    let file = redis.dir().join("password");
    fs::write(&file, "the-first\n").unwrap();
    let file_name = file.display().to_string();
    let settings =
        [("REDIS_URL", &*redis.address()), ("REDIS_AUTH_FILE", &file_name), ("STORE_TIMEOUT", PATIENT)];
    let service = Service::ready(30, "error", &settings);
    let load = Load::start(&service, RATE);
    load.go_on(Duration::from_secs(1));
    assert_eq!(redis.command(&["CONFIG", "SET", "requirepass", "the-second"]), "OK");
    redis.log_in(&["the-second"]);
    let changed = load.go_on(Duration::from_secs(1));
    // Who connects anew before the file has the new one is refused, in words that hold no password.
    let kill = || redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    kill();
    until("it says what is wrong", || service.get("/ready").1.contains("WRONGPASS"));
    fs::write(&file, "the-second\n").unwrap();
    let written = load.now();
    let again = load.until_whole(50, |_| true);
    let book = load.end();
    let open = failures(book.iter().filter(|asked| asked.at + asked.took < changed));
    row(
        "the password changes, then its file",
        &[
            format!("on open connections {open}"),
            format!("whole again {:.2} s after the file", again.saturating_sub(written).as_secs_f64()),
        ],
    );
    assert_eq!(open.failed, 0);
}

#[test]
fn no_password_is_ever_shown() {
    let mut redis = RedisServer::start(&["--requirepass", RIGHT]);
    redis.log_in(&[RIGHT]);
    let kill = || {
        redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    };
    let file = redis.dir().join("password");
    let file_name = file.display().to_string();
    for password in [RIGHT, WRONG] {
        let in_url = format!("redis://:{password}@{}", redis.address());
        let with_user = format!("default:{password}");
        fs::write(&file, password).unwrap();
        let address = &*redis.address();
        tells_nothing(&[("REDIS_URL", &in_url)], kill);
        tells_nothing(&[("REDIS_URL", address), ("REDIS_AUTH", password)], kill);
        tells_nothing(&[("REDIS_URL", address), ("REDIS_AUTH", &with_user)], kill);
        tells_nothing(&[("REDIS_URL", address), ("REDIS_AUTH_FILE", &file_name)], kill);
    }
    tells_nothing(&[("REDIS_URL", &redis.address())], kill);
}

#[test]
fn no_password_is_ever_shown_of_a_cluster_nor_by_sentinels() {
    let args = ["--requirepass", RIGHT, "--masterauth", RIGHT];
    let cluster = Cluster::start_as(&Plan { replicas: 0, args: &args, login: &[RIGHT], ..Plan::usual() });
    let kill = || {
        for node in &cluster.nodes {
            node.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
    };
    for password in [RIGHT, WRONG] {
        let url = format!("redis-cluster://:{password}@{}", cluster.nodes[0].address());
        tells_nothing(&[("REDIS_URL", &url)], kill);
    }
    let all = Sentinels::start(Passwords { servers: Some(RIGHT), sentinels: Some(OTHER) });
    let kill = || {
        all.servers[0].command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    };
    for (redis, sentinels) in [(RIGHT, OTHER), (WRONG, OTHER), (RIGHT, WRONG)] {
        let settings =
            [("REDIS_URL", &*all.url()), ("REDIS_AUTH", redis), ("REDIS_SENTINEL_AUTH", sentinels)];
        tells_nothing(&settings, kill);
    }
}

/// A mistake in an address is often a password that was not escaped.
#[test]
fn a_wrong_address_is_told_without_the_password_in_it() {
    for url in [
        format!("redis://:{RIGHT}/1@h:1"),
        format!("redis://:{RIGHT}#1@h:1"),
        format!("redis://u:{RIGHT}:x@h:port"),
        format!("http://u:{RIGHT}@h:1"),
        format!("redis-sentinel://u:{RIGHT}@h:1"),
    ] {
        for first in ["serve", "doctor"] {
            let rules = tempfile::tempdir().unwrap();
            let mut command = command();
            command.arg(first).env("REDIS_URL", &url);
            if first == "serve" {
                command.env("TOLLGATE_RULES", rules.path());
            }
            let told = ended(&mut command);
            assert_eq!(told.code, Some(64), "{told:?}");
            assert!(!format!("{told:?}").contains("Horse"), "{told:?}");
        }
    }
}

/// Whatever a person could see of a service with these settings, in good times and when its Redis is lost; and what a
/// doctor says of it.
fn tells_nothing(settings: &[(&str, &str)], kill: impl Fn()) {
    let mut all = vec![("LOG_LEVEL", "trace"), ("STORE_TIMEOUT", "500ms"), ("SHUTDOWN_TIMEOUT", "200ms")];
    all.extend(settings);
    let service = Service::start(5, "error", &all);
    let ask = || format!("{:?}\n", service.ask(&[0]));
    until("its first try", || {
        let body = service.get("/ready").1;
        ["WRONGPASS", "NOAUTH", ": OK"].iter().any(|word| body.contains(word))
    });
    let mut told = ask();
    for _ in 0..3 {
        kill();
        told += &ask();
    }
    for path in ["/ready", "/metrics", "/rules", "/healthcheck"] {
        told += &service.get(path).1;
    }
    told += &service.end();
    for json in [&[][..], &["--json"]] {
        let mut command = command();
        let doctor = ended(command.arg("doctor").args(json).envs(settings.iter().copied()));
        told += &format!("{}{}", doctor.stdout, doctor.stderr);
    }
    for part in ["listening on", "tollgate_", "\"verdict\""] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    if let Some(at) = told.find("Horse") {
        let from = told.floor_char_boundary(at.saturating_sub(300));
        let to = told.ceil_char_boundary((at + 100).min(told.len()));
        panic!("{settings:?}: {}", &told[from..to]);
    }
}
