//! Rules from a management server: a fake one, which answers, resets and vanishes as a test wants it to.
//!
//! One of another make is asked in `tests/e2e/test_xds.py`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/tollgate.rs"]
mod tollgate;

#[path = "../support/pki.rs"]
mod pki;

mod client;
mod server;

mod convert;
mod stream;
mod tls;
mod process;
