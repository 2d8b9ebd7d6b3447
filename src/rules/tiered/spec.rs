//! One limit of the tiered form as written, before tiers and tenants are laid over each other.

use super::super::{
    fields::{Fields, Reader},
    mistake::quote,
    terms::{self, Numbers, Terms},
    yaml::{Kind, Node},
};
use crate::limit::{Algorithm, Limit};

/// The most entries of `per`.
const PER_MAX: usize = 8;

/// What is written; `None` is not said.
#[derive(Clone)]
pub(super) struct Spec<'n> {
    grant: Option<Grant<'n>>,
    burst: Option<(u32, &'n Node)>,
    algorithm: Option<Algorithm>,
    pub(super) terms: Terms,
    pub(super) name: Option<&'n str>,
    pub(super) per: Option<Vec<&'n str>>,
    /// The name of the tier, route, tenant or further limit.
    pub(super) at: &'n Node,
}

#[derive(Clone, Copy)]
enum Grant<'n> {
    Unlimited,
    Rate(u32, u64, &'n Node),
    /// There was one, and it was a mistake.
    Unreadable,
}

impl<'n> Spec<'n> {
    /// Reads it off the fields of a tier, a tenant, a route or a further limit.
    pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'n>, at: &'n Node) -> Self {
        let name = fields.get("name").and_then(|node| reader.text(node, "`name`"));
        Self {
            grant: grant(reader, fields),
            burst: terms::burst(reader, fields),
            algorithm: terms::algorithm(reader, fields),
            terms: Terms::read(reader, fields),
            name: name.filter(|name| !name.is_empty()),
            per: per(reader, fields),
            at,
        }
    }

    /// Whether nothing is said at all.
    pub(super) fn is_empty(&self) -> bool {
        !self.terms.says_anything()
            && self.grant.is_none()
            && self.burst.is_none()
            && self.algorithm.is_none()
            && self.name.is_none()
            && self.per.is_none()
    }

    /// What is not said here is as there. But a new rate, or an algorithm without burst, has no use for the old burst.
    pub(super) fn over(self, base: &Self) -> Self {
        let keeps_burst = self.grant.is_none() && !self.algorithm.is_some_and(Algorithm::has_window);
        Self {
            grant: self.grant.or(base.grant),
            burst: self.burst.or(base.burst.filter(|_| keeps_burst)),
            algorithm: self.algorithm.or(base.algorithm),
            terms: self.terms.or(base.terms),
            name: self.name.or(base.name),
            per: self.per.or_else(|| base.per.clone()),
            at: self.at,
        }
    }

    /// With the terms of the tier that it belongs to, where it says none.
    pub(super) fn terms_or(self, terms: Terms) -> Self {
        Self { terms: self.terms.or(terms), ..self }
    }

    /// A rate's number; 0 when it is unlimited.
    pub(super) fn requests(&self) -> u32 {
        match self.grant {
            Some(Grant::Rate(requests, ..)) => requests,
            _ => 0,
        }
    }

    /// The limit; `None` when it is unlimited, and, with a mistake, when it is none.
    pub(super) fn limit(&self, reader: &mut Reader<'_>) -> Option<Limit> {
        let (requests, window_us, window_at) = match self.grant {
            Some(Grant::Rate(requests, window_us, at)) => (requests, window_us, at),
            Some(Grant::Unreadable) => return None,
            Some(Grant::Unlimited) => {
                if let Some((_, at)) = self.burst {
                    reader.mistake(at, "`burst` contradicts `unlimited`", "take one of the two out");
                }
                return None;
            }
            None => {
                let help = "write `rate: 10/s`, or `unlimited: true` if you mean it";
                reader.mistake(self.at, "a limit names a `rate`", help);
                return None;
            }
        };
        let algorithm = self.algorithm.unwrap_or(Algorithm::TokenBucket);
        terms::limit(reader, &Numbers { algorithm, requests, window_us, window_at, burst: self.burst })
    }
}

fn grant<'n>(reader: &mut Reader<'_>, fields: &Fields<'n>) -> Option<Grant<'n>> {
    let unlimited = fields.get("unlimited").is_some_and(|node| reader.flag(node, "`unlimited`"));
    let Some(node) = fields.get("rate").filter(|node| !reader.is_null(node)) else {
        return unlimited.then_some(Grant::Unlimited);
    };
    if let (true, Some(key)) = (unlimited, fields.key("unlimited")) {
        reader.mistake(key, "`unlimited` contradicts `rate`", "take one of the two out");
    }
    // Not read as a text: an unquoted 0.5 is a rate without its period, which the help tells better.
    let Some(text) = node.scalar() else {
        reader.mistake(
            node,
            format!("`rate` is one text, and this is {}", node.kind_name()),
            "write `rate: 10/s`",
        );
        return Some(Grant::Unreadable);
    };
    Some(match terms::rate(text) {
        Ok((requests, window_us)) => Grant::Rate(requests, window_us, node),
        Err(error) => {
            reader.mistake(node, error.message, error.help);
            Grant::Unreadable
        }
    })
}

/// `per: user`, or `per: [user, device]`.
fn per<'n>(reader: &mut Reader<'_>, fields: &Fields<'n>) -> Option<Vec<&'n str>> {
    let node = fields.get("per").filter(|node| !reader.is_null(node))?;
    let nodes = match &node.kind {
        Kind::Sequence(items) => items,
        _ => std::slice::from_ref(node),
    };
    if nodes.len() > PER_MAX {
        reader.mistake(node, format!("`per` names at most {PER_MAX} entries"), "take some out");
    }
    let mut names: Vec<&str> = Vec::with_capacity(nodes.len());
    for node in nodes.iter().take(PER_MAX) {
        if reader.is_null(node) || node.scalar().is_some_and(str::is_empty) {
            reader.mistake(node, "`per` names the keys of entries", "write `per: [user]`");
            continue;
        }
        match reader.text(node, "an entry of `per`") {
            Some(name) if names.contains(&name) => {
                reader.mistake(node, format!("`{}` stands twice in `per`", quote(name)), "keep one of them");
            }
            Some(name) => names.push(name),
            None => {}
        }
    }
    Some(names)
}
