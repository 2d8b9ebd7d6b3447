//! Asking a cluster who has which slots.
//!
//! Nodes may disagree: who was cut off, or slept through an election, knows an older map and does not know that it does.
//! So all nodes that can be asked are asked at once, and the map of the one that has seen the latest election counts
//! (`cluster_current_epoch` of `CLUSTER INFO`), of several the one of who redirected us. Nobody waits for a node that does
//! not answer: after the first answer the others have [`GRACE`].
//!
//! Known nodes are asked over the connections that there are. Only where none of them answers, the addresses of the
//! settings are dialled, by name, so that a cluster that moved is found again.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::{
    address::Address,
    dial::Access,
    error::clipped,
    map::Map,
    node::Node,
    resp::Value,
    slots::{self, Endpoint, ShardView, info},
};
use crate::store::StoreError;

/// A node that has not answered after so long is not waited for.
const ANSWER_MAX: Duration = Duration::from_millis(250);

/// The same where it has to be dialled first, by name and with TLS.
const DIAL_MAX: Duration = Duration::from_secs(2);

/// How long the others have once one has answered.
const GRACE: Duration = Duration::from_millis(20);

const INFO: &[&str] = &["CLUSTER", "INFO"];
const SHARDS: &[&str] = &["CLUSTER", "SHARDS"];
const SLOTS: &[&str] = &["CLUSTER", "SLOTS"];

/// What one node says.
struct Answer {
    by: String,
    /// It thinks that the cluster is up.
    ok: bool,
    /// The latest election that it knows of.
    epoch: u64,
    shards: Vec<ShardView>,
}

/// Who has which slots. `hint` is the address of the node that is most likely to know.
///
/// # Errors
/// In words, when nobody says it.
pub(super) async fn look(
    map: &Map,
    seat: usize,
    seeds: &[Endpoint],
    access: &Arc<Access>,
    hint: Option<&str>,
) -> Result<Vec<ShardView>, String> {
    let mut asked = JoinSet::new();
    for node in map.nodes.iter().map(|known| known.node.clone()).filter(|node| node.is_up()) {
        asked.spawn(async move { ask_node(&node, seat).await });
    }
    if let Ok(shards) = best(asked, hint).await {
        return Ok(shards);
    }
    let mut dialled = JoinSet::new();
    let known = map.nodes.iter().filter_map(|known| match &known.node.dial.address {
        Address::Tcp(endpoint) => Some(endpoint),
        Address::Unix(_) => None,
    });
    let mut all: Vec<&Endpoint> = seeds.iter().chain(known).collect();
    all.sort_unstable();
    all.dedup();
    for endpoint in all {
        let (endpoint, access) = (endpoint.clone(), access.clone());
        dialled.spawn(async move { ask_seed(endpoint, &access).await });
    }
    best(dialled, hint).await
}

/// Whether a node is of a cluster; `None` where it does not say.
pub(super) async fn is_of_cluster(node: &Node, seat: usize) -> Option<bool> {
    let reply = node.ask(seat, INFO, ANSWER_MAX).await.ok()?;
    // A server that is of none, a proxy, or a user without the right: `ERR This instance has cluster support disabled`.
    Some(reply.text().is_some_and(|text| info(text, "cluster_state").is_some()))
}

/// The latest of the answers that come in time.
async fn best(
    mut asked: JoinSet<Result<Answer, String>>,
    hint: Option<&str>,
) -> Result<Vec<ShardView>, String> {
    let mut best: Option<Answer> = None;
    let mut why = "no node could be asked".to_owned();
    loop {
        let next = match &best {
            None => asked.join_next().await,
            Some(_) => tokio::time::timeout(GRACE, asked.join_next()).await.unwrap_or(None),
        };
        match next {
            None => break,
            Some(Ok(Ok(answer))) => {
                let rank = |answer: &Answer| (answer.ok, answer.epoch, Some(answer.by.as_str()) == hint);
                if best.as_ref().is_none_or(|best| rank(best) < rank(&answer)) {
                    best = Some(answer);
                }
            }
            Some(Ok(Err(error))) => why = error,
            Some(Err(_)) => {}
        }
    }
    best.map(|answer| answer.shards).ok_or(why)
}

async fn ask_node(node: &Node, seat: usize) -> Result<Answer, String> {
    let Address::Tcp(endpoint) = &node.dial.address else { return Err("a socket is no node".to_owned()) };
    let words = |e: StoreError| e.to_string();
    let (known, shards) = tokio::join!(node.ask(seat, INFO, ANSWER_MAX), node.ask(seat, SHARDS, ANSWER_MAX));
    let (known, shards) = (known.map_err(words)?, shards.map_err(words)?);
    let tls = node.dial.access.tls.is_some();
    if let Some(views) = slots::from_shards(&shards, &endpoint.host, tls) {
        return Ok(answer(&node.address, &known, views));
    }
    let reply = node.ask(seat, SLOTS, ANSWER_MAX).await.map_err(words)?;
    from_slots(&node.address, &known, &reply, &endpoint.host)
}

async fn ask_seed(endpoint: Endpoint, access: &Access) -> Result<Answer, String> {
    let address = Address::Tcp(endpoint.clone());
    let replies =
        access.query(&address, &[INFO, SHARDS, SLOTS], DIAL_MAX).await.map_err(|e| e.to_string())?;
    let [known, shards, slots] = replies.as_slice() else { return Err("a reply is missing".to_owned()) };
    let by = address.to_string();
    match slots::from_shards(shards, &endpoint.host, access.tls.is_some()) {
        Some(views) => Ok(answer(&by, known, views)),
        None => from_slots(&by, known, slots, &endpoint.host),
    }
}

fn from_slots(by: &str, known: &Value, reply: &Value, host: &str) -> Result<Answer, String> {
    if let Some(views) = slots::from_slots(reply, host) {
        return Ok(answer(by, known, views));
    }
    Err(match reply.error() {
        Some(text) if text.contains("cluster support disabled") => {
            format!("{by} is of no cluster: write REDIS_TYPE=single, or the address of one that is")
        }
        Some(text) => format!("{by} does not tell the slots: {}", clipped(text)),
        None => format!("{by} tells the slots in a form that is not Redis Cluster's"),
    })
}

fn answer(by: &str, known: &Value, shards: Vec<ShardView>) -> Answer {
    // A user may lack the right to ask for it.
    let known = known.text().unwrap_or("");
    Answer {
        by: by.to_owned(),
        ok: info(known, "cluster_state") == Some("ok"),
        epoch: info(known, "cluster_current_epoch").and_then(|text| text.parse().ok()).unwrap_or(0),
        shards,
    }
}
