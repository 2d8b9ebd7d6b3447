//! The failure lab: Redis on its worst day, and what a Tollgate's callers notice of it.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/chaos.rs"]
mod chaos;

mod harness;
