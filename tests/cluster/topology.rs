//! Where keys go in a cluster, and that this is followed when it changes.

use tollgate::{
    settings::RedisType,
    store::{
        Store,
        redis::{Auth, RedisConfig, RedisStore, RedisTls},
    },
};

use crate::{
    cluster::{Cluster, Plan, slot_of},
    config, connected, eventually, is_whole,
    pki::Pki,
    spend,
    support::redis::{Make, RedisServer},
};

/// Keys on all shards.
fn keys() -> Vec<String> {
    (0..60).map(|i| format!("tg:key-{i}")).collect()
}

/// Grants 3 of 5 for each key over the whole cluster, and finds all of them on the right nodes.
async fn spends_everywhere(store: &RedisStore, cluster: &Cluster) {
    for key in keys() {
        for granted in [true, true, true, false, false] {
            assert_eq!(spend(store, &key, 3).await, Ok(granted), "{key}");
        }
        let owner = cluster.owner(slot_of(key.as_bytes())).unwrap();
        assert_eq!(cluster.nodes[owner].command(&["EXISTS", &key]), "1", "{key}");
    }
}

#[tokio::test]
async fn any_one_node_leads_to_the_whole_cluster() {
    let cluster = Cluster::start();
    let (primary, replica) = (cluster.nodes[1].address(), cluster.nodes[4].address());
    let flush = || {
        for node in cluster.nodes.iter().filter(|node| node.command(&["ROLE"]).starts_with("master")) {
            node.command(&["FLUSHALL"]);
        }
    };
    for (kind, url) in [
        // Nothing says that it is a cluster but the server.
        (None, primary.clone()),
        (None, format!("redis://{replica}")),
        (None, format!("redis-cluster://{replica}")),
        (Some(RedisType::Cluster), primary.clone()),
        // The others are dead.
        (Some(RedisType::Cluster), format!("127.0.0.1:1,{replica},127.0.0.1:2")),
    ] {
        let store = connected(&RedisConfig { kind, ..config(&url) }).await;
        spends_everywhere(&store, &cluster).await;
        assert_eq!(store.health().len(), 3, "{url}: {:?}", store.health());
        flush();
    }
}

#[tokio::test]
async fn single_is_one_server_and_says_when_it_is_not() {
    let cluster = Cluster::start_as(&Plan { shards: 2, replicas: 0, ..Plan::usual() });
    let single = RedisConfig { kind: Some(RedisType::Single), ..config(cluster.nodes[0].address()) };
    let store = connected(&single).await;
    let (mut here, mut elsewhere) = (0, 0);
    for key in keys() {
        match spend(&store, &key, 3).await {
            Ok(granted) => here += usize::from(granted),
            Err(error) => {
                elsewhere += 1;
                assert!(error.to_string().contains("REDIS_TYPE"), "{error}");
            }
        }
    }
    assert!(here > 0 && elsewhere > 0, "{here} {elsewhere}");
    // And a single server is no cluster.
    let server = RedisServer::start(&[]);
    let cluster = RedisConfig { kind: Some(RedisType::Cluster), ..config(server.address()) };
    let store = RedisStore::new(&cluster).unwrap();
    store.connect_here();
    eventually("it says so", async || format!("{:?}", store.health()).contains("is of no cluster")).await;
}

#[tokio::test]
async fn nodes_that_announce_host_names_or_nothing_are_found() {
    for announce in [
        ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"],
        ["--cluster-announce-hostname", "", "--cluster-preferred-endpoint-type", "unknown-endpoint"],
    ] {
        let plan = Plan { shards: 3, replicas: 0, args: &announce, ..Plan::usual() };
        let cluster = Cluster::start_as(&plan);
        let store = connected(&config(format!("redis-cluster://localhost:{}", cluster.nodes[0].port))).await;
        spends_everywhere(&store, &cluster).await;
        let names = store.health().iter().all(|shard| shard.shard.starts_with("localhost:"));
        assert!(names, "{:?}", store.health());
    }
}

#[tokio::test]
async fn a_cluster_is_used_over_tls_on_the_ports_that_it_has_for_that() {
    let pki = Pki::new();
    let (certificate, key) = pki.issue("localhost");
    pki.write("cert.pem", &certificate);
    pki.write("key.pem", &key);
    let tls_port = |port: u16| if port < 20_000 { port + 30_000 } else { port - 10_000 };
    let args_of = |_: usize, port: u16| {
        let words = [
            // Written so that the harness goes on speaking to the other port.
            ("--Tls-Port", tls_port(port).to_string()),
            ("--tls-cluster", "yes".to_owned()),
            ("--cluster-port", (port + 10_000).to_string()),
            ("--tls-ca-cert-file", pki.path("ca.pem")),
            ("--tls-cert-file", pki.path("cert.pem")),
            ("--tls-key-file", pki.path("key.pem")),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        words.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    };
    let cluster = Cluster::start_as(&Plan { replicas: 0, args_of: &args_of, ..Plan::usual() });
    let port = tls_port(cluster.nodes[0].port);
    // The nodes announce addresses, and their certificates name a host.
    let server_name = Some("localhost".to_owned());
    let tls = Some(RedisTls { ca: Some(pki.file("ca.pem")), server_name, ..RedisTls::default() });
    let store = connected(&RedisConfig { tls, ..config(format!("rediss-cluster://localhost:{port}")) }).await;
    spends_everywhere(&store, &cluster).await;
    let mut used: Vec<String> = store.health().into_iter().map(|shard| shard.shard).collect();
    let ports = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", tls_port(node.port)));
    let mut wanted: Vec<String> = ports.collect();
    used.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(used, wanted);
}

#[tokio::test]
async fn a_cluster_of_redis_6_and_one_of_valkey_are_as_good() {
    for make in Make::all() {
        let cluster = Cluster::start_as(&Plan { make, replicas: 0, ..Plan::usual() });
        let store = connected(&config(cluster.nodes[0].address())).await;
        spends_everywhere(&store, &cluster).await;
    }
}

#[tokio::test]
async fn a_user_with_the_least_rights_may_use_a_cluster() {
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    for node in &cluster.nodes {
        let rights =
            "~tg:* +evalsha +script|load +time +get +set +del +cluster|info +cluster|shards +cluster|slots";
        let mut words = vec!["ACL", "SETUSER", "ann", "on", ">pw"];
        words.extend(rights.split(' '));
        assert_eq!(node.command(&words), "OK");
    }
    let auth = Some(Auth::Text(tollgate::settings::Secret::new("ann:pw")));
    let store = connected(&RedisConfig { auth, ..config(cluster.addresses()) }).await;
    spends_everywhere(&store, &cluster).await;
}

#[tokio::test]
async fn slots_that_move_take_their_counters_along_and_nobody_is_refused_for_it() {
    let mut cluster = Cluster::start_as(&Plan { shards: 2, replicas: 0, ..Plan::usual() });
    let store = connected(&config(cluster.nodes[0].address())).await;
    let new = cluster.add_shard();
    let mut left: Vec<(String, u32)> = keys().into_iter().map(|key| (key, 6)).collect();
    let spend_all = async |left: &mut Vec<(String, u32)>| {
        for (key, left) in left.iter_mut() {
            assert_eq!(spend(&store, key, 6).await, Ok(true), "{key}");
            *left -= 1;
        }
    };
    spend_all(&mut left).await;
    let moved: Vec<(u16, usize)> = keys()[..20]
        .iter()
        .map(|key| slot_of(key.as_bytes()))
        .map(|slot| (slot, cluster.owner(slot).unwrap()))
        .collect();
    for &(slot, from) in &moved {
        cluster.begin_move(slot, from, new);
    }
    // Its keys are still where they were; fresh ones would be made at the new place.
    spend_all(&mut left).await;
    for &(slot, from) in &moved {
        cluster.move_keys(slot, from, new, 100);
    }
    // Now they are there, and the old owner says ASK.
    spend_all(&mut left).await;
    for &(slot, from) in &moved {
        cluster.end_move(slot, from, new);
    }
    // Now it says MOVED.
    spend_all(&mut left).await;
    eventually("the new shard is known", async || store.health().len() == 3 && is_whole(&store)).await;
    spend_all(&mut left).await;
    for (key, _) in &left {
        assert_eq!(spend(&store, key, 6).await, Ok(true), "{key}");
        assert_eq!(spend(&store, key, 6).await, Ok(false), "{key}");
    }
}

#[tokio::test]
async fn a_failover_by_hand_loses_no_request_and_no_count() {
    let cluster = Cluster::start();
    let store = connected(&config(cluster.nodes[0].address())).await;
    let keys = keys();
    for key in &keys {
        assert_eq!(spend(&store, key, 3).await, Ok(true));
    }
    for primary in 0..2 {
        let replica = cluster.replica_of(primary).unwrap();
        cluster.fail_over_to(replica);
        for key in &keys {
            assert_eq!(spend(&store, key, 3).await, Ok(true), "{key}");
        }
    }
    for key in &keys {
        assert_eq!(spend(&store, key, 3).await, Ok(false), "{key}");
    }
}

#[tokio::test]
async fn a_killed_primary_takes_nobody_along_and_its_replica_takes_over() {
    let mut cluster = Cluster::start();
    let store = connected(&config(cluster.nodes[0].address())).await;
    let keys = keys();
    let of =
        |i: usize| keys.iter().find(|key| cluster.owner(slot_of(key.as_bytes())) == Some(i)).unwrap().clone();
    let (lost, healthy) = (of(2), [of(0), of(1)]);
    cluster.kill(2);
    eventually("the loss is noticed", async || spend(&store, &lost, 1_000_000).await.is_err()).await;
    for _ in 0..100 {
        for key in &healthy {
            assert!(spend(&store, key, 1_000_000).await.is_ok());
        }
        assert!(spend(&store, &lost, 1_000_000).await.is_err() || is_whole(&store));
    }
    cluster.until_promoted(2, slot_of(lost.as_bytes()));
    eventually("it is whole again", async || spend(&store, &lost, 1_000_000).await.is_ok()).await;
    eventually("health says so", async || is_whole(&store)).await;
}

#[tokio::test]
async fn without_any_node_it_says_so_and_recovers_alone() {
    let mut cluster = Cluster::start_as(&Plan { shards: 3, replicas: 0, ..Plan::usual() });
    cluster.nodes.iter_mut().for_each(|node| node.kill());
    let store = RedisStore::new(&config(cluster.addresses())).unwrap();
    store.connect_here();
    eventually("it says so", async || format!("{:?}", store.health()).contains("refused")).await;
    assert!(spend(&store, "tg:a", 1).await.is_err());
    assert!(!store.reach().borrow().once);
    cluster.nodes.iter_mut().for_each(|node| node.restart());
    eventually("all shards are connected", async || is_whole(&store)).await;
    cluster.until_whole();
    eventually("it spends", async || spend(&store, "tg:a", 9).await == Ok(true)).await;
}
