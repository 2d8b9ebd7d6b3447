//! What is said on a stream, and what becomes of the rules when it ends.

use prost::Message;
use prost_types::{Any, value::Kind};
use tollgate::rules::xds::{
    REASONS_MAX, TYPE_URL,
    wire::{
        envoy::service::discovery::v3::DiscoveryResponse,
        ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor},
    },
};
use tonic::{Code, Status};

use crate::{
    client::{Client, config, line},
    server::{Management, any},
};

#[tokio::test]
async fn it_says_who_it_is_and_asks_for_all_rules() {
    let mut server = Management::start();
    let settings = [
        ("CONFIG_GRPC_XDS_NODE_ID", "gateway"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "team=search,zone=b=c"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:Bearer a:b,x-tenant:acme"),
    ];
    let _client = Client::follow(server.address, &settings);
    let mut talk = server.stream().await;
    let header = |name| talk.headers.get(name).unwrap().to_str().unwrap();
    assert_eq!((header("authorization"), header("x-tenant")), ("Bearer a:b", "acme"));

    let first = talk.request().await;
    assert_eq!((first.type_url.as_str(), first.version_info.as_str()), (TYPE_URL, ""));
    assert_eq!((first.resource_names.len(), first.response_nonce.as_str()), (0, ""));
    let node = first.node.unwrap();
    assert_eq!((node.id.as_str(), node.user_agent_name.as_str()), ("gateway", "tollgate"));
    let fields = node.metadata.unwrap().fields;
    let field = |name: &str| fields[name].kind.clone();
    assert_eq!(field("team"), Some(Kind::StringValue("search".into())));
    assert_eq!(field("zone"), Some(Kind::StringValue("b=c".into())));
}

#[tokio::test]
async fn several_resources_are_one_rule_set_and_one_that_is_left_out_is_gone() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;

    talk.accepted("1", &[config("shop", 5), config("api", 7)]).await;
    assert_eq!(client.rules().await, [line("api", 7), line("shop", 5)]);
    talk.accepted("2", &[config("shop", 6)]).await;
    assert_eq!(client.rules().await, [line("shop", 6)]);
    talk.accepted("3", &[]).await;
    assert_eq!(client.rules().await, [""; 0]);
}

#[tokio::test]
async fn the_same_rules_under_another_version_or_in_another_order_are_accepted_and_change_nothing() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;

    talk.accepted("1", &[config("shop", 5), config("api", 7)]).await;
    talk.accepted("2", &[config("api", 7), config("shop", 5)]).await;
    talk.accepted("3", &[config("shop", 6)]).await;
    assert_eq!(client.rules().await.len(), 2);
    assert_eq!(client.rules().await, [line("shop", 6)]);
}

#[tokio::test]
async fn bad_rules_are_refused_with_all_mistakes_and_the_version_before() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;

    // Before any was accepted, there is no version to name.
    let mut no_unit = config("shop", 5);
    no_unit.descriptors[0].rate_limit.as_mut().unwrap().unit = 9;
    let reasons = talk.refused("1", "", vec![any(&no_unit)]).await;
    assert!(reasons.contains("no unit is called `9`") && reasons.contains("gateway/shop:"), "{reasons}");
    assert!(client.change().await.unwrap_err().contains("no unit is called `9`"));

    talk.accepted("2", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);

    let no_key = RateLimitDescriptor::default();
    let nameless = RateLimitConfig { descriptors: vec![no_key], ..config("", 1) };
    let torn = Any { type_url: TYPE_URL.into(), value: vec![0x0a, 0xff] };
    let foreign =
        Any { type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(), value: vec![] };
    let bad = vec![any(&nameless), torn, foreign, any(&no_unit), any(&config("shop", 1))];
    let reasons = talk.refused("3", "2", bad).await;
    for part in [
        "resource 2",
        "it cannot be read",
        "resource 3",
        "envoy.config.cluster.v3.Cluster",
        "a rule file names a domain",
        "no unit is called `9`",
        "a second file for the domain `shop`",
    ] {
        assert!(reasons.contains(part), "{part:?} is not in\n{reasons}");
    }
    assert!(client.change().await.is_err());

    // What is mended is told even when it is what was in force before.
    talk.accepted("4", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
}

#[tokio::test]
async fn the_reasons_of_a_refusal_are_bounded() {
    let mut server = Management::start();
    let _client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;
    let foreign = Any { type_url: "ä".repeat(500), value: vec![] };
    let reasons = talk.refused("1", "", vec![foreign; 5_000]).await;
    assert!((REASONS_MAX - 4..=REASONS_MAX).contains(&reasons.len()), "{}", reasons.len());
    assert!(reasons.ends_with("\n... and more"), "{}", &reasons[reasons.len() - 40..]);
}

#[tokio::test]
async fn what_was_not_asked_for_is_passed_over() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;
    let type_url = "type.googleapis.com/envoy.config.listener.v3.Listener".to_owned();
    talk.send_response(DiscoveryResponse { type_url, nonce: "x".into(), ..Default::default() });
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
}

#[tokio::test]
async fn streams_that_are_reset_are_opened_again_and_the_last_rules_stay() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);

    for code in [Code::Unavailable, Code::Internal, Code::Cancelled, Code::Ok, Code::ResourceExhausted] {
        talk.reset(Status::new(code, "away"));
        talk = server.stream().await;
        // Versions may mean something else by now, so the new stream names none.
        let first = talk.request().await;
        assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""), "{code:?}");
        assert_eq!(first.node.unwrap().id, "default");
    }
    talk.accepted("1", &[config("shop", 5)]).await;
    assert!(!client.has_change(), "nothing was taken away, and nothing is new");
    talk.accepted("2", &[config("shop", 6)]).await;
    assert_eq!(client.rules().await, [line("shop", 6)]);
}

#[tokio::test]
async fn a_server_that_is_restarted_is_found_again_even_if_its_versions_begin_anew() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);

    server.stop();
    drop(talk);
    server.start_again().await;
    let mut talk = server.stream().await;
    assert_eq!(talk.request().await.version_info, "");
    talk.accepted("1", &[config("shop", 6)]).await;
    assert_eq!(client.rules().await, [line("shop", 6)]);
}

#[tokio::test]
async fn a_server_that_comes_later_is_found() {
    let mut server = Management::start();
    server.stop();
    let mut client = Client::follow(server.address, &[]);
    server.start_again().await;
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[config("shop", 5)]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);
    assert!(!server.has_stream(), "one stream is enough");
}

#[tokio::test]
async fn a_response_may_be_as_large_as_its_bound_and_no_larger() {
    let mut server = Management::start();
    let fits = config("shop", 5);
    let response = DiscoveryResponse {
        version_info: "1".into(),
        resources: vec![any(&fits)],
        type_url: TYPE_URL.into(),
        nonce: "n1".into(),
    };
    let bound = response.encoded_len().to_string();
    let mut client = Client::follow(server.address, &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", &bound)]);
    let mut talk = server.stream().await;
    talk.request().await;
    talk.accepted("1", &[fits]).await;
    assert_eq!(client.rules().await, [line("shop", 5)]);

    talk.send("2", &[config("shops", 5)]);
    // It cannot be read, so it cannot be answered: the stream ends, and the rules stay.
    server.stream().await.request().await;
    assert!(!client.has_change());
}

#[tokio::test]
async fn ten_thousand_descriptors_come_in_one_resource() {
    let mut server = Management::start();
    let mut client = Client::follow(server.address, &[]);
    let mut talk = server.stream().await;
    talk.request().await;
    let mut many = config("shop", 5);
    let one = many.descriptors[0].clone();
    let value = |n| RateLimitDescriptor { value: format!("user-{n}"), ..one.clone() };
    many.descriptors = (0..10_000).map(value).collect();
    talk.accepted("1", &[many]).await;
    let rules = client.rules().await;
    assert_eq!(rules.len(), 10_000);
    assert!(
        rules[9_999].starts_with("shop.user_user-9999: unit=HOUR requests_per_unit=5"),
        "{}",
        rules[9_999]
    );
}
