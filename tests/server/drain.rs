//! Ending: nobody is left without an answer, and nobody has to wait for ever.

use std::net::TcpStream;

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    client::{Service, http, request, until},
    support::redis::RedisServer,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_tells_open_health_watches_ends_them_and_exits_with_0() {
    for signal in ["TERM", "INT"] {
        let mut service = Service::ready(&[]).await;
        let mut client = HealthClient::new(service.channel().await);
        let asked = HealthCheckRequest { service: "ratelimit".to_owned() };
        let mut watch = client.watch(asked).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);

        service.served.signal(signal);
        assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        assert!(watch.message().await.unwrap().is_none(), "the watch ends");
        assert_eq!(service.served.exit_code(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_hold_up_the_end() {
    let mut service = Service::ready(&[("SHUTDOWN_TIMEOUT", "1h")]).await;
    let _grpc = service.channel().await;
    // One that says nothing, on each port.
    let _silent: Vec<TcpStream> = [&service.grpc, &service.http, &service.debug]
        .map(|address| TcpStream::connect(address).unwrap())
        .into();
    service.served.signal("TERM");
    assert_eq!(service.served.exit_code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_is_answered_after_the_signal_and_new_callers_are_turned_away() {
    let (redis, mut service) = slow_store("3s", "1h").await;
    redis.hang();
    let mut client = service.client().await;
    let in_flight = tokio::spawn(async move {
        let answer = client.should_rate_limit(request("user", "ann")).await;
        // Its connection has got the GOAWAY, so nothing more is asked on it.
        answer.map(tonic::Response::into_inner)
    });
    let address = service.http.clone();
    let json = tokio::task::spawn_blocking(move || http(&address, "POST /json HTTP/1.1\r\n", JSON));
    until_in_flight(&service, 2).await;

    service.served.signal("TERM");
    service.served.line("draining");
    let port = service.grpc.clone();
    until("the closed port", async || TcpStream::connect(&port).is_err()).await;
    // `on_store_failure: allow` answers when STORE_TIMEOUT is over.
    assert_eq!(in_flight.await.unwrap().unwrap().overall_code, 1);
    assert_eq!(json.await.unwrap().0, 200);
    service.served.line("drained");
    assert_eq!(service.served.exit_code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_after_the_shutdown_timeout_is_cut_and_the_exit_is_still_0() {
    let (redis, mut service) = slow_store("1h", "50ms").await;
    redis.hang();
    let mut client = service.client().await;
    let in_flight = tokio::spawn(async move { client.should_rate_limit(request("user", "ann")).await });
    until_in_flight(&service, 1).await;
    service.served.signal("TERM");
    service.served.line("cut what was still in flight after 50ms");
    assert_eq!(service.served.exit_code(), Some(0));
    assert!(in_flight.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once_with_1() {
    let (redis, mut service) = slow_store("1h", "1h").await;
    redis.hang();
    let mut client = service.client().await;
    let in_flight = tokio::spawn(async move { client.should_rate_limit(request("user", "ann")).await });
    until_in_flight(&service, 1).await;
    service.served.signal("TERM");
    service.served.line("draining");
    service.served.signal("INT");
    service.served.line("SIGINT again: stopping at once");
    assert_eq!(service.served.exit_code(), Some(1));
    assert!(in_flight.await.unwrap().is_err());
}

/// What [`request`] asks for user bob.
const JSON: &str = r#"{"domain": "test", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}"#;

/// A service whose store can be hung.
async fn slow_store(store_timeout: &str, shutdown_timeout: &str) -> (RedisServer, Service) {
    let redis = RedisServer::start(&[]);
    let settings = [
        ("REDIS_URL", redis.address()),
        ("STORE_TIMEOUT", store_timeout.to_owned()),
        ("SHUTDOWN_TIMEOUT", shutdown_timeout.to_owned()),
    ];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let service = Service::ready(&settings).await;
    (redis, service)
}

async fn until_in_flight(service: &Service, count: usize) {
    let line = format!("tollgate_in_flight {count}\n");
    until("requests in flight", async || service.get("/metrics").1.contains(&line)).await;
}
