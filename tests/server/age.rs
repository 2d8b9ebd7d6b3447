//! Connections that become old: told to end, then cut.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::client::{Service, until};

/// Kinds of frames (RFC 9113, 6).
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// So long is waited for what has to happen; only a failure takes it.
const SOON: Duration = Duration::from_secs(30);

/// Speaks HTTP/2 without asking anything, until the server closes; which is the last stream that it will answer, as each
/// of its GOAWAYs says.
fn goaways_until_closed(address: &str) -> Vec<u32> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).unwrap();
    let mut goaways = Vec::new();
    let mut head = [0; 9];
    loop {
        match stream.read(&mut head[..1]) {
            Ok(0) => return goaways,
            read => read.unwrap(),
        };
        stream.read_exact(&mut head[1..]).unwrap();
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut body).unwrap();
        if head[3] == GOAWAY {
            goaways.push(u32::from_be_bytes([body[0], body[1], body[2], body[3]]));
        }
        if (head[3], head[4]) == (PING, 0) {
            // The server waits for this one before it closes, since requests may be under way.
            stream.write_all(&[0, 0, 8, PING, 1, 0, 0, 0, 0]).unwrap();
            stream.write_all(&body).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_connection_is_told_to_end_and_closed_when_nothing_is_in_flight() {
    let age = [("GRPC_MAX_CONNECTION_AGE", "300ms"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h")];
    let service = Service::start(&[], &age);
    let address = service.grpc.clone();
    let goaways = tokio::task::spawn_blocking(move || goaways_until_closed(&address)).await.unwrap();
    // What was sent before the first arrived is answered (RFC 9113, 6.8); the second says what that was.
    assert_eq!(goaways, [u32::MAX >> 1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_on_it_is_cut_after_the_grace_and_new_connections_are_served() {
    let age = [("GRPC_MAX_CONNECTION_AGE", "100ms"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "300ms")];
    let service = Service::ready(&age).await;
    let mut client = HealthClient::new(service.channel().await);
    let asked = HealthCheckRequest { service: "ratelimit".to_owned() };
    let mut watch = client.watch(asked).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let cut = tokio::time::timeout(SOON, watch.message()).await.expect("it is cut");
    assert!(cut.is_err(), "{cut:?}");
    until("an answer", async || service.ask("robot", "r2").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_on_an_old_connection_goes_on_within_the_grace() {
    let age = [("GRPC_MAX_CONNECTION_AGE", "300ms"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h")];
    let service = Service::ready(&age).await;
    let mut client = HealthClient::new(service.channel().await);
    let asked = HealthCheckRequest { service: "ratelimit".to_owned() };
    let mut watch = client.watch(asked).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    // Two lives of others, one after the other, are longer than this one's age, whatever chance adds.
    for _ in 0..2 {
        let address = service.grpc.clone();
        tokio::task::spawn_blocking(move || goaways_until_closed(&address)).await.unwrap();
    }
    service.served.signal("TERM");
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
}
