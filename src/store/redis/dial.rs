//! How a connection is made: what the client is told, and what it may never do.
//!
//! What is in files, certificates and passwords, is read for each connection, so that it can be renewed without a restart.
//! It is read once more when the store is made, since a missing file is a wrong setting and not a connection that fails for
//! ever.

use std::{sync::Arc, time::Duration};

use super::{
    address::{Address, Credentials, Target},
    config::{RedisConfigError, RedisTls},
    error,
    resp::{self, Bounds, Malformed, Value},
    stream::Stream,
    tls,
    wire::{Lost, Wire},
};
use crate::{
    settings::Secret,
    store::{StoreError, script},
};

/// As whom, and by which means.
#[derive(Debug)]
pub(super) struct Access {
    credentials: Credentials,
    database: Option<u8>,
    pub(super) tls: Option<RedisTls>,
    pub(super) connect_timeout: Duration,
}

impl Access {
    /// To the servers that keep budgets.
    pub(super) fn to_redis(target: &Target) -> Self {
        Self {
            credentials: target.credentials.clone(),
            database: target.database,
            tls: target.tls.clone(),
            connect_timeout: target.connect_timeout,
        }
    }

    /// To their sentinels, which know other users and no databases.
    pub(super) fn to_sentinels(target: &Target) -> Self {
        Self { credentials: target.sentinel_credentials.clone(), database: None, ..Self::to_redis(target) }
    }

    /// Reads all files once.
    ///
    /// # Errors
    /// When one of them is missing or wrong.
    pub(super) fn check(&self) -> Result<(), RedisConfigError> {
        self.credentials.read()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls::config(tls).map(drop))
    }

    /// Connects, says who we are, and chooses the database.
    ///
    /// # Errors
    /// When there is no connection within REDIS_TIMEOUT, or the server refuses the user.
    pub(super) async fn connect(&self, address: &Address) -> Result<Wire, StoreError> {
        let shard = address.to_string();
        let unavailable = |why: String| StoreError::Unavailable { shard: shard.clone(), why };
        let (credentials, tls) = (self.credentials.clone(), self.tls.clone());
        // Hundreds of authorities may have to be read, and other requests wait on this thread.
        let files = tokio::task::spawn_blocking(move || {
            Ok((credentials.read()?, tls.as_ref().map(tls::config).transpose()?))
        });
        let files = files.await.map_err(|e| unavailable(e.to_string()))?;
        let ((user, password), tls) = files.map_err(|e: RedisConfigError| unavailable(e.to_string()))?;
        let name = self.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
        let connected = async {
            let stream = Stream::open(address, tls.map(|tls| (tls, name))).await.map_err(Lost::Io)?;
            let mut wire = Wire::new(stream);
            self.introduce(&mut wire, user.as_deref(), password.as_ref()).await?;
            Ok(wire)
        };
        let connected = tokio::time::timeout(self.connect_timeout, connected).await;
        connected.unwrap_or(Err(Lost::Late(self.connect_timeout).into())).map_err(|e| self.failed(&shard, &e))
    }

    /// Without a password too something is asked, so that who is not let in learns it here.
    async fn introduce(
        &self,
        wire: &mut Wire,
        user: Option<&str>,
        password: Option<&Secret>,
    ) -> Result<(), Failure> {
        let greeting: &[&str] = match (user, password.map(Secret::expose)) {
            (Some(user), Some(password)) => &["AUTH", user, password],
            (None, Some(password)) => &["AUTH", password],
            (_, None) => &["PING"],
        };
        if password.is_some() {
            wire.quote_nothing();
        }
        let reply = match wire.ask(greeting, Bounds::SHORT, self.connect_timeout).await {
            // What it said may be the password.
            Err(Lost::Malformed(Malformed::Unquoted)) => {
                return Err(Lost::Other("it answered AUTH in a form that is not Redis'").into());
            }
            reply => reply?,
        };
        match reply.error() {
            // A user who may not ask that is let in all the same.
            Some(why) if password.is_none() && why.starts_with("NOPERM") => {}
            Some(why) => return Err(Failure::Refused(error::without(password, why).into_owned())),
            None if password.is_some() && reply.text() != Some("OK") => {
                return Err(Lost::Other("it answered AUTH with something else than OK").into());
            }
            None => {}
        }
        let Some(database) = self.database else { return Ok(()) };
        let select = ["SELECT", &database.to_string()];
        let reply = wire.ask(&select, Bounds::SHORT, self.connect_timeout).await?;
        let refused = |why| Err(Failure::Refused(error::without(password, why).into_owned()));
        reply.error().map_or(Ok(()), refused)
    }

    /// Connects, sends these commands, and hangs up. Error replies are replies.
    ///
    /// # Errors
    /// When there is no connection, or a reply is missing, after `within`.
    pub(super) async fn query(
        &self,
        address: &Address,
        commands: &[&[&str]],
        within: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        let shard = address.to_string();
        let asked = async {
            let mut wire = self.connect(address).await?;
            let mut replies = Vec::with_capacity(commands.len());
            for command in commands {
                let reply = wire.ask(command, Bounds::TOLD, within).await;
                replies.push(reply.map_err(|e| error::from_lost(&shard, &e))?);
            }
            Ok(replies)
        };
        let late = |_| StoreError::Timeout { shard: shard.clone(), after: within };
        tokio::time::timeout(within, asked).await.map_err(late)?
    }

    fn failed(&self, shard: &str, failure: &Failure) -> StoreError {
        match failure {
            Failure::Refused(text) => error::from_reply(shard, text),
            // Not a spend's timeout: nothing was spent.
            Failure::Lost(Lost::Late(after)) => {
                // A plain Redis takes the beginning of a TLS handshake for a command that is yet to end.
                let tls = if self.tls.is_some() { "; does it speak TLS?" } else { "" };
                let why = format!("no connection within {} s (REDIS_TIMEOUT){tls}", after.as_secs_f64());
                StoreError::Unavailable { shard: shard.to_owned(), why }
            }
            Failure::Lost(lost) => error::from_lost(shard, lost),
        }
    }
}

/// Why there is no connection, or no script on it.
#[derive(Debug)]
pub(super) enum Failure {
    Lost(Lost),
    /// By the server, in its words.
    Refused(String),
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// How to connect to one server that keeps budgets.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub(super) address: Address,
    pub(super) access: Arc<Access>,
}

impl Dial {
    /// A connection with the script loaded, and the script's hash.
    ///
    /// # Errors
    /// As [`Access::connect`].
    pub(super) async fn dial(&self) -> Result<(Wire, Hash), StoreError> {
        let mut wire = self.access.connect(&self.address).await?;
        // A server that lacks the script would answer the first spends late.
        match load(&mut wire, self.access.connect_timeout).await {
            Ok(hash) => Ok((wire, hash)),
            Err(e) => Err(self.access.failed(&self.address.to_string(), &e)),
        }
    }
}

/// The script's SHA-1 in hexadecimal, as the server itself computed it.
pub(super) type Hash = [u8; 40];

/// What loads the script.
pub(super) const LOAD: &[&str] = &["SCRIPT", "LOAD", script::SPEND];

/// Loads the script and returns its hash.
pub(super) async fn load(wire: &mut Wire, within: Duration) -> Result<Hash, Failure> {
    let reply = wire.ask(LOAD, Bounds::SHORT, within).await?;
    if let Some(why) = reply.error() {
        return Err(Failure::Refused(why.to_owned()));
    }
    let hash = reply.text().and_then(|text| text.as_bytes().try_into().ok());
    hash.ok_or(Failure::Lost(Lost::Other("it answered SCRIPT LOAD with no hash")))
}

/// One call of the script, as it goes over the wire.
pub(super) fn evalsha(out: &mut Vec<u8>, hash: &Hash, call: &script::Call) {
    resp::list(out, 3 + call.words_len());
    resp::text(out, b"EVALSHA");
    resp::text(out, hash);
    resp::number(out, call.keys_declared());
    call.words().for_each(|word| resp::text(out, word));
}
