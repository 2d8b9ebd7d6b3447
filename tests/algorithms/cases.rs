//! One table of named cases, through the pure functions, the memory store and the Lua alike.
//!
//! A verdict reads `fits 4 left, whole 600000, next 100000` or `over ...; retry 200000`, times in microseconds; a request
//! passes or is refused. Times of steps are since [`START`], which begins a window of every length up to a day.

mod limits;
mod requests;

use std::fmt::Write as _;

use tollgate::{
    key::Key,
    limit::{
        Algorithm::{self, FixedWindow, Gcra, SlidingWindow, TokenBucket},
        Charge, Cost, Decision, Limit, OnRefusal, Role,
    },
};

use crate::{
    redis::Make,
    worlds::{Lua, Memory, Pure, SECOND, START, Step, keeps, limit, spend},
};

struct Case {
    name: &'static str,
    steps: Vec<Step>,
    expected: Vec<&'static str>,
    /// What stands under `k` at the end.
    stored: Option<&'static str>,
}

fn case(name: &'static str, steps: impl IntoIterator<Item = (u64, Vec<Charge>, &'static str)>) -> Case {
    let (steps, expected) = steps
        .into_iter()
        .map(|(at, charges, expected)| (Step { now: START + at, charges }, expected))
        .unzip();
    Case { name, steps, expected, stored: None }
}

impl Case {
    /// `{t}` stands for [`START`].
    fn stored(self, text: &'static str) -> Self {
        Self { stored: Some(text), ..self }
    }
}

fn on(key: &str, limit: Limit, cost: Cost) -> Charge {
    Charge { key: Key::from_text(key), limit, cost, role: Role::Enforce, on_refusal: OnRefusal::Keep }
}

fn take(limit: Limit, hits: u64) -> Charge {
    on("k", limit, spend(hits))
}

fn look(limit: Limit, hits: u64) -> Charge {
    on("k", limit, Cost::Look(hits))
}

fn give(limit: Limit, hits: u64) -> Charge {
    on("k", limit, Cost::Refund(hits))
}

fn drain(charge: Charge) -> Charge {
    Charge { on_refusal: OnRefusal::Drain, ..charge }
}

fn count(charge: Charge) -> Charge {
    Charge { on_refusal: OnRefusal::Count, ..charge }
}

fn shadow(charge: Charge) -> Charge {
    Charge { role: Role::Shadow, ..charge }
}

fn quota(charge: Charge) -> Charge {
    Charge { role: Role::Quota, ..charge }
}

fn per_second(algorithm: Algorithm, requests: u32) -> Limit {
    limit(algorithm, requests, SECOND, None)
}

fn per_minute(algorithm: Algorithm, requests: u32) -> Limit {
    limit(algorithm, requests, 60 * SECOND, None)
}

fn told(decision: &Decision) -> String {
    let mut text = String::from(if decision.refused { "refused" } else { "pass" });
    for verdict in &decision.verdicts {
        let word = if verdict.fits { "fits" } else { "over" };
        text += &format!(" | {word} {} left, whole {}", verdict.remaining, verdict.reset_us);
        text += &format!(", next {}", verdict.next_us);
        match verdict.retry_us {
            Some(0) if verdict.fits => {}
            Some(us) => text += &format!("; retry {us}"),
            None => text += "; never",
        }
    }
    text
}

fn all_cases() -> Vec<Case> {
    let all = [TokenBucket, Gcra, SlidingWindow, FixedWindow];
    let mut cases: Vec<Case> = [TokenBucket, Gcra].into_iter().flat_map(limits::both_buckets).collect();
    cases.extend(all.into_iter().flat_map(limits::all_algorithms));
    cases.extend(limits::windows());
    cases.extend(requests::several_charges());
    cases.extend(requests::changing_rules());
    cases
}

#[test]
fn every_case_comes_out_as_written_in_all_three() {
    let mut wrong = String::new();
    for make in Make::all() {
        all_agree(make, &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn all_agree(make: Make, wrong: &mut String) {
    let mut lua = Lua::start(make);
    let keys = [Key::from_text("k")];
    for case in all_cases() {
        let (mut pure, memory) = (Pure::default(), Memory::new(100));
        let in_lua = lua.outcomes(&case.steps, &keys);
        let mut stored = None;
        for (i, (step, expected)) in case.steps.iter().zip(&case.expected).enumerate() {
            let (decision, states) = pure.outcome(step, &keys);
            for (world, actual) in
                [("pure", told(&decision)), ("memory", told(&memory.run(step))), ("lua", told(&in_lua[i].0))]
            {
                if actual != *expected {
                    let at = step.now - START;
                    writeln!(wrong, "{} ({make:?})\n  at {at} {world}\n  {actual}\n  {expected}", case.name)
                        .expect("a string takes all");
                }
            }
            assert!(keeps(&in_lua[i].1, &states), "{}: {:?} {states:?}", case.name, in_lua[i].1);
            stored = states.into_iter().next().flatten().map(|kept| kept.state.to_string());
        }
        if let Some(text) = case.stored {
            let text = text
                .replace("{t}", &START.to_string())
                .replace("{t+1m}", &(START + 60 * SECOND).to_string())
                .replace("{t+55ms}", &(START + 55_000).to_string());
            assert_eq!(stored.as_deref(), Some(&text[..]), "{}", case.name);
        }
    }
}
