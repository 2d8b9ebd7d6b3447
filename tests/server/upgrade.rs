//! `KEY_FORMAT=reference`: counters that envoyproxy/ratelimit and Tollgate share while a deployment rolls.
//!
//! `tests/golden/keys.jsonl` is what the reference left in Redis after one request each: keys, values and expiries.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use ::tollgate::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::{
    client::{Service, http, now},
    support::{redis::RedisServer, tollgate},
};

const KEYS: &str = include_str!("../golden/keys.jsonl");
const RULES: &str = include_str!("../golden/keys.rules.yaml");

const SHOP: &[(&str, &str)] = &[("rules.yaml", RULES)];

/// How long a test waits for what must happen at last.
const EVENTUALLY_S: u64 = 30;

async fn service(redis: &RedisServer, settings: &[(&str, &str)]) -> Service {
    let address = redis.address();
    let mut all =
        vec![("REDIS_URL", &*address), ("STORE_TIMEOUT", "20s"), ("EXPIRATION_JITTER_MAX_SECONDS", "0")];
    all.extend(settings);
    let service = Service::start(SHOP, &all);
    service.until_health(ServingStatus::Serving).await;
    service
}

/// A recorded request as `/json` takes it.
fn body(request: &Value) -> String {
    let entry = |entry: &Value| json!({"key": entry[0], "value": entry[1]});
    let descriptor = |entries: &Value| {
        let mut descriptor =
            json!({"entries": entries.as_array().unwrap().iter().map(entry).collect::<Vec<_>>()});
        if let Some(limit) = request.get("limit") {
            descriptor["limit"] = json!({"requests_per_unit": limit[0], "unit": limit[1]});
        }
        descriptor
    };
    let descriptors: Vec<Value> = request["d"].as_array().unwrap().iter().map(descriptor).collect();
    json!({"domain": "shop.api", "descriptors": descriptors, "hits_addend": request.get("hits").unwrap_or(&json!(0))})
        .to_string()
}

/// What stands under a key: the key without its window's start, the value, the seconds that it is kept for.
type Row = (String, String, u64);

/// What stands in Redis, and the windows' starts. `None` when something vanishes meanwhile.
fn stored(redis: &RedisServer) -> Option<(Vec<Row>, Vec<u64>)> {
    let keys = redis.command(&["KEYS", "*"]);
    let mut all = Vec::new();
    for key in keys.lines() {
        let value = redis.command(&["GET", key]);
        let left_ms = redis.command(&["PTTL", key]).parse::<i64>().unwrap();
        let (stem, start) = key.rsplit_once('_').unwrap();
        // A second's counter may be gone already.
        let left_ms = u64::try_from(left_ms).ok().filter(|ms| *ms > 0)?;
        all.push((
            (format!("{stem}_{{window start}}"), value, left_ms.div_ceil(1000)),
            start.parse::<u64>().unwrap(),
        ));
    }
    all.sort();
    Some(all.into_iter().unzip())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_values_and_expiries_are_those_that_the_reference_leaves() {
    let redis = RedisServer::start(&[]);
    let mut services = BTreeMap::new();
    for prefix in ["", "blue:"] {
        let settings =
            [("KEY_FORMAT", "reference"), ("TOLLGATE_COMPAT", "reference"), ("CACHE_KEY_PREFIX", prefix)];
        services.insert(prefix, service(&redis, &settings).await);
    }
    let cases: Vec<Value> = KEYS.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 17);
    for case in cases {
        let expected = case["redis"].as_array().unwrap();
        let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
        let mut wanted: Vec<_> = expected
            .iter()
            .map(|row| (text(row, "key"), text(row, "value"), row["ttl_s"].as_u64().unwrap()))
            .collect();
        wanted.sort();
        let began = now();
        let (found, starts) = loop {
            redis.command(&["FLUSHALL"]);
            let (status, answer) = services[&*text(&case, "prefix")].post_json(&body(&case["request"]));
            assert!(status == 200 || status == 429, "{case}: {answer}");
            match stored(&redis) {
                Some((found, starts)) if found.len() == wanted.len() => break (found, starts),
                left => assert!((now() - began).as_secs() < EVENTUALLY_S, "{case}: {left:?}"),
            }
        };
        for ((found, wanted), start) in found.iter().zip(&wanted).zip(starts) {
            assert_eq!((&found.0, &found.1), (&wanted.0, &wanted.1), "{case}");
            assert!(found.2 <= wanted.2 && found.2 + EVENTUALLY_S > wanted.2, "{case}: {found:?}");
            let unit = wanted.2;
            let present = SystemClock.now().0 / 1_000_000;
            assert!(start.is_multiple_of(unit) && start + unit + EVENTUALLY_S > present, "{case}: {start}");
        }
    }
}

/// A year, so that no window ends in the middle.
const LIMIT: u32 = 300;

const BUDGET: &str = "domain: shop
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 300}}]
";

/// As the reference spends: count first, then look. Tells whether the hit was granted.
fn count_as_the_reference_does(redis: &RedisServer) -> bool {
    let year = 365 * 86_400;
    let start = SystemClock.now().0 / 1_000_000 / year * year;
    let key = format!("shop_user_ann_{start}");
    let count: u32 = redis.command(&["INCRBY", &key, "1"]).parse().unwrap();
    redis.command(&["EXPIRE", &key, &year.to_string()]);
    count <= LIMIT
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_clients_of_old_and_new_replicas_are_granted_one_limit() {
    for compat in ["none", "reference"] {
        let redis = RedisServer::start(&[]);
        let address = redis.address();
        let settings = [
            ("REDIS_URL", &*address),
            ("STORE_TIMEOUT", "20s"),
            ("KEY_FORMAT", "reference"),
            ("TOLLGATE_COMPAT", compat),
        ];
        let replicas = [(), ()].map(|()| Service::start(&[("rules.yaml", BUDGET)], &settings));
        for replica in &replicas {
            replica.until_health(ServingStatus::Serving).await;
        }
        let addresses = replicas.each_ref().map(|replica| replica.http.clone());
        let granted = [0, 1, 2].map(|_| AtomicU32::new(0));
        let failed = Mutex::new(Vec::new());
        let ask = |client: usize, times: u32| {
            let body =
                r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
            for _ in 0..times {
                let replica = client % 3;
                let passed = match addresses.get(replica) {
                    Some(address) => match http(address, "POST /json HTTP/1.1\r\n", body) {
                        (200, _) => true,
                        (429, _) => false,
                        other => return failed.lock().unwrap().push(other),
                    },
                    None => count_as_the_reference_does(&redis),
                };
                granted[replica].fetch_add(u32::from(passed), Ordering::Relaxed);
            }
        };
        // Each once before the rush, so that none is left out.
        (0..3).for_each(|client| ask(client, 1));
        thread::scope(|scope| {
            let ask = &ask;
            for client in 0..64 {
                scope.spawn(move || ask(client, 12));
            }
        });
        let granted = granted.map(AtomicU32::into_inner);
        assert_eq!(failed.into_inner().unwrap(), []);
        assert_eq!(granted.iter().sum::<u32>(), LIMIT, "{granted:?}");
        assert!(granted.iter().all(|&n| n > 0), "nobody was left out: {granted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_reference_does_not_know_keeps_our_keys_behind_the_prefix() {
    let redis = RedisServer::start(&[]);
    let address = redis.address();
    let rules = "domain: d
default: {unit: day, requests_per_unit: 9}
descriptors:
- key: bucket
  rate_limit: {unit: day, requests_per_unit: 9, algorithm: token_bucket}
- key: half
  rate_limit: {window: 30m, requests_per_unit: 9}
- key: both
  rate_limits: [{unit: day, requests_per_unit: 9}, {unit: year, requests_per_unit: 9}]
- key: one
  rate_limit: {unit: year, requests_per_unit: 9}
";
    let settings = [
        ("REDIS_URL", &*address),
        ("STORE_TIMEOUT", "20s"),
        ("KEY_FORMAT", "reference"),
        ("CACHE_KEY_PREFIX", "p:"),
    ];
    let service = Service::start(&[("rules.yaml", rules)], &settings);
    service.until_health(ServingStatus::Serving).await;
    for key in ["bucket", "half", "both", "one", "other"] {
        let body = json!({"domain": "d", "descriptors": [{"entries": [{"key": key, "value": "x"}]}]});
        assert_eq!(service.post_json(&body.to_string()).0, 200, "{key}");
    }
    let mut keys: Vec<String> = redis.command(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    let shared = keys.remove(0);
    assert!(shared.starts_with("p:d_one_x_"), "{shared}");
    assert_eq!(redis.command(&["GET", &shared]), "1");
    assert_eq!(
        keys,
        [
            "p:tg:d:both=x:fixed_window/31536000s",
            "p:tg:d:both=x:fixed_window/86400s",
            "p:tg:d:bucket=x:token_bucket",
            "p:tg:d:half=x:fixed_window/1800s",
            "p:tg:d:other=x:fixed_window/86400s",
        ]
    );
}

#[test]
fn budgets_in_memory_cannot_be_shared_so_that_is_refused() {
    let rules = tempfile::tempdir().unwrap();
    let mut command = tollgate::command();
    command.arg("serve").arg("--rules").arg(rules.path()).args(["--key-format", "reference"]);
    command.args(["--grpc-port", "0", "--port", "0", "--debug-port", "0"]);
    let ended = tollgate::ended(&mut command);
    assert_eq!(ended.code, Some(64), "{}", ended.stderr);
    assert!(ended.stderr.contains("KEY_FORMAT") && ended.stderr.contains("REDIS_URL"), "{}", ended.stderr);
}
