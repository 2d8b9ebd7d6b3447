//! What a Redis tells of itself when it is asked, for `tollgate doctor`.
//!
//! Facts only; what they mean for a person, and how to mend them, is said in `cli/doctor`. All is asked on connections of
//! its own, made as the service makes them, so what fails here fails there. Nothing is changed but for a few keys
//! `tg:doctor:…`, which are gone at the end.

mod server;
mod rights;

use std::{collections::BTreeSet, time::Duration};

use super::{
    address::{Address, Credentials, Source, Target},
    config::{Names, RedisConfig, RedisConfigError},
    dial::Access,
    error::{self, clipped},
    resp::{Bounds, Value},
    sentinel::{named, subscribe},
    slots::{self, Endpoint, SLOTS, ShardView, info},
    wire::{Lost, Wire},
};
use crate::key::Format;
pub use rights::Denied;
pub use server::{Clock, Memory, Replication, Script, Server, Version};

/// All about one store.
#[derive(Clone, Debug)]
pub struct Examination {
    /// What it is.
    pub kind: Kind,
    /// Each of those that know where the others are.
    pub guides: Vec<Guide>,
    /// Who has which slots, where it is a cluster that could be asked.
    pub cluster: Option<Cluster>,
    /// Each server that keeps budgets, or is to do so when another is lost.
    pub servers: Vec<Examined>,
}

/// What a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Single,
    /// A cluster.
    Cluster,
    /// The master of this name, and its replicas.
    Sentinel(String),
}

/// A sentinel or a seed of a cluster.
#[derive(Clone, Debug)]
pub struct Guide {
    /// `host:port`
    pub address: String,
    /// What it names: a master's address, or nothing in particular; else why not, in words.
    pub names: Result<String, String>,
    /// As whom it was asked.
    pub user: String,
    /// Why a sentinel that names somebody does not let us hear of a failover.
    pub deaf: Option<String>,
}

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Whose view it is.
    pub seen_by: String,
    /// `cluster_state`
    pub is_ok: bool,
    /// Slots without a primary that is known to live, of 16,384.
    pub unserved: usize,
    /// The parts.
    pub shards: Vec<Shard>,
    /// `cluster-require-full-coverage`, where it may be asked for.
    pub wants_all: Option<bool>,
}

/// A part of a cluster.
#[derive(Clone, Debug)]
pub struct Shard {
    /// `0-5460, 9000`
    pub slots: String,
    /// `host:port`
    pub primary: Option<String>,
    /// `host:port` of each.
    pub replicas: Vec<String>,
}

/// One server.
#[derive(Clone, Debug)]
pub struct Examined {
    /// `host:port`, or a socket's path.
    pub address: String,
    /// What it is to be.
    pub part: Part,
    /// What it tells, or why it tells nothing.
    pub told: Result<Server, Silence>,
}

/// What a server is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// To decide: all that there is, or these slots.
    Decides(Option<String>),
    /// To take over.
    StandsBy,
}

/// Why a server tells nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// It is there, and does not let us in.
    pub refused: bool,
    /// In words.
    pub why: String,
}

/// Examines the store that the settings name, and the one for limits of a second where there is one.
///
/// # Errors
/// When a setting is wrong. What is wrong with the store is no error but what was found.
pub async fn examine(config: &RedisConfig, keys: &Format) -> Result<Vec<Examination>, RedisConfigError> {
    let mut all = vec![one(Target::parse(config, &Names::MAIN)?, keys).await?];
    if let Some(second) = &config.per_second {
        all.push(one(Target::parse(second, &Names::PER_SECOND)?, keys).await?);
    }
    Ok(all)
}

async fn one(target: Target, keys: &Format) -> Result<Examination, RedisConfigError> {
    let access = Access::to_redis(&target);
    access.check()?;
    let look = |among| Look { access: &access, keys, user: user(&target.credentials), among };
    Ok(match &target.source {
        Source::Single(address) => look(Among::None).single(address).await,
        Source::Found(address) => {
            let examined = look(Among::Unknown).single(address).await;
            match (address, is_of_cluster(&examined)) {
                (Address::Tcp(seed), true) => {
                    look(Among::FoundCluster).cluster(std::slice::from_ref(seed)).await
                }
                _ => examined,
            }
        }
        Source::Cluster(seeds) => look(Among::Cluster).cluster(seeds).await,
        Source::Sentinel { name, sentinels } => {
            let to_sentinels = Access::to_sentinels(&target);
            to_sentinels.check()?;
            let asking = Asking { access: &to_sentinels, user: user(&target.sentinel_credentials) };
            look(Among::Sentinels).sentinel(name, sentinels, &asking).await
        }
    })
}

/// As whom one asks, where the server does not say.
fn user(credentials: &Credentials) -> String {
    let user = credentials.read().ok().and_then(|(user, _)| user);
    user.unwrap_or_else(|| "default".to_owned())
}

/// What a closer look at a server needs.
struct Look<'l> {
    access: &'l Access,
    keys: &'l Format,
    user: String,
    among: Among,
}

/// Which others a server has, as the settings say; more rights are needed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Among {
    None,
    /// The service asks it whether it is of a cluster.
    Unknown,
    /// It is, and only asking has told.
    FoundCluster,
    Cluster,
    Sentinels,
}

/// What asking a sentinel needs.
struct Asking<'a> {
    access: &'a Access,
    user: String,
}

fn is_of_cluster(examination: &Examination) -> bool {
    let told = examination.servers.first().map(|server| &server.told);
    matches!(told, Some(Ok(Server { cluster_mode: true, .. })))
}

impl Look<'_> {
    async fn single(&self, address: &Address) -> Examination {
        let servers = vec![self.at(address, Part::Decides(None), &[]).await];
        Examination { kind: Kind::Single, guides: Vec::new(), cluster: None, servers }
    }

    async fn cluster(&self, seeds: &[Endpoint]) -> Examination {
        let (mut guides, mut found) = (Vec::new(), None);
        for seed in seeds {
            let asked = ask_seed(seed, self.access).await;
            let names = asked.as_ref().map(|_| String::new()).map_err(Clone::clone);
            guides.push(Guide { address: seed.to_string(), names, user: self.user.clone(), deaf: None });
            found = found.or(asked.ok());
        }
        let mut servers = Vec::new();
        let Some((cluster, views)) = found else {
            // What is wrong with the seeds a closer look tells better than that they know nobody.
            for seed in seeds {
                servers.push(self.at(&Address::Tcp(seed.clone()), Part::Decides(None), &[]).await);
            }
            return Examination { kind: Kind::Cluster, guides, cluster: None, servers };
        };
        for shard in views.iter().filter(|shard| !shard.ranges.is_empty()) {
            if let Some(primary) = &shard.primary {
                let part = Part::Decides(Some(ranges(shard)));
                servers.push(self.at(&Address::Tcp(primary.clone()), part, &shard.ranges).await);
            }
            for replica in &shard.replicas {
                servers.push(self.at(&Address::Tcp(replica.clone()), Part::StandsBy, &[]).await);
            }
        }
        Examination { kind: Kind::Cluster, guides, cluster: Some(cluster), servers }
    }

    async fn sentinel(&self, name: &str, sentinels: &[Endpoint], asking: &Asking<'_>) -> Examination {
        let mut guides = Vec::new();
        for endpoint in sentinels {
            let names = ask_sentinel(name, endpoint, asking.access).await;
            let deaf = match names {
                Ok(_) => hear(endpoint, asking.access).await.err(),
                Err(_) => None,
            };
            guides.push(Guide { address: endpoint.to_string(), names, user: asking.user.clone(), deaf });
        }
        let named: Vec<&String> = guides.iter().filter_map(|guide| guide.names.as_ref().ok()).collect();
        let most = named.iter().max_by_key(|name| named.iter().filter(|other| other == name).count());
        let mut servers = Vec::new();
        if let Some(master) = most.and_then(|name| Endpoint::parse(name, "")) {
            let examined = self.at(&Address::Tcp(master.clone()), Part::Decides(None), &[]).await;
            let known = examined.told.as_ref().ok().and_then(|server| server.replication.clone());
            servers.push(examined);
            let replicas = known.map_or(Vec::new(), |known| known.replicas);
            for replica in replicas.iter().filter_map(|text| Endpoint::parse(text, &master.host)) {
                servers.push(self.at(&Address::Tcp(replica), Part::StandsBy, &[]).await);
            }
        }
        Examination { kind: Kind::Sentinel(name.to_owned()), guides, cluster: None, servers }
    }
}

// === Who knows the others ===

async fn ask_seed(seed: &Endpoint, access: &Access) -> Result<(Cluster, Vec<ShardView>), String> {
    let commands: &[&[&str]] = &[
        &["CLUSTER", "INFO"],
        &["CLUSTER", "SHARDS"],
        &["CLUSTER", "SLOTS"],
        &["CONFIG", "GET", "cluster-require-full-coverage"],
    ];
    let replies = access
        .query(&Address::Tcp(seed.clone()), commands, within(access))
        .await
        .map_err(|e| e.to_string())?;
    let [state, by_shards, by_slots, coverage] = &replies[..] else {
        return Err("it left a reply out".to_owned());
    };
    let views = slots::from_shards(by_shards, &seed.host, access.tls.is_some())
        .or_else(|| slots::from_slots(by_slots, &seed.host));
    let Some(views) = views else {
        let why = by_slots.error().unwrap_or("it tells no slots in a form that we know");
        return Err(clipped(why));
    };
    let cluster = Cluster {
        seen_by: seed.to_string(),
        // Who may not ask for it cannot say that it is not.
        is_ok: state.text().and_then(|text| info(text, "cluster_state")).is_none_or(|state| state == "ok"),
        unserved: unserved(&views),
        shards: views.iter().filter(|view| !view.ranges.is_empty()).map(shard).collect(),
        wants_all: config_value(coverage).map(|value| value == "yes"),
    };
    Ok((cluster, views))
}

fn unserved(views: &[ShardView]) -> usize {
    let served = views.iter().filter(|view| view.primary.is_some()).flat_map(|view| &view.ranges);
    let served: BTreeSet<u16> = served.cloned().flatten().collect();
    SLOTS - served.len()
}

fn shard(view: &ShardView) -> Shard {
    Shard {
        slots: ranges(view),
        primary: view.primary.as_ref().map(Endpoint::to_string),
        replicas: view.replicas.iter().map(Endpoint::to_string).collect(),
    }
}

/// The most ranges that are written out; slots that were moved one by one may lie in hundreds.
const RANGES_MAX: usize = 4;

fn ranges(view: &ShardView) -> String {
    let range = |range: &std::ops::RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    let mut words: Vec<String> = view.ranges.iter().take(RANGES_MAX).map(range).collect();
    if view.ranges.len() > RANGES_MAX {
        words.push(format!("and {} more ranges", view.ranges.len() - RANGES_MAX));
    }
    words.join(", ")
}

async fn ask_sentinel(name: &str, endpoint: &Endpoint, access: &Access) -> Result<String, String> {
    let command: &[&str] = &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let asked = access.query(&Address::Tcp(endpoint.clone()), &[command], within(access)).await;
    let replies = asked.map_err(|e| e.to_string())?;
    let reply = replies.first().ok_or("it left the reply out")?;
    if let Some(why) = reply.error() {
        return Err(clipped(why));
    }
    named(reply).map(|master| master.to_string()).ok_or_else(|| format!("it knows no master {name}"))
}

/// Subscribes as the service does, and hangs up.
async fn hear(endpoint: &Endpoint, access: &Access) -> Result<(), String> {
    let address = Address::Tcp(endpoint.clone());
    let mut wire = access.connect(&address).await.map_err(|e| e.to_string())?;
    let reply = subscribe(&mut wire, QUESTIONS_MAX).await;
    let reply = reply.map_err(|e| error::from_lost(&address.to_string(), &e).to_string())?;
    reply.error().map_or(Ok(()), |why| Err(clipped(why)))
}

// === Steps ===

/// How long all questions to one server may take together, connecting not counted.
const QUESTIONS_MAX: Duration = Duration::from_secs(5);

fn within(access: &Access) -> Duration {
    access.connect_timeout + QUESTIONS_MAX
}

/// One command's reply, an error reply included.
async fn ask(wire: &mut Wire, words: &[&str]) -> Result<Value, Lost> {
    wire.ask(words, Bounds::TOLD, QUESTIONS_MAX).await
}

/// The value of a reply to `CONFIG GET name`, which is a list of both.
fn config_value(reply: &Value) -> Option<&str> {
    reply.list()?.get(1)?.text()
}
