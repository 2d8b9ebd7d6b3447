//! One Redis, of however many servers: which there are, and that this stays known.
//!
//! A request reads the [`Map`] and never waits for it. One task, on whichever runtime took it over, replaces the map when
//! there is a sign of change: a redirection, a server that says that it is a replica or still loading, a lost connection,
//! a streak of timeouts, or nothing at all for `LOOK_EVERY` (`redis/look.rs`). However many signs there are, one look is on its way at a
//! time, and the next begins `LOOK_GAP` later at the earliest. While a shard has no primary that answers, looks follow
//! each other at `LOOK_AGAIN`, so that a promotion is found within that time.
//!
//! Replicas are connected to as well, once a process: after a failover the new primary would otherwise have to be dialled
//! within the deadline of the first request that is sent there.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{
    address::{Address, Source, Target},
    config::RedisConfigError,
    dial::{Access, Dial},
    map::{Known, Map, Role},
    node::Node,
    seats::Seat,
    sign::{Hears, Sign},
    slots::Endpoint,
};
use crate::{
    clock::{Clock, SystemClock},
    store::{ShardHealth, StoreError},
};

/// How long after a sign of a lost place the looks stay frequent: an election takes a few seconds at most.
const SUSPECT_FOR: Duration = Duration::from_secs(5);

/// How long a node that is in no map any more may finish what is in flight.
const LEAVES_AFTER: Duration = Duration::from_secs(1);

/// How often the name of a server that says that it is a replica is looked up; and how long it says so before.
const LOOK_UP_GAP: Duration = Duration::from_secs(2);

/// The most nodes that only redirections have named.
const GUESTS_MAX: usize = 64;

/// How long a node stays that only a redirection has named: as long as slots may take to arrive there.
const GUEST_FOR: Duration = Duration::from_secs(60);

/// One Redis.
#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) source: Source,
    pub(super) access: Arc<Access>,
    pub(super) sentinel_access: Arc<Access>,
    connections: usize,
    timeout: Duration,
    pub(super) map: ArcSwap<Map>,
    /// The same, for who waits for the next one.
    maps: watch::Sender<Arc<Map>>,
    /// Held while the map is replaced, never across a wait. What redirections have named, and when last, in
    /// microseconds since the start.
    pub(super) guests: Mutex<Vec<(Arc<Node>, u64)>>,
    /// There was a sign.
    pub(super) wanted: Notify,
    /// Until when looks are frequent, in microseconds since the start.
    pub(super) suspect_until: AtomicU64,
    /// When the name of a server that says that it is a replica was looked up last, in microseconds since the start.
    looked_up: AtomicU64,
    /// Who redirected last.
    pub(super) hint: Mutex<Option<String>>,
    /// Held by the task that looks.
    pub(super) looking: tokio::sync::Mutex<()>,
    closed: watch::Sender<bool>,
    /// Told when it may be reached or lost.
    changed: Changed,
    itself: Weak<Self>,
    started: std::time::Instant,
}

/// Whom a deployment tells that it may have been reached, or lost.
#[derive(Clone)]
pub(super) struct Changed(pub(super) Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changed")
    }
}

impl Deployment {
    /// Reads the files, and connects to nothing.
    ///
    /// # Errors
    /// When a file is missing or wrong.
    pub(super) fn new(
        target: &Target,
        connections: usize,
        timeout: Duration,
        changed: Changed,
    ) -> Result<Arc<Self>, RedisConfigError> {
        let access = Access::to_redis(target);
        access.check()?;
        let deployment = Arc::new_cyclic(|itself| Self {
            source: target.source.clone(),
            access: Arc::new(access),
            sentinel_access: Arc::new(Access::to_sentinels(target)),
            connections,
            timeout,
            map: ArcSwap::from_pointee(Map::default()),
            maps: watch::Sender::new(Arc::default()),
            guests: Mutex::default(),
            wanted: Notify::new(),
            suspect_until: AtomicU64::new(0),
            looked_up: AtomicU64::new(0),
            hint: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            closed: watch::Sender::new(false),
            changed,
            itself: itself.clone(),
            started: SystemClock.instant(),
        });
        let first = match &target.source {
            Source::Single(address) => Map::of_one(deployment.new_node(address.clone()), true),
            Source::Found(address) => Map::of_one(deployment.new_node(address.clone()), false),
            Source::Cluster(_) | Source::Sentinel { .. } => {
                Map::empty("its servers are not known yet".to_owned())
            }
        };
        deployment.put(first);
        Ok(deployment)
    }

    /// Where keys live at this moment.
    pub(super) fn map(&self) -> arc_swap::Guard<Arc<Map>> {
        self.map.load()
    }

    pub(super) fn health(&self, seat: usize) -> Vec<ShardHealth> {
        let map = self.map();
        match &map.why_empty {
            Some(why) => vec![ShardHealth { shard: self.name(), state: Err(why.clone()) }],
            None => map.health(seat),
        }
    }

    /// Of a slot that no node is known to have.
    pub(super) fn nobody_has(&self, slot: u16) -> StoreError {
        let (shard, why) = (self.name(), self.map().why_empty.clone());
        StoreError::Unavailable {
            shard,
            why: why.unwrap_or_else(|| format!("no node of the cluster has slot {slot}")),
        }
    }

    /// As people call it before its servers are known.
    pub(super) fn name(&self) -> String {
        match &self.source {
            Source::Single(address) | Source::Found(address) => address.to_string(),
            Source::Cluster(seeds) => {
                format!("cluster {}", seeds.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(","))
            }
            Source::Sentinel { name, .. } => format!("master {name}"),
        }
    }

    /// Whether the settings say that there is one server, whatever that one says.
    pub(super) fn is_single(&self) -> bool {
        matches!(self.source, Source::Single(_))
    }

    /// A node told that keys are at another one, and who that is. That one is connected to if it was not.
    pub(super) fn redirected(&self, by: &Node, to: &str) -> Option<Arc<Node>> {
        *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(by.address.clone());
        self.wanted.notify_one();
        let asked = match &by.dial.address {
            Address::Tcp(endpoint) => endpoint.host.as_str(),
            Address::Unix(_) => "",
        };
        let to = Endpoint::parse(to, asked).filter(|to| !to.host.is_empty())?;
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        let map = self.map.load_full();
        if let Some(node) = map.at(&to.to_string()) {
            let now = self.now_us();
            guests.iter_mut().filter(|(guest, _)| Arc::ptr_eq(guest, node)).for_each(|guest| guest.1 = now);
            return Some(node.clone());
        }
        let node = self.new_node(Address::Tcp(to));
        if guests.len() >= GUESTS_MAX {
            guests.remove(0);
        }
        guests.push((node.clone(), self.now_us()));
        self.replace(map.with(node.clone()));
        Some(node)
    }

    /// Keeps the connections of one seat up: to the nodes that there are, and to those that come. And looks for changes,
    /// as long as no other seat does.
    pub(super) async fn serve(self: Arc<Self>, seat: Arc<Seat>) {
        let mut closed = self.closed.subscribe();
        tokio::select! {
            () = self.connect(&seat) => {}
            () = self.look(seat.index) => {}
            _ = closed.wait_for(|closed| *closed) => {}
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
        self.map().nodes.iter().for_each(|known| known.node.close());
    }

    async fn connect(&self, seat: &Seat) {
        let mut maps = self.maps.subscribe();
        let mut kept: Vec<Arc<Node>> = Vec::new();
        let mut tasks = JoinSet::new();
        loop {
            let map = maps.borrow_and_update().clone();
            kept.retain(|node| !node.is_closed());
            for Known { node, role } in &map.nodes {
                let ours = *role == Role::Primary || seat.index == 0;
                if ours && !kept.iter().any(|known| Arc::ptr_eq(known, node)) {
                    kept.push(node.clone());
                    tasks.spawn(node.clone().keep(seat.index));
                }
            }
            tokio::select! {
                changed = maps.changed() => if changed.is_err() { return },
                // Else the results of closed nodes would pile up.
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    pub(super) fn put(&self, next: Map) {
        let _guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace(next);
    }

    /// Keeps those nodes that redirections have named lately.
    pub(super) fn replace_with_guests(
        &self,
        mut next: Map,
        mut guests: std::sync::MutexGuard<'_, Vec<(Arc<Node>, u64)>>,
    ) {
        let since = self.now_us().saturating_sub(micros(GUEST_FOR));
        guests.retain(|(node, named)| *named >= since && next.at(&node.address).is_none());
        for (guest, _) in guests.iter() {
            next = next.with(guest.clone());
        }
        self.replace(next);
    }

    /// To be called under the lock of the guests.
    fn replace(&self, next: Map) {
        let next = Arc::new(next);
        let before = self.map.swap(next.clone());
        let gone = before.nodes.iter().filter(|known| next.at(&known.node.address).is_none());
        for Known { node, .. } in gone {
            leave(node.clone());
        }
        self.maps.send_replace(next.clone());
        if *self.closed.borrow() {
            next.nodes.iter().for_each(|known| known.node.close());
        }
        (self.changed.0)();
    }

    pub(super) fn new_node(&self, address: Address) -> Arc<Node> {
        let itself = self.itself.clone();
        let hears = Hears(Arc::new(move |sign| {
            if let Some(deployment) = itself.upgrade() {
                deployment.heard(sign);
            }
        }));
        let dial = Dial { address, access: self.access.clone() };
        Arc::new(Node::new(dial, self.connections, self.timeout, hears))
    }

    fn heard(&self, sign: Sign) {
        match sign {
            Sign::Up | Sign::Down => (self.changed.0)(),
            Sign::Suspect => self.suspect(),
            Sign::ReadOnly => {
                self.suspect();
                self.look_up_anew();
            }
        }
        self.wanted.notify_one();
    }

    fn suspect(&self) {
        self.suspect_until.store(self.now_us() + micros(SUSPECT_FOR), Ordering::Relaxed);
    }

    /// A server that is the only one and has become a replica was probably replaced by another one of the same name.
    fn look_up_anew(&self) {
        let map = self.map();
        if map.is_cluster() || matches!(self.source, Source::Sentinel { .. }) {
            return;
        }
        let (last, now) = (self.looked_up.load(Ordering::Relaxed), self.now_us());
        let is_first = last == 0;
        if !is_first && now < last + micros(LOOK_UP_GAP) {
            return;
        }
        let ours = self.looked_up.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if ours && !is_first {
            map.primaries().for_each(|node| node.connect_anew());
        }
    }

    pub(super) fn now_us(&self) -> u64 {
        micros(SystemClock.instant().duration_since(self.started))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Closes a node once what is in flight has had its time.
fn leave(node: Arc<Node>) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn(async move {
                tokio::time::sleep(LEAVES_AFTER).await;
                node.close();
            });
        }
        Err(_) => node.close(),
    }
}
