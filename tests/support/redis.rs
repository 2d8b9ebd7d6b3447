//! A real `redis-server`, started for one test on a port of its own and ended with it.
//!
//! It keeps nothing on disk but in a directory that vanishes too. A test can hang it (SIGSTOP), let it run on, end it
//! and start it again on the same port, and talk to it as `redis-cli` would.
//!
//! Which server it is says [`Make`]: the `redis-server` on PATH, or another that tests/run has fetched.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How long a server may take to answer its first PING. It takes some 10 ms; a busy machine may need more.
const START_MAX: Duration = Duration::from_secs(20);

/// Another process may take a free port between our look and the server's bind.
const START_TRIES: usize = 5;

/// Whose server, and which version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// The `redis-server` on PATH.
    Installed,
    /// Redis 6.2: the oldest that we promise to work with, and the last without CLUSTER SHARDS.
    Redis62,
    /// Valkey 9.
    Valkey9,
}

impl Make {
    /// Those that are here; tests/run sees to it that all are.
    pub(crate) fn all() -> Vec<Self> {
        [Self::Installed, Self::Redis62, Self::Valkey9].into_iter().filter(|make| make.is_here()).collect()
    }

    /// Whether there is a binary.
    pub(crate) fn is_here(self) -> bool {
        self == Self::Installed || self.binary().exists()
    }

    /// Named by the environment, or where tests/run puts it.
    fn binary(self) -> PathBuf {
        let (variable, file) = match self {
            Self::Installed => return "redis-server".into(),
            Self::Redis62 => ("TOLLGATE_REDIS_62", "redis-server-6.2"),
            Self::Valkey9 => ("TOLLGATE_VALKEY", "valkey-server-9"),
        };
        let fetched = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bin").join(file);
        env::var_os(variable).map_or_else(fetched, Into::into)
    }
}

/// A running server.
pub(crate) struct RedisServer {
    /// On 127.0.0.1.
    pub(crate) port: u16,
    make: Make,
    args: Vec<String>,
    /// What [`command`](Self::command) says first: `["AUTH", ...]`.
    login: Vec<String>,
    child: Child,
    killed: bool,
    hung: AtomicBool,
    dir: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server with these arguments behind our own, such as `["--requirepass", "secret"]`.
    pub(crate) fn start(extra_args: &[&str]) -> Self {
        Self::start_as(Make::Installed, extra_args)
    }

    /// The same of another make.
    pub(crate) fn start_as(make: Make, extra_args: &[&str]) -> Self {
        for _ in 0..START_TRIES {
            let mut server = Self::spawn(make, free_port(), extra_args);
            if server.answers() {
                return server;
            }
        }
        panic!("{} does not start with {extra_args:?}", make.binary().display());
    }

    /// Starts it on this port and waits for nothing.
    pub(crate) fn spawn(make: Make, port: u16, extra_args: &[&str]) -> Self {
        let args: Vec<String> = extra_args.iter().map(|arg| (*arg).to_owned()).collect();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let child = spawn(make, port, dir.path(), &args);
        Self { port, make, args, login: Vec::new(), child, killed: false, hung: AtomicBool::new(false), dir }
    }

    /// From now on commands are sent as this user: `["password"]` or `["user", "password"]`.
    pub(crate) fn log_in(&mut self, words: &[&str]) {
        self.login = std::iter::once("AUTH").chain(words.iter().copied()).map(str::to_owned).collect();
    }

    /// `host:port`
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The directory that the server runs in, for sockets and certificates.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Sends one command and returns the reply as text: a line for each element, `-…` for an error.
    pub(crate) fn command(&self, args: &[&str]) -> String {
        self.try_command(args).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// The same of a server that may be gone, or hang.
    pub(crate) fn try_command(&self, args: &[&str]) -> std::io::Result<String> {
        let login: Vec<&str> = self.login.iter().map(String::as_str).collect();
        send(self.port, &[&login, args])
    }

    /// The same at any port, such as a proxy's.
    pub(crate) fn command_at(port: u16, args: &[&str]) -> std::io::Result<String> {
        send(port, &[args])
    }

    /// Stops answering, with all connections open: a server that hangs.
    pub(crate) fn hang(&self) {
        self.hung.store(true, Ordering::SeqCst);
        self.signal("STOP");
    }

    /// Ends [`hang`](Self::hang).
    pub(crate) fn go_on(&self) {
        self.signal("CONT");
        self.hung.store(false, Ordering::SeqCst);
    }

    /// Dies at once, without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        self.killed = true;
    }

    /// Whether it may answer: it neither [hangs](Self::hang) nor has been [killed](Self::kill).
    pub(crate) fn lives(&self) -> bool {
        !self.killed && !self.hung.load(Ordering::SeqCst)
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// Starts again on the same port, empty.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.make, self.port, self.dir.path(), &self.args);
        self.killed = false;
        assert!(self.answers(), "redis-server does not start again on port {}", self.port);
    }

    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot send SIG{name}");
    }

    /// Polls until the server answers anything at all; false when it ended instead.
    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    pub(crate) fn answers(&mut self) -> bool {
        let deadline = Instant::now() + START_MAX;
        while Instant::now() < deadline {
            let listens_to_tcp = !self.args.iter().any(|arg| arg == "--tls-port");
            if listens_to_tcp && self.try_command(&["PING"]).is_ok() {
                return true;
            }
            if !listens_to_tcp && TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            if self.child.try_wait().expect("our own child").is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // A stopped process dies of SIGKILL too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on at this moment.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("a bound address").port()
}

/// A port that has room for a cluster's bus 10,000 above it, as every version wants by default. Both lie below those that
/// Linux gives to outgoing connections, so that none of these takes it before the server does.
pub(crate) fn free_cluster_port() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for i in 0..1000_u32 {
        let port = 10_000 + (RandomState::new().hash_one(i) % 12_000) as u16;
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
    panic!("no two free ports for a cluster's node");
}

fn spawn(make: Make, port: u16, dir: &Path, extra_args: &[String]) -> Child {
    // With TLS the one port speaks TLS only.
    let tls = extra_args.iter().any(|arg| arg == "--tls-port");
    let port = port.to_string();
    let mut command = Command::new(make.binary());
    // A file of settings stands before all flags.
    let (file, extra_args) = match extra_args {
        [file, rest @ ..] if file.ends_with(".conf") => (Some(file), rest),
        all => (None, all),
    };
    command.args(file);
    command.args(["--bind", "127.0.0.1", "--port", if tls { "0" } else { &port }]);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
    command.arg("--dir").arg(dir);
    command.args(extra_args.iter().map(|arg| if arg == "PORT" { &port } else { arg }));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("redis-server is installed (tests/run does that)")
}

/// The last reply to these commands, those without a word left out.
fn send(port: u16, commands: &[&[&str]]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let commands = || commands.iter().filter(|words| !words.is_empty());
    let mut request = String::new();
    for words in commands() {
        request.push_str(&format!("*{}\r\n", words.len()));
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    }
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut reply = String::new();
    for _ in commands() {
        reply = read_reply(&mut reader)?;
    }
    Ok(reply)
}

fn read_reply(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at(1);
    let length = rest.parse::<i64>().unwrap_or(0);
    match kind {
        "$" if length >= 0 => {
            let mut text = vec![0; length as usize + 2];
            reader.read_exact(&mut text)?;
            text.truncate(length as usize);
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        "*" => {
            let parts: Result<Vec<_>, _> = (0..length).map(|_| read_reply(reader)).collect();
            Ok(parts?.join("\n"))
        }
        "$" => Ok("(nil)".to_owned()),
        "-" => Ok(line.to_owned()),
        _ => Ok(rest.to_owned()),
    }
}

/// Each test binary compiles this file and uses a part of it; this names the rest.
const _: fn() = || {
    let _ = (RedisServer::pid, RedisServer::dir, RedisServer::address, RedisServer::command, free_port);
    let _ = (
        RedisServer::start,
        RedisServer::log_in,
        free_cluster_port,
        Make::all,
        RedisServer::lives,
        RedisServer::command_at,
    );
    let _ = (
        RedisServer::hang,
        RedisServer::go_on,
        RedisServer::kill,
        RedisServer::restart,
        RedisServer::is_gone,
    );
};
