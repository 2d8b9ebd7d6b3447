//! What the script has for itself: its arithmetic, its expiries, its server's clock, and keys that are not ours.

use std::{cell::RefCell, time::Duration};

use proptest::prelude::*;
use tollgate::{
    algorithm::{State, arith::muldiv},
    clock::{Clock, Micros, SystemClock},
    key::Key,
    limit::{Algorithm, Charge, Cost, Limit, OnRefusal, Verdict},
    store::script::{Answer, Call, Keys, SPEND},
};

use crate::{
    redis::{Make, RedisServer},
    worlds::{Connection, DAY, Reply, SECOND, START, charge, decided, limit, spend},
};

/// The script as it is served, under the server's own clock.
pub(crate) struct Served {
    pub(crate) connection: Connection,
    sha: String,
    _server: RedisServer,
}

impl Served {
    /// In each make of server that is here.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Make::all().into_iter().map(Self::start)
    }

    fn start(make: Make) -> Self {
        Self::of(RedisServer::start_as(make, &[]))
    }

    pub(crate) fn of(server: RedisServer) -> Self {
        let mut connection = Connection::open(server.port);
        let sha = connection.call(&[b"SCRIPT", b"LOAD", SPEND.as_bytes()]).text();
        Self { connection, sha, _server: server }
    }

    /// What comes of these requests in one call.
    pub(crate) fn answers(&mut self, requests: &[&[Charge]]) -> Vec<Answer> {
        let call = Call::new(requests.iter().copied(), Keys::Undeclared, None);
        self.connection.send_call(&self.sha, &call);
        self.connection.flush();
        let reply = self.connection.read();
        reply.answers(&call, requests.iter().copied()).unwrap_or_else(|| panic!("{reply:?}"))
    }

    fn answer(&mut self, charges: &[Charge]) -> Answer {
        self.answers(&[charges]).remove(0)
    }

    fn verdict(&mut self, charge: &Charge) -> Verdict {
        decided(&self.answer(std::slice::from_ref(charge))).verdicts[0]
    }

    pub(crate) fn get(&mut self, key: &str) -> Reply {
        self.connection.call(&[b"GET", key.as_bytes()])
    }

    /// A state, as a person reads it.
    pub(crate) fn state(&mut self, key: &str) -> String {
        match self.get(key) {
            Reply::Text(stored) => State::parse(&stored).expect("a state").to_string(),
            other => panic!("no state: {other:?}"),
        }
    }

    /// By its own clock.
    fn time_us(&mut self) -> u64 {
        let time = self.connection.call(&[b"TIME"]).list();
        let [seconds, us] = &time[..] else { panic!("TIME has two parts") };
        let number = |reply: &Reply| reply.clone().text().parse::<u64>().expect("a number");
        number(seconds) * SECOND + number(us)
    }

    /// A node joins its own cluster a moment after it was given slots.
    pub(crate) fn wait_until_the_cluster_is_up(&mut self, key: &str) {
        let deadline = SystemClock.instant() + Duration::from_secs(60);
        while matches!(self.get(key), Reply::Error(_)) {
            assert!(SystemClock.instant() < deadline, "{:?}", self.get(key));
        }
    }

    /// How often the server wrote, by its own count.
    pub(crate) fn writes(&mut self) -> u64 {
        let stats = self.connection.call(&[b"INFO", b"commandstats"]).text();
        ["cmdstat_set:calls=", "cmdstat_del:calls=", "cmdstat_pexpire:calls="]
            .iter()
            .filter_map(|name| {
                let (_, rest) = stats.split_once(name)?;
                rest.split(',').next()?.parse::<u64>().ok()
            })
            .sum()
    }
}

/// Windows so long that none ends in the middle of a test.
fn yearly(algorithm: Algorithm) -> Limit {
    limit(algorithm, 5, 365 * DAY, None)
}

const ALL: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::FixedWindow];

/// `muldiv` as it stands in the script, over a list of numbers.
fn muldiv_script() -> String {
    let between = |from: &str, to: &str| {
        let (_, rest) = SPEND.split_once(from).expect("the script has this part");
        let (part, _) = rest.split_once(to).expect("and this one after it");
        format!("{from}{part}")
    };
    let constants = between("local EXACT", "local call, pcall");
    let muldiv = between("local function muldiv", "-- Of n times these");
    format!(
        "{constants}\n{muldiv}\nlocal out = {{}}
        for i = 1, #ARGV, 3 do
          local q, r = muldiv(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
          out[#out + 1] = q
          out[#out + 1] = r
        end
        return out"
    )
}

fn muldiv_in_lua(connection: &mut Connection, triples: &[(u64, u64, u64)]) -> Vec<(u64, u64)> {
    let script = muldiv_script();
    let numbers: Vec<String> =
        triples.iter().flat_map(|(x, y, d)| [x, y, d]).map(|number| number.to_string()).collect();
    let mut args: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), b"0"];
    args.extend(numbers.iter().map(|number| number.as_bytes()));
    connection
        .call(&args)
        .integers()
        .chunks(2)
        .map(|pair| (pair[0].try_into().expect("not negative"), pair[1].try_into().expect("not negative")))
        .collect()
}

#[test]
fn products_far_beyond_a_double_are_divided_exactly_in_lua() {
    let servers: Vec<RedisServer> =
        Make::all().into_iter().map(|make| RedisServer::start_as(make, &[])).collect();
    let mut connections: Vec<Connection> =
        servers.iter().map(|server| Connection::open(server.port)).collect();
    let near = |power: u32| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1];
    let factors: Vec<u64> = [0, 1, 2, 3, 7, 8, 10_000_000, 86_400_000_000, 315_360_000_000_000]
        .into_iter()
        .chain([25, 26, 27, 31, 32, 33, 48, 49, 51, 52].into_iter().flat_map(near))
        .chain([(1 << 53) - 2, (1 << 53) - 1])
        .collect();
    let divisors: Vec<u64> = [1, 2, 3, 7, 1000, 999_999, 1_000_000, 315_360_000_000_000]
        .into_iter()
        .chain([24, 32, 47, 48].into_iter().flat_map(near))
        .chain([(1 << 49) - 2, (1 << 49) - 1])
        .collect();
    for &x in &factors {
        let triples: Vec<_> =
            factors.iter().flat_map(|&y| divisors.iter().map(move |&d| (x, y, d))).collect();
        for connection in &mut connections {
            for (triple, lua) in triples.iter().zip(muldiv_in_lua(connection, &triples)) {
                assert_eq!(lua, muldiv(triple.0, triple.1, triple.2), "{triple:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_product_is_divided_exactly_in_lua(
        triples in prop::collection::vec(
            (0..53_u32, 0..53_u32, 0..49_u32, any::<[u64; 3]>()).prop_map(|(x, y, d, [a, b, c])| {
                // All magnitudes are equally likely.
                (a & ((2 << x) - 1), b & ((2 << y) - 1), (c & ((1 << d) - 1)).max(1))
            }),
            700,
        )
    ) {
        thread_local! {
            static SERVER: RefCell<Option<(RedisServer, Connection)>> = const { RefCell::new(None) };
        }
        let lua = SERVER.with_borrow_mut(|server| {
            let (_, connection) = server.get_or_insert_with(|| {
                let server = RedisServer::start(&[]);
                let connection = Connection::open(server.port);
                (server, connection)
            });
            muldiv_in_lua(connection, &triples)
        });
        for (&(x, y, d), lua) in triples.iter().zip(lua) {
            prop_assert_eq!(lua, muldiv(x, y, d), "{} {} {}", x, y, d);
        }
    }
}

#[test]
fn a_refused_request_writes_nothing_to_redis() {
    for mut redis in Served::all() {
        for algorithm in ALL {
            let key = Key::from_text(algorithm.as_str());
            let plain = |cost| Charge { key: key.clone(), ..charge(yearly(algorithm), cost) };
            redis.verdict(&plain(spend(3)));
            let before = (redis.get(algorithm.as_str()), redis.writes());
            assert!(!redis.verdict(&plain(spend(3))).fits);
            assert!(redis.verdict(&plain(Cost::Look(1))).fits);
            assert!(!redis.verdict(&plain(Cost::Look(3))).fits);
            let other = Charge { key: Key::from_text("other"), ..charge(yearly(algorithm), spend(1)) };
            let refund =
                Charge { key: Key::from_text("refund"), ..charge(yearly(algorithm), Cost::Refund(1)) };
            let answer = redis.answer(&[other, refund, plain(spend(3))]);
            assert!(decided(&answer).refused);
            assert_eq!((redis.get(algorithm.as_str()), redis.writes()), before, "{algorithm:?}");
            assert_eq!(redis.get("other"), Reply::Nil);
        }
    }
}

#[test]
fn a_key_lives_until_it_is_full_again_and_is_deleted_when_it_is() {
    for mut redis in Served::all() {
        // 73 days for a hit; windows end with the year, and the sliding one counts for another.
        for (algorithm, most_days) in ALL.into_iter().zip([146, 146, 730, 365]) {
            let key = algorithm.as_str().as_bytes();
            let two =
                Charge { key: Key::from_text(algorithm.as_str()), ..charge(yearly(algorithm), spend(2)) };
            let reset_ms = redis.verdict(&two).reset_us.div_ceil(1000) as i64;
            let left_ms = redis.connection.call(&[b"PTTL", key]).integer();
            assert!(reset_ms <= most_days * 86_400_000, "{algorithm:?}: {reset_ms}");
            // The server cannot have lost half of it between two commands. A bucket is kept for a quarter more, and 2 s.
            let most_ms = reset_ms * 5 / 4 + 2_003;
            assert!((reset_ms / 2..=most_ms).contains(&left_ms), "{algorithm:?}: {left_ms} of {reset_ms}");
            let back = Charge { cost: Cost::Refund(2), ..two };
            assert_eq!(redis.verdict(&back).reset_us, 0);
            assert_eq!(redis.connection.call(&[b"EXISTS", key]), Reply::Integer(0), "a full key is deleted");
        }
    }
}

#[test]
fn a_clock_that_was_years_ahead_for_a_moment_does_not_block_for_years() {
    for mut redis in Served::all() {
        for algorithm in ALL {
            let key = algorithm.as_str().as_bytes();
            let one =
                Charge { key: Key::from_text(algorithm.as_str()), ..charge(yearly(algorithm), spend(1)) };
            let ahead = Micros(START + 40 * 365 * DAY);
            let call = Call::new([std::slice::from_ref(&one)], Keys::Undeclared, Some(ahead));
            redis.connection.send_call(&redis.sha, &call);
            redis.connection.flush();
            redis.connection.read();
            let later = redis.verdict(&one);
            assert!(later.fits && later.remaining == 3, "what was spent counts: {later:?}");
            let left_ms = redis.connection.call(&[b"PTTL", key]).integer();
            let most_ms = 2 * 365 * 86_400_000 + 2_003;
            assert!(left_ms <= most_ms, "{algorithm:?} is forgotten after its time to full");
        }
    }
}

#[test]
fn however_often_a_counter_is_hit_the_server_keeps_it_until_it_is_full() {
    for mut redis in Served::all() {
        for algorithm in ALL {
            let key = algorithm.as_str();
            // Tens of hits for each move of the expiry, and some windows that end in between.
            let limit = limit(algorithm, 1_000_000, 10 * SECOND / 7, None);
            for hits in (1..400).chain([900_000]) {
                let spend = Charge { key: Key::from_text(key), ..charge(limit, spend(hits)) };
                let before = redis.time_us();
                let reset_us = redis.verdict(&spend).reset_us;
                let left_ms = redis.connection.call(&[b"PTTL", key.as_bytes()]).integer();
                let after = redis.time_us();
                if left_ms < 0 {
                    assert!(after >= before + reset_us, "{key} is gone {reset_us} us before it is full");
                } else {
                    assert!(after + (left_ms as u64 + 1) * 1000 >= before + reset_us, "{key}: {left_ms} ms");
                }
            }
        }
    }
}

#[test]
fn an_idle_key_vanishes_by_itself() {
    for mut redis in Served::all() {
        let clock = SystemClock;
        let deadline = clock.instant() + Duration::from_secs(60);
        for algorithm in ALL {
            let key = algorithm.as_str();
            let one =
                Charge { key: Key::from_text(key), ..charge(limit(algorithm, 1, 20_000, None), spend(1)) };
            redis.verdict(&one);
            while redis.get(key) != Reply::Nil {
                assert!(clock.instant() < deadline, "{key} is still there");
            }
            assert!(redis.verdict(&Charge { cost: Cost::Look(1), ..one }).fits);
        }
    }
}

#[test]
fn the_script_takes_the_servers_own_time() {
    for mut redis in Served::all() {
        let window = charge(limit(Algorithm::FixedWindow, 5, DAY, None), spend(1));
        let seconds = |reply: Reply| -> u64 {
            let [seconds, _] = &reply.list()[..] else { panic!("TIME has two parts") };
            seconds.clone().text().parse().unwrap()
        };
        let before = seconds(redis.connection.call(&[b"TIME"]));
        let reset_us = redis.verdict(&window).reset_us;
        let after = seconds(redis.connection.call(&[b"TIME"])) + 1;
        let day_end = |now: u64| (now - now % 86_400 + 86_400 - now) * SECOND;
        // Unless midnight came between the two, the end of the day is between their distances from it.
        assert!(before / 86_400 != after / 86_400 || (day_end(after)..=day_end(before)).contains(&reset_us));
        let text = redis.state("k");
        let start: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(
            start.is_multiple_of(DAY) && start / SECOND <= after && after - start / SECOND <= 86_401,
            "{text}"
        );
    }
}

#[test]
fn a_key_with_something_else_in_it_is_an_error_that_names_it_and_nothing_is_spent() {
    for mut redis in Served::all() {
        redis.connection.call(&[b"LPUSH", b"list", b"x"]);
        let stored = |letter: u8, numbers: [f64; 5]| {
            [&[letter][..], numbers.map(f64::to_le_bytes).as_flattened()].concat()
        };
        let mut short = stored(b'b', [5., 0., 1., 100., 200.]);
        short.pop();
        let foreign: [(&str, Vec<u8>); 13] = [
            ("empty", b"".to_vec()),
            ("words", b"hello\r\nworld".to_vec()),
            ("binary", b"\xff\x00".to_vec()),
            ("digits", b"17".to_vec()),
            ("text", b"b 5 0 1 100".to_vec()),
            ("other", stored(b'g', [5., 0., 1., 100., 200.])),
            ("short", short),
            ("part", stored(b'b', [5., 9., 9., 100., 200.])),
            ("huge", stored(b'b', [1e30, 0., 1., 100., 200.])),
            ("half", stored(b'b', [5.5, 0., 1., 100., 200.])),
            ("nan", stored(b'b', [f64::NAN, 0., 1., 100., 200.])),
            ("infinite", stored(b'b', [5., 0., 1., 100., f64::INFINITY])),
            ("zero", stored(b'b', [5., 0., 0., 100., 200.])),
        ];
        for (key, bytes) in &foreign {
            redis.connection.call(&[b"SET", key.as_bytes(), bytes]);
        }
        let bucket = yearly(Algorithm::TokenBucket);
        for key in foreign.iter().map(|(key, _)| *key).chain(["list"]) {
            let bad = Charge { key: Key::from_text(key), ..charge(bucket, spend(1)) };
            let answer = redis.answer(&[
                charge(bucket, spend(1)),
                Charge { on_refusal: OnRefusal::Count, ..charge(bucket, spend(9)) },
                bad,
            ]);
            let Answer::Unusable(error) = answer else { panic!("{key}: {answer:?}") };
            assert!(error.starts_with("CORRUPT ") && error.contains(key), "{error}");
            assert!(error.is_ascii() && error.len() < 200 && !error.contains('\n'), "{error:?}");
            assert_eq!(redis.get("k"), Reply::Nil, "{key}");
        }
        let nothing = decided(&redis.answer(&[]));
        assert!(!nothing.refused && nothing.verdicts.is_empty(), "no charges, no refusal");
    }
}
