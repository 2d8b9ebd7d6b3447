//! One server: what it says of itself, and whether it does what the service will ask of it.

use std::{
    ops::RangeInclusive,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    Among, Examined, Look, Part, QUESTIONS_MAX, Silence, ask,
    rights::{Denied, KEY, is_hidden_cluster, rights, rights_among},
};
use crate::{
    clock::{Clock as _, SystemClock},
    key::{Format, Key},
    limit::{Algorithm, Charge, Cost, Limit, OnRefusal, Role},
    store::{
        StoreError,
        redis::{
            address::Address,
            dial::{Failure, Hash, evalsha, load},
            error,
            reply::{Whole, bounds, read},
            slots::{info, slot},
            wire::{Lost, Wire},
        },
        script::{Answer, Call, Keys},
    },
};

/// How many PINGs a latency is measured with.
const PINGS: usize = 20;

/// How many calls of the script.
const CALLS: usize = 20;

/// Of a limit that all these calls do not use up.
const HITS: u32 = 1_000_000;

/// What a server tells.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// `Redis 7.0.15`, `Valkey 9.1.2`; `None` where INFO may not be asked for.
    pub version: Option<Version>,
    /// It is a node of a cluster.
    pub cluster_mode: bool,
    /// It reads its data from the disk.
    pub is_loading: bool,
    /// What it replicates, and who replicates it.
    pub replication: Option<Replication>,
    /// What it may use, and what it does when all is used.
    pub memory: Option<Memory>,
    /// It writes its data to the disk now and then, or each time.
    pub keeps_on_disk: Option<bool>,
    /// How long each PING took, the shortest first.
    pub pings: Vec<Duration>,
    /// Its clock against ours.
    pub clock: Option<Clock>,
    /// As whom we are there.
    pub user: String,
    /// Commands that the user may not use, as far as that can be found out.
    pub denied: Vec<Denied>,
    /// How the script runs, or what the server says instead; `None` for one that only stands by.
    pub script: Option<Result<Script, String>>,
}

/// Whose server, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// `Redis` or `Valkey`
    pub make: &'static str,
    /// `7.0.15`
    pub number: String,
}

/// Primary or replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    /// Of whom it is a replica, and whether it is connected to it.
    pub of: Option<(String, bool)>,
    /// `host:port` of each replica that is connected.
    pub replicas: Vec<String>,
    /// `min-replicas-to-write` has been asked for, and so many are not there.
    pub too_few: bool,
}

/// In bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub used: u64,
    /// `maxmemory`; 0 is no bound.
    pub max: u64,
    /// `maxmemory-policy`
    pub policy: String,
}

/// Whose clock is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Of the server's against ours, in microseconds.
    pub ahead_us: i64,
    /// How exactly that is known: half of the round trip.
    pub within_us: u64,
}

/// That the script ran, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// SCRIPT LOAD, which compiles it.
    pub loading: Duration,
    /// Of calls that decide two requests, the one in the middle.
    pub call: Duration,
    /// A call may use keys of several slots.
    pub crosses_slots: bool,
}

impl Look<'_> {
    /// Connects to a server and asks it all. `slots` are those that it has, all where there is no cluster.
    pub(super) async fn at(&self, address: &Address, part: Part, slots: &[RangeInclusive<u16>]) -> Examined {
        let told = self.ask(address, &part, slots).await;
        Examined { address: address.to_string(), part, told }
    }

    async fn ask(
        &self,
        address: &Address,
        part: &Part,
        slots: &[RangeInclusive<u16>],
    ) -> Result<Server, Silence> {
        let mut wire = self.access.connect(address).await.map_err(|e| silence(&e))?;
        let questions = self.questions(&mut wire, part, slots);
        match tokio::time::timeout(2 * QUESTIONS_MAX, questions).await {
            Ok(Ok(server)) => Ok(server),
            Ok(Err(error)) => Err(silence(&error::from_lost(&address.to_string(), &error))),
            Err(_) => Err(Silence { refused: false, why: "it stopped answering".to_owned() }),
        }
    }

    async fn questions(
        &self,
        wire: &mut Wire,
        part: &Part,
        slots: &[RangeInclusive<u16>],
    ) -> Result<Server, Lost> {
        let mut server = Server { user: self.user.clone(), ..Server::default() };
        // The first one may have to wait for the connection to settle.
        for _ in 0..=PINGS {
            let began = SystemClock.instant();
            ask(wire, &["PING"]).await?;
            server.pings.push(SystemClock.instant() - began);
        }
        server.pings.remove(0);
        server.pings.sort_unstable();
        server.clock = clock(wire).await?;
        let told = ask(wire, &["INFO"]).await?;
        if let Some(told) = told.text() {
            describe(&mut server, told);
        }
        // As the service finds it out: more users may ask for this than for INFO.
        let state = ask(wire, &["CLUSTER", "INFO"]).await?;
        server.cluster_mode |= state.text().is_some_and(|text| info(text, "cluster_state").is_some());
        server.cluster_mode |=
            self.among == Among::Unknown && is_hidden_cluster(wire, &state, self.keys).await?;
        if let Some((user, denied)) = rights(wire, self.keys).await? {
            (server.user, server.denied) = (user, denied);
        }
        server.denied.extend(rights_among(wire, self.among).await?);
        if *part != Part::StandsBy {
            server.script = Some(script(wire, &probe_keys(slots, self.keys), server.cluster_mode).await?);
        }
        Ok(server)
    }
}

// === Questions ===

/// The error without the address, which stands beside it.
fn silence(error: &StoreError) -> Silence {
    match error {
        StoreError::Refused { why, .. } => Silence { refused: true, why: why.clone() },
        StoreError::Unavailable { why, .. } | StoreError::Corrupt { why, .. } => {
            Silence { refused: false, why: why.clone() }
        }
        other => Silence { refused: false, why: other.to_string() },
    }
}

/// Half of the round trip is the best guess of when the server looked at its clock.
async fn clock(wire: &mut Wire) -> Result<Option<Clock>, Lost> {
    let began = SystemClock.instant();
    let reply = ask(wire, &["TIME"]).await?;
    let took = SystemClock.instant() - began;
    let Some([seconds, us]) = reply.list() else { return Ok(None) };
    let Some((seconds, us)) = seconds.number().zip(us.number()) else { return Ok(None) };
    #[expect(
        clippy::disallowed_methods,
        reason = "this machine's clock is what the server's is held against"
    )]
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let as_us = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let half = as_us(took) / 2;
    let ahead_us = seconds.saturating_mul(1_000_000).saturating_add(us).saturating_sub(as_us(ours) - half);
    Ok(Some(Clock { ahead_us, within_us: half.unsigned_abs() }))
}

fn describe(server: &mut Server, told: &str) {
    let number = |name: &str| info(told, name).and_then(|text| text.parse::<u64>().ok());
    let is = |name: &str, value: &str| info(told, name) == Some(value);
    let valkey = info(told, "valkey_version").map(|number| ("Valkey", number));
    let version = valkey.or_else(|| info(told, "redis_version").map(|number| ("Redis", number)));
    server.version = version.map(|(make, number)| Version { make, number: number.to_owned() });
    server.cluster_mode = is("cluster_enabled", "1");
    server.is_loading = is("loading", "1") || is("async_loading", "1");
    server.memory = number("used_memory").zip(number("maxmemory")).map(|(used, max)| Memory {
        used,
        max,
        policy: info(told, "maxmemory_policy").unwrap_or("unknown").to_owned(),
    });
    let saves = number("rdb_last_save_time").zip(number("rdb_saves"));
    server.keeps_on_disk = info(told, "aof_enabled").map(|on| on == "1" || saves.is_some_and(|(_, n)| n > 0));
    let of = info(told, "master_host").zip(info(told, "master_port"));
    let replica = |i: usize| {
        // `slave0:ip=127.0.0.1,port=6380,state=online,offset=…`
        let line = info(told, &format!("slave{i}"))?;
        let field = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        Some(format!("{}:{}", field("ip")?, field("port")?))
    };
    server.replication = info(told, "role").map(|_| Replication {
        of: of.map(|(host, port)| (format!("{host}:{port}"), is("master_link_status", "up"))),
        replicas: (0..).map_while(replica).collect(),
        too_few: is("min_slaves_good_slaves", "0"),
    });
}

/// Runs the script as the service does, on keys of its own, and gives back what it took.
async fn script(wire: &mut Wire, keys: &[Key], cluster_mode: bool) -> Result<Result<Script, String>, Lost> {
    let began = SystemClock.instant();
    let hash = match load(wire, QUESTIONS_MAX).await {
        Ok(hash) => hash,
        Err(Failure::Refused(why)) => return Ok(Err(why)),
        Err(Failure::Lost(lost)) => return Err(lost),
    };
    let loading = SystemClock.instant() - began;
    let mut run = Run { wire, hash, keys, declared: Keys::Undeclared };
    if let Err(why) = run.take().await? {
        // One slot at a time may be allowed where several are not.
        run = Run { keys: &keys[..1], declared: Keys::Declared, ..run };
        if !cluster_mode || run.take().await?.is_err() {
            return Ok(Err(why));
        }
    }
    let mut took = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let began = SystemClock.instant();
        if let Err(why) = run.take().await? {
            return Ok(Err(why));
        }
        took.push(SystemClock.instant() - began);
    }
    took.sort_unstable();
    let crosses_slots = run.declared == Keys::Undeclared;
    Ok(run.give_back().await?.map(|()| Script { loading, call: took[CALLS / 2], crosses_slots }))
}

/// Two keys of different slots of this server.
fn probe_keys(slots: &[RangeInclusive<u16>], keys: &Format) -> Vec<Key> {
    let here = |key: &Key| {
        let slot = slot(key.as_bytes());
        slots.is_empty() || slots.iter().any(|range| range.contains(&slot))
    };
    let pid = std::process::id();
    let key = |i: u32| keys.own(Key::from_text(&format!("{KEY}:{pid}.{i}")));
    // A slot is met once in 16,384 keys; who has one slot only has to do with one key.
    let mut keys: Vec<Key> = (0..100_000).map(key).filter(here).take(2).collect();
    keys.dedup_by_key(|key| slot(key.as_bytes()));
    keys
}

/// Calls of the script.
struct Run<'r> {
    wire: &'r mut Wire,
    hash: Hash,
    keys: &'r [Key],
    declared: Keys,
}

impl Run<'_> {
    async fn take(&mut self) -> Result<Result<(), String>, Lost> {
        self.call(Cost::Spend(1.try_into().expect("1 is not 0"))).await
    }

    /// All of it, which deletes the keys.
    async fn give_back(&mut self) -> Result<Result<(), String>, Lost> {
        self.call(Cost::Refund(HITS.into())).await
    }

    /// A request on each key. `Err` are the server's words, or ours for a reply that makes no sense.
    async fn call(&mut self, cost: Cost) -> Result<Result<(), String>, Lost> {
        let charge = |key: &Key| {
            // A minute, so that a key that stays behind is gone soon.
            let limit = Limit::new(Algorithm::TokenBucket, HITS, 60_000_000, None).expect("a valid limit");
            let key = key.clone();
            [Charge { key, limit, cost, role: Role::Enforce, on_refusal: OnRefusal::Keep }]
        };
        let requests: Vec<[Charge; 1]> = self.keys.iter().map(charge).collect();
        let requests = || requests.iter().map(<[Charge; 1]>::as_slice);
        let call = Call::new(requests(), self.declared, None);
        evalsha(self.wire.output(), &self.hash, &call);
        let length = self.wire.wait(bounds(&call), QUESTIONS_MAX).await?;
        let answers = read("it", self.wire.frame(length), |reply| call.answers(requests(), reply));
        self.wire.take(length);
        Ok(match answers {
            Err(Whole::Refused { text, .. }) => Err(text),
            Err(Whole::Garbage(error)) => Err(error.to_string()),
            Ok(answers) => answers.into_iter().try_for_each(|answer| match answer {
                Answer::Decided(decision) if !decision.refused => Ok(()),
                Answer::Decided(_) => Err("it refused a hit of a limit that nobody else uses".to_owned()),
                Answer::Unusable(why) => Err(why),
            }),
        })
    }
}
