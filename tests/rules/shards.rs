//! `shards:` of limits: where it may stand, and what deployments refuse.

use tollgate::rules::{Dialect, compile};

use super::{common::compile_files, mistakes::fixtures};

fn of(body: &str, dialect: Dialect) -> Result<Option<u8>, String> {
    let text = format!("domain: d\ndefault: {{{body}}}");
    let compiled = compile_files(&[("a.yaml", &text)], dialect).map_err(|told| told.to_string())?;
    let entries = super::common::entries("a=x");
    let rule = compiled.rules.domain(b"d").unwrap().find(&entries).rules().next().unwrap();
    Ok(rule.shards.map(u8::from))
}

#[test]
fn a_limit_is_split_into_2_to_64_and_1_or_nothing_does_not() {
    let limit = "unit: hour, requests_per_unit: 100";
    for (said, shards) in [
        ("", None),
        (", shards: 1", None),
        (", shards: ~", None),
        (", shards: 2", Some(2)),
        (", shards: 64", Some(64)),
    ] {
        assert_eq!(of(&format!("{limit}{said}"), Dialect::default()), Ok(shards), "{said}");
    }
    assert_eq!(
        of("unit: hour, requests_per_unit: 0, shards: 8", Dialect::default()),
        Ok(None),
        "nothing to split"
    );
}

#[test]
fn the_references_counters_and_its_ways_of_counting_cannot_be_split() {
    let compat = Dialect { compat: true, ..Dialect::default() };
    let keys = Dialect { reference_keys: true, ..Dialect::default() };
    let window = "unit: hour, requests_per_unit: 100, shards: 8";
    let bucket = "unit: hour, requests_per_unit: 100, algorithm: token_bucket, shards: 8";
    for body in [window, bucket] {
        let told = of(body, compat).unwrap_err();
        assert!(told.contains("TOLLGATE_COMPAT=reference counts the hits that it refuses"), "{told}");
    }
    let told = of(window, keys).unwrap_err();
    assert!(
        told.contains("with KEY_FORMAT=reference this counter is envoyproxy/ratelimit's as well"),
        "{told}"
    );
    for fine in [bucket, "window: 40s, requests_per_unit: 100, shards: 8"] {
        assert_eq!(of(fine, keys), Ok(Some(8)), "{fine}");
    }
    for one in [window, bucket].map(|body| body.replace("shards: 8", "shards: 1")) {
        assert_eq!((of(&one, compat), of(&one, keys)), (Ok(None), Ok(None)));
    }
}

#[test]
fn what_is_in_force_tells_into_how_many() {
    let text = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 9, shards: 4}}\n- {key: b, rate_limit: {unit: hour, requests_per_unit: 9}}";
    let rules = compile_files(&[("a.yaml", text)], Dialect::default()).unwrap().rules;
    let lines = rules.describe();
    assert!(lines.iter().any(|line| line.ends_with("quota_mode: false, shards: 4")), "{lines:?}");
    let json = rules.to_json();
    assert_eq!(
        (&json["domains"][0]["rules"][0]["shards"], &json["domains"][0]["rules"][1]["shards"]),
        (&4.into(), &serde_json::Value::Null)
    );
}

/// A route, or a tenant, may take back what its tier says.
#[test]
fn tiers_hand_shards_on() {
    let (_, files) = fixtures("mistakes").into_iter().find(|(name, _)| name == "tier-shards").unwrap();
    let mended = files.into_iter().map(|(name, text)| {
        let text = String::from_utf8(text).unwrap();
        (
            name,
            text.replace("slow: {rate: 5/s}", "slow: {rate: 5/s, shards: 5}")
                .replace("lease: 10", "shards: 2")
                .into_bytes(),
        )
    });
    let files: std::collections::BTreeMap<_, _> = mended.collect();
    let rules = compile(&files, Dialect::default()).unwrap_or_else(|told| panic!("{told}")).rules;
    for (entries, shards) in [
        ("tenant=any", Some(8)),
        ("tenant=any,route=slow", Some(5)),
        ("tenant=any,route=other", None),
        ("tenant=any,route=none", None),
        ("tenant=acme", Some(2)),
    ] {
        let entries = super::common::entries(entries);
        let rule = rules.domain(b"api").unwrap().find(&entries).rules().next().unwrap();
        assert_eq!(rule.shards.map(u8::from), shards, "{entries:?}");
    }
}
