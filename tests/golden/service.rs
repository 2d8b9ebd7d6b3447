//! A service with the files of some cases, laid out and started as the reference wants it: `RUNTIME_ROOT` is a link to a
//! release, and the rules are in `RUNTIME_ROOT/ratelimit/config`.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::symlink,
    path::PathBuf,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::clock::{Clock, SystemClock};
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::support::{redis::RedisServer, tollgate::Served};
use crate::{
    case::{Case, Content},
    clock::{Span, seconds},
    files, wire,
};

/// So long is waited for what has to happen; only a failure takes it.
const SOON: Duration = Duration::from_secs(20);

/// So long may health take to follow a change of the rules.
const AT_ONCE: Duration = Duration::from_secs(2);

pub(crate) struct Service {
    _served: Served,
    channel: Channel,
    http: String,
    debug: String,
    dir: TempDir,
    files: BTreeMap<String, Content>,
    /// The folder of the rules below a release.
    below: String,
    version: u32,
    in_place: bool,
}

/// Status, type and body.
type Reply = (u16, String, String);

impl Service {
    /// Ready to answer, except where a case is about one that is not.
    pub(crate) async fn start(cases: &[Case], env: &[(&str, &str)], redis: [&RedisServer; 2]) -> Self {
        let first = &cases[0];
        let mut env: BTreeMap<String, String> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        env.extend(first.env());
        let dir = tempfile::tempdir().unwrap();
        let app = env.get("RUNTIME_APPDIRECTORY").map_or("config", String::as_str);
        let below = format!("ratelimit/{app}");
        env.extend([
            ("TOLLGATE_RULES".to_owned(), String::new()),
            ("RUNTIME_ROOT".to_owned(), dir.path().join("current").display().to_string()),
            ("RUNTIME_SUBDIRECTORY".to_owned(), "ratelimit".to_owned()),
            ("REDIS_SOCKET_TYPE".to_owned(), "tcp".to_owned()),
            ("REDIS_URL".to_owned(), redis[0].address()),
            ("USE_STATSD".to_owned(), "false".to_owned()),
        ]);
        if env.contains_key("REDIS_PERSECOND") {
            env.insert("REDIS_PERSECOND_SOCKET_TYPE".to_owned(), "tcp".to_owned());
            env.insert("REDIS_PERSECOND_URL".to_owned(), redis[1].address());
        }
        let files = cases.iter().flat_map(|case| case.files(cases.len() > 1)).collect();
        release(&dir, 1, &below, &files);
        let settings: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut served = Served::start(dir.path(), &settings);
        let [grpc, http, debug] = ["grpc", "http", "debug"].map(|what| served.address(what));
        let channel = Channel::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        let in_place = env.get("RUNTIME_WATCH_ROOT").is_some_and(|value| value == "false");
        let service = Self { _served: served, channel, http, debug, dir, files, below, version: 1, in_place };
        service.until_ready(first.is("any_health")).await;
        service
    }

    async fn until_ready(&self, in_any_health: bool) {
        let ready = || self.fetch(&self.http, "GET", "/ready", None).2;
        if in_any_health {
            until(SOON, async || !ready().contains("none are loaded") || ready().contains("not in force"))
                .await;
        } else {
            let serving = async || self.health("ratelimit").await == json!({"status": "SERVING"});
            assert!(until(SOON, serving).await, "it is not ready:\n{}", ready());
        }
    }

    /// What a step answers. `domain` is meant where a question names none; `domains` are those of the case.
    pub(crate) async fn step(&mut self, step: &Value, domains: &[String], redis: &mut RedisServer) -> Value {
        if let Some(ask) = step.get("ask") {
            let from = seconds();
            let domain = domains.first().map_or("", String::as_str);
            let answered = wire::call(&self.channel, wire::question(ask, domain)).await;
            return wire::answer(&answered, Span { from, to: seconds() });
        }
        if let Some(http) = step.get("http") {
            let probe = http["path"] == "/healthcheck";
            let mut told = self.http(http, domains);
            if probe {
                // Health follows the rules at once, but not before.
                until(AT_ONCE, async || {
                    told = self.http(http, domains);
                    told == step["answer"]
                })
                .await;
            }
            return told;
        }
        if let Some(service) = step.get("health") {
            let service = service.as_str().unwrap();
            let mut told = Value::Null;
            until(AT_ONCE, async || {
                told = self.health(service).await;
                crate::compare::step(step, &told).is_empty()
            })
            .await;
            return told;
        }
        if let Some(reload) = step.get("reload") {
            return self.reload(reload).await;
        }
        match step["redis"].as_str() {
            Some("gone") => redis.kill(),
            Some("flushed") => assert_eq!(redis.command(&["FLUSHALL"]), "OK"),
            _ => panic!("a step of no known kind: {step}"),
        }
        Value::Null
    }

    async fn health(&self, service: &str) -> Value {
        let request = HealthCheckRequest { service: service.to_owned() };
        match HealthClient::new(self.channel.clone()).check(request).await {
            Ok(answer) => json!({"status": answer.into_inner().status().as_str_name()}),
            Err(status) => json!({"error": wire::code(status.code())}),
        }
    }

    /// Of a refusal only the status, of `/rlconfig` the sorted lines of the case's domains.
    fn http(&self, of: &Value, domains: &[String]) -> Value {
        let address = if of["port"] == "debug" { &self.debug } else { &self.http };
        let body = of["body"].as_str();
        let method = of["method"].as_str().unwrap_or(if body.is_some() { "POST" } else { "GET" });
        let path = of["path"].as_str().unwrap();
        let from = seconds();
        let (status, kind, text) = self.fetch(address, method, path, body);
        let asked = Span { from, to: seconds() };
        if status >= 400 && status != 429 {
            return json!({"status": status});
        }
        if path == "/rlconfig" {
            let of_domains =
                |line: &&str| domains.iter().any(|domain| line.starts_with(&format!("{domain}.")));
            let mut lines: Vec<&str> = text.lines().filter(of_domains).collect();
            lines.sort_unstable();
            return json!({"status": status, "lines": lines});
        }
        if kind == "application/json" {
            let mut answer: Value = serde_json::from_str(&text).unwrap();
            for of in answer["statuses"].as_array_mut().into_iter().flatten() {
                let unit = of["currentLimit"]["unit"].as_str().unwrap_or("UNKNOWN").to_owned();
                if let Some(reset) = of["durationUntilReset"].as_str() {
                    let seconds = reset.trim_end_matches('s').parse().unwrap();
                    of["durationUntilReset"] = asked.reset(seconds, &unit).into();
                }
            }
            return json!({"status": status, "type": kind, "json": answer});
        }
        json!({"status": status, "text": text})
    }

    /// New rule files, each where it is or all at once by another release; `null` takes one away. Answers whether the rules
    /// in force have changed.
    async fn reload(&mut self, reload: &Value) -> Value {
        let rlconfig = || self.fetch(&self.debug, "GET", "/rlconfig", None).2;
        let ready = || self.fetch(&self.http, "GET", "/ready", None).2;
        let before = (rlconfig(), refusal(&ready()).map(str::to_owned));
        // Half of a file, while it is written, is refused for a moment.
        let half = reload["how"] == "write";
        let mut files = self.files.clone();
        for (name, of) in reload["files"].as_object().unwrap() {
            match of {
                Value::Null => files.remove(name),
                of => files.insert(name.clone(), crate::case::content(of)),
            };
            if self.in_place {
                self.change(name, files.get(name), half);
            }
        }
        if !self.in_place {
            release(&self.dir, self.version + 1, &self.below, &files);
        }
        let mut changed = false;
        let told = until(SOON, async || {
            changed = rlconfig() != before.0;
            let body = ready();
            let refused = refusal(&body);
            changed || (!half && refused.is_some() && refused != before.1.as_deref())
        });
        assert!(told.await, "nothing became of new files: {reload}\n{}", ready());
        self.version += 1;
        self.files = files;
        json!({"rules": if changed { "changed" } else { "same" }})
    }

    fn change(&self, name: &str, content: Option<&Content>, half: bool) {
        let path = self.dir.path().join("current").join(&self.below).join(name);
        match content {
            None => fs::remove_file(path).unwrap(),
            Some(Content::Bytes(bytes)) if half => fs::write(path, bytes).unwrap(),
            Some(Content::Bytes(bytes)) => {
                let whole = self.dir.path().join("whole");
                fs::write(&whole, bytes).unwrap();
                fs::rename(whole, path).unwrap();
            }
            Some(Content::Link(target)) => panic!("a case that links to {target} while it runs"),
        }
    }

    fn fetch(&self, address: &str, method: &str, path: &str, body: Option<&str>) -> Reply {
        let body = body.unwrap_or("");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or("");
        (status, kind.to_owned(), body.to_owned())
    }
}

/// What `/ready` says about a change of the rules that was refused.
fn refusal(ready: &str) -> Option<&str> {
    let told = &ready[ready.find("the last change of the rules is not in force")?..];
    Some(told.split("\nstore ").next().unwrap_or(told))
}

/// Writes a release and points the root at it in one step.
fn release(dir: &TempDir, version: u32, below: &str, files: &BTreeMap<String, Content>) {
    let name = format!("release-{version}");
    let rules: PathBuf = dir.path().join(&name).join(below);
    fs::create_dir_all(&rules).unwrap();
    files::write(&rules, files);
    let next = dir.path().join("next");
    symlink(name, &next).unwrap();
    fs::rename(next, dir.path().join("current")).unwrap();
}

/// Asks again and again until it is so; whether it was in time.
pub(crate) async fn until(within: Duration, mut so: impl AsyncFnMut() -> bool) -> bool {
    let began = SystemClock.instant();
    while !so().await {
        if SystemClock.instant() - began > within {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}
