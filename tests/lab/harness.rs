//! The lab's own parts do what they say, with each make of server.

use std::time::Duration;

use crate::{
    chaos::{Proxy, Weather},
    cluster::{Cluster, Plan, slot_of},
    sentinel::{Passwords, Sentinels},
    support::redis::{Make, RedisServer, free_port},
};

#[test]
fn keys_lie_in_the_slots_that_the_specification_says() {
    assert_eq!(slot_of(b"123456789"), 0x31c3);
    assert_eq!(slot_of(b"tg:{acme}:a"), slot_of(b"acme"));
    let cluster =
        RedisServer::start(&["--cluster-enabled", "yes", "--cluster-port", &free_port().to_string()]);
    for key in ["", "foo", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "{", "}{a}"] {
        assert_eq!(
            slot_of(key.as_bytes()).to_string(),
            cluster.command(&["CLUSTER", "KEYSLOT", key]),
            "{key}"
        );
    }
}

#[test]
fn a_cluster_of_each_make_forms_and_fails_over_and_moves_slots() {
    for make in Make::all() {
        let mut cluster = Cluster::start_as(&Plan { make, ..Plan::usual() });
        let slot = slot_of(b"tg:a");
        let owner = cluster.owner(slot).unwrap();
        assert_eq!(cluster.nodes[owner].command(&["SET", "tg:a", "1"]), "OK");
        let other = (owner + 1) % 3;
        cluster.move_slot(slot, owner, other);
        assert_eq!(cluster.nodes[other].command(&["GET", "tg:a"]), "1");
        let replica = cluster.replica_of(other).unwrap();
        cluster.fail_over_to(replica);
        cluster.until_whole();
        assert_eq!(cluster.nodes[replica].command(&["GET", "tg:a"]), "1");
        cluster.kill(replica);
        assert_eq!(cluster.until_promoted(replica, slot), other);
        assert_eq!(cluster.nodes[other].command(&["GET", "tg:a"]), "1");
        let new = cluster.add_shard();
        cluster.move_slot(slot, other, new);
        assert_eq!(cluster.nodes[new].command(&["GET", "tg:a"]), "1");
    }
}

#[test]
fn sentinels_promote_a_replica_by_themselves_and_by_hand() {
    let passwords = Passwords { servers: Some("a-word"), sentinels: Some("another") };
    let mut all = Sentinels::start(passwords);
    assert_eq!(all.primary(), Some(0));
    let second = all.fail_over();
    all.servers[second].kill();
    all.until_promoted(second);
}

#[test]
fn the_proxy_delays_cuts_swallows_and_garbles() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port);
    let ping = || RedisServer::command_at(proxy.port, &["EVALSHA", "0", "0"]);
    let answer = || ping().map_err(|e| e.kind());
    assert!(answer().unwrap().starts_with("-NOSCRIPT"));
    proxy.set(Weather::Late(Duration::from_millis(1)));
    assert!(answer().unwrap().starts_with("-NOSCRIPT"));
    proxy.set(Weather::CutNext);
    assert!(!answer().is_ok_and(|reply| reply.contains("EVAL.")));
    assert!(proxy.is_fair());
    proxy.set(Weather::GarbageNext);
    assert!(answer().unwrap().contains("no Redis"));
    proxy.set(Weather::Down);
    assert!(answer().is_err());
    proxy.set(Weather::Fair);
    assert!(answer().unwrap().starts_with("-NOSCRIPT"));
    assert_eq!(proxy.spends(), 5);
}
