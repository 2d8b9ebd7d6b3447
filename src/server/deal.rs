//! Which thread gets a connection: the one that carries least.
//!
//! A connection stays on one thread for as long as it lives, and an Envoy opens one a worker, which may be two in all. Dealt
//! round robin, a probe between these two sends both to one thread, and the other thread's core has nothing to do until
//! they end. So threads are compared by what they carry at this moment; among equals one comes after the other.
//!
//! A connection that asks for other things than limits (health, reflection) hardly counts, but may begin to at any moment.
//! What its first request is nobody knows when it is dealt, so until then it counts, if a little less.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    watch,
};

use super::socket::Accepted;

/// Connections that wait for their thread: as many as arrive while it is at work for a moment.
const CONNECTIONS_WAITING_MAX: usize = 256;

/// What a connection weighs that asks for limits.
const ASKS: usize = 256;

/// What one weighs that has asked for nothing yet. Where all else is equal, who only connects and leaves gives way.
const SILENT: usize = ASKS - 1;

/// What one weighs that asks for other things: nothing, but where all else is equal.
const PROBE: usize = 1;

/// A connection on its way to its thread.
pub(super) type Dealt = (Accepted, Carried);

/// What a thread carries.
type Load = Arc<AtomicUsize>;

/// Deals connections.
#[derive(Debug)]
pub(super) struct Dealer {
    threads: Vec<(mpsc::Sender<Dealt>, Load)>,
    /// Who is asked first.
    turn: usize,
    /// Dropped with the dealer, which is what connections without a word wait for.
    _open: watch::Sender<()>,
}

impl Dealer {
    /// Deals to nobody yet. `open` closes with it.
    pub(super) fn new(open: watch::Sender<()>) -> Self {
        Self { threads: Vec::new(), turn: 0, _open: open }
    }

    /// What a further thread is dealt.
    pub(super) fn thread(&mut self) -> mpsc::Receiver<Dealt> {
        let (queue, connections) = mpsc::channel(CONNECTIONS_WAITING_MAX);
        self.threads.push((queue, Load::default()));
        connections
    }

    /// Gives a connection to the thread that carries least of those that take one; waits while all are busy. A connection
    /// that broke on the way here is nobody's.
    pub(super) async fn deal(&mut self, connection: io::Result<Accepted>) {
        let Ok(mut connection) = connection else { return };
        for thread in self.by_load() {
            let (queue, load) = &self.threads[thread];
            match queue.try_send((connection, Carried::by(load))) {
                Ok(()) => {
                    self.turn = thread + 1;
                    return;
                }
                Err(TrySendError::Full((back, _)) | TrySendError::Closed((back, _))) => connection = back,
            }
        }
        if let Some(&thread) = self.by_load().first() {
            let (queue, load) = &self.threads[thread];
            let _ = queue.send((connection, Carried::by(load))).await;
            self.turn = thread + 1;
        }
    }

    /// All threads, who carries least first.
    fn by_load(&self) -> Vec<usize> {
        let threads = self.threads.len();
        let mut order: Vec<usize> = (0..threads).map(|i| (self.turn + i) % threads).collect();
        // Looked up once each, since connections end meanwhile; a stable sort keeps the turn among equals.
        order.sort_by_cached_key(|&thread| self.threads[thread].1.load(Ordering::Relaxed));
        order
    }
}

/// What a connection adds to the load of its thread until it is dropped.
#[derive(Debug)]
pub(super) struct Carried {
    load: Load,
    weight: usize,
    /// It has asked for limits, so its weight does not change any more.
    is_settled: bool,
}

impl Carried {
    fn by(load: &Load) -> Self {
        load.fetch_add(SILENT, Ordering::Relaxed);
        Self { load: Arc::clone(load), weight: SILENT, is_settled: false }
    }

    /// It asks for something; for limits, if `is_for_limits` says so.
    pub(super) fn asks(&mut self, is_for_limits: impl FnOnce() -> bool) {
        if self.is_settled {
            return;
        }
        self.is_settled = is_for_limits();
        let weight = if self.is_settled { ASKS } else { PROBE };
        self.load.fetch_add(weight, Ordering::Relaxed);
        self.load.fetch_sub(self.weight, Ordering::Relaxed);
        self.weight = weight;
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.load.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A dealer and its threads' ends.
    struct Table {
        dealer: Dealer,
        threads: Vec<mpsc::Receiver<Dealt>>,
    }

    impl Table {
        fn of(threads: usize) -> Self {
            let mut dealer = Dealer::new(watch::Sender::new(()));
            let threads = (0..threads).map(|_| dealer.thread()).collect();
            Self { dealer, threads }
        }

        /// Which thread gets the next connection, and what that adds.
        async fn next(&mut self) -> (usize, Carried) {
            self.dealer.deal(connection()).await;
            let dealt = self.threads.iter_mut().map(mpsc::Receiver::try_recv).enumerate();
            let mut dealt = dealt.filter_map(|(thread, dealt)| Some((thread, dealt.ok()?.1)));
            let (thread, carried) = dealt.next().expect("it was dealt");
            (thread, carried)
        }
    }

    fn connection() -> io::Result<Accepted> {
        Ok(Accepted::Unix(UnixStream::pair()?.0))
    }

    #[tokio::test]
    async fn equals_come_one_after_the_other() {
        let mut table = Table::of(3);
        let mut open = Vec::new();
        for want in [0, 1, 2, 0, 1, 2, 0] {
            let (thread, carried) = table.next().await;
            assert_eq!(thread, want);
            open.push(carried);
        }
    }

    #[tokio::test]
    async fn two_connections_are_on_two_threads_after_any_number_of_short_ones() {
        for short in 0..5 {
            let mut table = Table::of(2);
            let (first, _lives) = table.next().await;
            for _ in 0..short {
                table.next().await;
            }
            assert_ne!(table.next().await.0, first, "after {short}");
        }
    }

    #[tokio::test]
    async fn who_lives_long_counts_and_who_has_gone_does_not() {
        let mut table = Table::of(2);
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(table.next().await);
        }
        all.retain(|(thread, _)| *thread == 0);
        // Four are left, all on one thread; the next four make it even.
        for _ in 0..4 {
            let next = table.next().await;
            assert_eq!(next.0, 1);
            all.push(next);
        }
    }

    #[tokio::test]
    async fn an_open_probe_sends_no_two_connections_to_one_thread() {
        let mut table = Table::of(2);
        let (first, mut busy) = table.next().await;
        busy.asks(|| true);
        let (other, mut probe) = table.next().await;
        probe.asks(|| false);
        let (second, _lives) = table.next().await;
        assert_eq!(second, other);
        assert_ne!(second, first);
        // It begins to ask for limits, and counts.
        probe.asks(|| true);
        assert_eq!(table.next().await.0, first);
    }

    #[tokio::test]
    async fn who_only_connects_sends_no_two_connections_to_one_thread_either() {
        let mut table = Table::of(2);
        let (first, mut busy) = table.next().await;
        busy.asks(|| true);
        let (other, _silent) = table.next().await;
        assert_eq!(table.next().await.0, other);
        assert_ne!(other, first);
    }

    #[tokio::test]
    async fn a_thread_that_takes_none_is_passed_over_and_counts_nothing_for_it() {
        let mut table = Table::of(2);
        for _ in 0..2 * CONNECTIONS_WAITING_MAX {
            table.dealer.deal(connection()).await;
        }
        table.threads.pop();
        let queue = &mut table.threads[0];
        assert_eq!(queue.len(), CONNECTIONS_WAITING_MAX);
        let one = queue.recv().await;
        drop(one);
        table.dealer.deal(connection()).await;
        assert_eq!(table.threads[0].len(), CONNECTIONS_WAITING_MAX);
        assert_eq!(table.dealer.threads[1].1.load(Ordering::Relaxed), 0);
    }
}
