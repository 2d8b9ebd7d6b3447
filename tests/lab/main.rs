//! The failure lab: Redis on its worst day, and what a Tollgate's callers notice of it.
//!
//! Each scenario starts a real store and a real Tollgate, sends 500 requests a second over 300 counters of all
//! algorithms, breaks something, and prints a row of what was seen. Held are counts: who failed that should not have, what
//! was granted against the limit, what was sent twice, what was logged. Times are printed, and bounded only where
//! something has to happen at last, since the machine may be busy: STORE_TIMEOUT is long where a test is about nobody
//! failing.
//!
//! `TOLLGATE_LAB=whole cargo test --test lab` takes its time; without it the long outages are short ones.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/chaos.rs"]
mod chaos;
#[path = "../support/wait.rs"]
mod wait;

mod service;
mod load;
mod report;

mod harness;
mod single;
mod outage;
mod network;
mod access;
mod shards;
mod trio;
mod doctor;
