//! `lease:` of a limit, in both forms: how many hits are taken from the store ahead of their requests.

use super::{
    fields::{Fields, Reader},
    mistake::quote,
    yaml::Node,
};
use crate::limit::{Algorithm, Limit, Role};

/// `lease:` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// So many hits; 0 for none, whatever LEASE_ABOVE says.
    Hits(u32),
    /// So many hundredths of the limit.
    Share(u32),
}

impl Lease {
    /// How many hits of a limit to take ahead. `at` is to blame where the limit cannot be leased.
    pub(super) fn hits(self, reader: &mut Reader<'_>, limit: Option<Limit>, at: &Node) -> Option<u32> {
        let hits = match self {
            Self::Hits(hits) => hits,
            // At least one, and no more than 32 bits since a share is a part.
            Self::Share(percent) => limit
                .map_or(0, |limit| (u64::from(limit.requests()) * u64::from(percent)).div_ceil(100) as u32),
        };
        let limit = limit?;
        if hits > 0 && limit.algorithm() == Algorithm::SlidingWindow {
            let message = "a sliding_window has no `lease`: it weighs a hit by when it was counted, which is not when it passes";
            let help = "take `lease` out, or choose `algorithm: token_bucket`, `gcra` or `fixed_window`";
            reader.mistake(at, message, help);
        }
        Some(hits.min(limit.burst()))
    }
}

/// A number of hits, or a share: `5%`.
pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Lease> {
    let node = fields.get("lease").filter(|node| !reader.is_null(node))?;
    let Some(share) = node.scalar().and_then(|text| text.strip_suffix('%')) else {
        return reader.number(node, "`lease`").map(Lease::Hits);
    };
    match share.parse() {
        Ok(percent) if (1..=100).contains(&percent) => Some(Lease::Share(percent)),
        _ => {
            let message = format!("`{}%` is no share of a limit", quote(share));
            reader.mistake(node, message, "write 1% to 100%, in whole hundredths, or a number of hits");
            None
        }
    }
}

/// Only what refuses by itself is leased.
pub(super) fn warn_of_no_effect(reader: &mut Reader<'_>, lease: Option<u32>, role: Role, at: &Node) {
    let what = match role {
        Role::Enforce => return,
        Role::Shadow => "a limit that refuses nobody",
        Role::Quota => "a quota",
    };
    if lease.is_some_and(|hits| hits > 0) {
        let message = format!("`lease` has no effect on {what}: each of its hits asks the store");
        reader.warn(at, message, "take it out, or enforce the limit");
    }
}

/// Only requests of one limit are leased.
pub(super) fn warn_of_several(reader: &mut Reader<'_>, lease: Option<u32>, at: &Node) {
    if lease.is_some_and(|hits| hits > 0) {
        let message = "`lease` has no effect on a limit that is always charged together with others";
        reader.warn(at, message, "take it out: requests of several limits ask the store each time");
    }
}
