//! How a connection is made: what the client is told, and what it may never do.
//!
//! What is in files, certificates and passwords, is read for each connection, so that it can be renewed without a restart.
//! It is read once more when the store is made, since a missing file is a wrong setting and not a connection that fails for
//! ever.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike, LuaInterface},
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Resp3Frame, Value,
        config::{Config, ConnectionConfig, Options, Server, ServerConfig, TcpConfig},
    },
    util::static_str,
};

use super::{
    address::{Address, Credentials, Target},
    config::{RedisConfigError, RedisTls},
    error,
    link::AbortOnDrop,
    tls,
};
use crate::store::{StoreError, script};

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
        self.tls.as_ref().map_or(Ok(()), |tls| tls::connector(tls).map(drop))
    }

    /// Connects, and ends the connection with the handle.
    ///
    /// # Errors
    /// When there is no connection within REDIS_TIMEOUT, or the server refuses the user.
    pub(super) async fn connect(&self, address: &Address) -> Result<(Client, ConnectHandle), StoreError> {
        let shard = address.to_string();
        let server = match address {
            Address::Tcp(endpoint) => {
                let name = self.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
                let mut server = Server::new(endpoint.host.as_str(), endpoint.port);
                server.tls_server_name = name.map(Into::into);
                ServerConfig::Centralized { server }
            }
            Address::Unix(path) => ServerConfig::Unix { path: path.clone() },
        };
        let (credentials, tls) = (self.credentials.clone(), self.tls.clone());
        // Hundreds of authorities may have to be read, and other requests wait on this thread.
        let files = tokio::task::spawn_blocking(move || {
            Ok((credentials.read()?, tls.as_ref().map(tls::connector).transpose()?))
        });
        let unavailable = |why: String| StoreError::Unavailable { shard: shard.clone(), why };
        let files = files.await.map_err(|e| unavailable(e.to_string()))?;
        let ((username, password), connector) =
            files.map_err(|e: RedisConfigError| unavailable(e.to_string()))?;
        let config = Config {
            // Of the first connection only: an error ends the attempt, and `keep` makes the next one.
            fail_fast: true,
            server,
            username,
            password: password.as_ref().map(|password| password.expose().to_owned()),
            database: self.database,
            tls: connector.map(Into::into),
            ..Config::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: self.connect_timeout,
            internal_command_timeout: self.connect_timeout,
            max_command_attempts: 1,
            max_redirections: 0,
            // Nagle's algorithm would hold a small call back until the last one is acknowledged.
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        // No reconnect policy: see the top of `redis.rs`.
        let client = Client::new(config, None, Some(connection), None);
        let task = client.init().await;
        let task = task.map_err(|e| self.failed(&shard, &error::without(password.as_ref(), e)))?;
        Ok((client, task))
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
    ) -> Result<Vec<Resp3Frame>, StoreError> {
        let shard = address.to_string();
        let asked = async {
            let (client, task) = self.connect(address).await?;
            let _hang_up = AbortOnDrop(task);
            let mut replies = Vec::with_capacity(commands.len());
            for command in commands {
                let reply = ask(&client, command, within).await;
                replies.push(reply.map_err(|e| error::from_client(&shard, &e, within))?);
            }
            Ok(replies)
        };
        let late = |_| StoreError::Timeout { shard: shard.clone(), after: within };
        tokio::time::timeout(within, asked).await.map_err(late)?
    }

    fn failed(&self, shard: &str, error: &Error) -> StoreError {
        match error::from_client(shard, error, self.connect_timeout) {
            // Not a spend's timeout: nothing was spent.
            StoreError::Timeout { shard, after } => {
                // A plain Redis takes the beginning of a TLS handshake for a command that is yet to end.
                let tls = if self.tls.is_some() { "; does it speak TLS?" } else { "" };
                let why = format!("no connection within {} s (REDIS_TIMEOUT){tls}", after.as_secs_f64());
                StoreError::Unavailable { shard, why }
            }
            other => other,
        }
    }
}

/// How to connect to one server that keeps budgets.
#[derive(Clone, Debug)]
pub(super) struct Dial {
    pub(super) address: Address,
    pub(super) access: Arc<Access>,
}

impl Dial {
    /// A connection with the script loaded: the client, the script's hash, and what ends when the connection does.
    ///
    /// # Errors
    /// As [`Access::connect`].
    pub(super) async fn dial(&self) -> Result<(Client, Bytes, ConnectHandle), StoreError> {
        let (client, task) = self.access.connect(&self.address).await?;
        // A server that lacks the script would answer the first spends late.
        match load(&client, self.access.connect_timeout).await {
            Ok(hash) => Ok((client, hash, task)),
            Err(e) => {
                task.abort();
                Err(self.access.failed(&self.address.to_string(), &e))
            }
        }
    }
}

/// Loads the script and returns its hash.
pub(super) async fn load(client: &Client, within: Duration) -> Result<Bytes, Error> {
    client.with_options(&once(within)).script_load(static_str(script::SPEND)).await
}

/// Sends one command. `Ok` is any reply, an error reply included.
pub(super) async fn ask(client: &Client, words: &[&str], within: Duration) -> Result<Resp3Frame, Error> {
    let (name, arguments) = words.split_first().unwrap_or((&"PING", &[]));
    let command = CustomCommand::new((*name).to_owned(), ClusterHash::Random, false);
    let arguments: Vec<Value> = arguments.iter().map(|word| Value::from(*word)).collect();
    client.with_options(&once(within)).custom_raw(command, arguments).await
}

/// One attempt, now or never.
pub(super) fn once(within: Duration) -> Options {
    Options {
        max_attempts: Some(1),
        max_redirections: Some(0),
        timeout: Some(within),
        fail_fast: true,
        ..Options::default()
    }
}
