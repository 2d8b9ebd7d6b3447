//! Variables that look like settings and are none.
//!
//! An environment is full of names that are nobody's business here, so a misspelt one cannot be refused. But what begins
//! with `TOLLGATE_` is meant for us, and what is one letter away from a long name of ours was hardly meant for anybody
//! else. These are told at start, with the name that was probably meant. Values are never shown: they may be passwords.

use super::{ignored::ignored, table};
use crate::rules::misspelt;

/// A variable that is no setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strange<'v> {
    /// Its name.
    pub name: &'v str,
    /// The setting that was probably meant.
    pub meant: Option<&'static str>,
}

/// What stands before names of ours alone.
const OURS: &str = "TOLLGATE_";

/// Shorter names are a letter away from too many others: `HOST`, `PORT`, `THREADS`.
const LETTERS_MIN: usize = 8;

/// Which of these names are probably meant to be settings, in the order of the alphabet.
pub fn strange<'v>(names: impl IntoIterator<Item = &'v str>) -> Vec<Strange<'v>> {
    let ours: Vec<&'static str> = table().iter().map(|row| row.name).collect();
    let mut found: Vec<Strange<'v>> = names.into_iter().filter_map(|name| look(name, &ours)).collect();
    found.sort_unstable_by_key(|strange| strange.name);
    found
}

fn look<'v>(name: &'v str, ours: &[&'static str]) -> Option<Strange<'v>> {
    if ours.contains(&name) || is_of_kubernetes(name) || !ignored([(name, "1")]).is_empty() {
        return None;
    }
    if let Some(rest) = name.strip_prefix(OURS) {
        // `TOLLGATE_REDIS_URL`: most of our names are the reference's, and have no such beginning.
        let bare = ours.iter().find(|ours| **ours == rest).copied();
        return Some(Strange {
            name,
            meant: bare.or_else(|| misspelt(name, ours)).or_else(|| misspelt(rest, ours)),
        });
    }
    let long: Vec<&'static str> = ours.iter().filter(|ours| ours.len() >= LETTERS_MIN).copied().collect();
    let meant = misspelt(name, &long)?;
    Some(Strange { name, meant: Some(meant) })
}

/// Whether Kubernetes sets it in each container of a namespace that has a service of that name (`TOLLGATE_SERVICE_HOST`,
/// `TOLLGATE_GRPC_PORT_8081_TCP_ADDR`): "Discovering services" of its documentation.
fn is_of_kubernetes(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let of_port = |rest: &str| {
        let mut words = rest.split('_');
        words.next().is_some_and(is_number)
            && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
            && matches!(words.next(), None | Some("PROTO" | "PORT" | "ADDR"))
    };
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.strip_prefix(OURS).is_some_and(|rest| rest == "PORT" || rest.ends_with("_PORT"))
        || name.match_indices("_PORT_").any(|(at, between)| of_port(&name[at + between.len()..]))
}

/// `A (did you mean B?), C`
pub fn told(strange: &[Strange<'_>]) -> String {
    let one = |one: &Strange<'_>| match one.meant {
        Some(meant) => format!("{} (did you mean {meant}?)", one.name),
        None => one.name.to_owned(),
    };
    strange.iter().map(one).collect::<Vec<String>>().join(", ")
}
