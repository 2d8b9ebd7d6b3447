//! `tollgate call`: one real request to a running service, answered in words.

use std::{error::Error, io, net::Ipv6Addr, time::Duration};

use clap::Args;
use tonic::{
    Code, Request, Status, TimeoutExpired,
    transport::{Channel, Endpoint},
};

use super::{
    answer,
    ask::Ask,
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

/// Where services listen that say nothing else, ours and the reference's.
const GRPC_PORT: u16 = 8081;

/// `--number` at most: who wants more wants a load generator.
const NUMBER_MAX: u32 = 1_000_000;

#[derive(Args, Clone, Debug)]
pub(super) struct CallArgs {
    /// Where the service listens for gRPC: HOST, HOST:PORT or http://HOST:PORT
    #[arg(value_parser = endpoint)]
    addr: Endpoint,

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
pub(super) fn run(args: &CallArgs, terminal: &mut Terminal) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| format!("the system gives no runtime: {why}"))?;
    runtime.block_on(ask(args, terminal))
}

async fn ask(args: &CallArgs, terminal: &mut Terminal) -> Result<bool, String> {
    let request = args.ask.request();
    let mut client = connect(args).await?;
    let began = SystemClock.instant();
    let (mut asked, mut refused) = (0, 0);
    while asked < args.number && terminal.is_open() {
        let response = once(args, &mut client, request.clone()).await?;
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

async fn connect(args: &CallArgs) -> Result<Client, String> {
    let at = authority(&args.addr);
    match tokio::time::timeout(args.timeout, args.addr.connect()).await {
        Ok(Ok(channel)) => Ok(RateLimitServiceClient::new(channel)),
        Ok(Err(why)) => Err(unreachable(&at, &why)),
        Err(_) => Err(format!(
            "{at} did not answer within {}: is the address right, and is nothing in between that drops packets?",
            human(args.timeout)
        )),
    }
}

async fn once(
    args: &CallArgs,
    client: &mut Client,
    message: RateLimitRequest,
) -> Result<RateLimitResponse, String> {
    let at = authority(&args.addr);
    let mut request = Request::new(message);
    // The service is told, too, how long it may take.
    request.set_timeout(args.timeout);
    match tokio::time::timeout(args.timeout, client.should_rate_limit(request)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) if !timed_out(&status) => Err(failed(&at, &status)),
        Ok(Err(_)) | Err(_) => Err(format!("{at} gave no answer within {}", human(args.timeout))),
    }
}

fn authority(endpoint: &Endpoint) -> String {
    endpoint.uri().authority().map_or_else(|| endpoint.uri().to_string(), ToString::to_string)
}

fn unreachable(at: &str, why: &(dyn Error + 'static)) -> String {
    match io_error(why).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => {
            format!("nothing listens on {at} (connection refused): is `tollgate serve` running there?")
        }
        _ => format!("cannot connect to {at}: {}", root(why)),
    }
}

/// By the service's clock, or by ours.
fn timed_out(status: &Status) -> bool {
    let ours = status.source().is_some_and(|why| chain(why).any(|why| why.is::<TimeoutExpired>()));
    ours || status.code() == Code::DeadlineExceeded
}

fn failed(at: &str, status: &Status) -> String {
    // An error of the connection comes as a status with a source; one from the service has none.
    if let Some(source) = status.source() {
        let why = root(source);
        return format!(
            "{at} does not speak gRPC as it should ({why}): is it the gRPC port, {GRPC_PORT} by default?"
        );
    }
    let message = status.message();
    match status.code() {
        Code::Unimplemented => format!("{at} speaks gRPC and is no rate limit service: {message}"),
        Code::InvalidArgument => format!("the service does not accept the request: {message}"),
        Code::Unavailable => format!("the service cannot answer now: {message}"),
        code => format!("the service answered {code:?}: {message}"),
    }
}

fn io_error<'e>(why: &'e (dyn Error + 'static)) -> Option<&'e io::Error> {
    chain(why).find_map(|why| why.downcast_ref())
}

/// The innermost cause, which is the one that says something ("transport error" does not).
fn root(why: &(dyn Error + 'static)) -> String {
    chain(why).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'e>(why: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(why), |&why| why.source())
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    if bare.contains("://") {
        return Err("only http:// is available yet, no TLS".into());
    }
    let bare = bare.trim_end_matches('/');
    let with_port = if bare.parse::<Ipv6Addr>().is_ok() {
        format!("[{bare}]:{GRPC_PORT}")
    } else if bare.ends_with(']') || !bare.contains(':') {
        format!("{bare}:{GRPC_PORT}")
    } else {
        bare.to_owned()
    };
    let wrong = || format!("write it as HOST:PORT, such as 127.0.0.1:{GRPC_PORT}");
    let endpoint = Endpoint::from_shared(format!("http://{with_port}")).map_err(|_| wrong())?;
    let authority = endpoint.uri().authority().ok_or_else(wrong)?;
    let ported = authority.port().is_some_and(|port| port.as_u16() > 0);
    if ported && !authority.host().is_empty() && endpoint.uri().path() == "/" {
        Ok(endpoint.tcp_nodelay(true))
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_what_is_usual() {
        for (text, at) in [
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("http://a.example:1/", "a.example:1"),
            ("localhost", "localhost:8081"),
            ("[::1]:9", "[::1]:9"),
            ("[::1]", "[::1]:8081"),
            ("::1", "[::1]:8081"),
        ] {
            assert_eq!(endpoint(text).map(|endpoint| authority(&endpoint)), Ok(at.into()), "{text}");
        }
        for text in ["", ":9", "a b", "https://a:1", "a:x", "a:0", "a:99999", "a:1/path", "a:b:c:d", "[::1"] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }
}
