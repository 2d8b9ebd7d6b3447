//! A cluster that loses what it is made of.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    chaos::{Proxy, Weather},
    cluster::{Cluster, Plan, SLOTS},
    load::{Answer, Asked, Load, RATE, drain},
    report::{against_calm, failures, latest, percentile, row, settle, settle_some, whole},
    service::{Counter, Service},
    single::PATIENT,
    support::redis::Make,
    wait::until,
};

/// Of the shards' primaries at the start.
const SHARDS: u16 = 3;

/// Which shard a slot belongs to at the start.
fn shard_of(counter: &Counter) -> usize {
    usize::from((counter.slot / (SLOTS / SHARDS)).min(SHARDS - 1))
}

/// A cluster, and a service that uses it.
fn start(limit: u32, mode: &str, timeout: &str) -> (Cluster, Service) {
    let cluster = Cluster::start();
    let service = before(&cluster, limit, mode, timeout);
    (cluster, service)
}

fn before(cluster: &Cluster, limit: u32, mode: &str, timeout: &str) -> Service {
    let settings =
        [("REDIS_TYPE", "cluster"), ("REDIS_URL", &cluster.addresses()), ("STORE_TIMEOUT", timeout)];
    Service::ready(limit, mode, &settings)
}

/// What was seen on the shard that a fault is about, and on the others, from one moment to another.
struct Seen<'b> {
    service: &'b Service,
    book: &'b [Asked],
    lost: usize,
}

impl Seen<'_> {
    fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Asked> + Clone {
        self.book.iter().filter(move |asked| (from..to).contains(&asked.at))
    }

    fn is_lost(&self, asked: &Asked) -> bool {
        shard_of(&self.service.counters[asked.counter]) == self.lost
    }

    fn healthy(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Asked> + Clone {
        self.between(from, to).filter(|asked| !self.is_lost(asked))
    }

    fn hurt(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Asked> + Clone {
        self.between(from, to).filter(|asked| self.is_lost(asked))
    }

    /// Nobody on another shard fails, and each on this one has an answer by the rule.
    fn judge(&self, fault: &str, calm: Duration, end: Duration, timeout: Duration, more: &[String]) {
        let healthy = failures(self.healthy(calm, end));
        let mut seen = vec![
            format!("healthy shards: {healthy}"),
            against_calm(self.healthy(calm, end), self.healthy(Duration::ZERO, calm)),
            format!("this shard: {}", failures(self.hurt(calm, end))),
            latest(self.hurt(calm, end), timeout),
        ];
        seen.extend_from_slice(more);
        row(fault, &seen);
        assert_eq!(healthy.failed, 0, "{fault}: on shards that are well");
        assert!(
            self.book.iter().all(|asked| asked.answer != Answer::Failed),
            "{fault}: `deny` always answers"
        );
    }

    /// Replication is asynchronous: what a primary granted after its replica last heard of it dies with it, and is granted
    /// once more. On a sound network that is less than the last second of grants of that shard.
    fn lost_writes_max(&self, died: Duration) -> u32 {
        let last = self.hurt(died.saturating_sub(Duration::from_secs(1)), died + Duration::from_secs(1));
        last.filter(|asked| asked.answer == Answer::Granted).count() as u32
    }
}

/// Long enough for a busy machine, since what is counted is who fails on shards that are well.
const TIMEOUT: Duration = Duration::from_secs(1);

#[test]
fn a_lost_shard_is_answered_by_the_rules_and_hurts_no_other() {
    let (mut cluster, service) = start(20, "deny", "1s");
    let load = Load::start(&service, RATE);
    let calm = load.go_on(Duration::from_secs(2));
    for node in [cluster.replica_of(0).unwrap(), 0] {
        cluster.kill(node);
    }
    let end = load.go_on(whole(8, 4));
    let book = load.end();
    let settled = settle_some(&service, &book, |counter| shard_of(counter) != 0);
    let seen = Seen { service: &service, book: &book, lost: 0 };
    seen.judge("one of three shards lost", calm, end, TIMEOUT, &[format!("the others {settled}")]);
    assert_eq!((settled.over, settled.lost), (0, 0));
    assert!(service.get("/ready").1.contains(&cluster.nodes[0].address()), "/ready says which");
}

#[test]
fn a_killed_primary_hurts_no_other_shard_and_is_replaced() {
    let (mut cluster, service) = start(30, "deny", "1s");
    let load = Load::start(&service, RATE);
    let calm = load.go_on(Duration::from_secs(2));
    cluster.kill(0);
    cluster.until_promoted(0, 0);
    let promoted = load.now();
    let again = load.until_whole(30, |asked| shard_of(&service.counters[asked.counter]) == 0);
    let book = load.end();
    let settled = settle(&service, &book);
    let seen = Seen { service: &service, book: &book, lost: 0 };
    let bound = seen.lost_writes_max(calm);
    seen.judge(
        "kill -9 a primary",
        calm,
        again,
        TIMEOUT,
        &[
            format!("whole again {:.2} s after the promotion", again.saturating_sub(promoted).as_secs_f64()),
            format!("{settled}, bound {bound}"),
        ],
    );
    assert!(settled.over <= bound, "{settled}, bound {bound}");
}

#[test]
fn a_hung_primary_hurts_no_other_shard_and_is_replaced_and_wakes_as_a_replica() {
    let (cluster, service) = start(60, "deny", "1s");
    let load = Load::start(&service, RATE);
    let calm = load.go_on(Duration::from_secs(2));
    cluster.nodes[0].hang();
    cluster.until_promoted(0, 0);
    let promoted = load.now();
    let again = load.until_whole(30, |asked| shard_of(&service.counters[asked.counter]) == 0);
    load.go_on(whole(7, 4).saturating_sub(load.now() - calm));
    let woke = load.now();
    cluster.nodes[0].go_on();
    load.go_on(Duration::from_secs(1));
    let well = load.until_whole(30, |_| true);
    let book = load.end();
    let settled = settle(&service, &book);
    let seen = Seen { service: &service, book: &book, lost: 0 };
    let bound = seen.lost_writes_max(calm);
    seen.judge(
        &format!("SIGSTOP a primary for {:.1} s", (woke - calm).as_secs_f64()),
        calm,
        again,
        TIMEOUT,
        &[
            format!("whole again {:.2} s after the promotion", again.saturating_sub(promoted).as_secs_f64()),
            format!("after waking: {}", failures(seen.between(woke, well))),
            format!("{settled}, bound {bound}"),
        ],
    );
    assert_eq!(failures(seen.healthy(calm, well)).failed, 0);
    assert!(settled.over <= bound, "{settled}, bound {bound}");
    assert!(book.iter().all(|asked| asked.answer != Answer::Failed));
}

#[test]
fn what_operators_do_on_purpose_fails_nobody() {
    let (mut cluster, service) = start(60, "error", PATIENT);
    let slots: Vec<u16> = service.counters.iter().map(|counter| counter.slot).collect();
    let load = Load::start(&service, RATE);
    let mut marks = vec![("calm", load.go_on(Duration::from_secs(2)))];

    let replica = cluster.replica_of(0).unwrap();
    cluster.fail_over_to(replica);
    marks.push(("manual failover", load.go_on(Duration::from_secs(1))));

    // Each holds at least one counter that is in use.
    for slot in slots.iter().copied().filter(|slot| cluster.owner(*slot) == Some(1)).take(20) {
        cluster.begin_move(slot, 1, 2);
        load.go_on(Duration::from_millis(20));
        while cluster.move_keys(slot, 1, 2, 1) > 0 {
            load.go_on(Duration::from_millis(20));
        }
        load.go_on(Duration::from_millis(20));
        cluster.end_move(slot, 1, 2);
    }
    marks.push(("20 slots moved with live keys", load.go_on(Duration::from_secs(1))));

    let new = cluster.add_shard();
    for slot in slots.iter().copied().filter(|slot| cluster.owner(*slot) == Some(2)).take(20) {
        cluster.move_slot(slot, 2, new);
    }
    marks.push(("a shard added, 20 slots moved to it", load.go_on(Duration::from_secs(1))));

    let book = load.end();
    let settled = settle(&service, &book);
    let calm = marks[0].1;
    let of = |from, to| book.iter().filter(move |asked: &&Asked| (from..to).contains(&asked.at));
    for pair in marks.windows(2) {
        let (from, (what, to)) = (pair[0].1, pair[1]);
        row(
            what,
            &[failures(of(from, to)).to_string(), against_calm(of(from, to), of(Duration::ZERO, calm))],
        );
    }
    row("all three", &[settled.to_string()]);
    assert_eq!(failures(&book).failed, 0);
    assert_eq!((settled.over, settled.lost), (0, 0));
}

/// Whether all nodes say the same of who owns what, and since which change.
fn all_agree(cluster: &Cluster) -> bool {
    let words_of = |line: &str| -> Vec<String> {
        // Its id, its epoch and its slots.
        let of_owner = |(i, word): (usize, &str)| matches!(i, 0 | 6 | 8..).then(|| word.to_owned());
        line.split(' ').enumerate().filter_map(of_owner).collect()
    };
    let said = cluster.nodes.iter().map(|node| -> BTreeSet<Vec<String>> {
        node.command(&["CLUSTER", "NODES"]).lines().map(words_of).collect()
    });
    BTreeSet::from_iter(said).len() == 1
}

#[test]
fn slots_that_move_again_while_their_keys_are_followed_fail_nobody() {
    let cluster = Cluster::start_as(&Plan { replicas: 0, ..Plan::usual() });
    let service = before(&cluster, 60, "error", PATIENT);
    let slots: BTreeSet<u16> = service.counters.iter().map(|counter| counter.slot).collect();
    let slots = Vec::from_iter(slots);
    let load = Load::start(&service, 2 * RATE);
    let mut marks = vec![load.go_on(Duration::from_secs(1))];
    let end = load.now() + whole(15, 5);
    let mut moves = 0;
    let mut owners: Vec<usize> = slots.iter().map(|slot| cluster.owner(*slot).unwrap()).collect();
    for i in (0..slots.len()).cycle() {
        // There and back, or on to the third, with nothing in between.
        for hop in [1, 1 + moves % 2, 1] {
            let to = (owners[i] + hop) % usize::from(SHARDS);
            cluster.move_slot(slots[i], owners[i], to);
            // Else nodes might claim the slot with equal epochs, and one of them would take it back.
            until("all nodes know", || all_agree(&cluster));
            owners[i] = to;
            moves += 1;
        }
        if load.now() > end {
            break;
        }
    }
    marks.push(load.go_on(Duration::from_millis(500)));
    let book = load.end();
    let settled = settle(&service, &book);
    let moving = failures(book.iter().filter(|asked| asked.at >= marks[0]));
    row(&format!("slots moved {moves} times, on and back"), &[moving.to_string(), settled.to_string()]);
    assert_eq!(failures(&book).failed, 0);
    assert_eq!((settled.over, settled.lost), (0, 0));
}

#[test]
fn a_cluster_of_each_make_is_followed_from_any_one_node() {
    for make in Make::all() {
        let cluster = Cluster::start_as(&Plan { make, ..Plan::usual() });
        // A replica knows the others as well.
        let seed = cluster.replica_of(1).unwrap();
        let url = format!("redis-cluster://{}", cluster.nodes[seed].address());
        let service = Service::ready(3, "error", &[("REDIS_URL", &url), ("STORE_TIMEOUT", PATIENT)]);
        let load = Load::start(&service, RATE);
        let replica = cluster.replica_of(0).unwrap();
        cluster.fail_over_to(replica);
        let slot = service.counters[0].slot;
        let owner = cluster.owner(slot).unwrap();
        cluster.move_slot(slot, owner, if owner == 1 { 2 } else { 1 });
        load.go_on(Duration::from_secs(1));
        let book = load.end();
        let (failed, settled) = (failures(&book), settle(&service, &book));
        row(
            &format!("{make:?}: one replica as the seed, a failover, a slot moved"),
            &[failed.to_string(), settled.to_string()],
        );
        assert_eq!((failed.failed, settled.over, settled.lost), (0, 0, 0), "{make:?}");
    }
}

/// Five primaries, each behind a proxy that it announces.
fn far_cluster(proxies: &[Proxy]) -> Cluster {
    let announced = |i: usize, port: u16| {
        let (proxy, bus) = (proxies[i].port.to_string(), (port + 10_000).to_string());
        proxies[i].serve(port);
        ["--cluster-announce-port", &proxy, "--cluster-announce-bus-port", &bus].map(str::to_owned).to_vec()
    };
    let plan = Plan { shards: proxies.len(), replicas: 0, args_of: &announced, ..Plan::usual() };
    Cluster::start_as(&plan)
}

#[test]
fn a_request_about_five_shards_takes_one_round_trip() {
    let proxies: Vec<Proxy> = (0..5).map(|_| Proxy::reserve()).collect();
    let _cluster = far_cluster(&proxies);
    let url = format!("redis-cluster://{}", proxies[0].address());
    let service = Service::ready(1_000_000, "error", &[("REDIS_URL", &url), ("STORE_TIMEOUT", PATIENT)]);
    // One counter on each shard.
    let on =
        |shard: u16| service.counters.iter().position(|counter| counter.slot / (SLOTS / 5) == shard).unwrap();
    let five: Vec<usize> = (0..5).map(on).collect();
    for late in [5, 20] {
        proxies.iter().for_each(|proxy| proxy.set(Weather::Late(Duration::from_millis(late))));
        let half = |counters: &[usize]| {
            let all: Vec<Asked> = (0..40).map(|_| service.time(counters)).collect();
            assert!(all.iter().all(|asked| asked.answer == Answer::Granted));
            percentile(&all, 0.5)
        };
        let (one, all) = (half(&five[..1]), half(&five));
        row(
            &format!("5 descriptors on 5 shards, {late} ms injected"),
            &[format!("p50 {all:.1} ms"), format!("one alone {one:.1} (x {:.2})", all / one)],
        );
        // One after the other would be five times as long.
        assert!(late < 20 || all < 2.5 * one, "{all} ms against {one} ms");
    }
}

/// Nothing is granted twice but what an unreplicated primary took with it.
#[test]
fn a_primary_that_dies_before_its_replica_heard_of_a_grant_grants_that_again_and_no_more() {
    let (mut cluster, service) = start(5, "error", "1s");
    let replica = cluster.replica_of(0).unwrap();
    let of_shard = (0..service.counters.len()).filter(|&i| shard_of(&service.counters[i]) == 0);
    let of_shard: Vec<usize> = of_shard.collect();
    let (heard, unheard) = (&of_shard[..10], &of_shard[10..20]);
    let grant = |counters: &[usize]| {
        counters.iter().for_each(|&i| assert_eq!(service.time(&[i]).answer, Answer::Granted));
    };
    grant(heard);
    cluster.until_replicated(0);
    // Deaf from here on; and nothing waits for it in the system's buffers.
    cluster.nodes[replica].hang();
    cluster.nodes[0].command(&["CLIENT", "KILL", "TYPE", "replica"]);
    grant(unheard);
    cluster.kill(0);
    cluster.nodes[replica].go_on();
    cluster.until_promoted(0, 0);
    let all = drain(&service, |_| true);
    let granted = |counters: &[usize]| counters.iter().map(|&i| 1 + all[i].granted).max().unwrap();
    let lost: u32 = unheard.iter().map(|&i| (1 + all[i].granted).saturating_sub(service.limit)).sum();
    row("a primary dies with 10 grants that its replica never heard of", &[format!("{lost} granted again")]);
    assert!(granted(heard) <= service.limit, "what the replica has heard of is not granted again");
    assert_eq!(
        lost, 10,
        "the bound is what it is: that the lab can lose a write shows that it would see more"
    );
}
