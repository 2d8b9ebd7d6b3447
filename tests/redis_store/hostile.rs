//! What answers may be no Redis, a broken one, or somebody who means harm. Whatever it says and whenever: it is refused when
//! it is announced, the connection ends, and nothing else suffers.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tollgate::{
    key::Format,
    limit::{Algorithm, Charge, Limit},
    settings::Secret,
    store::{
        Store, StoreError,
        redis::{Auth, RedisConfig, RedisStore, doctor},
    },
};

use crate::{
    PATIENT, charge, config, connected, eventually,
    fake::{Babble, FakeRedis, Treatment},
    spend,
    support::redis::RedisServer,
};

/// What was taken of a line without an end is what the kernel's buffers hold, and a little.
const TAKEN_MAX: usize = 16 << 20;

fn fake(command: &'static str, babble: Babble) -> FakeRedis {
    FakeRedis::start(Treatment::Babble(command, babble))
}

fn connecting(config: &RedisConfig) -> RedisStore {
    let store = RedisStore::new(config).unwrap();
    store.connect_here();
    store
}

async fn eventually_told(store: &RedisStore, words: &str) -> StoreError {
    let mut told = Ok(true);
    eventually(words, async || {
        told = spend(store, "tg:a", 10).await;
        told.as_ref().is_err_and(|error| error.to_string().contains(words))
    })
    .await;
    told.unwrap_err()
}

#[tokio::test]
async fn whoever_babbles_while_we_connect_is_corrupt_and_is_dialled_again() {
    for command in ["AUTH", "SELECT", "SCRIPT"] {
        for babble in Babble::ALL {
            let fake = fake(command, babble);
            let auth = Some(Auth::Text(Secret::new("hunter2")));
            let url = format!("redis://{}/1", fake.address());
            let store = connecting(&RedisConfig { auth, ..config(url) });
            // What comes after the password was said may be the password, at once or later.
            let hidden = [Babble::Negative, Babble::Http].contains(&babble);
            let words = match command {
                "AUTH" if hidden => "it answered AUTH in a form that is not Redis'",
                _ if hidden => "is not shown, since it may repeat the password",
                _ => babble.in_words(),
            };
            let error = eventually_told(&store, words).await;
            assert!(matches!(error, StoreError::Corrupt { .. }), "{command} {babble:?}: {error}");
            eventually("it is dialled again", async || fake.connections.load(Ordering::SeqCst) >= 3).await;
            assert!(fake.taken.load(Ordering::SeqCst) < TAKEN_MAX, "{command} {babble:?}");
        }
    }
}

#[tokio::test]
async fn whoever_babbles_instead_of_an_answer_is_corrupt_and_is_dialled_again() {
    for babble in Babble::ALL {
        let fake = fake("EVALSHA", babble);
        let store = connected(&config(fake.address())).await;
        let error = spend(&store, "tg:a", 10).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{babble:?}: {error}");
        assert!(error.to_string().contains(babble.in_words()), "{error}");
        eventually("it is dialled again", async || fake.connections.load(Ordering::SeqCst) >= 2).await;
        assert!(fake.taken.load(Ordering::SeqCst) < TAKEN_MAX, "{babble:?}");
    }
}

#[tokio::test]
async fn an_answer_larger_than_what_was_asked_can_have_is_refused_when_it_is_announced() {
    // A call of one key has an answer of some hundred bytes; what clusters tell may be four megabytes.
    let fake = FakeRedis::start(Treatment::Say("*3\r\n:100\r\n$1\r\n\u{1}\r\n$20000\r\n"));
    let store = connected(&config(fake.address())).await;
    let error = spend(&store, "tg:a", 10).await.unwrap_err().to_string();
    assert!(error.contains("it announced a text of 20000 bytes"), "{error}");
}

#[tokio::test]
async fn a_reply_that_nobody_asked_for_ends_the_connection() {
    let fake = FakeRedis::start(Treatment::Say("*3\r\n:100\r\n$1\r\n\u{1}\r\n$1\r\n-\r\n+more\r\n"));
    let store = connected(&config(fake.address())).await;
    assert_eq!(spend(&store, "tg:a", 10).await, Ok(true));
    eventually("a new connection", async || fake.connections.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn other_servers_are_served_meanwhile() {
    for babble in Babble::ALL {
        let (fake, good) = (fake("EVALSHA", babble), RedisServer::start(&[]));
        let per_second = Some(Box::new(config(good.address())));
        let store = Arc::new(connected(&RedisConfig { per_second, ..config(fake.address()) }).await);
        let second = Limit::new(Algorithm::TokenBucket, 1_000_000, 1_000_000, None).unwrap();
        let served = Charge { limit: second, ..charge(Algorithm::TokenBucket, "tg:b", 1) };
        for _ in 0..20 {
            let (babbled, served) =
                tokio::join!(spend(&store, "tg:a", 10), store.spend(std::slice::from_ref(&served), PATIENT));
            assert!(babbled.is_err() && served.as_ref().is_ok_and(|d| !d.refused), "{babble:?}: {served:?}");
        }
    }
}

#[tokio::test]
async fn who_tells_of_a_cluster_or_a_master_in_babble_tells_nothing() {
    for babble in Babble::ALL {
        for (command, scheme, name) in
            [("CLUSTER", "redis-cluster", ""), ("SENTINEL", "redis-sentinel", "/mymaster")]
        {
            let fake = fake(command, babble);
            let store = connecting(&config(format!("{scheme}://{}{name}", fake.address())));
            eventually_told(&store, babble.in_words()).await;
            assert!(fake.taken.load(Ordering::SeqCst) < TAKEN_MAX, "{command} {babble:?}");
        }
        // It names a master, and babbles when it is asked to tell of another one.
        let fake = fake("SUBSCRIBE", babble);
        let _store = connecting(&config(format!("redis-sentinel://{}/mymaster", fake.address())));
        eventually("it is subscribed to again", async || fake.taken.load(Ordering::SeqCst) > 0).await;
        assert!(fake.taken.load(Ordering::SeqCst) < TAKEN_MAX, "{babble:?}");
    }
}

#[tokio::test]
async fn the_doctor_says_what_came() {
    for command in ["PING", "TIME", "INFO", "CLUSTER", "ACL", "SCRIPT", "EVALSHA"] {
        for babble in Babble::ALL {
            let fake = fake(command, babble);
            let config = RedisConfig { connect_timeout: Duration::from_secs(10), ..config(fake.address()) };
            let examined = doctor::examine(&config, &Format::default()).await.unwrap();
            let told = examined[0].servers[0].told.as_ref().map(drop);
            let silence = told.expect_err(command);
            assert!(silence.why.contains(babble.in_words()), "{command} {babble:?}: {silence:?}");
            assert!(fake.taken.load(Ordering::SeqCst) < TAKEN_MAX, "{command} {babble:?}");
        }
    }
}
