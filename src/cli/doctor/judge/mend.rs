//! From words to a mend.

/// The line that gives a user rights.
pub(super) fn set_user(user: &str, rights: &str) -> String {
    format!("ACL SETUSER {user} {rights}")
}

/// What a sentinel's user may hear.
pub(super) const HEAR: &str = "+subscribe &+switch-master";

/// What to do about words of a server, of the system, or of TLS.
pub(super) fn mend(why: &str, check: &'static str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["WRONGPASS", "NOAUTH", "invalid password"]) {
        match check {
            "sentinel" => "set REDIS_SENTINEL_AUTH to the password, or to user:password of an ACL user",
            _ => "set REDIS_AUTH to the password, or to user:password of an ACL user",
        }
    } else if has(&["unknown command 'AUTH'", "unknown command `AUTH`"]) {
        "it knows no passwords: take the password away, or let a proxy between pass AUTH on"
    } else if has(&["NOPERM"]) && check == "seed" {
        "in a cluster the user needs +cluster|info +cluster|shards +cluster|slots besides"
    } else if has(&["NOPERM", "ACL failure", "permission", "can't run"]) {
        "give the user `~tg:* +evalsha +script|load +time +get +set +del`, or what the README lists besides"
    } else if has(&["LOADING"]) {
        "wait until it has read its data from the disk"
    } else if has(&["READONLY"]) {
        "name the primary"
    } else if has(&["OOM"]) {
        "raise maxmemory"
    } else if has(&["MISCONF"]) {
        "it cannot write to its disk: see its log, or CONFIG SET stop-writes-on-bgsave-error no"
    } else if has(&["CLUSTERDOWN"]) {
        "the cluster is down: see the first section"
    } else if has(&["cluster support disabled"]) {
        "it is of no cluster: set REDIS_TYPE to single, and name one server"
    } else if has(&["unknown command 'SENTINEL'", "unknown command `SENTINEL`"]) {
        "it is no sentinel: these listen on 26379 by default"
    } else if has(&["knows no master"]) {
        "compare the name in REDIS_URL with `sentinel monitor NAME …` of the sentinels"
    } else if has(&["unknown command 'SCRIPT'", "unknown command `SCRIPT`"]) {
        "where it is a sentinel, write REDIS_URL=NAME,HOST:PORT,...; else a proxy forbids it: Tollgate needs EVALSHA, \
         SCRIPT LOAD, TIME, GET, SET and DEL"
    } else if has(&["non local key"]) {
        "it is a node of a cluster: take REDIS_TYPE=single away; its user needs +cluster|info to be told so"
    } else if has(&["unknown command"]) {
        "the server or a proxy forbids it; Tollgate needs EVALSHA, SCRIPT LOAD, TIME, GET, SET and DEL"
    } else if has(&["REDIS_TLS", "speak TLS"]) {
        "TLS has to be the same on both sides: REDIS_TLS or rediss://, REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT"
    } else if has(&["No such file"]) {
        "start it, or correct the path of its socket"
    } else if has(&["Connection refused"]) {
        "start it, or correct the address"
    } else if has(&["lookup", "not known", "resolve"]) {
        "correct the host's name"
    } else if has(&["does not speak as a Redis does", "it answered"]) {
        "is it the right port, and does it want TLS (rediss://)?"
    } else {
        "is it the right address, does it want TLS (rediss://), and is nothing between that drops packets?"
    }
}
