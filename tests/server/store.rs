//! A store that is not there: what is answered, and what health says.

use std::collections::BTreeMap;

use tollgate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::{
    client::{RULES, Service, http, now, request, until},
    support::redis::{RedisServer, free_port},
};

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_a_service_is_not_ready_and_it_becomes_so_by_itself() {
    let mut redis = RedisServer::start(&[]);
    redis.kill();
    let service = Service::start(&[("rules.yaml", RULES)], &[("REDIS_URL", &redis.address())]);
    until("the rules", async || service.get("/ready").1.contains("rules: loaded")).await;
    until("the first try", async || service.get("/ready").1.contains("refused")).await;
    let (status, body) = service.get("/ready");
    assert_eq!(status, 500);
    assert!(
        body.contains("rules: loaded") && body.contains(&format!("store {}: ", redis.address())),
        "{body}"
    );
    assert_eq!(service.health("ratelimit").await.unwrap(), ServingStatus::NotServing);

    redis.restart();
    service.until_health(ServingStatus::Serving).await;
    until("the store", async || service.get("/ready").1.ends_with(": OK\n")).await;
    assert_eq!(service.ask("user", "ann").await.unwrap().statuses[0].limit_remaining, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_is_answered_as_the_rules_say_and_health_stays() {
    let mut redis = RedisServer::start(&[]);
    let mut service = Service::ready(&[("REDIS_URL", &redis.address())]).await;
    redis.kill();
    until("the loss", async || service.get("/ready").1.contains("refused")).await;

    assert_eq!(service.health("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(service.get("/healthcheck"), (200, "OK".to_owned()));
    let answer = service.ask("user", "ann").await.unwrap();
    assert_eq!(answer.overall_code, 1);
    let wanted = [("on_store_failure", "allow"), ("store", "degraded"), ("store_failure", "unavailable")];
    assert_eq!(told(&answer), BTreeMap::from(wanted));
    let error = service.ask("strict", "ann").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains(&redis.address()), "{error}");
    let json = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "strict", "value": "ann"}]}]}"#;
    assert_eq!(service.post_json(json).0, 503);
    let (status, ready) = service.get("/ready");
    let why = "answered without the store in the last seconds: the store ";
    assert!(status == 200 && ready.contains(why), "{ready}");
    let line = service.served.line("on_store_failure answers: the store ");
    assert!(line.contains("WARN") && line.contains(&redis.address()), "{line}");
    assert!(
        service
            .get("/metrics")
            .1
            .contains("tollgate_fallbacks_total{mode=\"allow\",cause=\"unavailable\"} 1\n")
    );
}

/// The texts of an answer's dynamic metadata.
fn told(answer: &RateLimitResponse) -> BTreeMap<&str, &str> {
    let fields = answer.dynamic_metadata.as_ref().map(|of| &of.fields);
    fn text(value: &prost_types::Value) -> &str {
        match &value.kind {
            Some(prost_types::value::Kind::StringValue(text)) => text,
            other => panic!("no text: {other:?}"),
        }
    }
    fields.into_iter().flatten().map(|(name, value)| (name.as_str(), text(value))).collect()
}

/// How often Redis ran the script.
fn calls(redis: &RedisServer) -> u64 {
    let told = redis.command(&["INFO", "commandstats"]);
    let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_over_and_goes_on_asking_does_not_reach_redis() {
    let redis = RedisServer::start(&[]);
    let reference = [("TOLLGATE_COMPAT", "reference"), ("LOCAL_CACHE_SIZE_IN_BYTES", "1048576")];
    for compat in [false, true] {
        let address = redis.address();
        let mut settings =
            vec![("REDIS_URL", &*address), ("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0")];
        settings.extend(reference.iter().filter(|_| compat));
        let service = Service::ready(&settings).await;
        let mut client = service.client().await;
        let mut ask = async |key| {
            let answer = client.should_rate_limit(request("user", key)).await.unwrap().into_inner();
            (answer.overall_code, answer.response_headers_to_add)
        };
        let who = if compat { "bob" } else { "ann" };
        while ask(who).await.0 == 1 {}
        let (before, began) = (calls(&redis), now());
        let (code, headers) = ask(who).await;
        for _ in 0..100 {
            assert_eq!(ask(who).await.0, code);
        }
        // Ours asks again after a second, since a refund may have passed elsewhere.
        let asked_again = if compat { 0 } else { (now() - began).as_secs() + 1 };
        assert!(calls(&redis) - before <= asked_again, "compat: {compat}");
        assert_eq!(code, 2);
        assert_eq!(headers.iter().any(|header| header.key == "Retry-After"), !compat);
        let stats = http(&service.debug, "GET /stats HTTP/1.1\r\n", "").1;
        let over = "ratelimit.service.rate_limit.test.user.over_limit_with_local_cache: 101\n";
        assert!(!compat || stats.contains(over), "{stats}");
        assert!(stats.contains("ratelimit.localcache.entryCount: 1\n"), "{stats}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_store_where_that_is_wanted() {
    let mut redis = RedisServer::start(&[]);
    let settings =
        [("REDIS_URL", redis.address()), ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true".to_owned())];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let service = Service::ready(&settings).await;
    redis.kill();
    service.until_health(ServingStatus::NotServing).await;
    assert_eq!(service.get("/healthcheck").0, 500);
    redis.restart();
    service.until_health(ServingStatus::Serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_cannot_wait_for_a_hung_store_still_hears_what_the_rules_say() {
    let redis = RedisServer::start(&[]);
    let service = Service::ready(&[("REDIS_URL", &redis.address()), ("STORE_TIMEOUT", "1h")]).await;
    redis.hang();
    // Over HTTP, since a gRPC client would give up by itself at the same moment.
    let ask = |key: &str| {
        let body = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "KEY", "value": "ann"}]}]}"#;
        http(&service.http, "POST /json HTTP/1.1\r\ngrpc-timeout: 200m\r\n", &body.replace("KEY", key))
    };
    assert_eq!(ask("user").0, 200);
    let (status, why) = ask("strict");
    assert!(status == 503 && why.contains("gave no answer within"), "{status} {why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_stands_in_no_line_of_the_log() {
    let redis = RedisServer::start(&["--requirepass", "geheim"]);
    let address = format!("redis://:falsch-und-geheim@{}", redis.address());
    let mut service =
        Service::start(&[("rules.yaml", RULES)], &[("REDIS_URL", &address), ("LOG_LEVEL", "trace")]);
    until("the refusal", async || service.get("/ready").1.contains("WRONGPASS")).await;
    assert!(!service.get("/ready").1.contains("geheim"));
    service.served.signal("TERM");
    service.served.exit_code();
    assert!(!service.served.log().contains("geheim"), "{}", service.served.log());
}

#[test]
fn an_address_that_is_none_ends_with_64() {
    let rules = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    for address in ["redis://", "http://r:1", "host:notaport"] {
        let mut command = crate::support::tollgate::command();
        command.env("TOLLGATE_RULES", rules.path()).env("REDIS_URL", address).env("GRPC_PORT", &port);
        let ended = crate::support::tollgate::ended(&mut command);
        assert_eq!(ended.code, Some(64), "{address}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("tollgate: REDIS_URL"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lease_holds_goes_back_when_the_service_ends_or_when_nobody_asks_for_it() {
    let redis = RedisServer::start(&[]);
    let rules = "domain: test\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 1000, lease: 50}}\n";
    let address = redis.address();
    let mut service = Service::start(&[("rules.yaml", rules)], &[("REDIS_URL", &address), ("THREADS", "2")]);
    service.until_health(ServingStatus::Serving).await;
    let mut client = service.client().await;
    let counted = |who: &str| -> u32 {
        let count = "local state = redis.call('GET', KEYS[1])
            return state and string.format('%.0f', (select(3, struct.unpack('<Bddd', state)))) or '0'";
        let key = format!("tg:test:user={who}:fixed_window/31536000s");
        redis.command(&["EVAL", count, "1", &key]).trim().parse().unwrap()
    };
    for who in ["ann", "bob"] {
        for _ in 0..3 {
            let answer = client.should_rate_limit(request("user", who)).await.unwrap().into_inner();
            assert_eq!(answer.overall_code, 1);
        }
    }
    drop(client);
    until("what is not spent is back", async || counted("ann") == 3 && counted("bob") == 3).await;
    let mut client = service.client().await;
    for _ in 0..2 {
        client.should_rate_limit(request("user", "eve")).await.unwrap();
    }
    assert!([2, 52].contains(&counted("eve")));
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
    assert_eq!((counted("ann"), counted("bob"), counted("eve")), (3, 3, 2));
}
