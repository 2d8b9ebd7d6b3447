//! Where budgets are kept.
//!
//! One call takes all charges of one request, decides them together and answers each. That it is one call is the
//! point: read, refill, spend and write are one operation on the server that holds the state, under that server's
//! clock, so however many Tollgates run, no more than the limit is ever granted. A store that spreads keys over several
//! servers groups the charges by shard itself.

pub mod memory;
pub mod script;
pub mod redis;

use std::time::Duration;

use crate::limit::{Charge, Decision};

/// Keeps budgets.
pub trait Store: Send + Sync + 'static {
    /// Decides all charges of one request, all or nothing (see `algorithm::decide` for the exact rules).
    ///
    /// `within` bounds the wait; the store's own timeout bounds it too.
    ///
    /// # Errors
    /// When the store does not answer. Whether the charges were spent is then unknown, so nobody tries again.
    fn spend(
        &self,
        charges: &[Charge],
        within: Duration,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Decides as [`Store::spend`] does, at once, where budgets are in this process; `None` where they are elsewhere.
    fn decide_here(&self, charges: &[Charge]) -> Option<Decision> {
        let _ = charges;
        None
    }

    /// Whether budgets are in this process: such a store is never lost, and to ask it costs nothing.
    fn is_here(&self) -> bool {
        false
    }

    /// Whether the store can be reached at this moment, as far as is known; a word for each shard.
    fn health(&self) -> Vec<ShardHealth>;
}

/// What is known of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHealth {
    /// The shard's address; never a password.
    pub shard: String,
    /// `Err` says in words what is wrong.
    pub state: Result<(), String>,
}

/// Why a store gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer in time. The charges may or may not have been spent.
    #[error("the store {shard} gave no answer within {}", humantime_ms(*.after))]
    Timeout {
        /// Which shard.
        shard: String,
        /// How long was waited.
        after: Duration,
    },
    /// No connection.
    #[error("the store {shard} cannot be reached: {why}")]
    Unavailable {
        /// Which shard.
        shard: String,
        /// In words.
        why: String,
    },
    /// The store answered with an error of its own: out of memory, no permission, read only.
    #[error("the store {shard} refused: {why}")]
    Refused {
        /// Which shard.
        shard: String,
        /// The store's own words.
        why: String,
    },
    /// A key holds something that no Tollgate wrote, or an answer is none that our script gives.
    #[error("the store {shard} holds or says something that is not ours: {why}")]
    Corrupt {
        /// Which shard.
        shard: String,
        /// Which key and what it holds, or what is wrong with the answer.
        why: String,
    },
    /// More waits for the store already than it could answer in time. Nothing was spent.
    #[error("the store {shard} has too much to do: {why}")]
    Overload {
        /// Which shard.
        shard: String,
        /// What is full.
        why: String,
    },
}

impl StoreError {
    /// In one word, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            Self::Unavailable { .. } => "unavailable",
            Self::Refused { .. } => "refused",
            Self::Corrupt { .. } => "corrupt",
            Self::Overload { .. } => "overload",
        }
    }
}

fn humantime_ms(d: Duration) -> String {
    format!("{} ms", d.as_micros() as f64 / 1000.0)
}
