//! What to ask, how often, and for how long.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{
    super::{
        Failure,
        ask::{Ask, Descriptor},
        connect::Service,
        terminal::{count, human},
    },
    question::{KEY, Question},
    schedule::Schedule,
    target::Target,
};
use crate::settings::values::positive_duration;

/// Without `--duration` and `--requests`.
const DURATION: Duration = Duration::from_secs(10);

/// Without `--keys`, where a descriptor has `{key}`.
const KEYS: u64 = 10_000;

/// Connections and streams at most: more than any service has clients, and the client's own memory.
const CONNECTIONS_MAX: u64 = 10_000;
const STREAMS_MAX: u64 = 10_000;
const THREADS_MAX: u64 = 1_024;

/// Requests a second at most: a thread's timer could not tell more apart.
const RATE_MAX: u64 = 10_000_000;

/// Zipf's exponent at most: beyond it all requests are about one key.
const ZIPF_MAX: f64 = 10.0;

#[derive(Args, Clone, Debug)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    pub(super) ask: Ask,

    /// How many keys `{key}` stands for: a number with leading zeros, the same for all of a request
    /// [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keys: Option<u64>,

    /// Draw keys by Zipf's law with this exponent, such as 1.1, instead of all equally often
    #[arg(long, value_name = "S", value_parser = exponent)]
    zipf: Option<f64>,

    /// Draw other keys than with the seed 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Connections; Envoy has one for each of its workers
    #[arg(short, long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    connections: u64,

    /// Requests in flight on each connection, at most
    #[arg(short, long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u64).range(1..=STREAMS_MAX))]
    streams: u64,

    /// Threads of this client
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: u64,

    /// Requests a second, sent on time whatever becomes of them; a latency begins when its request should have been
    /// sent. Without it each is sent when the last was answered, as fast as that goes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=RATE_MAX))]
    rate: Option<u64>,

    /// How long to ask, such as 30s [default: 10s, without --requests]
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    duration: Option<Duration>,

    /// How many requests to make, at most
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// How long a request may take, from when it is due
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_duration)]
    timeout: Duration,
}

/// A load that can be put on a service.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) question: Question,
    pub(super) keys: u64,
    pub(super) zipf: Option<f64>,
    pub(super) seed: u64,
    pub(super) connections: usize,
    /// On each connection.
    pub(super) streams: usize,
    pub(super) threads: usize,
    pub(super) pace: Pace,
    /// From when a request is due.
    pub(super) timeout: Duration,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// When the last was answered; until one of the two is reached.
    Saturate { requests: Option<u64>, duration: Option<Duration> },
    /// So many a second, and so many in all.
    Rate { per_second: u64, requests: u64 },
}

impl LoadArgs {
    /// The load, on a service.
    ///
    /// # Errors
    /// Flags that contradict each other.
    pub(super) fn plan(&self, service: &Service) -> Result<Plan, Failure> {
        let keys = self.keys.unwrap_or(KEYS);
        let question = Question::new(&self.ask.request(), keys);
        if !question.has_key() && (self.keys.is_some() || self.zipf.is_some()) {
            return Err(Failure::usage(format!(
                "--keys and --zipf say what {KEY} stands for: write it into a descriptor, such as user={KEY}"
            )));
        }
        let duration = self.duration.or(self.requests.is_none().then_some(DURATION));
        let pace = match self.rate {
            None => Pace::Saturate { requests: self.requests, duration },
            Some(per_second) => {
                let due = duration.map_or(u64::MAX, |time| Schedule::requests_in(per_second, time));
                Pace::Rate { per_second, requests: due.min(self.requests.unwrap_or(u64::MAX)) }
            }
        };
        let connections = self.connections as usize;
        Ok(Plan {
            target: Target::new(service)?,
            question,
            keys,
            zipf: self.zipf,
            seed: self.seed,
            connections,
            streams: self.streams as usize,
            // A thread without a connection would have nothing to do.
            threads: connections.min(self.threads as usize),
            pace,
            timeout: self.timeout,
        })
    }
}

impl LoadArgs {
    fn descriptors(&self) -> Vec<String> {
        let descriptors = self.ask.request().descriptors.into_iter();
        descriptors.map(|descriptor| Descriptor(descriptor.entries).to_string()).collect()
    }

    /// The load in words.
    pub(super) fn told(&self, plan: &Plan) -> String {
        let keys = match (plan.question.has_key(), plan.zipf) {
            (false, _) => String::new(),
            (true, None) => format!(" among {} keys", plan.keys),
            (true, Some(s)) => format!(" among {} keys by Zipf's law with {s}", plan.keys),
        };
        let ends: Vec<String> = match plan.pace {
            Pace::Saturate { requests, duration } => [
                requests.map(|requests| format!("{requests} requests")),
                duration.map(|duration| format!("for {}", human(duration))),
            ]
            .into_iter()
            .flatten()
            .collect(),
            Pace::Rate { per_second, requests } => {
                vec![format!("{requests} requests, {per_second} a second")]
            }
        };
        format!(
            "{}{keys}, {}, over {} of {}, {}",
            self.descriptors().join(" "),
            self.ask.cost(),
            count(plan.connections, "connection"),
            count(plan.streams, "stream"),
            ends.join(", ")
        )
    }

    /// The load for programs.
    pub(super) fn to_json(&self, plan: &Plan) -> Value {
        let (rate, requests, duration) = match plan.pace {
            Pace::Saturate { requests, duration } => (None, requests, duration),
            Pace::Rate { per_second, requests } => (Some(per_second), Some(requests), None),
        };
        json!({
            "domain": self.ask.request().domain,
            "descriptors": self.descriptors(),
            "keys": plan.question.has_key().then_some(plan.keys),
            "zipf": plan.zipf,
            "seed": plan.seed,
            "connections": plan.connections,
            "streams": plan.streams,
            "threads": plan.threads,
            "rate": rate,
            "requests": requests,
            "durationSeconds": duration.map(|duration| duration.as_secs_f64()),
            "timeoutSeconds": plan.timeout.as_secs_f64(),
        })
    }
}

impl Plan {
    /// How long it takes, if that is known: for the progress line.
    pub(super) fn duration(&self) -> Option<Duration> {
        match self.pace {
            Pace::Saturate { duration, .. } => duration,
            Pace::Rate { per_second, requests } => {
                Some(Schedule::new(per_second, requests, 0, 1).due(requests))
            }
        }
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= ZIPF_MAX => Ok(s),
        _ => Err(format!("write a number above 0, at most {ZIPF_MAX}, such as 1.1")),
    }
}
