//! Sends what was counted to statsd, again and again, and holds up nobody.
//!
//! It is a task of its own on the main thread, where no request is answered. Every step has a bound: looking the host up,
//! connecting, each write. What a host that is gone did not take is kept (counters are numbers, so that costs nothing) and
//! sent when it is back.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket, lookup_host},
    sync::oneshot,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    metrics::{Metrics, statsd::Format},
    settings::{Protocol, Statsd},
};

/// How long looking up, connecting or one write may take. A host that is slower is as good as gone.
const STEP_MAX: Duration = Duration::from_secs(1);

/// How long the last flush of an ending process may take.
const LAST_MAX: Duration = Duration::from_secs(2);

/// Datagrams that no network of 1500 bytes takes apart, as the reference sends them.
const DATAGRAM_MAX: usize = 1432;

/// Of a stream, written at once.
const CHUNK_MAX: usize = 16 << 10;

/// The task, at work.
#[derive(Debug)]
pub(super) struct Flushing {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Flushing {
    /// Begins.
    pub(super) fn start(statsd: Statsd, format: Format, metrics: Arc<Metrics>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let sender = Sender { statsd, format, metrics, connection: None, lost: false };
        Self { stop, task: tokio::spawn(sender.run(stopped)) }
    }

    /// Sends what is left, as far as that is possible in a moment.
    pub(super) async fn stop(self) {
        drop(self.stop);
        let _ = timeout(LAST_MAX, self.task).await;
    }
}

struct Sender {
    statsd: Statsd,
    format: Format,
    metrics: Arc<Metrics>,
    connection: Option<Connection>,
    /// Whether the log was told that the host is gone.
    lost: bool,
}

enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Sender {
    async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut ticks = interval(self.statsd.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first one comes at once, when there is nothing to tell.
        ticks.tick().await;
        loop {
            let stopped = tokio::select! {
                _ = &mut stop => true,
                _ = ticks.tick() => false,
            };
            let flushed = self.flush().await;
            self.tell(flushed);
            if stopped {
                return;
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let Some(reference) = &self.metrics.reference else { return Ok(()) };
        let max = if self.statsd.protocol == Protocol::Udp { DATAGRAM_MAX } else { CHUNK_MAX };
        let packets = self.format.packets(reference, max);
        if packets.is_empty() {
            return Ok(());
        }
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => in_time(connect(&self.statsd)).await?,
        };
        for packet in &packets {
            in_time(connection.send(packet.text.as_bytes())).await?;
            packet.sent(reference);
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// One line when the host is lost, and one when it is back.
    fn tell(&mut self, flushed: io::Result<()>) {
        let Statsd { host, port, .. } = &self.statsd;
        match (flushed, self.lost) {
            (Err(error), false) => {
                let kept = "metrics are kept until it is back";
                tracing::warn!(
                    "statsd at {host}:{port} (STATSD_HOST, STATSD_PORT) takes nothing: {error}; {kept}"
                );
                self.lost = true;
            }
            (Ok(()), true) => {
                tracing::info!("statsd at {host}:{port} is back");
                self.lost = false;
            }
            (Ok(()), false) | (Err(_), true) => {}
        }
    }
}

impl Connection {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes).await,
            Self::Udp(socket) => socket.send(bytes).await.map(drop),
        }
    }

    /// Statsd answers nothing; what can be read is the end.
    fn is_open(&self) -> bool {
        match self {
            Self::Tcp(stream) => {
                let read = stream.try_read(&mut [0; 64]);
                matches!(read, Ok(1..)) || read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Self::Udp(_) => true,
        }
    }
}

async fn connect(statsd: &Statsd) -> io::Result<Connection> {
    let mut last = io::Error::other("the name has no address");
    for address in lookup_host((statsd.host.as_str(), statsd.port)).await? {
        let connected = match statsd.protocol {
            Protocol::Tcp => TcpStream::connect(address).await.map(Connection::Tcp),
            Protocol::Udp => {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).await?;
                socket.connect(address).await.map(|()| Connection::Udp(socket))
            }
        };
        match connected {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STEP_MAX, step).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
