//! Starting: with good rules, bad ones, none, and where it cannot.

use std::{fs, net::TcpListener};

use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::{
    client::{RULES, Service, until},
    support::tollgate,
};

#[tokio::test]
async fn bad_rules_at_the_start_are_all_told_and_it_serves_as_soon_as_they_are_mended() {
    let bad =
        "domain: test\ndescriptors:\n- key: user\n  rate_limit: {unit: fortnight, requests_per_unit: 3}\n";
    let worse = "domain: other\ndescriptors:\n- {kee: user}\n";
    let mut service = Service::start(&[("bad.yaml", bad), ("worse.yaml", worse)], &[]);
    service.served.line("fortnight");
    service.served.line("kee");

    assert_eq!(service.health("").await.unwrap(), ServingStatus::NotServing);
    assert_eq!(service.health("ratelimit").await.unwrap(), ServingStatus::NotServing);
    assert_eq!(service.get("/healthcheck").0, 500);
    let (status, body) = service.get("/ready");
    assert!(status == 500 && body.contains("rules: none"), "{body}");
    let refused = service.ask("user", "ann").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("rules"), "{refused}");

    fs::remove_file(service.rules.path().join("worse.yaml")).unwrap();
    fs::write(service.rules.path().join("bad.yaml"), RULES).unwrap();
    service.until_health(ServingStatus::Serving).await;
    assert_eq!(service.health("ratelimit").await.unwrap(), ServingStatus::Serving);
    assert_eq!(service.get("/healthcheck"), (200, "OK".to_owned()));
    assert_eq!(service.ask("user", "ann").await.unwrap().statuses[0].limit_remaining, 2);
}

#[tokio::test]
async fn a_bad_edit_changes_nothing_and_health_stays() {
    let service = Service::ready(&[]).await;
    fs::write(service.rules.path().join("rules.yaml"), "domain: [").unwrap();
    until("the refusal", async || {
        service.get("/metrics").1.contains("rule_reloads_total{result=\"refused\"} 1")
    })
    .await;
    assert_eq!(service.health("").await.unwrap(), ServingStatus::Serving);
    let (status, ready) = service.get("/ready");
    assert!(
        status == 200 && ready.contains("not in force: ") && ready.contains("--> rules.yaml:"),
        "{ready}"
    );
    assert_eq!(service.ask("user", "ann").await.unwrap().statuses[0].limit_remaining, 2);
}

#[tokio::test]
async fn without_rule_files_all_passes_and_the_log_says_so() {
    let mut service = Service::start(&[], &[]);
    service.served.line("no domains in the rules: every request passes");
    service.until_health(ServingStatus::Serving).await;
    let answer = service.ask("user", "ann").await.unwrap();
    assert_eq!(answer.overall_code, 1);
    assert!(answer.response_headers_to_add.is_empty());
}

#[test]
fn a_rule_directory_that_is_not_there_ends_with_64() {
    let ended = tollgate::run(["serve", "--rules", "/no/such/place", "--grpc-port", "0"]);
    assert_eq!(ended.code, Some(64));
    assert!(ended.stderr.contains("no rule directory /no/such/place") && ended.stderr.contains("--rules"));
}

#[test]
fn an_authority_for_a_rediss_address_that_is_not_there_ends_with_64() {
    let rules = tempfile::tempdir().unwrap();
    let dir = rules.path().to_str().unwrap();
    let redis = ["--redis-url", "rediss://127.0.0.1:1", "--redis-tls-cacert", "/no/such/ca.pem"];
    let ended = tollgate::run(["serve", "--grpc-port", "0", "--rules", dir].into_iter().chain(redis));
    assert_eq!(ended.code, Some(64), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("REDIS_TLS_CACERT") && ended.stderr.contains("/no/such/ca.pem"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_port_in_use_ends_with_1_and_says_which_setting_moves_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let rules = tempfile::tempdir().unwrap();
    for (flag, setting) in [("--grpc-port", "GRPC_PORT"), ("--port", "PORT"), ("--debug-port", "DEBUG_PORT")]
    {
        let mut command = tollgate::command();
        command.env("TOLLGATE_RULES", rules.path());
        for (host, port) in [("GRPC_HOST", "GRPC_PORT"), ("HOST", "PORT"), ("DEBUG_HOST", "DEBUG_PORT")] {
            command.env(host, "127.0.0.1").env(port, "0");
        }
        let ended = tollgate::ended(command.args([flag, &port]));
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let last = ended.stderr.lines().last().unwrap();
        assert!(
            last.starts_with("tollgate: cannot listen on 127.0.0.1:") && last.contains(setting),
            "{last}"
        );
    }
}

#[tokio::test]
async fn variables_of_the_reference_without_effect_are_told_in_one_line() {
    let settings = [("REDIS_PIPELINE_WINDOW", "150us"), ("REDIS_TLS", "false"), ("REDIS_POOL_SIZE", "9")];
    let mut service = Service::start(&[("rules.yaml", RULES)], &settings);
    let line = service.served.line("without effect here");
    assert!(
        line.ends_with(
            "REDIS_PIPELINE_WINDOW, REDIS_POOL_SIZE (a few connections carry calls that batch themselves)"
        ),
        "{line}"
    );
}

#[tokio::test]
async fn variables_that_look_like_settings_are_told_in_one_line_without_their_values() {
    let settings =
        [("REDIS_ULR", "redis://:s3cret@h"), ("TOLLGATE_RULE", "s3cret"), ("GRPC_UDS_MODE", "660")];
    let mut service = Service::start(&[("rules.yaml", RULES)], &settings);
    let line = service.served.line("no settings, and without effect");
    assert!(
        line.ends_with("REDIS_ULR (did you mean REDIS_URL?), TOLLGATE_RULE (did you mean TOLLGATE_RULES?)"),
        "{line}"
    );
    service.served.line("GRPC_UDS_MODE (--grpc-uds-mode): without effect");
    assert!(!service.served.log().contains("s3cret"));
}

#[tokio::test]
async fn a_log_for_machines_is_json_line_by_line() {
    let rules = tempfile::tempdir().unwrap();
    let mut served = tollgate::Served::start(rules.path(), &[("LOG_FORMAT", "json")]);
    let line: serde_json::Value = serde_json::from_str(&served.line("grpc listening on ")).unwrap();
    assert_eq!(line["level"], "INFO");
    assert!(line["message"].as_str().unwrap().starts_with("grpc listening on 127.0.0.1:"), "{line}");
}
