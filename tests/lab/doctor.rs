//! `tollgate doctor` before stores of every kind of trouble: it says which, how to mend it, and no password.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use serde_json::Value;

use crate::{
    cluster::{Cluster, Plan},
    sentinel::{Passwords, Sentinels},
    support::{
        redis::{Make, RedisServer, free_port},
        tollgate::{Ended, command, ended, run},
    },
};

const SECRET: &str = "Right-Horse-Battery";

/// Its exit code, and each of these words somewhere in what it says.
fn says(told: &Ended, code: i32, words: &[&str]) {
    let all = format!("{}{}", told.stdout, told.stderr);
    assert_eq!(told.code, Some(code), "{all}");
    for word in words {
        assert!(all.contains(word), "no {word:?} in\n{all}");
    }
    assert!(!all.contains(SECRET), "{all}");
}

fn doctor(url: &str) -> Ended {
    run(["doctor", url])
}

#[test]
fn a_good_store_of_each_make_is_well_and_nothing_is_left_in_it() {
    for make in Make::all() {
        let bounds = ["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"];
        let primary = RedisServer::start_as(make, &bounds);
        let port = primary.port.to_string();
        let replica = RedisServer::start_as(make, &["--replicaof", "127.0.0.1", &port]);
        crate::wait::until("the replica has all data", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        says(&doctor(&primary.address()), 0, &["all is well", "a primary, 1 replica", "noeviction"]);
        assert_eq!(primary.command(&["DBSIZE"]), "0");
        says(&doctor(&replica.address()), 1, &["it is a replica of", &primary.address(), "READONLY"]);
    }
}

#[test]
fn memory_that_is_full_or_forgets_is_told() {
    let redis = RedisServer::start(&[]);
    says(
        &doctor(&redis.address()),
        0,
        &["no maxmemory", "without a replica", "nor does it write to the disk"],
    );
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    says(
        &doctor(&redis.address()),
        1,
        &["allkeys-lru", "grants their limits anew", "maxmemory-policy noeviction"],
    );
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    says(&doctor(&redis.address()), 1, &["it is full", "does not run: OOM", "raise maxmemory"]);
}

#[test]
fn passwords_and_rights_are_told_without_the_password() {
    let mut redis = RedisServer::start(&["--requirepass", SECRET]);
    redis.log_in(&[SECRET]);
    let at = |who: &str| doctor(&format!("redis://{who}@{}", redis.address()));
    says(&at(&format!(":{SECRET}")), 0, &["default: may do what is needed"]);
    says(&at(&format!(":{SECRET}-not")), 1, &["WRONGPASS", "REDIS_AUTH"]);
    says(&doctor(&redis.address()), 1, &["NOAUTH", "REDIS_AUTH"]);
    let user = |name: &str, rights: &[&str]| {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">pw"];
        words.extend(rights);
        assert_eq!(redis.command(&words), "OK");
    };
    user("least", &["~tg:*", "+evalsha", "+script|load", "+time", "+get", "+set", "+del"]);
    says(&at("least:pw"), 0, &["µs a call", "may not ask for INFO"]);
    user("reader", &["~tg:*", "+evalsha", "+script|load", "+time", "+get"]);
    says(&at("reader:pw"), 1, &["does not run", "give the user", "+set +del"]);
    user("asker", &["~tg:*", "+evalsha", "+script|load", "+time", "+get", "+acl"]);
    says(&at("asker:pw"), 1, &["the user asker lacks ~tg:* +set, ~tg:* +del", "ACL SETUSER asker"]);
    user("stranger", &["~other:*", "+@all"]);
    says(&at("stranger:pw"), 1, &["lacks ~tg:* +get"]);
    let mut prefixed = command();
    prefixed.args([
        "doctor",
        "--cache-key-prefix",
        "other:",
        &format!("redis://stranger:pw@{}", redis.address()),
    ]);
    says(&ended(&mut prefixed), 0, &["may do what is needed"]);
}

#[test]
fn a_server_without_auth_is_told_and_repeats_no_password() {
    let redis = RedisServer::start(&["--rename-command", "AUTH", ""]);
    let told = doctor(&format!("redis://ann:{SECRET}@{}", redis.address()));
    says(&told, 1, &["unknown command 'AUTH'", "take the password away"]);
    assert!(!told.stdout.contains(SECRET), "{}", told.stdout);
}

#[test]
fn what_is_no_redis_or_not_there_ends_with_2() {
    let closed = free_port();
    says(&doctor("/nowhere/redis.sock"), 2, &["No such file", "the path of its socket"]);
    says(&doctor(&format!("127.0.0.1:{closed}")), 2, &["Connection refused", "start it"]);
    says(&doctor("nohost.invalid:1"), 2, &["correct the host's name"]);
    let web = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = web.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in web.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    says(&doctor(&format!("127.0.0.1:{port}")), 2, &["a reply begins with \"HTTP/1.1 400", "the right port"]);
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    says(&run(["doctor", "--timeout", "200ms", &address]), 2, &["no connection within 0.2 s"]);
    let plain = RedisServer::start(&[]);
    let url = format!("rediss://{}", plain.address());
    says(
        &run(["doctor", "--timeout", "300ms", &url]),
        2,
        &["does it speak TLS?", "(--timeout)", "REDIS_TLS"],
    );
}

#[test]
fn a_cluster_is_well_or_which_part_of_it_is_not() {
    let mut cluster = Cluster::start();
    let url = format!("redis-cluster://{}", cluster.nodes[4].address());
    says(&doctor(&url), 0, &["3 shards, all slots served", "the primary of the slots 0-5460", ", a replica"]);
    let (lost, seed) = (cluster.nodes[0].address(), cluster.nodes[1].address());
    // Found out, where nobody says that it is a cluster; and said, where somebody says that it is none.
    says(&doctor(&seed), 0, &["3 shards"]);
    says(&run(["doctor", "--redis-type", "single", &seed]), 1, &["it is a node of a cluster"]);
    cluster.nodes[1].command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    says(&doctor(&seed), 0, &["cluster-require-full-coverage is yes"]);
    cluster.kill(cluster.replica_of(0).unwrap());
    cluster.kill(0);
    crate::wait::until("the others know", || {
        cluster.nodes[1].command(&["CLUSTER", "INFO"]).contains("cluster_slots_fail:5461")
    });
    says(&doctor(&seed), 1, &["5461 of 16384 slots have no living primary: 0-5460", "CLUSTER FAILOVER"]);
    let one_is_dead = format!("redis-cluster://{lost},{seed}");
    says(&doctor(&one_is_dead), 1, &[&format!("{lost}: "), "Connection refused", "5461 of 16384"]);
}

#[test]
fn sentinels_name_the_master_or_say_why_not() {
    let all = Sentinels::start(Passwords { servers: Some(SECRET), sentinels: None });
    let doctor = |url: &str| {
        let mut command = command();
        ended(command.args(["doctor", url]).env("REDIS_AUTH", SECRET))
    };
    let master = all.servers[0].address();
    says(&doctor(&all.url()), 0, &[&format!("names {master}"), ", the primary", ", a replica"]);
    says(&doctor(&all.url().replace("mymaster", "other")), 2, &["knows no master other", "sentinel monitor"]);
    says(&doctor(&format!("mymaster,{master}")), 2, &["NOAUTH", "REDIS_SENTINEL_AUTH"]);
    let away = format!("mymaster,127.0.0.1:{}", free_port());
    says(
        &doctor(&away),
        2,
        &["Connection refused", "no sentinel names a master", "one of the sentinels above"],
    );
}

#[test]
fn rights_that_only_a_cluster_needs_are_told_in_a_cluster() {
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    let user = |name: &str, rights: &str| {
        for node in &cluster.nodes {
            let mut words = vec!["ACL", "SETUSER", name, "on", ">pw"];
            words.extend("~tg:* +evalsha +script|load +time +get +set +del".split(' '));
            words.extend(rights.split_whitespace());
            assert_eq!(node.command(&words), "OK");
        }
    };
    let seed = cluster.nodes[0].address();
    user("least", "+cluster|info +cluster|shards +cluster|slots");
    says(
        &doctor(&format!("redis-cluster://least:pw@{seed}")),
        0,
        &["3 shards", "least: may do what is needed"],
    );
    user("blind", "+cluster|info");
    let lacks = "ACL SETUSER blind +cluster|shards +cluster|slots";
    says(
        &doctor(&format!("redis-cluster://blind:pw@{seed}")),
        1,
        &[lacks, "no node tells who has which slots"],
    );
    user("dated", "+cluster|slots");
    let dated = format!("redis-cluster://dated:pw@{seed}");
    says(&doctor(&dated), 0, &["ACL SETUSER dated +cluster|info", "which one is newer", "3 shards"]);
    // Where nobody says that it is a cluster, nobody finds out either.
    user("least", "-cluster|info");
    says(&doctor(&format!("redis://least:pw@{seed}")), 1, &["a cluster", "ACL SETUSER least +cluster|info"]);
}

#[test]
fn rights_that_only_sentinels_make_necessary_are_told_beside_sentinels() {
    let all = Sentinels::start(Passwords { servers: None, sentinels: None });
    let (servers, sentinels) =
        ("~tg:* +evalsha +script|load +time +get +set +del", "+subscribe &+switch-master");
    let set = |servers_of: &[RedisServer], rights: &str| {
        for server in servers_of {
            let mut words = vec!["ACL", "SETUSER", "ann", "reset", "on", ">pw"];
            words.extend(rights.split(' '));
            assert_eq!(server.command(&words), "OK");
        }
    };
    let doctor = || {
        let mut command = command();
        let command = command.args(["doctor", &all.url()]);
        ended(command.env("REDIS_AUTH", "ann:pw").env("REDIS_SENTINEL_AUTH", "ann:pw"))
    };
    let master = all.servers[0].address();
    set(&all.servers, &format!("{servers} +role"));
    set(&all.sentinels, &format!("+sentinel|get-master-addr-by-name {sentinels}"));
    says(&doctor(), 0, &[&format!("names {master}\n"), "ann: may do what is needed"]);
    set(&all.servers, servers);
    set(&all.sentinels, "+sentinel|get-master-addr-by-name");
    let deaf = "tells nothing of a failover, which is noticed later: NOPERM";
    says(
        &doctor(),
        0,
        &["ACL SETUSER ann +role", "voted out", deaf, "ACL SETUSER ann +subscribe &+switch-master"],
    );
    set(&all.sentinels, sentinels);
    let mend = "ACL SETUSER ann +sentinel|get-master-addr-by-name +subscribe &+switch-master";
    says(&doctor(), 2, &["no sentinel names a master", mend]);
}

#[test]
fn a_sentinel_that_is_taken_for_a_server_is_told() {
    let all = Sentinels::start(Passwords { servers: None, sentinels: None });
    let url = all.url();
    let sentinel = url.rsplit([',', '/']).find(|part| part.contains(':')).unwrap();
    let told = doctor(sentinel);
    says(&told, 1, &["unknown command 'SCRIPT'", "where it is a sentinel, write REDIS_URL=NAME,HOST:PORT"]);
    assert!(!told.stdout.contains("algorithm::decide"), "{}", told.stdout);
}

#[test]
fn json_says_the_same_to_programs() {
    let redis = RedisServer::start(&["--maxmemory", "1"]);
    let told = run(["doctor", "--json", &redis.address()]);
    assert_eq!(told.code, Some(1));
    let json: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(json["verdict"], "bad");
    let lines = json["sections"][1]["lines"].as_array().unwrap();
    let memory = lines.iter().find(|line| line["check"] == "memory").unwrap();
    assert_eq!((memory["level"].as_str(), memory["mend"].as_str()), (Some("bad"), Some("raise maxmemory")));
}

#[test]
fn without_a_store_there_is_nothing_to_examine() {
    says(&run(["doctor"]), 64, &["name the store to examine"]);
    says(&doctor("http://h"), 64, &["REDIS_URL", "unknown scheme"]);
}
