//! A bad network: a TCP proxy before a server, whose [`Weather`] a test changes while connections are open.
//!
//! It reads just enough of the protocol to count the spends that pass. What happens to a reply happens to the bytes that
//! the server sends while the weather lasts, whole or in part.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Of bytes on their way.
const CHUNK: usize = 64 << 10;

/// What happens on the way from the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Weather {
    #[default]
    Fair,
    /// Every reply comes so much later; they do not wait for each other.
    Late(Duration),
    /// The first half of the next reply arrives, then the connection breaks. Afterwards it is fair.
    CutNext,
    /// What the server says vanishes, on each connection that is used meanwhile, until its end.
    Swallow,
    /// Bytes that are no protocol at all instead of the next reply. Afterwards it is fair.
    GarbageNext,
    /// No connection holds, none is made.
    Down,
}

/// Listens until it is dropped.
pub(crate) struct Proxy {
    /// On 127.0.0.1.
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    weather: Mutex<Weather>,
    server: AtomicU16,
    spends: AtomicUsize,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    carried: AtomicUsize,
    /// Which of them are heard no more.
    hung: Mutex<Vec<usize>>,
}

impl Proxy {
    /// Before the server on this port of the loopback.
    pub(crate) fn start(server: u16) -> Self {
        let proxy = Self::reserve();
        proxy.serve(server);
        proxy
    }

    /// Knows its own port, and not yet whom it stands before: connections end at once until [`serve`](Self::serve).
    pub(crate) fn reserve() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let state = Arc::<State>::default();
        let proxy = Self { port, state: state.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if state.ended.load(Ordering::SeqCst) {
                    return;
                }
                let state = state.clone();
                thread::spawn(move || carry(stream, &state));
            }
        });
        proxy
    }

    /// From now on it stands before this port.
    pub(crate) fn serve(&self, server: u16) {
        self.state.server.store(server, Ordering::SeqCst);
    }

    /// `host:port`
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// From now on, for open connections too.
    pub(crate) fn set(&self, weather: Weather) {
        *self.state.weather.lock().expect("no panic") = weather;
        if weather == Weather::Down {
            self.break_all();
        }
    }

    /// Whether what was to happen once has happened.
    pub(crate) fn is_fair(&self) -> bool {
        *self.state.weather.lock().expect("no panic") == Weather::Fair
    }

    /// Ends all connections.
    pub(crate) fn break_all(&self) {
        for stream in self.state.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From now on what the server says on this connection vanishes: the first one that was made is 0.
    pub(crate) fn hang(&self, connection: usize) {
        self.state.hung.lock().expect("no panic").push(connection);
    }

    /// How many connections were carried so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.carried.load(Ordering::SeqCst)
    }

    /// How many calls of a script have passed towards the server.
    pub(crate) fn spends(&self) -> usize {
        self.state.spends.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.break_all();
        // Wakes the listener, so that it sees the end.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Until one side ends it.
fn carry(client: TcpStream, state: &Arc<State>) {
    let port = state.server.load(Ordering::SeqCst);
    if port == 0 || *state.weather.lock().expect("no panic") == Weather::Down {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
    let number = state.carried.fetch_add(1, Ordering::SeqCst);
    let clone = |stream: &TcpStream| stream.try_clone().expect("a second handle of a socket");
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        state.open.lock().expect("no panic").push(clone(stream));
    }
    let (from_client, to_server) = (clone(&client), clone(&server));
    let counting = state.clone();
    thread::spawn(move || forth(from_client, to_server, &counting));
    let (send, due) = channel();
    let to_client = clone(&client);
    thread::spawn(move || write_when_due(to_client, &due));
    back(server, number, state, &send);
}

/// To the server, counted.
fn forth(mut client: TcpStream, mut server: TcpStream, state: &State) {
    const SPEND: &[u8] = b"EVALSHA";
    let mut chunk = vec![0; CHUNK];
    let mut tail = Vec::new();
    while let Ok(n @ 1..) = client.read(&mut chunk) {
        // One that begins in the last chunk is counted in this one.
        tail.extend_from_slice(&chunk[..n]);
        let spends = tail.windows(SPEND.len()).filter(|w| w.eq_ignore_ascii_case(SPEND)).count();
        state.spends.fetch_add(spends, Ordering::SeqCst);
        tail.drain(..tail.len().saturating_sub(SPEND.len() - 1));
        if server.write_all(&chunk[..n]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// To the client, as the weather is.
#[expect(clippy::disallowed_methods, reason = "a proxy's own clock")]
fn back(mut server: TcpStream, number: usize, state: &State, due: &Sender<(Instant, Vec<u8>)>) {
    let mut chunk = vec![0; CHUNK];
    let mut swallowed = false;
    while let Ok(n @ 1..) = server.read(&mut chunk) {
        let mut reply = chunk[..n].to_vec();
        let mut delay = Duration::ZERO;
        let mut breaks = false;
        {
            let mut weather = state.weather.lock().expect("no panic");
            match *weather {
                Weather::Fair => {}
                Weather::Late(by) => delay = by,
                Weather::CutNext => {
                    reply.truncate(n / 2);
                    (breaks, *weather) = (true, Weather::Fair);
                }
                Weather::Swallow => swallowed = true,
                Weather::GarbageNext => {
                    reply = b"\x16\x03\x01 this is no Redis\r\n\0\0\0\r\n".to_vec();
                    *weather = Weather::Fair;
                }
                Weather::Down => break,
            }
        }
        swallowed |= state.hung.lock().expect("no panic").contains(&number);
        // A client that saw a later reply and not this one would take it for this one's.
        if swallowed {
            continue;
        }
        if due.send((Instant::now() + delay, reply)).is_err() {
            break;
        }
        if breaks {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// Ends the connection when the last of it is written.
#[expect(clippy::disallowed_methods, reason = "a proxy's own clock")]
fn write_when_due(mut client: TcpStream, due: &Receiver<(Instant, Vec<u8>)>) {
    for (at, bytes) in due {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if client.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Each test binary compiles this file and uses a part of it; this names the rest.
const _: fn() = || {
    let _ = (Proxy::start, Proxy::address, Proxy::set, Proxy::is_fair, Proxy::break_all, Proxy::spends);
    let _ = (Proxy::hang, Proxy::connections);
    let _ = [
        Weather::Fair,
        Weather::Late(Duration::ZERO),
        Weather::CutNext,
        Weather::Swallow,
        Weather::GarbageNext,
        Weather::Down,
    ];
};
