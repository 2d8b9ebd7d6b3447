//! Variables of the reference that do nothing here, and why.
//!
//! Whoever replaces envoyproxy/ratelimit keeps its environment. Most of it works; of the rest, one line of the log at
//! start tells the names and the reasons, since a setting that is silently without effect is found in an incident.

use super::{table, values};

/// A variable that is set to something and does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored<'v> {
    /// Its name.
    pub name: &'v str,
    /// Why: what it is for happens without it.
    pub why: &'static str,
}

/// Which of these variables are set to something and are without effect, by reason. A boolean that is false asks for
/// nothing.
pub fn ignored<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Vec<Ignored<'v>> {
    let mut found: Vec<(usize, Ignored<'_>)> = variables
        .into_iter()
        .filter(|(_, value)| !value.is_empty() && values::boolean(value) != Ok(false))
        .filter_map(|(name, _)| {
            let place = place(name)?;
            Some((place, Ignored { name, why: REASONS[place].1 }))
        })
        .collect();
    found.sort_unstable_by_key(|(place, ignored)| (*place, ignored.name));
    found.into_iter().map(|(_, ignored)| ignored).collect()
}

/// `A, B (why); C (why)`
pub fn shown(ignored: &[Ignored<'_>]) -> String {
    let of_one_reason = |of: &[Ignored<'_>]| {
        let names: Vec<&str> = of.iter().map(|ignored| ignored.name).collect();
        format!("{} ({})", names.join(", "), of[0].why)
    };
    ignored.chunk_by(|one, next| one.why == next.why).map(of_one_reason).collect::<Vec<_>>().join("; ")
}

/// The reason that fits a name. Who is a setting has an effect.
fn place(name: &str) -> Option<usize> {
    let fits = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
    if table().iter().any(|row| row.name == name) {
        return None;
    }
    REASONS.iter().position(|(beginnings, _)| fits(beginnings))
}

/// How names begin, each of them the reference's alone, and why they do nothing; the first that fits counts.
const REASONS: &[(&[&str], &str)] = &[
    (
        &[
            "REDIS_CLUSTER_PIPELINE_",
            "REDIS_PERSECOND_CLUSTER_PIPELINE_",
            "REDIS_PERSECOND_PIPELINE_",
            "REDIS_PERSECOND_POOL_",
            "REDIS_PIPELINE_",
            "REDIS_POOL_",
        ],
        "a few connections carry calls that batch themselves",
    ),
    (&["REDIS_STARTUP_"], "it starts without its store, and has it as soon as it is there"),
    (&["MEMCACHE_"], "budgets are not in memcache"),
];
