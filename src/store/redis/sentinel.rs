//! Asking sentinels who the master is.
//!
//! All of them are asked at once, and the address that most of them name counts; the server there is asked whether it
//! thinks so itself (`ROLE`), since sentinels name an old master until they have agreed on a new one. That they have, one
//! of them tells at once (`+switch-master`); a lost connection, `READONLY` and a slow timer are the other occasions to ask.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinSet};

use super::{
    address::Address,
    dial::Access,
    error::{self, clipped},
    resp::{self, Bounds, Value},
    slots::Endpoint,
    wire::{Lost, Wire},
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
const SWITCHED: &str = "+switch-master";

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
        let Some(role) = role.first() else { return Err("a reply is missing".to_owned()) };
        let is_master = role.list().and_then(<[Value]>::first).and_then(Value::text) == Some("master");
        // A user without the right to ask; READONLY would tell later.
        let is_secret = role.error().is_some_and(|text| text.starts_with("NOPERM"));
        if is_master || is_secret {
            return Ok(named);
        }
        Err(format!("the sentinels name {named}, which is no master (yet)"))
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
        let mut wire =
            self.access.connect(&Address::Tcp(endpoint.clone())).await.map_err(|e| e.to_string())?;
        match self.listen(&mut wire, wanted).await {
            Ok(refused) => Err(clipped(&refused)),
            Err(Lost::Closed) => Ok(()),
            Err(lost) => Err(error::from_lost(&endpoint.to_string(), &lost).to_string()),
        }
    }

    /// Until it is refused, in the sentinel's words, or the connection ends.
    async fn listen(&self, wire: &mut Wire, wanted: &Notify) -> Result<String, Lost> {
        if let Some(why) = subscribe(wire, ANSWER_MAX).await?.error() {
            return Ok(why.to_owned());
        }
        // A host that lost its power sends no end; who is alive answers PING, or says something else meanwhile.
        let mut asked = false;
        loop {
            let said = match wire.reply(Bounds::SHORT, if asked { ANSWER_MAX } else { HEARTBEAT }).await {
                Err(Lost::Late(_)) if !asked => {
                    resp::words(wire.output(), &["PING"]);
                    asked = true;
                    continue;
                }
                said => said?,
            };
            asked = false;
            // `message +switch-master "name old-ip old-port new-ip new-port"`
            if let Some([kind, channel, text]) = said.list()
                && (kind.text(), channel.text()) == (Some("message"), Some(SWITCHED))
                && text.text().and_then(|text| text.split(' ').next()) == Some(self.name)
            {
                wanted.notify_one();
            }
        }
    }
}

/// What is said to a subscription.
pub(super) async fn subscribe(wire: &mut Wire, within: Duration) -> Result<Value, Lost> {
    wire.ask(&["SUBSCRIBE", SWITCHED], Bounds::SHORT, within).await
}

async fn ask(endpoint: &Endpoint, access: &Access, name: &str) -> Result<Endpoint, String> {
    let command: &[&str] = &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let replies = access.query(&Address::Tcp(endpoint.clone()), &[command], ANSWER_MAX).await;
    let replies = replies.map_err(|e| format!("a sentinel cannot be asked: {e}"))?;
    let reply = replies.first().ok_or("a reply is missing")?;
    if let Some(text) = reply.error() {
        return Err(format!("the sentinel {endpoint} does not name the master: {}", clipped(text)));
    }
    named(reply).ok_or_else(|| format!("the sentinel {endpoint} knows no master {name}: see REDIS_URL"))
}

/// The address in a reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
pub(super) fn named(reply: &Value) -> Option<Endpoint> {
    let [host, port] = reply.list()? else { return None };
    Endpoint::told(host.text()?, port.text()?.parse().ok()?)
}
