//! Sentinels name the server, and another one when they have chosen another.

use tollgate::{
    settings::Secret,
    store::{
        Store,
        redis::{Auth, RedisConfig, RedisStore},
    },
};

use crate::{
    config, connected, eventually, is_whole,
    sentinel::{Passwords, Sentinels},
    spend,
};

#[tokio::test]
async fn the_master_is_found_and_followed_when_it_is_another() {
    let mut trio = Sentinels::start(Passwords::default());
    let store = connected(&config(trio.url())).await;
    assert_eq!(spend(&store, "tg:a", 4).await, Ok(true));
    assert_eq!(store.health()[0].shard, trio.servers[0].address());
    // By hand: nothing is lost but what was written while it was done.
    let second = trio.fail_over();
    let address = trio.servers[second].address();
    eventually("the new master is used", async || store.health()[0].shard == address && is_whole(&store))
        .await;
    assert_eq!(spend(&store, "tg:a", 4).await, Ok(true));
    // And by death.
    trio.servers[second].kill();
    let third = trio.until_promoted(second);
    let address = trio.servers[third].address();
    eventually("the next master is used", async || store.health()[0].shard == address && is_whole(&store))
        .await;
    assert!(spend(&store, "tg:a", 4).await.is_ok());
}

#[tokio::test]
async fn sentinels_and_servers_have_passwords_of_their_own() {
    let passwords = Passwords { servers: Some("of-servers"), sentinels: Some("of-sentinels") };
    let trio = Sentinels::start(passwords);
    let text = |text: &str| Some(Auth::Text(Secret::new(text)));
    let good = RedisConfig {
        auth: text("of-servers"),
        sentinel_auth: text("default:of-sentinels"),
        ..config(trio.url())
    };
    assert_eq!(spend(&connected(&good).await, "tg:a", 4).await, Ok(true));
    for (config, word) in [
        (RedisConfig { sentinel_auth: text("hunter2"), ..good.clone() }, "WRONGPASS"),
        (RedisConfig { sentinel_auth: None, ..good.clone() }, "NOAUTH"),
        (RedisConfig { auth: text("hunter2"), ..good.clone() }, "WRONGPASS"),
    ] {
        let store = RedisStore::new(&config).unwrap();
        store.connect_here();
        eventually(word, async || format!("{:?}", store.health()).contains(word)).await;
        assert!(!format!("{store:?} {:?}", store.health()).contains("hunter2"));
    }
    let url = trio.url().replace("mymaster", "another");
    let store = RedisStore::new(&RedisConfig { url: Secret::new(url), ..good }).unwrap();
    store.connect_here();
    eventually("it says so", async || format!("{:?}", store.health()).contains("knows no master another"))
        .await;
}
