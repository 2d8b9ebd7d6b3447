//! Asking sentinels who the master is.
//!
//! All of them are asked at once, and the address that most of them name counts; the server there is asked whether it
//! thinks so itself (`ROLE`), since sentinels name an old master until they have agreed on a new one. That they have, one
//! of them tells at once (`+switch-master`); a lost connection, `READONLY` and a slow timer are the other occasions to ask.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fred::{
    interfaces::{EventInterface, PubsubInterface},
    types::Resp3Frame,
};
use tokio::{sync::Notify, task::JoinSet};

use super::{
    address::Address,
    dial::Access,
    error::clipped,
    link::AbortOnDrop,
    reply::error_text,
    slots::{Endpoint, text},
};

/// A sentinel that has not answered after so long is not waited for.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// How long the others have once one has answered.
const GRACE: Duration = Duration::from_millis(50);

/// Before another sentinel is subscribed to.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(1);

/// How often the one that is subscribed to is asked whether it is alive.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Said when a new master is in force.
pub(super) const SWITCHED: &str = "+switch-master";

/// The sentinels of one master.
pub(super) struct Sentinels<'s> {
    pub(super) name: &'s str,
    pub(super) all: &'s [Endpoint],
    pub(super) access: &'s Arc<Access>,
}

impl Sentinels<'_> {
    /// The address of the master, which says itself that it is one to whom `access` lets in.
    ///
    /// # Errors
    /// In words, when there is none at this moment.
    pub(super) async fn master(&self, access: &Access) -> Result<Endpoint, String> {
        let named = self.named().await?;
        let role = access.query(&Address::Tcp(named.clone()), &[&["ROLE"]], ANSWER_MAX).await;
        let role = role.map_err(|e| format!("the sentinels name a master that does not answer: {e}"))?;
        match role.first() {
            Some(Resp3Frame::Array { data, .. }) if data.first().and_then(text) == Some("master") => {
                Ok(named)
            }
            // A user without the right to ask; READONLY would tell later.
            Some(reply) if error_text(reply).is_some_and(|text| text.starts_with("NOPERM")) => Ok(named),
            _ => Err(format!("the sentinels name {named}, which is no master (yet)")),
        }
    }

    /// The address that most sentinels name.
    async fn named(&self) -> Result<Endpoint, String> {
        let mut asked = JoinSet::new();
        for endpoint in self.all {
            let (endpoint, access, name) = (endpoint.clone(), self.access.clone(), self.name.to_owned());
            asked.spawn(async move { ask(&endpoint, &access, &name).await });
        }
        let mut votes: BTreeMap<Endpoint, usize> = BTreeMap::new();
        let mut why = "no sentinel could be asked".to_owned();
        loop {
            let next = match votes.is_empty() {
                true => asked.join_next().await,
                false => tokio::time::timeout(GRACE, asked.join_next()).await.unwrap_or(None),
            };
            match next {
                None => break,
                Some(Ok(Ok(named))) => *votes.entry(named).or_default() += 1,
                Some(Ok(Err(error))) => why = error,
                Some(Err(_)) => {}
            }
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(named, _)| named).ok_or(why)
    }

    /// Notifies whenever a sentinel says that there is a new master. One is listened to at a time.
    pub(super) async fn hear(&self, wanted: &Notify) {
        for endpoint in self.all.iter().cycle() {
            if let Err(why) = self.hear_one(endpoint, wanted).await {
                tracing::debug!(sentinel = %endpoint, %why, "not listening to this sentinel");
            }
            // It may have said something while nobody listened.
            wanted.notify_one();
            tokio::time::sleep(SUBSCRIBE_AGAIN).await;
        }
    }

    /// Until the connection ends.
    async fn hear_one(&self, endpoint: &Endpoint, wanted: &Notify) -> Result<(), String> {
        let connected = self.access.connect(&Address::Tcp(endpoint.clone())).await;
        let (client, task) = connected.map_err(|e| e.to_string())?;
        let mut task = AbortOnDrop(task);
        let mut messages = client.message_rx();
        client.subscribe(SWITCHED).await.map_err(|e| e.to_string())?;
        let mut alive = tokio::time::interval(HEARTBEAT);
        loop {
            tokio::select! {
                message = messages.recv() => {
                    let message = message.map_err(|e| e.to_string())?;
                    // `name old-ip old-port new-ip new-port`
                    let text = message.value.as_string().unwrap_or_default();
                    if text.split(' ').next() == Some(self.name) {
                        wanted.notify_one();
                    }
                }
                _ = &mut task.0 => return Ok(()),
                // A host that lost its power sends no end; whether it lives, another connection tells.
                _ = alive.tick() => {
                    let ping: &[&[&str]] = &[&["PING"]];
                    self.access.query(&Address::Tcp(endpoint.clone()), ping, ANSWER_MAX).await.map_err(|e| e.to_string())?;
                }
            }
        }
    }
}

async fn ask(endpoint: &Endpoint, access: &Access, name: &str) -> Result<Endpoint, String> {
    let command: &[&str] = &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let replies = access.query(&Address::Tcp(endpoint.clone()), &[command], ANSWER_MAX).await;
    let replies = replies.map_err(|e| format!("a sentinel cannot be asked: {e}"))?;
    let reply = replies.first().ok_or("a reply is missing")?;
    if let Some(text) = error_text(reply) {
        return Err(format!("the sentinel {endpoint} does not name the master: {}", clipped(&text)));
    }
    let named = match reply {
        Resp3Frame::Array { data, .. } => match data.as_slice() {
            [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
            _ => None,
        },
        _ => None,
    };
    named
        .and_then(|(host, port)| Endpoint::told(host, port))
        .ok_or_else(|| format!("the sentinel {endpoint} knows no master {name}: see REDIS_URL"))
}
