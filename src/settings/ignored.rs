//! Variables of the reference that do nothing here (yet).
//!
//! Whoever replaces envoyproxy/ratelimit keeps its environment. Most of it works; of the rest, one line of the log at
//! start tells the names, since a setting that is silently without effect is found in an incident.

use super::values;

/// Which of these variables are set to something and are without effect. A boolean that is false asks for nothing.
pub fn ignored<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Vec<&'v str> {
    let mut found: Vec<&str> = variables
        .into_iter()
        .filter(|(name, value)| is_ignored(name) && !value.is_empty() && values::boolean(value) != Ok(false))
        .map(|(name, _)| name)
        .collect();
    found.sort_unstable();
    found
}

fn is_ignored(name: &str) -> bool {
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Each prefix belongs to the reference alone.
const PREFIXES: &[&str] = &["REDIS_PERSECOND", "MEMCACHE_"];

const NAMES: &[&str] = &[
    "REDIS_PIPELINE_LIMIT",
    "REDIS_PIPELINE_WINDOW",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_POOL_ON_EMPTY_WAIT_DURATION",
    "REDIS_POOL_SIZE",
    "REDIS_SENTINEL_AUTH",
];
