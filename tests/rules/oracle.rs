//! The look-up against its description, taken literally and slowly, over random rules.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::{
    key::Key,
    limit::{Algorithm, Entry, Limit},
    rules::RuleSet,
};

use super::common::rules;

/// A descriptor; its limit's name is its path, such as `0.2`.
#[derive(Clone, Debug)]
struct Descriptor {
    key: String,
    value: String,
    limited: bool,
    share: bool,
    below: Vec<Descriptor>,
}

fn descriptors(depth: u32) -> BoxedStrategy<Vec<Descriptor>> {
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { descriptors(depth - 1) };
    let one = ("[ab*]{1,2}", "[ab*]{0,2}", any::<bool>(), any::<bool>(), below);
    let one = one.prop_map(|(key, value, limited, share, below)| {
        let share = share && (key.contains('*') || value.contains('*'));
        Descriptor { key, value, limited, share, below }
    });
    let level = proptest::collection::vec(one, 0..5);
    let unique = level.prop_map(|mut level| {
        let mut seen = std::collections::HashSet::new();
        level.retain(|one| seen.insert((one.key.clone(), one.value.clone())));
        level
    });
    unique.boxed()
}

fn yaml(level: &[Descriptor], path: &str) -> Value {
    let one = |(index, one): (usize, &Descriptor)| {
        let path = format!("{path}{index}");
        let mut map = json!({ "key": one.key, "value": one.value, "share_threshold": one.share });
        if one.limited {
            map["rate_limit"] = json!({ "unit": "hour", "requests_per_unit": 1, "name": path });
        }
        map["descriptors"] = yaml(&one.below, &format!("{path}."));
        map
    };
    level.iter().enumerate().map(one).collect()
}

/// Tries everything.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| fits(rest, &text[skip..])),
        Some((byte, rest)) => {
            text.split_first().is_some_and(|(first, more)| first == byte && fits(rest, more))
        }
    }
}

/// Exact key and value; else the first with a pattern that fits; else the bare key.
fn matching<'d>(level: &'d [Descriptor], key: &str, value: &str) -> Option<(usize, &'d Descriptor)> {
    let all = || level.iter().enumerate();
    let is_pattern = |one: &Descriptor| one.key.contains('*') || one.value.contains('*');
    all()
        .find(|(_, one)| !is_pattern(one) && !one.value.is_empty() && one.key == key && one.value == value)
        .or_else(|| {
            all().filter(|(_, one)| is_pattern(one)).find(|(_, one)| {
                let value_fits = one.value.is_empty() || fits(one.value.as_bytes(), value.as_bytes());
                value_fits && fits(one.key.as_bytes(), key.as_bytes())
            })
        })
        .or_else(|| all().find(|(_, one)| one.key == key && one.value.is_empty()))
}

/// What the description says of a request: the limit's name and the key of its counter, or `Err(whether exempt)`.
fn expected(rules: &[Descriptor], asked: &[(String, String)]) -> Result<(String, Key), bool> {
    let mut level = rules;
    let (mut path, mut shares) = (String::new(), Vec::new());
    let Some((last, _)) = asked.split_last() else { return Err(false) };
    for (depth, (key, value)) in asked.iter().enumerate() {
        let Some((index, one)) = matching(level, key, value) else { return Err(false) };
        path += &format!("{}{index}", if depth > 0 { "." } else { "" });
        shares.push(one.share.then(|| (one.key.clone(), one.value.clone())));
        if depth + 1 == asked.len() {
            if !one.limited {
                return Err(one.below.is_empty());
            }
            let limit = Limit::new(Algorithm::FixedWindow, 1, 3_600_000_000, None).unwrap();
            let parts = |parts: &mut tollgate::key::Parts<'_>| {
                for ((key, value), share) in asked.iter().zip(&shares) {
                    match share {
                        Some((key, value)) => parts.shared(key.as_bytes(), value.as_bytes()),
                        None => parts.entry(key.as_bytes(), value.as_bytes()),
                    }
                }
            };
            return Ok((path, Key::new(None, b"d", parts, None, &limit)));
        }
        level = &one.below;
    }
    unreachable!("{last:?} ends the loop")
}

fn found(rules: &RuleSet, entries: &[Entry]) -> Result<(String, Key), bool> {
    let found = rules.domain(b"d").unwrap().find(entries);
    let Some(rule) = found.rules().next() else { return Err(found.is_exempt()) };
    assert_eq!(found.rules().count(), 1);
    let key = found.key(b"d", entries, rule, rule.limit.as_ref().unwrap());
    Ok((rule.name.as_deref().unwrap().to_owned(), key))
}

fn entries_of(asked: &[(String, String)]) -> Vec<Entry> {
    let bytes = |text: &String| Bytes::copy_from_slice(text.as_bytes());
    asked.iter().map(|(key, value)| Entry { key: bytes(key), value: bytes(value) }).collect()
}

proptest! {
    #[test]
    fn descriptors_are_found_as_described_and_explained_as_found(
        tree in descriptors(2),
        asked in proptest::collection::vec(proptest::collection::vec(("[ab]{1,2}", "[ab]{0,3}"), 0..4), 1..20),
    ) {
        let rules = rules(&json!({ "domain": "d", "descriptors": yaml(&tree, "") }).to_string());
        for asked in asked {
            let entries = entries_of(&asked);
            let got = found(&rules, &entries);
            prop_assert_eq!(&got, &expected(&tree, &asked), "{:?}", asked);
            let domain = rules.domain(b"d").unwrap();
            let last = domain.explain(&entries).pop().unwrap();
            match domain.find(&entries).rules().next() {
                Some(rule) => prop_assert!(last.matched && last.at.as_ref() == Some(&rule.at), "{}", last),
                None => prop_assert_eq!(last.matched, got == Err(true), "{}", last),
            }
        }
    }

    #[test]
    fn tenants_are_charged_as_described_and_explained_as_charged(
        tiers in proptest::collection::vec(proptest::collection::btree_set("[rs]", 0..3), 1..4),
        tenants in proptest::collection::btree_map(
            "[abc]",
            (0_usize..9, any::<bool>(), proptest::collection::btree_set("[rs]", 0..3)),
            0..3,
        ),
        csv in proptest::collection::btree_map("[abcd]", 0_usize..9, 0..4),
        asked in proptest::collection::vec((proptest::option::of("[a-e]"), proptest::option::of("[rst]")), 1..20),
    ) {
        let tier = |number: usize| format!("tier{}", number % tiers.len());
        let routes = |of: &str, routes: &std::collections::BTreeSet<String>| -> Value {
            let route = |route: &String| (route.clone(), json!({ "rate": "1/s", "name": format!("{of}.{route}") }));
            Value::Object(routes.iter().map(route).collect())
        };
        let yaml_tiers: Value = Value::Object(tiers.iter().enumerate().map(|(number, has)| {
            let name = tier(number);
            let body = json!({ "rate": "1/s", "name": name, "routes": routes(&name, has) });
            (name, body)
        }).collect());
        let yaml_tenants: Value = Value::Object(tenants.iter().map(|(name, (number, own, has))| {
            let mut body = json!({ "tier": tier(*number), "routes": routes(name, has) });
            if *own {
                body["rate"] = json!("2/s");
                body["name"] = json!(name);
            }
            (name.clone(), body)
        }).collect());
        let file = json!({
            "domain": "d", "tenant": "t", "route": "r", "default_tier": "tier0", "tiers": yaml_tiers,
            "tenants": yaml_tenants, "tenants_from": "t.csv",
        });
        let row = |(name, number): (&String, &usize)| format!("{name},{}\n", tier(*number));
        let lines: String = std::iter::once("tenant,tier\n".to_owned()).chain(csv.iter().map(row)).collect();
        let rules = super::common::rules_of(&[("d.yaml", &file.to_string()), ("t.csv", &lines)]);
        let domain = rules.domain(b"d").unwrap();
        for (tenant, route) in asked {
            let mut asked: Vec<(String, String)> = Vec::new();
            asked.extend(route.clone().map(|route| ("r".to_owned(), route)));
            asked.extend(tenant.clone().map(|tenant| ("t".to_owned(), tenant)));
            let entries = entries_of(&asked);
            let own = tenant.as_ref().and_then(|tenant| tenants.get(tenant).map(|rules| (tenant, rules)));
            let listed = tenant.as_ref().and_then(|tenant| csv.get(tenant));
            let number = own.map(|(_, (number, ..))| number).or(listed).copied().unwrap_or(0) % tiers.len();
            let of_route = route.as_ref().and_then(|route| match own {
                Some((name, (_, _, has))) if has.contains(route) => Some(format!("{name}.{route}")),
                _ => tiers[number].contains(route).then(|| format!("tier{number}.{route}")),
            });
            let expected = of_route.unwrap_or_else(|| match own {
                Some((name, (_, true, _))) => name.clone(),
                _ => format!("tier{number}"),
            });
            let found = domain.find(&entries);
            let rule = found.rules().next().unwrap();
            prop_assert_eq!(rule.name.as_deref(), Some(&*expected), "{:?}", asked);
            let last = domain.explain(&entries).pop().unwrap();
            prop_assert!(last.matched && last.at.as_ref() == Some(&rule.at), "{}", last);
        }
    }
}
