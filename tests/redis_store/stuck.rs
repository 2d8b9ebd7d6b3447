//! Several connections to one server, of which one is stuck: the server is well, so its breaker must not keep the others
//! from it; and when all are stuck, it is the server.

use std::{sync::Arc, thread, time::Duration};

use tokio::sync::{mpsc, oneshot};
use tollgate::store::{
    Store, StoreError,
    redis::{RedisConfig, RedisStore},
};

use crate::{chaos::Proxy, config, eventually, spend, support::redis::RedisServer};

/// Long enough for a busy machine to answer, and short enough to wait for.
const TIMEOUT: Duration = Duration::from_millis(250);

type Answer = Result<bool, StoreError>;

/// A runtime of its own, which has a connection of its own.
struct Thread(mpsc::UnboundedSender<oneshot::Sender<Answer>>);

impl Thread {
    fn start(store: Arc<RedisStore>) -> Self {
        let (send, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<Answer>>();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                store.connect_here();
                while let Some(answer) = asked.recv().await {
                    let _ = answer.send(spend(&store, "tg:a", 1_000_000).await);
                }
            });
        });
        Self(send)
    }

    async fn spend(&self) -> Answer {
        let (send, answer) = oneshot::channel();
        self.0.send(send).unwrap();
        answer.await.unwrap()
    }
}

/// A server, and two threads that are connected to it, the first one over connection 0.
async fn two_threads() -> (RedisServer, Proxy, Arc<RedisStore>, [Thread; 2]) {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port);
    let settings = RedisConfig {
        timeout: TIMEOUT,
        kind: Some(tollgate::settings::RedisType::Single),
        ..config(proxy.address())
    };
    let store = Arc::new(RedisStore::new(&settings).unwrap());
    let first = Thread::start(Arc::clone(&store));
    eventually("the first connection", async || first.spend().await == Ok(true)).await;
    let second = Thread::start(Arc::clone(&store));
    eventually("the second connection", async || proxy.connections() == 2).await;
    eventually("it is used", async || second.spend().await == Ok(true)).await;
    (server, proxy, store, [first, second])
}

#[tokio::test]
async fn one_connection_that_is_stuck_keeps_nobody_else_from_a_server_that_is_well() {
    let (_server, proxy, store, [stuck, well]) = two_threads().await;
    proxy.hang(0);
    let error = stuck.spend().await.unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. } | StoreError::Unavailable { .. }), "{error}");
    // Until its silence has ended it, and another one stands in its place.
    let (mut answered, mut failed) = (0, 0);
    eventually("another connection in its place", async || {
        match well.spend().await {
            Ok(_) => answered += 1,
            Err(_) => failed += 1,
        }
        proxy.connections() > 2
    })
    .await;
    // A call without an answer opens the breaker once; a probe over the other connection closes it.
    assert!(failed * 10 <= answered, "{failed} failed, {answered} answered");
    eventually("both are answered", async || stuck.spend().await == Ok(true)).await;
    assert_eq!(well.spend().await, Ok(true));
    assert!(store.health()[0].state.is_ok());
}

#[tokio::test]
async fn when_all_connections_are_stuck_the_breaker_opens_and_both_are_told_at_once() {
    let (server, _proxy, store, [one, other]) = two_threads().await;
    server.hang();
    assert!(matches!(one.spend().await, Err(StoreError::Timeout { .. })));
    eventually("the breaker is open", async || store.health()[0].state.is_err()).await;
    for thread in [&one, &other] {
        let error = thread.spend().await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    }
    server.go_on();
    for thread in [&one, &other] {
        eventually("it is used again", async || thread.spend().await == Ok(true)).await;
    }
}
