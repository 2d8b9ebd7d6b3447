//! A primary, two replicas and three sentinels on the loopback. The sentinels agree within two seconds that a primary is
//! lost, and promote a replica.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::support::redis::{Make, RedisServer, free_port};

/// What the sentinels call it.
pub(crate) const NAME: &str = "mymaster";

/// How many of each; two sentinels are a majority.
const SENTINELS: usize = 3;
const REPLICAS: usize = 2;

const AT_LAST: Duration = Duration::from_secs(60);

/// A port may be taken between our look and the server's bind.
const START_TRIES: usize = 5;

/// Running servers and those who watch them.
pub(crate) struct Sentinels {
    /// The first one began as the primary.
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) sentinels: Vec<RedisServer>,
    /// Where they listen for clients, each other and their replicas, in the same order.
    ports: [Vec<u16>; 2],
    _configs: tempfile::TempDir,
}

/// PEM files, the same for all: an authority, and a certificate with its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tls<'a> {
    pub(crate) ca: &'a str,
    pub(crate) cert: &'a str,
    pub(crate) key: &'a str,
}

impl Tls<'_> {
    /// TLS on a port of its own, for clients who show a certificate, and among themselves. The plain port stays, for the
    /// test alone.
    fn settings(&self, port: u16) -> [(&'static str, String); 6] {
        [
            ("tls-port", port.to_string()),
            ("tls-replication", "yes".to_owned()),
            ("tls-auth-clients", "yes".to_owned()),
            ("tls-ca-cert-file", self.ca.to_owned()),
            ("tls-cert-file", self.cert.to_owned()),
            ("tls-key-file", self.key.to_owned()),
        ]
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passwords<'a> {
    /// Of the servers' default user.
    pub(crate) servers: Option<&'a str>,
    /// Of the sentinels' default user.
    pub(crate) sentinels: Option<&'a str>,
}

impl Sentinels {
    /// Waits until all know each other.
    pub(crate) fn start(passwords: Passwords<'_>) -> Self {
        Self::start_as(Make::Installed, passwords)
    }

    pub(crate) fn start_as(make: Make, passwords: Passwords<'_>) -> Self {
        Self::start_with(make, passwords, None)
    }

    pub(crate) fn start_with(make: Make, passwords: Passwords<'_>, tls: Option<Tls<'_>>) -> Self {
        let mut args = vec!["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
        if let Some(password) = passwords.servers {
            args.extend(["--requirepass", password, "--masterauth", password]);
        }
        let configs = tempfile::tempdir().expect("a temporary directory");
        let mut all =
            Self { servers: Vec::new(), sentinels: Vec::new(), ports: Default::default(), _configs: configs };
        for _ in 0..=REPLICAS {
            let (port, flags) = flags(tls);
            let replicaof = all.ports[0].first().map(u16::to_string);
            let mut args: Vec<&str> = args.iter().copied().chain(flags.iter().map(String::as_str)).collect();
            args.extend(replicaof.iter().flat_map(|primary| ["--replicaof", "127.0.0.1", primary]));
            let mut server = RedisServer::start_as(make, &args);
            server.log_in_with(passwords.servers);
            all.ports[0].push(port.unwrap_or(server.port));
            all.servers.push(server);
        }
        // Before that a sentinel sees no replicas, and asks again ten seconds later.
        all.until("the replicas have all data", |all| {
            let info = |server: &RedisServer| server.command(&["INFO", "replication"]);
            all.servers[1..].iter().all(|replica| info(replica).contains("master_link_status:up"))
        });
        for i in 0..SENTINELS {
            all.start_sentinel(make, i, passwords, tls);
        }
        all.until("the sentinels know each other and all replicas", |all| {
            all.sentinels.iter().all(|sentinel| {
                let words = sentinel.command(&["SENTINEL", "MASTER", NAME]);
                let words: Vec<&str> = words.lines().collect();
                let number = |name: &str| {
                    let at = words.iter().position(|word| *word == name)?;
                    words.get(at + 1)?.parse::<usize>().ok()
                };
                number("num-slaves") == Some(REPLICAS) && number("num-other-sentinels") == Some(SENTINELS - 1)
            })
        });
        all
    }

    fn start_sentinel(&mut self, make: Make, i: usize, passwords: Passwords<'_>, tls: Option<Tls<'_>>) {
        let mut config = format!(
            "sentinel monitor {NAME} 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds {NAME} 1000\n\
             sentinel failover-timeout {NAME} 5000\n",
            self.ports[0][0]
        );
        if let Some(password) = passwords.servers {
            config += &format!("sentinel auth-pass {NAME} {password}\n");
        }
        if let Some(password) = passwords.sentinels {
            config += &format!("requirepass {password}\n");
        }
        let port = tls.map(|tls| (free_port(), tls));
        for (name, value) in port.iter().flat_map(|(port, tls)| tls.settings(*port)) {
            config += &format!("{name} {value}\n");
        }
        let file = self._configs.path().join(format!("sentinel-{i}.conf"));
        let path = file.display().to_string();
        for _ in 0..START_TRIES {
            // A sentinel writes into its file.
            fs::write(&file, &config).expect("a temporary file");
            let mut sentinel = RedisServer::spawn(make, free_port(), &[&path, "--sentinel"]);
            if sentinel.answers() {
                sentinel.log_in_with(passwords.sentinels);
                self.ports[1].push(port.map_or(sentinel.port, |(port, _)| port));
                self.sentinels.push(sentinel);
                return;
            }
        }
        panic!("no sentinel starts with\n{config}");
    }

    /// `mymaster,host:port,...`, as REDIS_URL has it.
    pub(crate) fn url(&self) -> String {
        let all: Vec<String> = self.ports[1].iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("{NAME},{}", all.join(","))
    }

    /// Where clients find a server.
    pub(crate) fn address(&self, i: usize) -> String {
        format!("127.0.0.1:{}", self.ports[0][i])
    }

    /// Which server the sentinels call the primary, when most agree and it agrees, too.
    pub(crate) fn primary(&self) -> Option<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in &self.sentinels {
            let reply = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?;
            let port = reply.lines().nth(1)?.parse::<u16>().ok()?;
            votes[self.ports[0].iter().position(|known| *known == port)?] += 1;
        }
        let i = votes.iter().position(|&votes| 2 * votes > SENTINELS)?;
        self.is_master(i).then_some(i)
    }

    /// Whether a server is alive and calls itself so.
    pub(crate) fn is_master(&self, i: usize) -> bool {
        let server = &self.servers[i];
        server.lives() && server.try_command(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
    }

    /// Waits until it is another one than this.
    pub(crate) fn until_promoted(&self, lost: usize) -> usize {
        let mut next = None;
        self.until("a replica is promoted", |all| {
            next = all.primary().filter(|&primary| primary != lost);
            next.is_some()
        });
        next.expect("it was waited for")
    }

    /// As an operator does it: SENTINEL FAILOVER.
    pub(crate) fn fail_over(&self) -> usize {
        let before = self.primary().expect("a primary");
        // -INPROG or -NOGOODSLAVE pass; the sentinel learns of the replicas' state once a second.
        self.until("the sentinel begins", |all| {
            all.sentinels[0].command(&["SENTINEL", "FAILOVER", NAME]) == "OK"
        });
        self.until_promoted(before)
    }

    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + AT_LAST;
        while !so(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A port for TLS, and the flags that open it. They are written so that the harness goes on speaking to the plain port.
fn flags(tls: Option<Tls<'_>>) -> (Option<u16>, Vec<String>) {
    let Some(tls) = tls else { return (None, Vec::new()) };
    let port = free_port();
    let flag = |(name, value): (&str, String)| [name.replacen("tls", "--Tls", 1), value];
    (Some(port), tls.settings(port).into_iter().flat_map(flag).collect())
}

impl RedisServer {
    fn log_in_with(&mut self, password: Option<&str>) {
        if let Some(password) = password {
            self.log_in(&[password]);
        }
    }
}

/// Each test binary compiles this file and uses a part of it; this names the rest.
const _: fn() = || {
    let _ = (Sentinels::start, Sentinels::start_as, Sentinels::url, Sentinels::fail_over);
    let _ = (Sentinels::start_with, Sentinels::address, |tls: Tls<'static>| (tls.ca, tls.cert, tls.key));
};
