//! The real binary on free ports: how it starts, what it answers, and how it ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/pki.rs"]
mod pki;

mod client;

mod start;
mod requests;
mod http;
mod store;
mod drain;
mod upgrade;
mod tls;
mod age;
mod half;
mod threads;
mod unix;
mod traces;
