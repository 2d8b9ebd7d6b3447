//! How a connection is made: what the client is told, and what it may never do.

use std::time::Duration;

use bytes::Bytes;
use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike, LuaInterface},
    types::{
        ConnectHandle,
        config::{Config, ConnectionConfig, Options, Server, ServerConfig, TcpConfig},
    },
    util::static_str,
};

use super::{
    config::{Address, RedisConfig, RedisConfigError, Target},
    error, tls,
};
use crate::store::{StoreError, script};

/// How to connect.
#[derive(Debug)]
pub(super) struct Dial {
    config: HiddenConfig,
    connection: ConnectionConfig,
}

/// fred's own `Debug` of it shows the password.
struct HiddenConfig(Config);

impl std::fmt::Debug for HiddenConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Dial {
    pub(super) fn new(target: &Target, config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let server = match &target.address {
            Address::Tcp { host, port } => {
                ServerConfig::Centralized { server: Server::new(host.as_str(), *port) }
            }
            Address::Unix(path) => ServerConfig::Unix { path: path.clone() },
        };
        let fred = Config {
            // Of the first connection only: an error ends the attempt, and `keep` makes the next one.
            fail_fast: true,
            server,
            username: target.user.clone(),
            password: target.password.as_ref().map(|password| password.expose().to_owned()),
            database: target.database,
            tls: target.tls.as_ref().map(tls::connector).transpose()?.map(Into::into),
            ..Config::default()
        };
        let connection = ConnectionConfig {
            connection_timeout: config.connect_timeout,
            internal_command_timeout: config.connect_timeout,
            max_command_attempts: 1,
            max_redirections: 0,
            // Nagle's algorithm would hold a small call back until the last one is acknowledged.
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        Ok(Self { config: HiddenConfig(fred), connection })
    }

    /// A connection with the script loaded: the client, the script's hash, and what ends when the connection does.
    pub(super) async fn dial(&self, shard: &str) -> Result<(Client, Bytes, ConnectHandle), StoreError> {
        // No reconnect policy: see the top of `redis.rs`.
        let client = Client::new(self.config.0.clone(), None, Some(self.connection.clone()), None);
        let task = client.init().await.map_err(|e| self.failed(shard, &e))?;
        // A server that lacks the script would answer the first spends late.
        match load(&client, self.connection.connection_timeout).await {
            Ok(hash) => Ok((client, hash, task)),
            Err(e) => {
                task.abort();
                Err(self.failed(shard, &e))
            }
        }
    }

    fn failed(&self, shard: &str, error: &Error) -> StoreError {
        let timeout = self.connection.connection_timeout;
        match error::from_client(shard, error, timeout) {
            // Not a spend's timeout: nothing was spent.
            StoreError::Timeout { shard, after } => {
                // A plain Redis takes the beginning of a TLS handshake for a command that is yet to end.
                let tls = if self.config.0.uses_tls() { "; does it speak TLS?" } else { "" };
                let why = format!("no connection within {} s (REDIS_TIMEOUT){tls}", after.as_secs_f64());
                StoreError::Unavailable { shard, why }
            }
            other => other,
        }
    }
}

/// Loads the script and returns its hash.
pub(super) async fn load(client: &Client, within: Duration) -> Result<Bytes, Error> {
    client.with_options(&once(within)).script_load(static_str(script::SPEND)).await
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
