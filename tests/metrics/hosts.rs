//! Hosts that take metrics, and what they took.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tollgate::clock::{Clock, SystemClock};

/// So long is waited for what has to happen; only a failure takes it.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// What a host took so far.
#[derive(Clone, Default)]
pub(crate) struct Taken(Arc<Mutex<Vec<Vec<u8>>>>);

/// A host that listens on TCP, and its port.
pub(crate) fn tcp(port: u16) -> (Taken, u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let taken = Taken::default();
    let host = taken.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (host, mut stream) = (host.clone(), stream.unwrap());
            thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    host.0.lock().unwrap().push(buffer[..read].to_vec());
                }
            });
        }
    });
    (taken, port)
}

/// A host that listens on UDP, and its port.
pub(crate) fn udp() -> (Taken, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let taken = Taken::default();
    let host = taken.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read) = socket.recv(&mut buffer) {
            host.0.lock().unwrap().push(buffer[..read].to_vec());
        }
    });
    (taken, port)
}

impl Taken {
    /// The longest that came at once.
    pub(crate) fn longest(&self) -> usize {
        self.0.lock().unwrap().iter().map(Vec::len).max().unwrap_or(0)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().concat()).unwrap()
    }

    /// The sums of all counters, as lines without the value.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        sums(&self.text())
    }

    /// Waits until a counter has this sum.
    pub(crate) async fn wait_for(&self, counter: &str, sum: u64) {
        let began = now();
        while self.counters().get(counter) != Some(&sum) {
            assert!(now() - began < SOON, "waited for {sum} {counter} in\n{}", self.text());
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// `name:3|c|#tags` adds 3 to `name|#tags`. A duration is a line for each call, or for several.
pub(crate) fn sums(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| !line.contains("|ms")) {
        let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("no value in {line:?}"));
        let (value, tags) = rest.split_once("|c").unwrap_or_else(|| panic!("no counter: {line:?}"));
        *sums.entry(format!("{name}{tags}")).or_insert(0) += value.parse::<u64>().unwrap();
    }
    sums
}

pub(crate) fn now() -> Instant {
    SystemClock.instant()
}

/// Status and body of a GET.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
