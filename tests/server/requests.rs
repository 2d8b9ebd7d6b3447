//! What is asked over gRPC, by friends and by others.

use std::{net::TcpStream, process::Command, time::Duration};

use http::uri::PathAndQuery;
use tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code as Overall,
};
use tonic::{Code, Request, client::Grpc};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::client::{Service, request};

#[tokio::test]
async fn three_pass_and_the_fourth_is_told_when_to_come_back() {
    let service = Service::ready(&[]).await;
    for left in [2, 1, 0] {
        let answer = service.ask("user", "ann").await.unwrap();
        assert_eq!((answer.overall_code(), answer.statuses[0].limit_remaining), (Overall::Ok, left));
        let limit = answer.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, limit.name.as_str()), (3, 6, "users"));
        assert_eq!(headers(&answer)[0], "RateLimit-Policy: \"users\";q=3;w=31536000");
        assert!(headers(&answer)[1].starts_with(&format!("RateLimit: \"users\";r={left};t=")));
        assert_eq!(headers(&answer).len(), 2);
    }
    let answer = service.ask("user", "ann").await.unwrap();
    assert_eq!(answer.overall_code(), Overall::OverLimit);
    let (name, seconds) =
        headers(&answer)[2].split_once(": ").map(|(n, s)| (n.to_owned(), s.to_owned())).unwrap();
    let reset = answer.statuses[0].duration_until_reset.unwrap();
    let up = reset.seconds + i64::from(reset.nanos > 0);
    assert_eq!((name.as_str(), seconds.parse()), ("Retry-After", Ok(up)));
    assert_eq!(service.ask("user", "bob").await.unwrap().overall_code(), Overall::Ok);
    assert_eq!(service.ask("robot", "x").await.unwrap().statuses[0].limit_remaining, u32::MAX);
}

#[tokio::test]
async fn reflection_lists_the_services_and_knows_their_messages() {
    let service = Service::ready(&[]).await;
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let asked = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("envoy.service.ratelimit.v3.RateLimitRequest".to_owned())),
    ]);
    let mut client = ServerReflectionClient::new(service.channel().await);
    let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list")
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let file = answers.message().await.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)), "{file:?}");
}

#[tokio::test]
async fn unknown_services_and_methods_are_refused_by_name() {
    let service = Service::ready(&[]).await;
    assert_eq!(service.health("nobody").await.unwrap_err().code(), Code::NotFound);
    for path in ["/no.such.Service/Method", "/envoy.service.ratelimit.v3.RateLimitService/NoSuchMethod"] {
        assert_eq!(raw(&service, path, b"").await.unwrap_err().code(), Code::Unimplemented);
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_and_the_connection_lives_on() {
    let service = Service::ready(&[]).await;
    let mut client = service.client().await;
    let mut no_domain = request("user", "ann");
    no_domain.get_mut().domain.clear();
    let mut nothing = request("user", "ann");
    nothing.get_mut().descriptors.clear();
    for (request, words) in [(no_domain, "domain"), (nothing, "descriptor")] {
        let refused = client.should_rate_limit(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(words), "{refused}");
    }
    let garbage = raw(&service, ASK, b"\xff\xff\xff\xff garbage").await.unwrap_err();
    assert!([Code::Internal, Code::InvalidArgument].contains(&garbage.code()), "{garbage}");
    assert_eq!(
        client.should_rate_limit(request("user", "ann")).await.unwrap().into_inner().statuses[0]
            .limit_remaining,
        2
    );
}

#[tokio::test]
async fn hostile_values_are_limited_each_by_itself() {
    let service = Service::ready(&[]).await;
    let mut client = service.client().await;
    let values = [
        vec![b'x'; 1 << 20],
        vec![b'x'; (1 << 20) + 1],
        b"bob\xff".to_vec(),
        b"bob\xfe".to_vec(),
        b"\0".to_vec(),
        b"\0\0".to_vec(),
        b"{acme}".to_vec(),
        b"a,b=c:d%2C".to_vec(),
        Vec::new(),
        b"\r\nX-Evil: 1".to_vec(),
    ];
    for value in &values {
        for left in [2, 1, 0, 0] {
            let answer = client.should_rate_limit(request("user", value.clone())).await.unwrap().into_inner();
            assert_eq!(answer.statuses[0].limit_remaining, left, "{:?}", &value[..value.len().min(20)]);
        }
    }
    let over = client.should_rate_limit(request("user", values[0].clone())).await.unwrap().into_inner();
    assert_eq!(over.overall_code(), Overall::OverLimit);
}

#[tokio::test]
async fn a_message_over_the_bound_is_refused_and_the_next_one_is_not() {
    let service = Service::ready(&[]).await;
    let mut client = service.client().await;
    let refused = client.should_rate_limit(request("user", vec![b'x'; 5 << 20])).await.unwrap_err();
    assert!([Code::OutOfRange, Code::ResourceExhausted].contains(&refused.code()), "{refused}");
    assert!(client.should_rate_limit(request("user", "ann")).await.is_ok());
}

#[tokio::test]
async fn each_thread_answers_the_connections_that_it_was_dealt() {
    let service = Service::ready(&[("THREADS", "3")]).await;
    for connection in 0..6 {
        let answer = service.ask("user", &connection.to_string()).await.unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 2);
    }
    let threads: Vec<String> = std::fs::read_dir(format!("/proc/{}/task", service.served.pid()))
        .unwrap()
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap())
        .filter(|name| name.starts_with("answers-"))
        .collect();
    assert_eq!(threads.len(), 3, "{threads:?}");
}

#[tokio::test]
async fn a_short_timeout_of_the_caller_is_no_error_where_the_memory_answers() {
    let service = Service::ready(&[]).await;
    let mut asked = request("user", "ann");
    asked.set_timeout(Duration::from_secs(5));
    assert!(service.client().await.should_rate_limit(asked).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_file_descriptors_is_a_pause_and_not_the_end() {
    let mut service = Service::ready(&[]).await;
    let limited = Command::new("prlimit")
        .args([&format!("--pid={}", service.served.pid()), "--nofile=40:40"])
        .status()
        .expect("prlimit is part of util-linux");
    assert!(limited.success());
    let crowd: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(&service.grpc).unwrap()).collect();
    service.served.line("cannot accept a connection: ");
    drop(crowd);
    assert!(service.ask("user", "ann").await.is_ok());
}

const ASK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Sends bytes that need not be a message.
async fn raw(service: &Service, path: &str, bytes: &[u8]) -> Result<Vec<u8>, tonic::Status> {
    let mut grpc = Grpc::new(service.channel().await);
    grpc.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let answer = grpc.unary(Request::new(bytes.to_vec()), path, codec::Bytes).await?;
    Ok(answer.into_inner())
}

fn headers(answer: &RateLimitResponse) -> Vec<String> {
    answer.response_headers_to_add.iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
}

/// Bytes as they are.
mod codec {
    use bytes::{Buf, BufMut};
    use tonic::{
        Status,
        codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    };

    #[derive(Default)]
    pub(super) struct Bytes;

    impl Codec for Bytes {
        type Encode = Vec<u8>;
        type Decode = Vec<u8>;
        type Encoder = Self;
        type Decoder = Self;

        fn encoder(&mut self) -> Self {
            Self
        }

        fn decoder(&mut self) -> Self {
            Self
        }
    }

    impl Encoder for Bytes {
        type Item = Vec<u8>;
        type Error = Status;

        fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
            to.put_slice(&item);
            Ok(())
        }
    }

    impl Decoder for Bytes {
        type Item = Vec<u8>;
        type Error = Status;

        fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
            Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
        }
    }
}
