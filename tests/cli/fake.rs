//! A service that answers, stalls or is silent, as it is told.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use ::tollgate::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tokio::sync::{Notify, watch};
use tonic::{Request, Response, Status};

#[derive(Clone, Copy)]
pub(crate) enum Behaviour {
    Answers,
    /// All that come from then on, until it is over.
    StallOnce {
        after: u64,
        stall: Duration,
    },
    Silent,
}

/// Ends with the test, since its thread ends when `stop` is dropped.
pub(crate) struct Fake {
    pub(crate) at: String,
    asked: Arc<Asked>,
    _stop: watch::Sender<()>,
}

#[derive(Default)]
struct Asked {
    count: AtomicU64,
    more: Notify,
}

struct FakeService {
    behaviour: Behaviour,
    asked: Arc<Asked>,
    stalled: watch::Sender<bool>,
}

impl Fake {
    pub(crate) fn serve(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Asked::default());
        let service =
            FakeService { behaviour, asked: Arc::clone(&asked), stalled: watch::Sender::new(false) };
        let (stop, mut stopped) = watch::channel(());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
                let server =
                    tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(service));
                tokio::select! {
                    served = server.serve_with_incoming(incoming) => served.unwrap(),
                    _ = stopped.changed() => {}
                }
            });
        });
        Self { at, asked, _stop: stop }
    }

    /// Until it was asked so often.
    pub(crate) fn wait_for(&self, requests: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let waiting = async {
            loop {
                let more = self.asked.more.notified();
                if self.asked.count.load(Ordering::SeqCst) >= requests {
                    return;
                }
                more.await;
            }
        };
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap() });
    }
}

#[tonic::async_trait]
impl RateLimitService for FakeService {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let nth = self.asked.count.fetch_add(1, Ordering::SeqCst);
        self.asked.more.notify_waiters();
        match self.behaviour {
            Behaviour::Answers => {}
            Behaviour::Silent => std::future::pending().await,
            Behaviour::StallOnce { after, stall } if nth == after => {
                self.stalled.send_replace(true);
                tokio::time::sleep(stall).await;
                self.stalled.send_replace(false);
            }
            Behaviour::StallOnce { .. } => {
                let mut stalled = self.stalled.subscribe();
                stalled.wait_for(|stalled| !stalled).await.unwrap();
            }
        }
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() }))
    }
}
