//! Ending: nobody is left without an answer, and nobody has to wait for ever.

use std::net::TcpStream;

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::client::{Service, until};

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
