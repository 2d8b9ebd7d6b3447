//! Rule files: what they mean, what is wrong with them, and how fast they are found.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "rules/common.rs"]
mod common;
#[path = "rules/matching.rs"]
mod matching;
#[path = "rules/tiers.rs"]
mod tiers;
#[path = "rules/mistakes.rs"]
mod mistakes;
#[path = "rules/oracle.rs"]
mod oracle;
#[path = "rules/reading.rs"]
mod reading;
#[path = "rules/shards.rs"]
mod shards;
