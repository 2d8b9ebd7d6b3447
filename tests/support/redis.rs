//! A real `redis-server`, started for one test on a port of its own and ended with it.
//!
//! It keeps nothing on disk but in a directory that vanishes too. A test can hang it (SIGSTOP), let it run on, end it
//! and start it again on the same port, and talk to it as `redis-cli` would.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long a server may take to answer its first PING. It takes some 10 ms; a busy machine may need more.
const START_MAX: Duration = Duration::from_secs(20);

/// Another process may take a free port between our look and the server's bind.
const START_TRIES: usize = 5;

/// A running server.
pub(crate) struct RedisServer {
    /// On 127.0.0.1.
    pub(crate) port: u16,
    args: Vec<String>,
    child: Child,
    dir: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server with these arguments behind our own, such as `["--requirepass", "secret"]`.
    pub(crate) fn start(extra_args: &[&str]) -> Self {
        let args: Vec<String> = extra_args.iter().map(|arg| (*arg).to_owned()).collect();
        for _ in 0..START_TRIES {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let port = free_port();
            let child = spawn(port, dir.path(), &args);
            let mut server = Self { port, args: args.clone(), child, dir };
            if server.answers() {
                return server;
            }
        }
        panic!("redis-server does not start with {args:?}");
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

    fn try_command(&self, args: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        stream.write_all(request.as_bytes())?;
        read_reply(&mut BufReader::new(stream))
    }

    /// Stops answering, with all connections open: a server that hangs.
    pub(crate) fn hang(&self) {
        self.signal("STOP");
    }

    /// Ends [`hang`](Self::hang).
    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    /// Dies at once, without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// Starts again on the same port, empty.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, self.dir.path(), &self.args);
        assert!(self.answers(), "redis-server does not start again on port {}", self.port);
    }

    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot send SIG{name}");
    }

    /// Polls until the server answers anything at all; false when it ended instead.
    #[expect(clippy::disallowed_methods, reason = "a test's deadline")]
    fn answers(&mut self) -> bool {
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

fn spawn(port: u16, dir: &std::path::Path, extra_args: &[String]) -> Child {
    // With TLS the one port speaks TLS only.
    let tls = extra_args.iter().any(|arg| arg == "--tls-port");
    let port = port.to_string();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", if tls { "0" } else { &port }]);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
    command.arg("--dir").arg(dir);
    command.args(extra_args.iter().map(|arg| if arg == "PORT" { &port } else { arg }));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("redis-server is installed (tests/run does that)")
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
        RedisServer::hang,
        RedisServer::go_on,
        RedisServer::kill,
        RedisServer::restart,
        RedisServer::is_gone,
    );
};
