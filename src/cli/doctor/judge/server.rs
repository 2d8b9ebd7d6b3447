//! One server: whether it will do.

use std::time::Duration;

use super::{
    Line, Section, bad,
    mend::{mend, set_user},
    ok, warn,
};
use crate::{
    cli::terminal::{count, human},
    store::redis::doctor::{
        Clock, Examined, Kind, Memory, Part, Replication, Script, Server, Silence, Version,
    },
};

pub(super) fn server(examined: &Examined, kind: &Kind, timeout: Duration) -> Section {
    let Examined { address, part, told } = examined;
    let lines = match told {
        Err(silence) => vec![reach(silence, part)],
        Ok(server) => all_about(server, part, kind, timeout),
    };
    let part = match part {
        Part::Decides(None) if *kind == Kind::Single => "",
        Part::Decides(None) => ", the primary",
        Part::Decides(Some(slots)) => &format!(", the primary of the slots {slots}"),
        Part::StandsBy => ", a replica",
    };
    Section { about: format!("{address}{part}"), lines }
}

fn reach(silence: &Silence, part: &Part) -> Line {
    let mend = mend(&silence.why, "reach");
    // Here a flag says how long to wait.
    let why = silence.why.replace("(REDIS_TIMEOUT)", "(--timeout)");
    if *part == Part::StandsBy { warn("reach", why, mend) } else { bad("reach", why, mend) }
}

fn all_about(server: &Server, part: &Part, kind: &Kind, timeout: Duration) -> Vec<Line> {
    let mut lines = Vec::new();
    lines.push(version(server.version.as_ref()));
    if server.is_loading {
        lines.push(bad("loading", "it is reading its data from the disk", "wait until it has done so"));
    }
    if server.cluster_mode && *kind == Kind::Single {
        lines.push(bad(
            "topology",
            "it is a node of a cluster, but REDIS_TYPE says single",
            "take REDIS_TYPE away, or set it to cluster",
        ));
    }
    let lonely = *kind != Kind::Cluster && *part == Part::Decides(None);
    lines.extend(server.replication.as_ref().map(|known| replication(known, part, lonely, server)));
    lines.push(latency(&server.pings, timeout));
    lines.extend(server.memory.as_ref().into_iter().flat_map(memory));
    lines.extend(server.clock.map(clock));
    lines.push(rights(server));
    // Where it runs on a replica is said above.
    let is_replica = server.replication.as_ref().is_some_and(|known| known.of.is_some());
    lines.extend(server.script.as_ref().filter(|_| !is_replica).map(|ran| script(ran, server, timeout)));
    lines
}

/// The oldest that has all that the script uses.
const OLDEST: (u32, u32) = (6, 2);

fn version(version: Option<&Version>) -> Line {
    let Some(Version { make, number }) = version else {
        return warn(
            "version",
            "unknown, as are role and memory: the user may not ask for INFO",
            "+info lets a doctor look; the service does without",
        );
    };
    let mut parts = number.split('.').map_while(|part| part.parse::<u32>().ok());
    let known = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let found = format!("{make} {number}");
    if *make == "Redis" && known < OLDEST {
        bad("version", found, format!("Redis {}.{} or newer, or Valkey", OLDEST.0, OLDEST.1))
    } else {
        ok("version", found)
    }
}

fn replication(known: &Replication, part: &Part, lonely: bool, server: &Server) -> Line {
    match (&known.of, part) {
        (Some((primary, _)), Part::Decides(_)) => bad(
            "role",
            format!(
                "it is a replica of {primary}, which takes no writes: each call would be refused (READONLY)"
            ),
            format!("name the primary, {primary}, in REDIS_URL, or all sentinels, or a cluster's nodes"),
        ),
        (Some((primary, false)), Part::StandsBy) => warn(
            "role",
            format!("a replica that has lost its primary {primary}: it would take over with old counters"),
            "look at its log: INFO replication says since when",
        ),
        (Some((primary, true)), Part::StandsBy) => ok("role", format!("a replica of {primary}")),
        (None, Part::StandsBy) => warn(
            "role",
            "said to be a replica, but it calls itself a primary",
            "a failover may be under way; ask again in a moment",
        ),
        (None, Part::Decides(_)) if known.too_few => bad(
            "role",
            "a primary that takes no writes: it has fewer replicas than min-replicas-to-write wants",
            "start the replicas, or lower min-replicas-to-write",
        ),
        (None, Part::Decides(_)) if known.replicas.is_empty() && lonely => {
            let disk = match server.keeps_on_disk {
                Some(true) => "; it writes to the disk, and comes back with what it had then",
                Some(false) => "; nor does it write to the disk",
                None => "",
            };
            warn(
                "role",
                format!(
                    "a primary without a replica{disk}: its counters are lost with it, and limits are granted anew"
                ),
                "a replica, with sentinels or as a cluster, if that matters to you",
            )
        }
        (None, Part::Decides(_)) => {
            ok("role", format!("a primary, {}", count(known.replicas.len(), "replica")))
        }
    }
}

fn latency(pings: &[Duration], timeout: Duration) -> Line {
    let at =
        |share: usize| pings.get(pings.len() * share / 100).or(pings.last()).copied().unwrap_or_default();
    let (median, last) = (at(50), at(100));
    let found = format!("{} as a rule, {} at most, of {} PINGs", human(median), human(last), pings.len());
    let limit = format!("STORE_TIMEOUT is {}", human(timeout));
    if median >= timeout {
        bad(
            "latency",
            found,
            format!("{limit}: no call would be in time; move it nearer, or raise STORE_TIMEOUT"),
        )
    } else if 2 * median >= timeout {
        warn(
            "latency",
            found,
            format!("{limit}, which leaves little room: move it nearer, or raise STORE_TIMEOUT"),
        )
    } else {
        ok("latency", found)
    }
}

/// Of `maxmemory`, in percent.
const NEARLY_FULL: u64 = 90;

fn memory(memory: &Memory) -> Vec<Line> {
    let Memory { used, max, policy } = memory;
    let mb = |bytes: &u64| format!("{} MB", bytes >> 20);
    if *max == 0 {
        return vec![warn(
            "memory",
            format!("{} used, no maxmemory: a flood of keys ends when the machine's memory does", mb(used)),
            "set maxmemory, with maxmemory-policy noeviction",
        )];
    }
    let found = format!("{} of {} used", mb(used), mb(max));
    let full = if used >= max && policy == "noeviction" {
        bad("memory", format!("{found}: it is full, and refuses every write (OOM)"), "raise maxmemory")
    } else if used.saturating_mul(100) >= max.saturating_mul(NEARLY_FULL) {
        warn("memory", format!("{found}: it is nearly full"), "raise maxmemory, or shorten windows")
    } else {
        ok("memory", found)
    };
    vec![full, eviction(policy)]
}

fn eviction(policy: &str) -> Line {
    match policy {
        "noeviction" => {
            ok("eviction", "noeviction: when it is full it says so, and on_store_failure answers")
        }
        "volatile-ttl" => ok(
            "eviction",
            "volatile-ttl: when it is full it forgets the counters that are nearest to full again",
        ),
        policy => bad(
            "eviction",
            format!(
                "{policy}: when it is full it forgets counters that are in use, and grants their limits anew, unsaid"
            ),
            "CONFIG SET maxmemory-policy noeviction (or volatile-ttl), and the same in its file",
        ),
    }
}

/// Below it nobody notices: headers count whole seconds.
const CLOCK_OFF_MAX_US: u64 = 1_000_000;

fn clock(clock: Clock) -> Line {
    let off = clock.ahead_us.unsigned_abs();
    let way = if clock.ahead_us > 0 { "ahead of" } else { "behind" };
    let found = format!("{} {way} this machine's", human(Duration::from_micros(off)));
    if off > CLOCK_OFF_MAX_US + clock.within_us {
        warn(
            "clock",
            format!(
                "{found}: limits are exact by the server's clock, and x-ratelimit-reset is off by as much"
            ),
            "let NTP or chrony keep both",
        )
    } else {
        ok(
            "clock",
            format!("within {} of this machine's", human(Duration::from_micros(off.max(clock.within_us)))),
        )
    }
}

fn rights(server: &Server) -> Line {
    let Server { user, denied, script, .. } = server;
    if denied.is_empty() {
        let found = match script {
            Some(Err(_)) => "see what the script says",
            Some(Ok(_)) | None => "may do what is needed",
        };
        return ok("rights", format!("{user}: {found}"));
    }
    let lacks: Vec<&str> = denied.iter().map(|denied| denied.right.as_str()).collect();
    let found = format!("the user {user} lacks {}", lacks.join(", "));
    let mend = set_user(user, &lacks.join(" "));
    let without: Option<Vec<&str>> = denied.iter().map(|denied| denied.without).collect();
    match without {
        // It will do without any of them.
        Some(without) => warn("rights", format!("{found}: {}", without.join("; ")), mend),
        None => bad("rights", found, mend),
    }
}

fn script(ran: &Result<Script, String>, server: &Server, timeout: Duration) -> Line {
    let script = match ran {
        Ok(script) => script,
        Err(why) => {
            // Redis repeats the command, and that is the whole script.
            let short = why.split(", with args").next().unwrap_or(why);
            return bad("script", format!("it does not run: {short}"), mend(why, "script"));
        }
    };
    let found = format!("{} a call, loaded in {}", human(script.call), human(script.loading));
    if script.call >= timeout {
        let mend = format!(
            "STORE_TIMEOUT is {}: raise it, or see what keeps the server busy (SLOWLOG GET)",
            human(timeout)
        );
        bad("script", found, mend)
    } else if server.cluster_mode && !script.crosses_slots {
        let found =
            format!("{found}; a call may hold one slot only, so busy servers work more than they need");
        warn(
            "script",
            found,
            "a proxy, or a setting of the server, forbids keys of several slots in a script",
        )
    } else {
        ok("script", found)
    }
}
