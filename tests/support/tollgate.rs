//! The real binary: commands that end, and a service on ports of its own that ends with the test.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// So long is a line of the log waited for; only a failure takes it.
const LINE_MAX: Duration = Duration::from_secs(30);

/// The binary with nothing of the caller's environment, which may hold settings.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// What a command that ended has left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn run<A: AsRef<OsStr>, I: IntoIterator<Item = A>>(args: I) -> Ended {
    ended(command().args(args))
}

/// Runs a command that was prepared otherwise to its end.
pub(crate) fn ended(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().expect("the binary was built");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// A running service.
pub(crate) struct Served {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Served {
    /// Serves the rules in `dir` on free ports of the loopback, with these settings besides.
    pub(crate) fn start(dir: &Path, settings: &[(&str, &str)]) -> Self {
        let mut command = command();
        command.arg("serve").env("TOLLGATE_RULES", dir).env("THREADS", "1");
        for (host, port) in [("GRPC_HOST", "GRPC_PORT"), ("HOST", "PORT"), ("DEBUG_HOST", "DEBUG_PORT")] {
            command.env(host, "127.0.0.1").env(port, "0");
        }
        command.envs(settings.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary was built");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (send, lines) = channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines, seen: Vec::new() }
    }

    /// The address that the log names for `what`: `grpc`, `http` or `debug`.
    pub(crate) fn address(&mut self, what: &str) -> String {
        let told = format!("{what} listening on ");
        let line = self.line(&told);
        line.split_once(&told).expect("it was looked for").1.trim().to_owned()
    }

    /// Waits for a line of the log that contains this; one that has passed by counts.
    pub(crate) fn line(&mut self, wanted: &str) -> String {
        if let Some(line) = self.seen.iter().find(|line| line.contains(wanted)) {
            return line.clone();
        }
        loop {
            match self.lines.recv_timeout(LINE_MAX) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(wanted) {
                        return line;
                    }
                }
                Err(_) => panic!("no line of the log has {wanted:?}; it reads:\n{}", self.seen.join("\n")),
            }
        }
    }
}

impl Served {
    /// The service's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How many lines it has written so far, those counted that nobody waited for.
    pub(crate) fn lines(&mut self) -> usize {
        self.seen.extend(self.lines.try_iter());
        self.seen.len()
    }

    /// The log as far as it was waited for.
    pub(crate) fn log(&self) -> String {
        self.seen.join("\n")
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("there is kill(1)").success(), "the service ended before its signal");
    }

    /// Waits for the service to end by itself; `None` where a signal ended it.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        // Its log ends with it.
        loop {
            match self.lines.recv_timeout(LINE_MAX) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end:\n{}", self.seen.join("\n")),
            }
        }
        self.child.wait().expect("it is our child").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each test binary compiles this file and uses a part of it; this names the rest.
const _: fn() = || {
    let _ = (command, ended, run::<&str, [&str; 1]>, Served::start, Served::address, Served::line);
    let _ = (Served::pid, Served::log, Served::lines, Served::signal, Served::exit_code);
    let _ = |ended: Ended| (ended.code, ended.stdout, ended.stderr);
};
