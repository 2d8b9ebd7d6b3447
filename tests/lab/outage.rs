//! One Redis that is not there: for a while, at the start, again and again.

use std::time::Duration;

use crate::{
    chaos::{Proxy, Weather},
    load::{Answer, Load, RATE},
    report::{GROWS_MAX_KB, failures, latest, row, settle, whole},
    service::Service,
    support::redis::RedisServer,
    wait::until,
};

#[test]
fn an_absent_redis_costs_neither_memory_nor_a_log_full_of_lines() {
    let mut redis = RedisServer::start(&[]);
    let mut service =
        Service::ready(1_000_000, "allow", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", "25ms")]);
    let load = Load::start(&service, 2 * RATE);
    let calm = load.go_on(Duration::from_secs(2));
    let (before, lines) = (service.memory(), service.served.lines());
    redis.kill();
    let span = whole(60, 4);
    let (end, mut most) = (load.now() + span, before);
    while load.now() < end {
        load.go_on(Duration::from_millis(200));
        most = most.max(service.memory());
    }
    let lines = service.served.lines() - lines;
    let ended = load.now();
    redis.restart();
    let again = load.until_whole(100, |_| true);
    let book = load.end();
    let gone = || book.iter().filter(|asked| (calm..ended).contains(&asked.at));
    let grown = most.saturating_sub(before) >> 10;
    row(
        &format!("Redis absent for {} s at {}/s", span.as_secs(), 2 * RATE),
        &[
            failures(gone()).to_string(),
            latest(gone(), Duration::from_millis(25)),
            format!("{lines} lines of log"),
            format!("memory +{grown} kB"),
            format!("whole again {:.2} s after", again.saturating_sub(ended).as_secs_f64()),
        ],
    );
    assert!(gone().all(|asked| asked.answer != Answer::Failed), "each has an answer by the rule");
    // Two a second, and those that tell the beginning.
    assert!(lines as u64 <= 2 * span.as_secs() + 5, "{lines} lines:\n{}", service.served.log());
    assert!(grown < GROWS_MAX_KB, "memory grew by {grown} kB");
}

#[test]
fn a_redis_that_is_late_at_the_start_is_answered_for_and_found() {
    let mut redis = RedisServer::start(&[]);
    redis.kill();
    let service = Service::start(20, "allow", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", "250ms")]);
    // The ports are open, and health says what is so.
    until("the rules are loaded", || service.get("/ready").1.contains("rules: loaded"));
    assert_ne!(service.get("/ready").0, 200);
    let load = Load::start(&service, RATE);
    let began = load.go_on(Duration::from_secs(2));
    redis.restart();
    let again = load.until_whole(50, |_| true);
    let book = load.end();
    let settled = settle(&service, &book);
    row(
        "Redis absent at the start",
        &[
            failures(book.iter().filter(|asked| asked.at < began)).to_string(),
            format!("whole {:.2} s after it came", again.saturating_sub(began).as_secs_f64()),
            settled.to_string(),
        ],
    );
    assert!(service.is_ready());
    assert!(book.iter().all(|asked| asked.answer != Answer::Failed));
    assert_eq!(settled.over, 0);
}

#[test]
fn a_redis_that_comes_back_empty_grants_each_limit_once_more_and_no_more() {
    let mut redis = RedisServer::start(&[]);
    let service = Service::ready(5, "error", &[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", "250ms")]);
    let load = Load::start(&service, RATE);
    load.go_on(Duration::from_secs(2));
    redis.kill();
    redis.restart();
    let back = load.now();
    let again = load.until_whole(100, |_| true);
    let book = load.end();
    let settled = settle(&service, &book);
    row(
        "Redis restarts empty",
        &[
            failures(&book).to_string(),
            format!("whole again {:.2} s after", again.saturating_sub(back).as_secs_f64()),
            settled.to_string(),
        ],
    );
    // What a Redis without a replica forgets is all there was.
    let limits = service.limit * u32::try_from(service.counters.len()).unwrap();
    assert!(settled.over <= limits, "{settled}");
}

#[test]
fn a_flapping_store_gives_no_fresh_local_share_each_time() {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::start(redis.port);
    let settings =
        [("REDIS_URL", proxy.address()), ("STORE_TIMEOUT", "100ms".into()), ("FLEET_SIZE", "4".into())];
    let service =
        Service::ready(20, "local", &settings.each_ref().map(|(name, value)| (*name, value.as_str())));
    let load = Load::start(&service, 2 * RATE);
    let end = load.now() + whole(30, 8);
    let mut times = 0;
    while load.now() < end {
        proxy.set(Weather::Down);
        load.go_on(Duration::from_secs(1));
        proxy.set(Weather::Fair);
        load.go_on(Duration::from_secs(1));
        times += 1;
    }
    let book = load.end();
    let mut granted = vec![[0_u32; 2]; service.counters.len()];
    for asked in &book {
        match asked.answer {
            Answer::Granted => granted[asked.counter][0] += 1,
            Answer::Degraded { granted: true } => granted[asked.counter][1] += 1,
            _ => {}
        }
    }
    let most = |at: usize| granted.iter().map(|both| both[at]).max().unwrap();
    let both = granted.iter().map(|[store, local]| store + local).max().unwrap();
    row(
        &format!("up 1 s, down 1 s, {times} times, `local`"),
        &[
            failures(&book).to_string(),
            format!("of 20 a counter was granted {both} at most: {} by the store, {} here", most(0), most(1)),
        ],
    );
    // A quarter of the limit, since FLEET_SIZE is 4.
    assert!(both <= 20 + 5, "{both}");
    assert!(most(1) > 0, "nothing was answered here");
    assert!(book.iter().all(|asked| asked.answer != Answer::Failed));
}
