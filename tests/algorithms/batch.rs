//! Many requests in one call of the script: each comes out as it would alone.

use std::{cell::RefCell, iter::repeat_n};

use proptest::prelude::*;
use tollgate::{
    key::Key,
    limit::{
        Algorithm::{self, FixedWindow, Gcra, SlidingWindow, TokenBucket},
        Charge, Cost, OnRefusal,
    },
    store::script::{Answer, Call, Keys, Reply, is_not_here},
};

use crate::{
    agree::{History, histories, runner},
    lua::Served,
    redis::{Make, RedisServer},
    worlds::{DAY, Lua, Pure, START, Step, charge, decided, keeps, limit, spend},
};

fn on(key: &str, algorithm: Algorithm, cost: Cost) -> Charge {
    Charge { key: Key::from_text(key), ..charge(limit(algorithm, 1000, 365 * DAY, None), cost) }
}

fn at_once(requests: impl IntoIterator<Item = Vec<Charge>>) -> Vec<Step> {
    requests.into_iter().map(|charges| Step { now: START, charges }).collect()
}

/// How often a history's steps come, one after the other in one call.
fn repeats() -> impl Strategy<Value = (History, Vec<(usize, bool)>)> {
    let times = prop_oneof![3 => Just(1), 3 => 1..6_usize, 1 => 250..260_usize];
    (histories(), prop::collection::vec((times, any::<bool>()), 25))
}

#[test]
fn requests_that_share_a_call_are_decided_as_one_after_the_other() {
    let lua = RefCell::new(Lua::start(Make::Installed));
    let seen = RefCell::new([0_u32; 4]);
    runner(500)
        .run(&repeats(), |(history, repeats)| {
            let keys = history.key_names();
            // The hits of each step are found out by running the history once.
            let mut scout = Pure::default();
            let steps = history.play(false, |step| scout.run(step));
            let mut batches: Vec<Vec<Step>> = Vec::new();
            for (step, &(times, new_call)) in steps.iter().zip(repeats.iter().cycle()) {
                if new_call || batches.is_empty() {
                    batches.push(Vec::new());
                }
                let batch = batches.last_mut().expect("there is one");
                let now = batch.first().map_or(step.now, |first| first.now);
                batch.extend(repeat_n(Step { now, ..step.clone() }, times));
            }
            let mut pure = Pure::default();
            let slices: Vec<&[Step]> = batches.iter().map(|batch| &batch[..]).collect();
            for (batch, (answers, stored)) in batches.iter().zip(lua.borrow_mut().batches(&slices, &keys)) {
                let mut last = None;
                for (i, (step, answer)) in batch.iter().zip(&answers).enumerate() {
                    let expected = pure.outcome(step, &keys);
                    prop_assert_eq!(&decided(answer), &expected.0, "step {} of {:#?}", i, batch);
                    last = Some(expected.1);
                    let mut seen = seen.borrow_mut();
                    seen[0] += u32::from(expected.0.refused);
                    seen[1] += u32::from(!expected.0.refused);
                }
                prop_assert!(last.as_ref().is_some_and(|last| keeps(&stored, last)), "{:#?}", batch);
                seen.borrow_mut()[2] += u32::from(batch.len() > 1);
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(seen.into_inner()[..3].iter().all(|&n| n > 1000), "the histories are no longer interesting");
}

#[test]
fn equal_charges_of_one_key_are_asked_for_once_and_as_many_fit_as_would_alone() {
    let mut lua = Lua::start(Make::Installed);
    for algorithm in [TokenBucket, Gcra, SlidingWindow, FixedWindow] {
        for (cost, act) in [
            (spend(7), OnRefusal::Keep),
            (spend(1), OnRefusal::Drain),
            (spend(30), OnRefusal::Count),
            (Cost::Look(1), OnRefusal::Keep),
        ] {
            let one = Charge { on_refusal: act, ..on("k", algorithm, cost) };
            let steps = at_once(repeat_n(vec![one], 200));
            let call = Call::new(steps.iter().map(|step| &step.charges[..]), Keys::Undeclared, None);
            let asked = call.words().nth(1).expect("what is asked").len();
            assert!(asked < 60, "200 charges are one entry: {asked} bytes");
            let keys = [Key::from_text("k")];
            let (answers, stored) = lua.batches(&[&steps], &keys).remove(0);
            let mut pure = Pure::default();
            for (step, answer) in steps.iter().zip(&answers) {
                let (decision, states) = pure.outcome(step, &keys);
                assert_eq!(decided(answer), decision, "{algorithm:?} {cost:?}");
                assert!(keeps(&stored, &states) || decision.refused || answer != &answers[199]);
            }
        }
    }
}

/// A request of many descriptors with many limits each goes in one call however large it is.
#[test]
fn a_call_of_more_charges_than_lua_unpacks_at_once_is_answered() {
    let charges: Vec<Charge> = (0..9000).map(|key| on(&format!("k{key}"), FixedWindow, spend(1))).collect();
    for mut redis in Served::all() {
        for answer in redis.answers(&[&charges, &charges[..1]]) {
            assert!(!decided(&answer).refused);
        }
    }
}

#[test]
fn a_key_that_holds_something_else_fails_the_requests_that_name_it_and_no_others() {
    for redis in Served::all() {
        a_foreign_key_fails_its_own_requests(redis);
    }
}

fn a_foreign_key_fails_its_own_requests(mut redis: Served) {
    redis.connection.call(&[b"SET", b"words", b"hello"]);
    redis.connection.call(&[b"LPUSH", b"list", b"x"]);
    let answers = redis.answers(&[
        &[on("a", TokenBucket, spend(1))],
        &[on("a", TokenBucket, spend(1)), on("words", TokenBucket, spend(1))],
        &[on("list", Gcra, spend(1))],
        &[on("words", TokenBucket, spend(1))],
        &[on("a", TokenBucket, spend(1)), on("b", FixedWindow, spend(1))],
        &[on("a", FixedWindow, spend(1))],
        &[on("c", FixedWindow, spend(1)), on("c", TokenBucket, spend(1))],
        &[on("a", TokenBucket, Cost::Look(1))],
    ]);
    let told: Vec<String> = answers
        .iter()
        .map(|answer| match answer {
            Answer::Decided(decision) => format!("{} left", decision.verdicts[0].remaining),
            Answer::Unusable(why) => why.clone(),
        })
        .collect();
    let holds =
        |key: &str, what: &str| format!("CORRUPT {key} holds {what}; delete the key to start it anew");
    let twice = "CORRUPT one key is asked for by two algorithms at once".to_owned();
    let expected = [
        "999 left".to_owned(),
        holds("words", "\"hello\""),
        holds("list", "no text"),
        holds("words", "\"hello\""),
        "998 left".to_owned(),
        twice.clone(),
        twice,
        "998 left".to_owned(),
    ];
    assert_eq!(told, expected);
    assert_eq!(redis.get("words").text(), "hello");
    assert_eq!((redis.get("c"), redis.writes()), (crate::worlds::Reply::Nil, 3), "a, b and our SET");
    // Another algorithm's counter is something else, too.
    let answers = redis.answers(&[&[on("a", Gcra, spend(1))], &[on("b", FixedWindow, spend(1))]]);
    assert!(
        matches!(&answers[0], Answer::Unusable(why) if why.contains("CORRUPT a holds the counter of another algorithm")),
        "{answers:?}"
    );
    assert!(matches!(&answers[1], Answer::Decided(_)));
}

#[test]
fn a_key_that_has_left_the_node_of_a_cluster_fails_the_requests_that_name_it_and_no_others() {
    for make in Make::all() {
        a_key_of_another_node_fails_its_own_requests(make);
    }
}

fn a_key_of_another_node_fails_its_own_requests(make: Make) {
    // Half of the slots are nobody's, which to a script is the same as another node's.
    let server =
        RedisServer::start_as(make, &["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]);
    let slots: Vec<String> = (0..8192).map(|slot: u32| slot.to_string()).collect();
    let mut add: Vec<&str> = vec!["CLUSTER", "ADDSLOTS"];
    add.extend(slots.iter().map(String::as_str));
    assert_eq!(server.command(&add), "OK");
    let mut redis = Served::of(server);
    let slot = |redis: &mut Served, key: &str| {
        redis.connection.call(&[b"CLUSTER", b"KEYSLOT", key.as_bytes()]).integer()
    };
    let (mut here, mut gone) = (Vec::new(), Vec::new());
    for n in 0..40 {
        let key = format!("tg:{n}");
        if slot(&mut redis, &key) < 8192 { here.push(key) } else { gone.push(key) }
    }
    redis.wait_until_the_cluster_is_up(&here[0]);
    let take = |key: &str| on(key, TokenBucket, spend(1));
    let answers = redis.answers(&[
        &[take(&here[0])],
        &[take(&gone[0])],
        &[take(&here[0]), take(&gone[1])],
        &[take(&here[1]), take(&here[2])],
        &[take(&gone[0])],
        &[take(&here[0])],
    ]);
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Answer::Decided(decision) => assert!([0, 3, 5].contains(&n) && !decision.refused),
            Answer::Unusable(why) => assert!([1, 2, 4].contains(&n) && is_not_here(why), "{why}"),
        }
    }
    assert!(redis.state(&here[0]).starts_with("b 998 "));
    assert!(redis.state(&here[2]).starts_with("b 999 "));
}

#[test]
fn a_reply_that_is_not_the_scripts_is_no_answer() {
    let requests: [&[Charge]; 3] = [
        &[on("a", TokenBucket, spend(1))],
        &[on("a", TokenBucket, spend(1))],
        &[on("b", FixedWindow, spend(1000)), on("a", TokenBucket, Cost::Look(1))],
    ];
    let call = Call::new(requests, Keys::Undeclared, None);
    let answers = |now: i64, fitted: &[u8], held: &[u8]| call.answers(requests, Reply { now, fitted, held });
    let bucket = |tokens: f64, of: f64| {
        let numbers = [tokens, 0.0, of, 100.0, 200.0].map(f64::to_le_bytes);
        [&b"b"[..], numbers.as_flattened()].concat()
    };
    let held = |tokens, of| [&bucket(tokens, of)[..], b"-"].concat();
    let good = (START as i64, [2, 1, 1], held(5.0, 1.0));
    assert_eq!(answers(good.0, &good.1, &good.2).expect("the script's").len(), 3);
    // Too short, too long, about other numbers of charges or keys.
    for fitted in [&[][..], &[2, 1], &[2, 1, 1, 1], &[2, 0, 1], &[1, 1, 1], &[3, 1, 1], &[255, 255, 255]] {
        assert_eq!(answers(good.0, fitted, &good.2), None, "{fitted:?}");
    }
    let one = bucket(5.0, 1.0);
    for held in [
        &b""[..],
        &one,
        b"-",
        b"---",
        &[&one[..], b"x"].concat(),
        &[&one[..], b"-", &one].concat(),
        &[&one[..40], b"-"].concat(),
        &[&one[..], b"!\xff\n"].concat(),
        &[&one[..], b"!no end"].concat(),
        &[&one[..], b"17"].concat(),
        b"OK\n",
    ] {
        assert_eq!(answers(good.0, &good.1, held), None, "{}", String::from_utf8_lossy(held));
    }
    assert_eq!(answers(-1, &good.1, &good.2), None);
    // An empty bucket grants nothing, whatever the reply says.
    assert_eq!(answers(100, &good.1, &held(0.0, 31_536_000_000_000.0)), None);
    let others: [&[Charge]; 2] = [requests[0], requests[1]];
    assert_eq!(call.answers(others, Reply { now: good.0, fitted: &good.1, held: &good.2 }), None);
}
