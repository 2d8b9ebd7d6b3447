//! What a decision costs: CPU a request of the whole server process, beside a server that decides nothing.
//!
//! A time alone says little: it is mostly the price of gRPC on this machine on this day. So the floor is measured in
//! the same run: a service with the same message types and the same threads (one runtime a core, connections dealt
//! round robin) that answers OK at once. The ratio to it is what Tollgate adds, and can be compared across machines.
//!
//! CPU is what the kernel has charged to the server process (`utime + stime` of `/proc/PID/stat`), not time on a
//! clock, since client and server share the cores. The servers take turns, so that a machine that slows down slows
//! all of them, and the median of the turns counts. Each is compared with the floor of its own question: one descriptor, or
//! three whose counters are on three shards of a cluster.
//!
//! `cargo bench --bench decision`. Needs h2load (package nghttp2-client), and redis-server for its part.

mod support {
    #[path = "../../tests/support/redis.rs"]
    pub(crate) mod redis;
}
#[path = "../tests/support/cluster.rs"]
mod cluster;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    io::{self, BufRead, BufReader},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use cluster::{Cluster, Plan, slot_of};
use prost::Message;
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        rate_limit_service_client::RateLimitServiceClient,
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Requests of one turn: at 10 µs each 2 s of CPU, where the kernel's 10 ms ticks are half a percent.
const REQUESTS: u64 = 200_000;
const CONNECTIONS: u64 = 8;
/// Requests in flight on each connection.
const STREAMS: u64 = 16;
const TURNS: usize = 5;

/// The rows behind one are compared with it.
const FLOOR: &str = "no-op (the floor)";

/// `USER_HZ`, the unit of `/proc/PID/stat`: fixed at 100 for user space on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// Each line is one algorithm; the limit is never reached, so that all requests take the same way.
const RULES: &str = "\
domain: bench
descriptors:
  - { key: token_bucket, rate_limit: { unit: second, requests_per_unit: 4294967295, algorithm: token_bucket } }
  - { key: fixed_window, rate_limit: { unit: year, requests_per_unit: 4294967295, algorithm: fixed_window } }
";

fn main() -> Result<()> {
    if env::args().nth(1).as_deref() == Some("floor") {
        return floor();
    }
    if Command::new("h2load").arg("--version").output().is_err() {
        println!("not measured: h2load is not on PATH (Debian: apt-get install nghttp2-client)");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let rules = folder.path().join("rules");
    fs::create_dir(&rules)?;
    fs::write(rules.join("bench.yaml"), RULES)?;

    let redis = redis(folder.path())?;
    let one = |algorithm: &str| question(algorithm, &["ann".to_owned()]);
    let mut servers = vec![
        Contestant::new(FLOOR, one("token_bucket"), start_floor()?),
        Contestant::new("memory, token_bucket", one("token_bucket"), tollgate(&rules, &[])?),
        Contestant::new("memory, fixed_window", one("fixed_window"), tollgate(&rules, &[])?),
    ];
    let mut of_shards = None;
    match &redis {
        Some((_, url)) => {
            for algorithm in ["token_bucket", "fixed_window"] {
                let server = tollgate(&rules, &[("REDIS_URL", url)])?;
                servers.push(Contestant::new(&format!("redis, {algorithm}"), one(algorithm), server));
            }
            let cluster = of_shards.insert(Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() }));
            let three = question("token_bucket", &one_of_each_shard(cluster));
            servers.push(Contestant::new(FLOOR, three.clone(), start_floor()?));
            let urls = cluster.addresses();
            let server = tollgate(&rules, &[("REDIS_TYPE", "cluster"), ("REDIS_URL", &urls)])?;
            servers.push(Contestant::new("cluster, 3 on 3 shards", three, server));
        }
        None => println!("redis is not measured: redis-server is not on PATH"),
    }
    for turn in 0..TURNS {
        for server in &mut servers {
            server.turn(folder.path(), redis.as_ref().map(|(redis, _)| redis), turn)?;
        }
    }
    report(&servers);
    Ok(())
}

/// Values whose counters are on one shard each.
fn one_of_each_shard(cluster: &Cluster) -> Vec<String> {
    let on = |shard: usize| {
        let mut values = (0..).map(|i| format!("user{i}"));
        let key = |value: &str| format!("tg:bench:token_bucket={value}:token_bucket");
        let found = values.find(|value| cluster.owner(slot_of(key(value).as_bytes())) == Some(shard));
        found.expect("keys spread over all shards")
    };
    (0..cluster.nodes.len()).map(on).collect()
}

fn report(servers: &[Contestant]) {
    let mut floor = 0.0;
    println!(
        "\nCPU a request in µs (median of {TURNS} turns of {REQUESTS} requests, {CONNECTIONS} connections of {STREAMS} streams)"
    );
    println!("{:24} {:>7} {:>8} {:>9} {:>9}   turns", "server", "µs", "ratio", "redis µs", "requests/s");
    for server in servers {
        let cpu = median(&server.cpu_us);
        if server.name == FLOOR {
            floor = cpu;
        }
        let turns: Vec<String> = server.cpu_us.iter().map(|us| format!("{us:.1}")).collect();
        let redis = if server.name.starts_with("redis") {
            format!("{:.1}", median(&server.redis_us))
        } else {
            String::new()
        };
        println!(
            "{:24} {cpu:>7.2} {:>8.2} {redis:>9} {:>9.0}   {}",
            server.name,
            cpu / floor,
            median(&server.per_second),
            turns.join(" ")
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

// === Measuring ===

struct Contestant {
    name: String,
    question: RateLimitRequest,
    server: Server,
    cpu_us: Vec<f64>,
    redis_us: Vec<f64>,
    per_second: Vec<f64>,
}

impl Contestant {
    fn new(name: &str, question: RateLimitRequest, server: Server) -> Self {
        Self { name: name.into(), question, server, cpu_us: vec![], redis_us: vec![], per_second: vec![] }
    }

    fn turn(&mut self, folder: &Path, redis: Option<&Server>, turn: usize) -> Result<()> {
        self.check()?;
        let body = folder.join("body");
        fs::write(&body, framed(&self.question))?;
        let before = (self.server.cpu_us()?, redis.map_or(Ok(0), Server::cpu_us)?);
        let per_second = load(&self.server.address, &body)?;
        let after = (self.server.cpu_us()?, redis.map_or(Ok(0), Server::cpu_us)?);
        self.check()?;

        let each = |us: u64| us as f64 / REQUESTS as f64;
        self.cpu_us.push(each(after.0 - before.0));
        self.redis_us.push(each(after.1 - before.1));
        self.per_second.push(per_second);
        println!("turn {}: {:24} {:>6.2} µs", turn + 1, self.name, each(after.0 - before.0));
        Ok(())
    }

    /// One real call: a server that refuses or fails at once would look fast.
    fn check(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(async {
            let mut client =
                RateLimitServiceClient::connect(format!("http://{}", self.server.address)).await?;
            Ok::<_, Box<dyn Error>>(client.should_rate_limit(self.question.clone()).await?.into_inner())
        })?;
        if answer.overall_code() != Code::Ok || answer.statuses.len() != self.question.descriptors.len() {
            return Err(format!("{} answers {answer:?}", self.name).into());
        }
        Ok(())
    }
}

/// Runs h2load, and returns requests a second.
fn load(address: &str, body: &Path) -> Result<f64> {
    let output = Command::new("h2load")
        .args(["-n", &REQUESTS.to_string(), "-c", &CONNECTIONS.to_string(), "-m", &STREAMS.to_string(), "-d"])
        .arg(body)
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .arg(format!("http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A gRPC error without a message travels as headers alone, so its answers are much shorter than those of a
    // success: the bytes of data tell the two apart, which the status (200 for both) does not.
    if !text.contains(&format!("{REQUESTS} succeeded, 0 failed")) || text.contains("(0) data") {
        return Err(format!("not all requests succeeded:\n{text}").into());
    }
    let rate = text.lines().find_map(|line| line.split_once("s, ")?.1.split_once(" req/s")?.0.parse().ok());
    rate.ok_or_else(|| format!("h2load says no rate:\n{text}").into())
}

/// A descriptor for each value.
fn question(key: &str, values: &[String]) -> RateLimitRequest {
    let descriptor = |value: &String| {
        let entry = Entry { key: key.to_owned().into(), value: value.clone().into() };
        RateLimitDescriptor { entries: vec![entry], ..Default::default() }
    };
    RateLimitRequest {
        domain: "bench".into(),
        descriptors: values.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// A message as gRPC frames it: not compressed, its length, itself.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("a question is short");
    [&[0], &length.to_be_bytes()[..], &bytes].concat()
}

// === Servers ===

/// A child that listens, ended when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// `line` marks the line of its output that ends with its address.
    fn start(mut command: Command, line: &str) -> Result<Self> {
        let what = format!("{command:?}");
        let (output, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn()?;
        // It holds our ends for writing: the output of a child that ended would not end.
        drop(command);
        let mut output = BufReader::new(output).lines();
        let address = loop {
            let Some(text) = output.next().transpose()? else {
                return Err(format!("{what} ended without a line '{line}'").into());
            };
            if let Some((_, address)) = text.split_once(line) {
                break address.trim().to_owned();
            }
        };
        // A pipe that nobody empties would stop the child.
        thread::spawn(move || output.for_each(drop));
        Ok(Self { child, address })
    }

    /// User and system time so far, in microseconds.
    fn cpu_us(&self) -> Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name in parentheses may hold anything; utime and stime are the 12th and 13th field behind it.
        let (_, fields) = stat.rsplit_once(')').ok_or("no name in /proc/PID/stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(ticks * 1_000_000 / TICKS_PER_SECOND)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tollgate(rules: &Path, redis: &[(&'static str, &str)]) -> Result<Server> {
    let mut settings = BTreeMap::from([
        ("GRPC_HOST", "127.0.0.1"),
        ("HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("PORT", "0"),
        ("DEBUG_PORT", "0"),
        // The load leaves Redis no core of its own; a slow answer is to be measured, not cut.
        ("STORE_TIMEOUT", "1s"),
    ]);
    settings.extend(redis.iter().copied());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("serve").arg("--rules").arg(rules).envs(settings);
    Server::start(command, "grpc listening on ")
}

fn start_floor() -> Result<Server> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("floor");
    Server::start(command, "grpc listening on ")
}

/// A Redis of our own, and its URL; `None` where there is none to start.
fn redis(folder: &Path) -> Result<Option<(Server, String)>> {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return Ok(None);
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder);
    let server = Server::start(command, "eady to accept connections")?;
    Ok(Some((server, format!("redis://127.0.0.1:{port}"))))
}

// === The floor ===

/// Serves the no-op, with Tollgate's threads: one runtime a core, connections dealt round robin.
fn floor() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("grpc listening on {}", listener.local_addr()?);
    let runtimes = thread::available_parallelism()?.get();
    let threads: Vec<_> = (0..runtimes).map(|_| serve_no_op()).collect();
    for (n, stream) in listener.incoming().enumerate() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        threads[n % runtimes].send(stream)?;
    }
    Ok(())
}

fn serve_no_op() -> tokio::sync::mpsc::UnboundedSender<TcpStream> {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime needs only file descriptors").block_on(async {
            let (accepted, incoming) = tokio::sync::mpsc::channel(64);
            tokio::spawn(async move {
                while let Some(stream) = receiver.recv().await {
                    if accepted.send(tokio::net::TcpStream::from_std(stream)).await.is_err() {
                        break;
                    }
                }
            });
            let incoming = tokio_stream::wrappers::ReceiverStream::new(incoming);
            let served = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(NoOp));
            served.serve_with_incoming(incoming).await
        })
    });
    sender
}

struct NoOp;

#[tonic::async_trait]
impl RateLimitService for NoOp {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> std::result::Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        let limit = RateLimit { requests_per_unit: u32::MAX, unit: Unit::Hour.into(), name: String::new() };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(limit),
            limit_remaining: 9,
            ..Default::default()
        };
        Ok(tonic::Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status; request.into_inner().descriptors.len()],
            ..Default::default()
        }))
    }
}
