//! Rules from a management server: a client of Envoy's discovery service, for rules.
//!
//! Envoy Gateway, or anybody with go-control-plane, serves rules over one gRPC stream (ADS) as resources of the type
//! [`TYPE_URL`]. We say who we are and ask for all of them; each response is all there is (state of the world), so one
//! that leaves a resource out removes it. What is accepted is answered with its version (ACK), what is not with the
//! reasons and the version before (NACK): the management server is where a person looks.
//!
//! ```text
//! us      node, type                       version ""   nonce ""
//! server  version 7, nonce a, resources
//! us      compiled, in force               version 7    nonce a
//! server  version 8, nonce b, resources
//! us      refused: all mistakes, in words  version 7    nonce b     rules of version 7 stay
//! ```
//!
//! - **The last good rules stay**: while the server is away, when a stream is reset, and when a response is refused.
//!   Rules are compiled whole or not at all, all resources of a response together, by the compiler of the files.
//! - **A new stream begins without a version.** The protocol would let us name the one that is in force, and a server
//!   that has it sends nothing. But versions are often counters that begin anew with the server: after its restart,
//!   version 3 may be other rules, and we would never learn it. Rules that are in force already change nothing.
//! - **Waiting** doubles, with a share left to chance, see `backoff`. A connection that is dead without a word is found
//!   by TCP's own keepalive: gRPC's pings would make servers of other makes hang up that allow one in five minutes.
//! - Certificates are read for each connection, so that renewed ones are taken without a restart.
//!
//! What comes of it goes to the caller's function; this module logs what becomes of the stream.

pub mod wire;

mod backoff;
mod connect;
mod resources;

use std::{
    convert::Infallible,
    error::Error,
    hash::{BuildHasher, Hasher, RandomState},
    mem,
    time::Duration,
};

use prost_types::{Struct, Value, value::Kind};
use tokio::{sync::mpsc, task, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, transport::Channel};

use self::{
    backoff::Backoff,
    wire::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{
                DiscoveryRequest, DiscoveryResponse,
                aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
            },
        },
        google::rpc,
    },
};
use super::{Compiled, Dialect, Mistakes};
use crate::settings::Xds;

pub use connect::check;
pub use resources::{TYPE_URL, compile_all};

/// The most of the reasons that a NACK repeats, in bytes: all that a person reads at once, in a frame or two.
pub const REASONS_MAX: usize = 16 << 10;

/// The pause after a refusal. A server that sends the same again at once costs ten compilations a second, no more.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Answers that wait to be sent: there is one for each response, and responses are worked on one after the other.
const ANSWERS_MAX: usize = 4;

/// Why a response is not in force.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// All that is wrong with its rules.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
    /// Compiling it panicked.
    #[error("compiling the rules ended by a defect: {0}")]
    Defect(task::JoinError),
}

/// What happens to rules.
#[derive(Debug)]
pub enum News {
    /// The server is there: a stream has brought its first response.
    Found,
    /// The first rules, or others than before, or the same after a refusal.
    Rules(Compiled),
    /// What came is not in force.
    Refused(Refused),
    /// The server is away; told at the start, and after each [`News::Found`].
    Lost,
}

/// Follows the rules of a management server, for ever: connects, and again whenever that ended.
pub async fn follow<F>(xds: &Xds, dialect: Dialect, on_news: F) -> Infallible
where
    F: FnMut(News) + Send,
{
    let mut client = Client { xds, dialect, on_news, in_force: None, refused: false, found: false };
    (client.on_news)(News::Lost);
    let mut backoff = Backoff::new(xds.backoff);
    loop {
        let (first, why) = match connect::connect(xds).await {
            Err(why) => (xds.connect_retry, why),
            Ok(channel) => {
                tracing::info!("connected to the management server {} as node {}", xds.server, xds.node_id);
                let why = client.serve(channel, &mut backoff).await;
                (xds.backoff.initial, why)
            }
        };
        let wait = backoff.wait(first, RandomState::new().build_hasher().finish());
        if mem::take(&mut client.found) {
            (client.on_news)(News::Lost);
        }
        let rules = if client.in_force.is_some() { "its last rules stay in force" } else { "no rules yet" };
        tracing::warn!("management server {}: {why}; {rules}; again in {wait:.1?}", xds.server);
        time::sleep(wait).await;
    }
}

/// What outlives a stream.
struct Client<'x, F> {
    xds: &'x Xds,
    dialect: Dialect,
    on_news: F,
    /// Whether the present stream has brought anything.
    found: bool,
    /// The revision of the rules that were delivered last.
    in_force: Option<String>,
    /// Whether a refusal came after them.
    refused: bool,
}

impl<F> Client<'_, F>
where
    F: FnMut(News) + Send,
{
    /// One stream, up to why it ended.
    async fn serve(&mut self, channel: Channel, backoff: &mut Backoff) -> String {
        let (answers, sent) = mpsc::channel(ANSWERS_MAX);
        let first = DiscoveryRequest {
            node: Some(node(self.xds)),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        // Servers say nothing, not even that they took the stream, before they were asked.
        let _ = answers.send(first).await;
        let mut request = Request::new(ReceiverStream::new(sent));
        connect::add_headers(request.metadata_mut(), self.xds);
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(self.xds.message_max);
        match client.stream_aggregated_resources(request).await {
            Ok(stream) => self.read(stream.into_inner(), &answers, backoff).await,
            Err(status) => self.words(&status),
        }
    }

    /// All responses of a stream.
    async fn read(
        &mut self,
        mut stream: Streaming<DiscoveryResponse>,
        answers: &mpsc::Sender<DiscoveryRequest>,
        backoff: &mut Backoff,
    ) -> String {
        let mut version = String::new();
        loop {
            let response = match stream.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return "it ended the stream".to_owned(),
                Err(status) => return self.words(&status),
            };
            if response.type_url != TYPE_URL {
                tracing::warn!("the management server sent what was not asked for: {:?}", response.type_url);
                continue;
            }
            if !mem::replace(&mut self.found, true) {
                (self.on_news)(News::Found);
            }
            let (nonce, offered) = (response.nonce.clone(), response.version_info.clone());
            let refused = self.take(response).await.err();
            match &refused {
                None => {
                    tracing::debug!("accepted version {offered:?}");
                    version = offered;
                    backoff.reset();
                }
                Some(reasons) => tracing::error!("refused version {offered:?}: {reasons}"),
            }
            let is_refused = refused.is_some();
            let answer = DiscoveryRequest {
                version_info: version.clone(),
                type_url: TYPE_URL.to_owned(),
                response_nonce: nonce,
                error_detail: refused
                    .map(|message| rpc::Status { code: Code::InvalidArgument as i32, message }),
                ..DiscoveryRequest::default()
            };
            // Fails only when the stream has ended, which the next message tells better.
            let _ = answers.send(answer).await;
            if is_refused {
                time::sleep(REFUSED_PAUSE).await;
            }
        }
    }

    /// Compiles a response and delivers what came of it.
    ///
    /// # Errors
    /// The reasons of a refusal, as a NACK tells them.
    async fn take(&mut self, response: DiscoveryResponse) -> Result<(), String> {
        let dialect = self.dialect;
        // Ten thousand rules take a moment, in which probes and signals are answered.
        let compiled = task::spawn_blocking(move || compile_all(&response.resources, dialect)).await;
        match compiled.map_err(Refused::Defect).and_then(|compiled| compiled.map_err(Refused::from)) {
            Ok(compiled) => {
                let revision = Some(compiled.rules.revision().to_owned());
                // The same rules as before are a change after a refusal: it is mended.
                if self.in_force != revision || self.refused {
                    (self.in_force, self.refused) = (revision, false);
                    (self.on_news)(News::Rules(compiled));
                }
                Ok(())
            }
            Err(refused) => {
                let reasons = shortened(refused.to_string());
                self.refused = true;
                (self.on_news)(News::Refused(refused));
                Err(reasons)
            }
        }
    }

    fn words(&self, status: &Status) -> String {
        let help = match status.code() {
            Code::OutOfRange => {
                format!(" (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES is {}: raise it)", self.xds.message_max)
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                " (see CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS and CONFIG_GRPC_XDS_CLIENT_TLS_CERT)"
                    .to_owned()
            }
            // In TLS 1.3 the client believes to be connected before the server has looked at its certificate.
            Code::Cancelled if self.xds.tls.is_some() => {
                " (it may have refused CONFIG_GRPC_XDS_CLIENT_TLS_CERT, or want one)".to_owned()
            }
            Code::Unimplemented => " (CONFIG_GRPC_XDS_SERVER_URL names no management server)".to_owned(),
            _ => String::new(),
        };
        let why = match status.source().map(connect::causes) {
            Some(causes) if !causes.starts_with(status.message()) => {
                format!("{}: {causes}", status.message())
            }
            Some(causes) => causes,
            None => status.message().to_owned(),
        };
        format!("the stream ended: {:?}: {why}{help}", status.code())
    }
}

fn node(xds: &Xds) -> Node {
    let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = xds.node_metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    Node {
        id: xds.node_id.clone(),
        metadata: Some(Struct { fields }),
        user_agent_name: "tollgate".to_owned(),
        user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The beginning of a text, where it is too long.
fn shortened(mut text: String) -> String {
    const MORE: &str = "\n... and more";
    if text.len() > REASONS_MAX {
        text.truncate(text.floor_char_boundary(REASONS_MAX - MORE.len()));
        text.push_str(MORE);
    }
    text
}
