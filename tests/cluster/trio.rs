//! Sentinels name the server, and another one when they have chosen another.

use tollgate::{
    settings::Secret,
    store::{
        Store,
        redis::{Auth, RedisConfig, RedisStore, RedisTls},
    },
};

use crate::{
    config, connected, eventually, is_whole,
    pki::Pki,
    sentinel::{Passwords, Sentinels, Tls},
    spend,
    support::redis::{Make, RedisServer},
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

#[tokio::test]
async fn sentinels_over_tls_with_users_and_client_certificates_are_followed() {
    let pki = Pki::new();
    for (whose, name) in [("server", "127.0.0.1"), ("client", "tollgate")] {
        let (certificate, key) = pki.issue(name);
        pki.write(&format!("{whose}.pem"), &certificate);
        pki.write(&format!("{whose}.key"), &key);
    }
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| pki.path(file));
    let files = Tls { ca: &ca, cert: &cert, key: &key };
    let passwords = Passwords { servers: Some("of-servers"), sentinels: Some("of-sentinels") };
    let mut trio = Sentinels::start_with(Make::Installed, passwords, Some(files));
    let allow = |all: &[RedisServer], name: &str, rights: &str| {
        for server in all {
            let words = ["ACL", "SETUSER", name, "on", ">pass:word"].into_iter().chain(rights.split(' '));
            assert_eq!(server.command(&words.collect::<Vec<&str>>()), "OK");
        }
    };
    allow(&trio.servers, "ann", "~tg:* +evalsha +script|load +time +get +set +del +role");
    allow(&trio.sentinels, "bob", "+sentinel|get-master-addr-by-name +subscribe &+switch-master");
    let text = |text: &str| Some(Auth::Text(Secret::new(text)));
    let tls = RedisTls {
        ca: Some(pki.file("ca.pem")),
        client_cert: Some(pki.file("client.pem")),
        client_key: Some(pki.file("client.key")),
        ..RedisTls::default()
    };
    let good = RedisConfig {
        auth: text("ann:pass:word"),
        sentinel_auth: text("bob:pass:word"),
        tls: Some(tls.clone()),
        ..config(trio.url())
    };
    let store = connected(&good).await;
    assert_eq!(spend(&store, "tg:a", 4).await, Ok(true));
    assert_eq!(store.health()[0].shard, trio.address(0));
    let second = trio.fail_over();
    let address = trio.address(second);
    eventually("the new master is used", async || store.health()[0].shard == address && is_whole(&store))
        .await;
    assert_eq!(spend(&store, "tg:a", 4).await, Ok(true));
    trio.servers[second].kill();
    let address = trio.address(trio.until_promoted(second));
    eventually("the next master is used", async || store.health()[0].shard == address && is_whole(&store))
        .await;
    assert!(spend(&store, "tg:a", 4).await.is_ok());
    // Neither the sentinels nor the servers take anybody without a certificate, or with another password.
    let no_certificate = RedisTls { client_cert: None, client_key: None, ..tls };
    for (config, word) in [
        (RedisConfig { tls: Some(no_certificate), ..good.clone() }, "REDIS_TLS_CLIENT_CERT"),
        (RedisConfig { auth: text("ann:hunter2"), ..good.clone() }, "WRONGPASS"),
        (RedisConfig { sentinel_auth: text("bob:hunter2"), ..good }, "WRONGPASS"),
    ] {
        let store = RedisStore::new(&config).unwrap();
        store.connect_here();
        eventually(word, async || format!("{:?}", store.health()).contains(word)).await;
        assert!(!format!("{store:?} {:?}", store.health()).contains("hunter2"));
    }
}
