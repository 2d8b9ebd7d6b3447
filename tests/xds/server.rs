//! A management server that a test leads by the hand: it hears each request and says what is answered, on one port for
//! as long as the test lasts.

use std::{
    net::{SocketAddr, TcpListener},
    pin::Pin,
    time::Duration,
};

use prost::Message;
use prost_types::Any;
use tokio::{
    runtime::{self, Runtime},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{TcpListenerStream, UnboundedReceiverStream},
};
use tollgate::rules::xds::{
    TYPE_URL,
    wire::{
        envoy::service::discovery::v3::{
            DiscoveryRequest, DiscoveryResponse,
            aggregated_discovery_service_server::{
                AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
            },
        },
        ratelimit::config::ratelimit::v3::RateLimitConfig,
    },
};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataMap,
    transport::{Server, ServerTlsConfig},
};

/// So long is waited for what has to happen; only a failure takes it.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The server. Each of its streams is handed to the test.
pub(crate) struct Management {
    pub(crate) address: SocketAddr,
    streams: mpsc::UnboundedReceiver<Talk>,
    tls: Option<ServerTlsConfig>,
    opened: mpsc::UnboundedSender<Talk>,
    /// Of its own, so that ending it cuts what a server that vanishes cuts.
    runtime: Option<Runtime>,
}

/// One stream, with both its ends.
pub(crate) struct Talk {
    pub(crate) headers: MetadataMap,
    requests: mpsc::UnboundedReceiver<DiscoveryRequest>,
    answers: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
}

impl Management {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    pub(crate) fn start_with(tls: Option<ServerTlsConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, streams) = mpsc::unbounded_channel();
        let mut server = Self { address, streams, tls, opened, runtime: None };
        server.serve(listener);
        server
    }

    fn serve(&mut self, listener: TcpListener) {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut server = Server::builder();
        if let Some(tls) = self.tls.clone() {
            server = server.tls_config(tls).unwrap();
        }
        let service = server.add_service(AggregatedDiscoveryServiceServer::new(Ads(self.opened.clone())));
        listener.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            service.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        self.runtime = Some(runtime);
    }

    /// Cuts all connections and closes the port.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Serves again, on the same port.
    pub(crate) async fn start_again(&mut self) {
        let bind = async {
            loop {
                match TcpListener::bind(self.address) {
                    Ok(listener) => break listener,
                    // The one before is just ending.
                    Err(_) => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let listener = timeout(SOON, bind).await.expect("the port is free soon");
        self.serve(listener);
    }

    /// The next stream that a client opens.
    pub(crate) async fn stream(&mut self) -> Talk {
        timeout(SOON, self.streams.recv()).await.expect("a client comes soon").unwrap()
    }

    /// Whether there is a stream that the test has not taken.
    pub(crate) fn has_stream(&mut self) -> bool {
        !self.streams.is_empty()
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Talk {
    /// What the client says next.
    pub(crate) async fn request(&mut self) -> DiscoveryRequest {
        timeout(SOON, self.requests.recv())
            .await
            .expect("the client says something soon")
            .expect("it goes on")
    }

    /// Sends resources under a version; the nonce is the version with an `n` before it.
    pub(crate) fn send(&self, version: &str, resources: &[RateLimitConfig]) {
        self.send_any(version, resources.iter().map(any).collect());
    }

    pub(crate) fn send_any(&self, version: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: TYPE_URL.to_owned(),
            nonce: format!("n{version}"),
        };
        self.answers.send(Ok(response)).unwrap();
    }

    pub(crate) fn send_response(&self, response: DiscoveryResponse) {
        self.answers.send(Ok(response)).unwrap();
    }

    /// Ends the stream with an error, as a server that is about to go does.
    pub(crate) fn reset(self, status: Status) {
        self.answers.send(Err(status)).unwrap();
    }

    /// Sends resources and takes the answer to them, which accepts.
    pub(crate) async fn accepted(&mut self, version: &str, resources: &[RateLimitConfig]) {
        self.send(version, resources);
        let answer = self.request().await;
        assert_eq!(answer.error_detail, None);
        assert_eq!((answer.version_info.as_str(), answer.response_nonce), (version, format!("n{version}")));
    }

    /// Sends resources and takes the answer to them, which refuses; returns the reasons.
    pub(crate) async fn refused(&mut self, version: &str, before: &str, resources: Vec<Any>) -> String {
        self.send_any(version, resources);
        let answer = self.request().await;
        assert_eq!((answer.version_info.as_str(), answer.response_nonce), (before, format!("n{version}")));
        let error = answer.error_detail.expect("it is refused");
        assert_eq!(error.code, 3, "INVALID_ARGUMENT");
        error.message
    }
}

/// A resource as it travels.
pub(crate) fn any(config: &RateLimitConfig) -> Any {
    Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
}

struct Ads(mpsc::UnboundedSender<Talk>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (headers, _, mut incoming) = request.into_parts();
        let (heard, requests) = mpsc::unbounded_channel();
        let (answers, out) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(request)) = incoming.next().await {
                let _ = heard.send(request);
            }
        });
        let _ = self.0.send(Talk { headers, requests, answers });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(out))))
    }
}
