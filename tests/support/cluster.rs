//! A real cluster on the loopback: any number of shards, each with a replica or without, up in some three seconds.
//!
//! A node's address stays the same for as long as the cluster lives, dead or alive; so does its place in
//! [`Cluster::nodes`]. Who is primary of what changes, and is always asked of the nodes themselves.

use std::{
    ops::RangeInclusive,
    thread,
    time::{Duration, Instant},
};

use crate::support::redis::{Make, RedisServer, free_cluster_port};

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// A node is suspected dead after so long, in milliseconds; its replica is promoted half a second to two later.
const NODE_TIMEOUT_MS: &str = "1000";

/// So long is waited for what a cluster does at last. Forming one takes three seconds, a failover as long.
const AT_LAST: Duration = Duration::from_secs(60);

/// A port may be taken between our look and the server's bind.
const START_TRIES: usize = 5;

/// A running cluster.
pub(crate) struct Cluster {
    /// First the primaries in the order of their slots, then the replicas in the same order; later ones behind.
    pub(crate) nodes: Vec<RedisServer>,
    make: Make,
    args: Vec<String>,
    login: Vec<String>,
}

/// How to start one.
pub(crate) struct Plan<'a> {
    pub(crate) make: Make,
    pub(crate) shards: usize,
    /// For each shard.
    pub(crate) replicas: usize,
    /// For all nodes.
    pub(crate) args: &'a [&'a str],
    /// For one node each, by its place, such as what it announces.
    pub(crate) args_of: &'a dyn Fn(usize, u16) -> Vec<String>,
    /// The words behind AUTH, where `args` name a password.
    pub(crate) login: &'a [&'a str],
}

impl Plan<'_> {
    /// Three primaries with a replica each.
    pub(crate) fn usual() -> Self {
        Self {
            make: Make::Installed,
            shards: 3,
            replicas: 1,
            args: &[],
            args_of: &|_, _| Vec::new(),
            login: &[],
        }
    }
}

impl Cluster {
    /// Three primaries with a replica each.
    pub(crate) fn start() -> Self {
        Self::start_as(&Plan::usual())
    }

    /// Waits until every node knows all others, has its part, and calls the cluster's state ok.
    pub(crate) fn start_as(plan: &Plan<'_>) -> Self {
        let args = plan.args.iter().map(|arg| (*arg).to_owned()).collect();
        let login = plan.login.iter().map(|word| (*word).to_owned()).collect();
        let mut cluster = Self { nodes: Vec::new(), make: plan.make, args, login };
        for i in 0..plan.shards * (1 + plan.replicas) {
            cluster.spawn(&|port| (plan.args_of)(i, port));
        }
        cluster.nodes.iter_mut().for_each(|node| assert!(node.answers(), "a node has ended"));
        let shards = u16::try_from(plan.shards).expect("a few");
        for shard in 0..shards {
            let slots = SLOTS / shards * shard..=if shard + 1 == shards {
                SLOTS - 1
            } else {
                SLOTS / shards * (shard + 1) - 1
            };
            cluster.add_slots(shard.into(), slots);
        }
        // Each with each, since gossip alone takes seconds.
        for i in 0..cluster.nodes.len() {
            cluster.meet(i);
        }
        cluster.until("all nodes know each other", |cluster| {
            let knows_all = |node: &RedisServer| {
                let text = node.command(&["CLUSTER", "NODES"]);
                text.lines().count() == cluster.nodes.len() && !text.contains("handshake")
            };
            cluster.nodes.iter().all(knows_all)
        });
        for i in plan.shards..cluster.nodes.len() {
            let id = cluster.id(i % plan.shards);
            cluster.nodes[i].command(&["CLUSTER", "REPLICATE", &id]);
        }
        cluster.until_whole();
        cluster
    }

    /// Every living node sees a primary for every slot, and replicas have all data of theirs.
    pub(crate) fn until_whole(&self) {
        self.until("the cluster is whole", |cluster| cluster.living().all(|node| cluster.sees_whole(node)));
    }

    fn sees_whole(&self, node: &RedisServer) -> bool {
        let living = self.living().count();
        let Ok(text) = node.try_command(&["CLUSTER", "NODES"]) else { return false };
        let Ok(info) = node.try_command(&["CLUSTER", "INFO"]) else { return false };
        let Ok(replication) = node.try_command(&["INFO", "replication"]) else { return false };
        let connected = text.lines().filter(|line| !line.contains("fail") && line.contains(" connected"));
        let replicates = !replication.contains("role:slave") || replication.contains("master_link_status:up");
        info.contains("cluster_state:ok")
            && info.contains(&format!("cluster_slots_ok:{SLOTS}"))
            && connected.count() == living
            && replicates
    }

    // === Who is where ===

    /// `host:port` of each node, as REDIS_URL lists them.
    pub(crate) fn addresses(&self) -> String {
        self.nodes.iter().map(RedisServer::address).collect::<Vec<_>>().join(",")
    }

    /// Which node now owns a slot, as most living nodes see it; `None` while the owner is one that has been killed.
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        let mut votes = vec![0; self.nodes.len()];
        for node in self.living() {
            let Ok(text) = node.try_command(&["CLUSTER", "NODES"]) else { continue };
            let owns = |line: &&str| lines_slots(line).iter().any(|slots| slots.contains(&slot));
            if let Some(i) = text.lines().find(owns).and_then(|line| self.place_of(line)) {
                votes[i] += 1;
            }
        }
        let (i, &most) = votes.iter().enumerate().max_by_key(|(_, votes)| **votes)?;
        (most > 0 && self.nodes[i].lives()).then_some(i)
    }

    /// Which living node replicates this one.
    pub(crate) fn replica_of(&self, primary: usize) -> Option<usize> {
        let id = self.id(primary);
        let text = self.living().find_map(|node| node.try_command(&["CLUSTER", "NODES"]).ok())?;
        let of_it = |line: &&str| line.split(' ').nth(3) == Some(&id) && !line.contains("fail");
        text.lines().filter(of_it).find_map(|line| self.place_of(line))
    }

    /// Whether a node calls itself a primary.
    pub(crate) fn is_primary(&self, i: usize) -> bool {
        let role = self.nodes[i].try_command(&["ROLE"]).unwrap_or_default();
        role.starts_with("master")
    }

    /// A node's name in the cluster.
    pub(crate) fn id(&self, i: usize) -> String {
        self.nodes[i].command(&["CLUSTER", "MYID"])
    }

    fn living(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.lives())
    }

    /// The place of the node that a line of CLUSTER NODES is about, by the port of its bus, which nobody announces
    /// otherwise.
    fn place_of(&self, line: &str) -> Option<usize> {
        let (_, bus) = line.split(' ').nth(1)?.split_once('@')?;
        let bus: u16 = bus.split(',').next()?.parse().ok()?;
        self.nodes.iter().position(|node| node.port + 10_000 == bus)
    }

    // === What becomes of it ===

    /// Dies at once.
    pub(crate) fn kill(&mut self, i: usize) {
        self.nodes[i].kill();
    }

    /// Waits until somebody else owns the slot of a node that died or hangs, and says who.
    pub(crate) fn until_promoted(&self, lost: usize, slot: u16) -> usize {
        let mut next = None;
        self.until("a replica is promoted", |cluster| {
            next = cluster.owner(slot).filter(|&owner| owner != lost && cluster.is_primary(owner));
            next.is_some()
        });
        next.expect("it was waited for")
    }

    /// Waits until its replicas have heard all that a primary has done.
    pub(crate) fn until_replicated(&self, primary: usize) {
        self.until("the replica has all", |cluster| {
            let info = cluster.nodes[primary].command(&["INFO", "replication"]);
            let offset = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
            let replicas = info.lines().filter(|line| line.starts_with("slave"));
            offset.is_some_and(|offset| {
                replicas.clone().all(|line| line.contains(&format!("offset={offset},")))
            })
        });
    }

    /// A failover by hand, in which nothing is lost: the replica becomes the primary of its shard.
    pub(crate) fn fail_over_to(&self, replica: usize) {
        let primaries = self.primaries();
        let done = self.nodes[replica].command(&["CLUSTER", "FAILOVER"]);
        assert_eq!(done, "OK");
        self.until("the replica is primary", |cluster| cluster.is_primary(replica));
        self.until("the old primary is a replica", |cluster| cluster.primaries() == primaries);
        let id = self.id(replica);
        self.until("all nodes know", |cluster| {
            let knows = |node: &RedisServer| {
                let text = node.command(&["CLUSTER", "NODES"]);
                text.lines().any(|line| line.starts_with(&id) && !lines_slots(line).is_empty())
            };
            cluster.living().all(knows)
        });
    }

    /// How many call themselves so.
    fn primaries(&self) -> usize {
        (0..self.nodes.len()).filter(|&i| self.nodes[i].lives() && self.is_primary(i)).count()
    }

    /// A further primary without slots, known to all.
    pub(crate) fn add_shard(&mut self) -> usize {
        let i = self.nodes.len();
        self.spawn(&|_| Vec::new());
        assert!(self.nodes[i].answers(), "the new node has ended");
        self.meet(i);
        // It takes part in nothing before it calls the cluster's state ok, which a new primary does after two seconds.
        self.until_whole();
        i
    }

    /// Moves a slot with all keys in it, as `redis-cli --cluster reshard` does: between the first and the last step its
    /// keys live on both nodes.
    pub(crate) fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        while self.move_keys(slot, from, to, 10) > 0 {}
        self.end_move(slot, from, to);
    }

    /// From here on the old owner answers ASK for keys that it does not hold.
    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (from_id, to_id) = (self.id(from), self.id(to));
        self.ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        self.ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves some keys of a slot, and says how many.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> usize {
        let keys =
            self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()]);
        let keys: Vec<&str> = keys.lines().collect();
        if !keys.is_empty() {
            let port = self.nodes[to].port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
            let login: Vec<&str> = self.login.iter().map(String::as_str).collect();
            match login[..] {
                [] => {}
                [password] => words.extend(["AUTH", password]),
                [user, password, ..] => words.extend(["AUTH2", user, password]),
            }
            words.push("KEYS");
            words.extend(&keys);
            // NOKEY: they have expired meanwhile.
            let done = self.nodes[from].command(&words);
            assert!(done == "OK" || done == "NOKEY", "{done}");
        }
        keys.len()
    }

    /// All nodes learn who the owner is.
    pub(crate) fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        // The new owner first: were it the old one, both would send callers to each other for a moment.
        for i in [to, from] {
            self.ok(i, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    // === Steps ===

    fn spawn(&mut self, args_of: &dyn Fn(u16) -> Vec<String>) {
        for _ in 0..START_TRIES {
            let port = free_cluster_port();
            let mut args = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                NODE_TIMEOUT_MS,
                // Shards are to fail alone.
                "--cluster-require-full-coverage",
                "no",
                // A replica that has just become one may be needed at once.
                "--cluster-replica-validity-factor",
                "0",
                "--repl-diskless-sync",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
            ]
            .map(str::to_owned)
            .to_vec();
            args.extend(self.args.iter().cloned());
            args.extend(args_of(port));
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let mut node = RedisServer::spawn(self.make, port, &args);
            let login: Vec<&str> = self.login.iter().map(String::as_str).collect();
            if !login.is_empty() {
                node.log_in(&login);
            }
            if node.answers() {
                self.nodes.push(node);
                return;
            }
        }
        panic!("a node of a cluster does not start");
    }

    /// ADDSLOTSRANGE would be shorter, but Redis 6.2 has none.
    fn add_slots(&self, i: usize, slots: RangeInclusive<u16>) {
        let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
        let mut words = vec!["CLUSTER", "ADDSLOTS"];
        words.extend(slots.iter().map(String::as_str));
        self.ok(i, &words);
        // Each primary has its own epoch from the start; else they would quarrel about it when they meet.
        let _ = self.nodes[i].command(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
    }

    /// A node with all before it.
    fn meet(&self, i: usize) {
        for other in &self.nodes[..i] {
            let (port, bus) = (other.port.to_string(), (other.port + 10_000).to_string());
            self.ok(i, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
    }

    fn ok(&self, i: usize, words: &[&str]) {
        let reply = self.nodes[i].command(words);
        assert_eq!(reply, "OK", "{:?}", &words[..words.len().min(4)]);
    }

    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + AT_LAST;
        while !so(self) {
            assert!(Instant::now() < deadline, "never: {what}\n{}", self.described());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn described(&self) -> String {
        let nodes = |node: &RedisServer| node.try_command(&["CLUSTER", "NODES"]);
        self.living().filter_map(|node| nodes(node).ok()).collect::<Vec<_>>().join("\n---\n")
    }
}

/// The slots in a line of CLUSTER NODES; those on the move stand in brackets and count as its owner's.
fn lines_slots(line: &str) -> Vec<RangeInclusive<u16>> {
    let ranges = line.split(' ').skip(8).filter(|word| !word.starts_with('['));
    ranges
        .filter_map(|word| {
            let (from, to) = word.split_once('-').unwrap_or((word, word));
            Some(from.parse().ok()?..=to.parse().ok()?)
        })
        .collect()
}

/// The slot of a key: CRC16 (XMODEM) of what stands in its first braces, else of all of it (cluster specification, "Hash
/// tags").
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    let crc =
        tag.unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
            (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            })
        });
    crc % SLOTS
}

/// Each test binary compiles this file and uses a part of it; this names the rest.
const _: fn() = || {
    let _ = (Cluster::start, Cluster::addresses, Cluster::replica_of, Cluster::kill, Cluster::until_promoted);
    let _ = (Cluster::fail_over_to, Cluster::add_shard, Cluster::move_slot);
    let _ = (Cluster::until_replicated, slot_of);
};
