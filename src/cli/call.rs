//! `tollgate call`: one real request to a running service, answered in words.

use std::{error::Error, time::Duration};

use clap::Args;
use tonic::{Code, Request, Status, TimeoutExpired, transport::Channel};

use super::{
    Failure, answer,
    ask::Ask,
    connect::{Service, chain},
    terminal::{Terminal, human},
};
use crate::{
    admin::json,
    clock::{Clock, SystemClock},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
    },
    settings::values::positive_duration,
};

/// `--number` at most: who wants more wants a load generator.
const NUMBER_MAX: u32 = 1_000_000;

#[derive(Args, Clone, Debug)]
pub(super) struct CallArgs {
    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    ask: Ask,

    /// How long to wait for an answer, such as 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    timeout: Duration,

    /// How many times to ask, one after the other
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=NUMBER_MAX.into()))]
    number: u32,
}

/// Whether any answer was a refusal.
///
/// # Errors
/// Why there is no answer, in words.
pub(super) fn run(args: &CallArgs, terminal: &mut Terminal) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| Failure::call(format!("the system gives no runtime: {why}")))?;
    runtime.block_on(ask(args, terminal))
}

async fn ask(args: &CallArgs, terminal: &mut Terminal) -> Result<bool, Failure> {
    let request = args.ask.request();
    let mut client = RateLimitServiceClient::new(args.service.connect(args.timeout).await?);
    let began = SystemClock.instant();
    let (mut asked, mut refused) = (0, 0);
    while asked < args.number && terminal.is_open() {
        let response = once(args, &mut client, request.clone(), asked == 0).await.map_err(Failure::call)?;
        asked += 1;
        refused += u32::from(answer::refused(&response));
        if args.ask.json {
            terminal.line(json::response(&response));
        } else if args.number == 1 {
            answer::show(terminal, &request, &response);
        } else {
            let width = args.number.to_string().len();
            terminal.line(format!("{asked:width$}  {}", answer::brief(terminal.paint(), &response)));
        }
    }
    if args.number > 1 && !args.ask.json {
        let took = human(SystemClock.instant() - began);
        terminal.line(format!("{} allowed, {refused} refused, in {took}", asked - refused));
    }
    Ok(refused > 0)
}

type Client = RateLimitServiceClient<Channel>;

async fn once(
    args: &CallArgs,
    client: &mut Client,
    message: RateLimitRequest,
    first: bool,
) -> Result<RateLimitResponse, String> {
    let at = args.service.shown();
    let mut request = Request::new(message);
    // The service is told, too, how long it may take.
    request.set_timeout(args.timeout);
    match tokio::time::timeout(args.timeout, client.should_rate_limit(request)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) if !timed_out(&status) => Err(failed(&args.service, &status, first)),
        Ok(Err(_)) | Err(_) => Err(format!("{at} gave no answer within {}", human(args.timeout))),
    }
}

/// By the service's clock, or by ours.
fn timed_out(status: &Status) -> bool {
    let ours = status.source().is_some_and(|why| chain(why).any(|why| why.is::<TimeoutExpired>()));
    ours || status.code() == Code::DeadlineExceeded
}

fn failed(service: &Service, status: &Status, first: bool) -> String {
    let at = service.shown();
    // An error of the connection comes as a status with a source; one from the service has none.
    if let Some(source) = status.source() {
        return service.cut(source).filter(|_| first).unwrap_or_else(|| service.no_grpc(source));
    }
    let message = status.message();
    match status.code() {
        Code::Unimplemented => format!("{at} speaks gRPC and is no rate limit service: {message}"),
        Code::InvalidArgument => format!("the service does not accept the request: {message}"),
        Code::Unavailable => format!("the service cannot answer now: {message}"),
        code => format!("the service answered {code:?}: {message}"),
    }
}
