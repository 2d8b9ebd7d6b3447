//! Metrics under the names of envoyproxy/ratelimit: the same names and numbers for the same requests, over the same wires.
//!
//! `tests/fixtures/metrics` holds rules, 1,000 requests, and what the reference told of them when they were asked one
//! after the other.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/tollgate.rs"]
mod tollgate_process;

mod asking;
mod hosts;

mod statsd;
mod prometheus;
mod memory;
