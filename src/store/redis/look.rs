//! Looking for changes: by which servers a deployment is kept, and how often one asks.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use super::{
    address::{Address, Source},
    cluster,
    deployment::Deployment,
    map::Map,
    node::Node,
    sentinel::Sentinels,
    slots::Endpoint,
};

/// How often one looks without a sign.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often one looks while something is missing.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How often one looks while nobody tells anything.
const LOOK_FAILED: Duration = Duration::from_millis(500);

/// The least time between two looks.
const LOOK_GAP: Duration = Duration::from_millis(100);

impl Deployment {
    /// Looks for changes, for ever.
    pub(super) async fn look(&self, seat: usize) {
        let _one_at_a_time = self.looking.lock().await;
        match &self.source {
            Source::Single(_) => std::future::pending().await,
            Source::Found(address) => self.find_out(address, seat).await,
            Source::Cluster(seeds) => self.look_at_cluster(seeds, seat).await,
            Source::Sentinel { name, sentinels } => {
                let sentinels = Sentinels { name, all: sentinels, access: &self.sentinel_access };
                tokio::select! {
                    () = self.look_at_sentinels(&sentinels) => {}
                    () = sentinels.hear(&self.wanted) => {}
                }
            }
        }
    }

    /// Whether a server is alone or of a cluster, as soon as it can be asked.
    async fn find_out(&self, address: &Address, seat: usize) {
        loop {
            let map = self.map.load_full();
            let Some(node) = map.primaries().next() else { return };
            match cluster::is_of_cluster(node, seat).await {
                Some(true) => {
                    let Address::Tcp(seed) = address else { return };
                    return self.look_at_cluster(std::slice::from_ref(seed), seat).await;
                }
                Some(false) if !map.is_settled => self.put(Map::of_one(node.clone(), true)),
                Some(false) | None => {}
            }
            // A redirection would show that it was answered wrongly.
            let is_settled = self.map().is_settled;
            self.rest(if is_settled || !node.is_up() { LOOK_EVERY } else { LOOK_AGAIN }).await;
        }
    }

    async fn look_at_cluster(&self, seeds: &[Endpoint], seat: usize) {
        loop {
            let hint = self.hint.lock().unwrap_or_else(PoisonError::into_inner).take();
            let map = self.map.load_full();
            match cluster::look(&map, seat, seeds, &self.access, hint.as_deref()).await {
                Ok(views) => {
                    let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
                    let map = self.map.load_full();
                    let mut made: Vec<Arc<Node>> = Vec::new();
                    let next = Map::of_cluster(&views, &map, |endpoint| {
                        let address = endpoint.to_string();
                        let known =
                            map.at(&address).or_else(|| made.iter().find(|node| node.address == address));
                        known.cloned().unwrap_or_else(|| {
                            made.push(self.new_node(Address::Tcp(endpoint.clone())));
                            made[made.len() - 1].clone()
                        })
                    });
                    self.replace_with_guests(next, guests);
                }
                Err(why) => self.nobody_tells(why),
            }
            self.rest_after_look().await;
        }
    }

    async fn look_at_sentinels(&self, sentinels: &Sentinels<'_>) {
        loop {
            let map = self.map.load_full();
            match sentinels.master(&self.access).await {
                Ok(master) => {
                    if map.at(&master.to_string()).is_none() {
                        tracing::info!(master = %master, name = sentinels.name, "the sentinels name the master");
                        self.put(Map::of_one(self.new_node(Address::Tcp(master)), true));
                    }
                }
                Err(why) => self.nobody_tells(why),
            }
            self.rest_after_look().await;
        }
    }

    fn nobody_tells(&self, why: String) {
        let map = self.map.load_full();
        if !map.nodes.is_empty() {
            tracing::debug!(%why, "nobody tells which servers there are");
        } else if map.why_empty.as_ref() != Some(&why) {
            // Said once, not at each attempt.
            tracing::warn!(store = self.name(), "{why}");
            self.put(Map::empty(why));
        }
    }

    async fn rest_after_look(&self) {
        let map = self.map.load_full();
        self.rest(match map.nodes.is_empty() {
            true => LOOK_FAILED,
            false if map.is_whole() => LOOK_EVERY,
            false => LOOK_AGAIN,
        })
        .await;
    }

    /// Until the next look, `longest` from now or earlier.
    async fn rest(&self, longest: Duration) {
        tokio::time::sleep(LOOK_GAP).await;
        let suspect = self.now_us() < self.suspect_until.load(Ordering::Relaxed);
        let longest = if suspect { longest.min(LOOK_AGAIN) } else { longest };
        let _ = tokio::time::timeout(longest - LOOK_GAP, self.wanted.notified()).await;
    }
}
