//! What the user may not do, and what that costs.

use super::{Among, ask};
use crate::{
    key::Format,
    store::redis::{
        resp::Value,
        wire::{Lost, Wire},
    },
};

/// A command that the user lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// As ACL SETUSER has it: `+script|load`, `~tg:*`.
    pub right: String,
    /// The server's words.
    pub why: String,
    /// What becomes worse without it; `None` where nothing goes without it.
    pub without: Option<&'static str>,
}

/// How our keys begin, behind a prefix that the settings may name.
pub(super) const KEY: &str = "tg:doctor";

/// What the service sends, and the right that it needs for it.
const NEEDED: [(&str, &[&str]); 6] = [
    ("+evalsha", &["EVALSHA", "0", "0"]),
    ("+script|load", &["SCRIPT", "LOAD", ""]),
    ("+time", &["TIME"]),
    ("~tg:* +get", &["GET", KEY]),
    ("~tg:* +set", &["SET", KEY, "0"]),
    ("~tg:* +del", &["DEL", KEY]),
];

/// Asked at once by `ACL DRYRUN`, which Redis has since 7.0 and few users may use; else the script's own run tells.
pub(super) async fn rights(wire: &mut Wire, keys: &Format) -> Result<Option<(String, Vec<Denied>)>, Lost> {
    let who = ask(wire, &["ACL", "WHOAMI"]).await?;
    let Some(user) = who.text() else { return Ok(None) };
    let mut denied = Vec::new();
    let key = format!("{}{KEY}", keys.prefix);
    for (right, command) in NEEDED {
        let command = command.iter().map(|word| if *word == KEY { key.as_str() } else { word });
        let words: Vec<&str> = ["ACL", "DRYRUN", user].into_iter().chain(command).collect();
        let reply = ask(wire, &words).await?;
        match reply.text() {
            Some("OK") | None => {}
            Some(why) => denied.push(Denied {
                right: right.replace('~', &format!("~{}", keys.prefix)),
                why: why.to_owned(),
                without: None,
            }),
        }
    }
    Ok(Some((user.to_owned(), denied)))
}

/// What the service asks servers that have others, asked: it changes nothing, and any user may be told that he may not.
pub(super) async fn rights_among(wire: &mut Wire, among: Among) -> Result<Vec<Denied>, Lost> {
    let mut denied = Vec::new();
    match among {
        Among::None | Among::Unknown => {}
        Among::Sentinels => {
            let without = Some("a primary that was voted out is asked until it says so itself");
            denied.extend(lacks(wire, "+role", &["ROLE"], without).await?);
        }
        Among::FoundCluster | Among::Cluster => {
            // Without it nobody finds out, and the service takes it for a server that is alone.
            let without = (among == Among::Cluster)
                .then_some("of two maps that differ nobody can tell which one is newer");
            denied.extend(lacks(wire, "+cluster|info", &["CLUSTER", "INFO"], without).await?);
            // Either will do: Redis before 7.0 has no SHARDS.
            let shards = ask(wire, &["CLUSTER", "SHARDS"]).await?;
            let slots = "+cluster|shards +cluster|slots";
            if shards.error().is_some() {
                denied.extend(lacks(wire, slots, &["CLUSTER", "SLOTS"], None).await?);
            }
        }
    }
    Ok(denied)
}

/// What the user lacks when the server says so to this command.
async fn lacks(
    wire: &mut Wire,
    right: &str,
    command: &[&str],
    without: Option<&'static str>,
) -> Result<Option<Denied>, Lost> {
    let reply = ask(wire, command).await?;
    Ok(no_permission(&reply).map(|why| Denied { right: right.to_owned(), why, without }))
}

fn no_permission(reply: &Value) -> Option<String> {
    reply.error().filter(|text| text.starts_with("NOPERM")).map(str::to_owned)
}

/// Keys that are looked for to see whether a server has all of them: each is on one of two servers by even chance.
const LOOKED_FOR: usize = 20;

/// Whether it is of a cluster and only does not tell the user so: who asks for a key is sent somewhere else. `state` is what
/// it says to CLUSTER INFO.
pub(super) async fn is_hidden_cluster(wire: &mut Wire, state: &Value, keys: &Format) -> Result<bool, Lost> {
    if no_permission(state).is_none() {
        return Ok(false);
    }
    for i in 0..LOOKED_FOR {
        let key = format!("{}{KEY}:{i}", keys.prefix);
        let reply = ask(wire, &["GET", &key]).await?;
        let says = |code| reply.error().is_some_and(|text| text.starts_with(code));
        if says("MOVED") || says("CLUSTERDOWN") {
            return Ok(true);
        }
    }
    Ok(false)
}
