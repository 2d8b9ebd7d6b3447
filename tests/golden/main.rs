//! Golden cases: what envoyproxy/ratelimit answered when it was asked, and whether we answer the same.
//!
//! With `TOLLGATE_COMPAT=reference` each answer is the recorded one. Without it, those that differ are the ones that the
//! table below names, each by its row of the README's "Differences": nobody is surprised by a difference that stands
//! nowhere, and no row stands there that nothing shows.
//!
//! `case` tells what a case is. Questions go through gRPC and HTTP to the real binary over a real Redis; cases about
//! files alone are read as the service reads its directory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/mod.rs"]
mod support;

mod case;
mod clock;
mod compare;
mod differences;
mod files;
mod service;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde_json::Value;

use case::Case;
use service::{Service, until};
use support::redis::RedisServer;

/// What every run sets. A call of the store may take longer here than in production, since the machine may be busy.
const PATIENT: (&str, &str) = ("STORE_TIMEOUT", "10s");

/// Services at a time; each has a Redis of its own.
const AT_A_TIME: usize = 4;

/// A case whose window of the clock ended under it begins anew so often.
const TRIES: usize = 8;

/// The next window, or a calmer part of this one, is at most so far away.
const WINDOW_MAX: Duration = Duration::from_secs(90);

#[test]
fn in_compat_each_answer_is_the_recorded_one() {
    let run = run(&|_| vec![PATIENT, ("TOLLGATE_COMPAT", "reference")]);
    let wrong: Vec<String> = run
        .into_iter()
        .filter(|(_, found)| !found.is_empty())
        .map(|(name, found)| format!("{name}: {}", found.join("\n    ")))
        .collect();
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn without_it_the_differences_are_those_that_the_readme_names() {
    let run = run(&|case| {
        // The headers that we send without being asked would make nearly each answer differ.
        let asks_for_headers = case.env().contains_key("LIMIT_RESPONSE_HEADERS_ENABLED");
        if asks_for_headers { vec![PATIENT] } else { vec![PATIENT, ("LIMIT_HEADERS", "none")] }
    });
    let mut wrong = Vec::new();
    let named: BTreeSet<&str> =
        differences::ROWS.iter().flat_map(|(_, cases)| cases.iter().copied()).collect();
    for (name, found) in &run {
        match (named.contains(&**name), found.is_empty()) {
            (false, false) => {
                wrong.push(format!("{name} differs, and no row says so: {}", found.join("\n    ")))
            }
            (true, true) => wrong.push(format!("{name} does not differ, but a row names it")),
            (false, true) | (true, false) => {}
        }
    }
    let unknown = named.iter().filter(|name| !run.contains_key(**name));
    wrong.extend(unknown.map(|name| format!("no case is called {name}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_row_of_the_differences_is_shown_by_a_case_or_says_why_by_none() {
    let rows = differences::of_the_readme();
    let of_cases: BTreeSet<&str> = differences::ROWS.iter().map(|(row, _)| *row).collect();
    let of_none: BTreeSet<&str> = differences::BY_NO_CASE.iter().map(|(row, _)| *row).collect();
    let all: BTreeSet<&str> = of_cases.union(&of_none).copied().collect();
    assert_eq!(rows.iter().map(String::as_str).collect::<BTreeSet<_>>(), all);
    assert!(of_cases.is_disjoint(&of_none));
}

type Env<'e> = &'e (dyn Fn(&Case) -> Vec<(&'static str, &'static str)> + Sync);

/// What differs, by case.
fn run(env: Env<'_>) -> BTreeMap<String, Vec<String>> {
    let cases = case::all();
    let all = cases.len();
    let (of_files, asking): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| !case.get("expect").is_null());
    let mut found: BTreeMap<String, Vec<String>> =
        of_files.iter().map(|case| (case.name.clone(), files::run(case, &env(case)))).collect();
    let groups = Mutex::new(groups(asking));
    let asked = Mutex::new(&mut found);
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                let mut redis = [RedisServer::start(&[]), RedisServer::start(&[])];
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                loop {
                    let next = groups.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(group) = next else { return };
                    let told = runtime.block_on(run_group(&group, &env(&group[0]), &mut redis));
                    asked.lock().unwrap_or_else(PoisonError::into_inner).extend(told);
                }
            });
        }
    });
    assert_eq!(found.len(), all, "two cases have one name");
    found
}

/// Cases that share a service: those that want the same environment.
fn groups(cases: Vec<Case>) -> VecDeque<Vec<Case>> {
    let mut groups: BTreeMap<(String, usize), Vec<Case>> = BTreeMap::new();
    for (number, case) in (1..).zip(cases) {
        let alone = if case.is("alone") { number } else { 0 };
        groups.entry((case.get("env").to_string(), alone)).or_default().push(case);
    }
    groups.into_values().collect()
}

async fn run_group(
    cases: &[Case],
    env: &[(&str, &str)],
    redis: &mut [RedisServer; 2],
) -> Vec<(String, Vec<String>)> {
    for server in redis.iter() {
        server.command(&["FLUSHALL"]);
    }
    let mut service = Service::start(cases, env, [&redis[0], &redis[1]]).await;
    let mut told = Vec::new();
    for case in cases {
        told.push((case.name.clone(), run_case(case, &mut service, &mut redis[0]).await));
    }
    drop(service);
    if redis[0].is_gone() {
        redis[0].restart();
    }
    told
}

/// What differs, each with its step.
async fn run_case(case: &Case, service: &mut Service, redis: &mut RedisServer) -> Vec<String> {
    let window = case.get("window").as_str();
    let domains = case.domains();
    for _ in 0..TRIES {
        assert!(until(WINDOW_MAX, async || clock::is_calm(window)).await, "the clock stands still");
        let mut began = window.map(clock::window);
        let mut rolled = false;
        let mut found = Vec::new();
        for (number, step) in (1..).zip(case.steps()) {
            if let Some(unit) = step["wait"].as_str() {
                rolled |= window.map(clock::window) != began;
                let old = clock::window(unit);
                assert!(until(WINDOW_MAX, async || clock::window(unit) != old).await);
                began = window.map(clock::window);
                continue;
            }
            let got: Value = service.step(step, &domains, redis).await;
            found.extend(compare::step(step, &got).into_iter().map(|what| format!("step {number}: {what}")));
        }
        if !rolled && window.map(clock::window) == began {
            return found;
        }
    }
    panic!("{}: its window ended during each of {TRIES} tries", case.name);
}
