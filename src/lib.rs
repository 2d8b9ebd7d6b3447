//! Tollgate: a global rate limit service for Envoy.
//!
//! One request's way through the modules, and what each may import, from the pure core outwards:
//!
//! ```text
//! gRPC bytes -> service -> limiter: rule -> key -> near answers -> store -> verdict -> headers -> gRPC bytes
//!
//! 0  clock limit algorithm key        pure: no tokio, no I/O, no serde; time is an argument
//! 1  rules settings metrics           parse, don't validate; rules do no I/O but in watch and xds
//! 2  timer store near_cache lease    tokio; Redis only under store::redis, notify only in rules::watch
//!    split and rules::{watch,xds}
//! 3  limiter                          generic over Clock and Store
//! 4  proto service admin telemetry    tonic and prost only here, in server, cli and rules::xds; axum only in admin
//! 5  server cli                       composition
//! ```
//!
//! `tests/tidy.rs` holds these layers.

pub mod clock;
pub mod limit;
pub mod key;
pub mod algorithm;

pub mod rules;
pub mod settings;
pub mod metrics;

pub mod timer;
pub mod store;
pub mod near_cache;
pub mod lease;
pub mod split;

pub mod limiter;

pub mod proto;
pub mod service;
pub mod admin;
pub mod telemetry;

pub mod server;
pub mod cli;
