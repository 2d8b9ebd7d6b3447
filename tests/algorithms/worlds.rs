//! The three implementations with one face: [`World::run`] takes a request at a time that the test chooses.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write as _},
    net::TcpStream,
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tollgate::{
    algorithm::{Counter, State, Write, arith::TIME_MAX_US, decide},
    clock::{Clock, Micros, SystemClock},
    key::Key,
    limit::{Algorithm, Charge, Cost, Decision, Limit, OnRefusal, Role},
    store::{
        memory::MemoryStore,
        script::{self, Answer, Call, Keys, SPEND},
    },
};

use crate::redis::{Make, RedisServer};

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const DAY: u64 = 86_400 * SECOND;
/// 1 January 2026, a Thursday: the start of every window up to a day.
pub(crate) const START: u64 = 1_767_225_600 * SECOND;

/// One request at a time.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) now: u64,
    pub(crate) charges: Vec<Charge>,
}

/// What came of a step: the decision, and what then stands under each key of the world.
pub(crate) type Outcome = (Decision, Stored);

/// Of each key of the world, what is kept.
pub(crate) type Stored = Vec<Option<Kept>>;

/// A state that is kept until a moment, in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) state: State,
    pub(crate) until: u64,
}

/// Whether the script keeps the states that it should, and none for too short.
pub(crate) fn keeps(lua: &Stored, pure: &Stored) -> bool {
    lua.iter().zip(pure).all(|both| match both {
        (Some(lua), Some(pure)) => lua.state == pure.state && lua.until >= pure.until,
        (None, None) => true,
        _ => false,
    })
}

pub(crate) fn limit(algorithm: Algorithm, requests: u32, window_us: u64, burst: Option<u32>) -> Limit {
    Limit::new(algorithm, requests, window_us, burst).expect("a valid limit")
}

/// A charge of the plainest kind on the key `k`.
pub(crate) fn charge(limit: Limit, cost: Cost) -> Charge {
    Charge { key: Key::from_text("k"), limit, cost, role: Role::Enforce, on_refusal: OnRefusal::Keep }
}

pub(crate) fn spend(hits: u64) -> Cost {
    Cost::Spend(NonZeroU64::new(hits).expect("a spend of at least one hit"))
}

// === pure ===

/// The pure functions over a plain map.
#[derive(Default)]
pub(crate) struct Pure {
    pub(crate) states: BTreeMap<Key, Kept>,
    /// Whether a state vanishes when its time is over, as in a store whose clock is the test's.
    pub(crate) expires: bool,
}

impl Pure {
    pub(crate) fn run(&mut self, step: &Step) -> Decision {
        let now = Micros(step.now);
        let mut keys: Vec<&Key> = step.charges.iter().map(|c| &c.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut counters: Vec<Counter> = keys
            .iter()
            .map(|key| {
                let known = self.states.get(*key).filter(|kept| !self.expires || kept.until > now.0);
                Counter::new(known.map(|kept| kept.state))
            })
            .collect();
        let decision = decide(now, &step.charges, &mut counters, |i| {
            keys.binary_search(&&step.charges[i].key).expect("all keys are listed")
        });
        for (key, counter) in keys.into_iter().zip(&counters) {
            match counter.write() {
                Write::Nothing => {}
                Write::Put(state, us) => {
                    // Redis knows no later time.
                    let now = if self.expires { now.0 } else { now.0.min(TIME_MAX_US) };
                    let until = now.saturating_add(us);
                    self.states.insert(key.clone(), Kept { state, until });
                }
                Write::Delete => {
                    self.states.remove(key);
                }
            }
        }
        decision
    }

    pub(crate) fn outcome(&mut self, step: &Step, keys: &[Key]) -> Outcome {
        let decision = self.run(step);
        (decision, keys.iter().map(|key| self.states.get(key).cloned()).collect())
    }
}

// === memory ===

/// A clock that a test moves.
#[derive(Clone, Default)]
pub(crate) struct HandClock(pub(crate) Arc<AtomicU64>);

impl HandClock {
    pub(crate) fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }

    fn instant(&self) -> Instant {
        SystemClock.instant()
    }
}

/// The memory store under a clock that the test moves.
pub(crate) struct Memory {
    pub(crate) clock: HandClock,
    pub(crate) store: MemoryStore<HandClock>,
}

impl Memory {
    pub(crate) fn new(keys_max: usize) -> Self {
        let clock = HandClock::default();
        Self { store: MemoryStore::new(clock.clone(), keys_max), clock }
    }

    pub(crate) fn run(&self, step: &Step) -> Decision {
        self.clock.set(step.now);
        self.store.decide(&step.charges)
    }
}

// === Lua ===

/// Stands before the script, so that a key does not vanish by the server's clock while the test's stands still: an
/// expiry is stored behind the state instead. The script itself is as it is served.
const WITHOUT_EXPIRY: &str = "
local real = redis
local redis = {}
local function parts(stored) return string.match(stored, '^(.*)|(.-)$') end
function redis.pcall(command, key)
  local stored = real.pcall(command, key)
  return type(stored) == 'string' and parts(stored) or stored
end
function redis.call(command, key, state, px, ms)
  if command ~= 'SET' then return real.call(command, key) end
  local until_us
  if px == 'PX' then
    until_us = string.format('%.0f', math.min(tonumber(ARGV[1]), 2 ^ 53 - 1) + ms * 1000)
  else
    assert(px == 'KEEPTTL')
    until_us = select(2, parts(real.call('GET', key)))
  end
  return real.call('SET', key, state .. '|' .. until_us)
end
";

/// The script in a real Redis.
pub(crate) struct Lua {
    _server: RedisServer,
    pub(crate) connection: Connection,
    sha: String,
}

impl Lua {
    pub(crate) fn start(make: Make) -> Self {
        let server = RedisServer::start_as(make, &[]);
        let mut connection = Connection::open(server.port);
        let script = format!("{WITHOUT_EXPIRY}\n{SPEND}");
        let sha = connection.call(&[b"SCRIPT", b"LOAD", script.as_bytes()]).text();
        Self { _server: server, connection, sha }
    }

    /// Runs all steps, each in a call of its own, in one write to the socket, from nothing.
    pub(crate) fn outcomes(&mut self, steps: &[Step], keys: &[Key]) -> Vec<Outcome> {
        let batches: Vec<&[Step]> = steps.iter().map(std::slice::from_ref).collect();
        let outcomes = self.batches(&batches, keys);
        outcomes.into_iter().map(|(answers, stored)| (decided(&answers[0]), stored)).collect()
    }

    /// Runs each batch in one call, at the time of its first step, in one write to the socket, from nothing.
    pub(crate) fn batches(&mut self, batches: &[&[Step]], keys: &[Key]) -> Vec<(Vec<Answer>, Stored)> {
        self.connection.send(&[b"FLUSHALL"]);
        let mut calls = Vec::new();
        for (n, batch) in batches.iter().enumerate() {
            let declared = if n % 2 == 0 { Keys::Undeclared } else { Keys::Declared };
            let now = Some(Micros(batch[0].now));
            let call = Call::new(batch.iter().map(|step| &step.charges[..]), declared, now);
            self.connection.send_call(&self.sha, &call);
            calls.push(call);
            let mut get: Vec<&[u8]> = vec![b"MGET"];
            get.extend(keys.iter().map(Key::as_bytes));
            self.connection.send(&get);
        }
        self.connection.flush();
        self.connection.read();
        calls
            .iter()
            .zip(batches)
            .map(|(call, batch)| {
                let reply = self.connection.read();
                let answers = reply.answers(call, batch.iter().map(|step| &step.charges[..]));
                let answers = answers.unwrap_or_else(|| panic!("{reply:?}"));
                (answers, self.connection.read().list().into_iter().map(stored).collect())
            })
            .collect()
    }
}

pub(crate) fn decided(answer: &Answer) -> Decision {
    let Answer::Decided(decision) = answer else { panic!("{answer:?}") };
    decision.clone()
}

fn stored(reply: Reply) -> Option<Kept> {
    let Reply::Text(stored) = reply else { return None };
    let bar = stored.iter().rposition(|&byte| byte == b'|').expect("stored with an expiry");
    let (state, until) = (&stored[..bar], &stored[bar + 1..]);
    let until = std::str::from_utf8(until).ok().and_then(|until| until.parse().ok()).expect("microseconds");
    if let Some(numbers) = State::stored_bytes(state[0]) {
        let kept = state[numbers - 8..].try_into().map(f64::from_le_bytes).expect("the last number");
        assert!(kept as u64 <= until, "a state is to say no more than the server does: {kept} {until}");
    }
    Some(Kept { state: State::parse(state).expect("a state"), until })
}

// === a connection ===

/// As much of the Redis protocol as these tests need, with pipelining.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    out: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    Error(String),
    List(Vec<Reply>),
}

impl Connection {
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes a timeout");
        Self { reader: BufReader::new(stream), out: Vec::new() }
    }

    pub(crate) fn call(&mut self, args: &[&[u8]]) -> Reply {
        self.send(args);
        self.flush();
        self.read()
    }

    pub(crate) fn send_call(&mut self, sha: &str, call: &Call) {
        let count = call.keys_declared().to_string();
        let mut args: Vec<&[u8]> = vec![b"EVALSHA", sha.as_bytes(), count.as_bytes()];
        args.extend(call.words());
        assert_eq!(args.len(), 3 + call.words_len());
        self.send(&args);
    }

    pub(crate) fn send(&mut self, args: &[&[u8]]) {
        self.out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
        for arg in args {
            self.out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            self.out.extend_from_slice(arg);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn flush(&mut self) {
        self.reader.get_mut().write_all(&self.out).expect("the server reads");
        self.out.clear();
    }

    pub(crate) fn read(&mut self) -> Reply {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("the server answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Reply::Text(rest.as_bytes().to_vec()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()),
            "$" | "*" if number() < 0 => Reply::Nil,
            "$" => {
                let mut text = vec![0; number() as usize + 2];
                self.reader.read_exact(&mut text).expect("the server answers");
                text.truncate(text.len() - 2);
                Reply::Text(text)
            }
            _ => Reply::List((0..number()).map(|_| self.read()).collect()),
        }
    }
}

impl Reply {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Text(text) => String::from_utf8(text).expect("text"),
            other => panic!("no text: {other:?}"),
        }
    }

    pub(crate) fn list(self) -> Vec<Self> {
        match self {
            Self::List(list) => list,
            other => panic!("no list: {other:?}"),
        }
    }

    /// What the script answers, if this is an answer of the script.
    pub(crate) fn answers<'c>(
        &self,
        call: &Call,
        requests: impl IntoIterator<Item = &'c [Charge]>,
    ) -> Option<Vec<Answer>> {
        let Self::List(list) = self else { return None };
        let [Self::Integer(now), Self::Text(fitted), Self::Text(held)] = &list[..] else { return None };
        call.answers(requests, script::Reply { now: *now, fitted, held })
    }

    pub(crate) fn integers(&self) -> Vec<i64> {
        match self {
            Self::List(list) => list.iter().map(Self::integer).collect(),
            other => panic!("no list of integers: {other:?}"),
        }
    }

    pub(crate) fn integer(&self) -> i64 {
        match self {
            Self::Integer(n) => *n,
            other => panic!("no integer: {other:?}"),
        }
    }
}
