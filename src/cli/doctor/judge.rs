//! What facts about a store mean: good, to think about, or to mend; and how.

mod server;
mod mend;

use std::time::Duration;

use serde::Serialize;

use crate::cli::terminal::{count, human};
use crate::store::redis::doctor::{Cluster, Examination, Examined, Guide, Kind};
use mend::{HEAR, mend, set_user};
use server::server;

/// Lines about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    /// What they are about: the store, or a server by its address and part.
    pub(super) about: String,
    pub(super) lines: Vec<Line>,
}

/// What one look has shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) level: Level,
    /// In one word.
    pub(super) check: &'static str,
    pub(super) found: String,
    /// How to mend it.
    pub(super) mend: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warn,
    Bad,
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

fn ok(check: &'static str, found: impl Into<String>) -> Line {
    Line { level: Level::Ok, check, found: found.into(), mend: None }
}

fn warn(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Line {
    Line { level: Level::Warn, check, found: found.into(), mend: Some(mend.into()) }
}

fn bad(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Line {
    Line { level: Level::Bad, check, found: found.into(), mend: Some(mend.into()) }
}

/// Whether anything that keeps budgets was reached at all, be it only to be refused.
pub(super) fn is_reached(examination: &Examination) -> bool {
    examination.servers.iter().any(|server| match &server.told {
        Ok(_) => true,
        Err(silence) => silence.refused,
    })
}

/// All sections, the store's own first. `timeout` is STORE_TIMEOUT.
pub(super) fn judge(examined: &[Examination], timeout: Duration) -> Vec<Section> {
    let mut sections = Vec::new();
    for (i, examination) in examined.iter().enumerate() {
        let which = if i == 0 { "" } else { "the store for limits of a second (REDIS_PERSECOND): " };
        sections.push(Section {
            about: format!("{which}{}", kind(&examination.kind)),
            lines: store(examination),
        });
        sections
            .extend(examination.servers.iter().map(|examined| server(examined, &examination.kind, timeout)));
    }
    sections
}

// === The store as a whole ===

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Single => "one server".to_owned(),
        Kind::Cluster => "a cluster".to_owned(),
        Kind::Sentinel(name) => format!("the master {name} of its sentinels"),
    }
}

fn store(examination: &Examination) -> Vec<Line> {
    let mut lines: Vec<Line> = examination.guides.iter().filter_map(|one| guide(one, examination)).collect();
    match (&examination.kind, &examination.cluster) {
        (Kind::Cluster, Some(cluster)) => lines.extend(slots(cluster)),
        (Kind::Cluster, None) => lines.push(bad(
            "topology",
            "no node tells who has which slots",
            "see the nodes below; where they are of no cluster, take REDIS_TYPE=cluster away",
        )),
        (Kind::Sentinel(_), _) => lines.extend(sentinels(examination)),
        (Kind::Single, _) => {}
    }
    lines.extend(clocks(&examination.servers));
    lines
}

fn guide(guide: &Guide, examination: &Examination) -> Option<Line> {
    let Guide { address, names, user, deaf } = guide;
    let check = match examination.kind {
        Kind::Sentinel(_) => "sentinel",
        _ => "seed",
    };
    let may_not = |why: &str| check == "sentinel" && why.starts_with("NOPERM");
    match (names, deaf) {
        (Ok(named), None) if named.is_empty() => None,
        (Ok(named), None) => Some(ok(check, format!("{address} names {named}"))),
        (Ok(named), Some(why)) => Some(warn(
            check,
            format!(
                "{address} names {named}, and tells nothing of a failover, which is noticed later: {why}"
            ),
            if may_not(why) { set_user(user, HEAR) } else { mend(why, check).to_owned() },
        )),
        (Err(why), _) if may_not(why) => {
            let rights = format!("+sentinel|get-master-addr-by-name {HEAR}");
            Some(warn(check, format!("{address}: {why}"), set_user(user, &rights)))
        }
        (Err(why), _) => Some(warn(check, format!("{address}: {why}"), mend(why, check))),
    }
}

fn slots(cluster: &Cluster) -> Vec<Line> {
    let mut lines = Vec::new();
    let shards = count(cluster.shards.len(), "shard");
    if cluster.unserved == 0 && cluster.is_ok {
        lines.push(ok("topology", format!("{shards}, all slots served, as {} sees it", cluster.seen_by)));
    } else if cluster.unserved > 0 {
        let dead: Vec<&str> = cluster
            .shards
            .iter()
            .filter(|shard| shard.primary.is_none())
            .map(|shard| &*shard.slots)
            .collect();
        let which = if dead.is_empty() { "assigned to nobody".to_owned() } else { dead.join("; ") };
        lines.push(bad(
            "topology",
            format!("{shards}; {} of 16384 slots have no living primary: {which}", cluster.unserved),
            "start the lost primary, promote its replica (CLUSTER FAILOVER TAKEOVER), or assign the slots \
             (redis-cli --cluster fix); until then their requests are answered by on_store_failure",
        ));
    } else {
        lines.push(bad(
            "topology",
            format!("{shards}, but {} says that the cluster is down", cluster.seen_by),
            "look at CLUSTER INFO there: most primaries have to see each other",
        ));
    }
    if cluster.wants_all == Some(true) {
        lines.push(warn(
            "coverage",
            "cluster-require-full-coverage is yes: when one shard is lost, all others refuse, too",
            "CONFIG SET cluster-require-full-coverage no, on each node",
        ));
    }
    let alone =
        cluster.shards.iter().filter(|shard| shard.primary.is_some() && shard.replicas.is_empty()).count();
    if alone > 0 {
        lines.push(warn(
            "replicas",
            format!("{} without a replica: its counters are lost with its primary", count(alone, "shard")),
            "add a replica to each (redis-cli --cluster add-node … --cluster-slave)",
        ));
    }
    lines
}

fn sentinels(examination: &Examination) -> Vec<Line> {
    let named: Vec<&String> =
        examination.guides.iter().filter_map(|guide| guide.names.as_ref().ok()).collect();
    let mut lines = Vec::new();
    if named.is_empty() {
        let asked = "knows no master";
        let answered =
            examination.guides.iter().any(|guide| matches!(&guide.names, Err(why) if why.contains(asked)));
        let mend =
            if answered { mend(asked, "sentinel") } else { "mend one of the sentinels above, better all" };
        lines.push(bad("topology", "no sentinel names a master", mend));
    }
    if named.iter().any(|name| *name != named[0]) {
        lines.push(warn(
            "topology",
            "the sentinels name different masters",
            "a failover is under way, or they do not see each other: SENTINEL CKQUORUM tells",
        ));
    }
    if examination.guides.len() < 3 {
        lines.push(warn(
            "topology",
            format!("REDIS_URL lists {}", count(examination.guides.len(), "sentinel")),
            "list three or more: a majority has to agree on a failover, and one that is away is no trouble then",
        ));
    }
    lines
}

/// Clocks that differ, among those who may take over from each other.
fn clocks(servers: &[Examined]) -> Option<Line> {
    let told = servers.iter().filter_map(|server| server.told.as_ref().ok()?.clock);
    let ahead: Vec<i64> = told.map(|clock| clock.ahead_us).collect();
    let apart = ahead.iter().max()?.abs_diff(*ahead.iter().min()?);
    (apart > CLOCKS_APART_MAX_US).then(|| {
        warn(
            "clocks",
            format!("the servers' clocks are up to {} apart", human(Duration::from_micros(apart))),
            "let NTP or chrony keep them: after a failover, limits go on by the new primary's clock",
        )
    })
}

/// A failover moves every limit by the difference; less than this nobody notices.
const CLOCKS_APART_MAX_US: u64 = 250_000;
