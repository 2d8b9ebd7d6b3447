//! What rule files say, field by field. Tables follow the golden cases of the names in comments.

use tollgate::{
    limit::{Algorithm, OnRefusal, Role},
    rules::{Counts, Dialect, FailureMode, Level, Rule, RuleSet, Unit, compile},
};

use super::common::{compat, compile_files, entries, keys, limits, mistakes, rules, rules_of};

/// The rule of `{key: a, rate_limit: {...}}`.
fn limit_of(body: &str, dialect: Dialect) -> Rule {
    let text = format!("domain: d\ndescriptors:\n- {{key: a, rate_limit: {{{body}}}}}");
    let compiled =
        compile_files(&[("a.yaml", &text)], dialect).unwrap_or_else(|told| panic!("{body}: {told}"));
    first(&compiled.rules, "a=x").clone()
}

fn first<'r>(rules: &'r RuleSet, descriptor: &str) -> &'r Rule {
    rules.domain(b"d").unwrap().find(&entries(descriptor)).rules().next().unwrap()
}

#[test]
fn units_and_windows() {
    for (body, window_s, shown) in [
        ("unit: second", 1, Unit::Second),
        ("unit: MINUTE", 60, Unit::Minute),
        ("unit: Hour", 3_600, Unit::Hour),
        ("unit: dAY", 86_400, Unit::Day),
        ("unit: week", 604_800, Unit::Week),
        ("unit: month", 30 * 86_400, Unit::Month),
        ("unit: year", 365 * 86_400, Unit::Year),
        ("unit: minute, unit_multiplier: 5", 300, Unit::Hour),
        ("unit: day, unit_multiplier: 7", 604_800, Unit::Week),
        ("window: 40s", 40, Unit::Minute),
        ("window: 1h30m", 5_400, Unit::Day),
        ("window: 3650d", 3_650 * 86_400, Unit::Year),
    ] {
        let rule = limit_of(&format!("{body}, requests_per_unit: 5"), Dialect::default());
        let limit = rule.limit.unwrap();
        assert_eq!((limit.window_us(), rule.shown), (window_s * 1_000_000, (5, shown)), "{body}");
        assert_eq!((limit.algorithm(), limit.requests()), (Algorithm::FixedWindow, 5), "{body}");
    }
    let short = limit_of("window: 500ms, requests_per_unit: 5", Dialect::default());
    assert_eq!((short.limit.unwrap().window_us(), short.shown.1), (500_000, Unit::Second));
}

#[test]
fn algorithms_and_bursts() {
    for (body, algorithm, burst) in [
        ("algorithm: token_bucket", Algorithm::TokenBucket, 5),
        ("algorithm: token_bucket, burst: 9", Algorithm::TokenBucket, 9),
        ("algorithm: gcra, burst: 1", Algorithm::Gcra, 1),
        ("algorithm: sliding_window", Algorithm::SlidingWindow, 5),
        ("algorithm: fixed_window", Algorithm::FixedWindow, 5),
        ("burst: ~", Algorithm::FixedWindow, 5),
    ] {
        let limit =
            limit_of(&format!("unit: hour, requests_per_unit: 5, {body}"), Dialect::default()).limit.unwrap();
        assert_eq!((limit.algorithm(), limit.burst()), (algorithm, burst), "{body}");
    }
}

/// `config-numbers-of-other-bases`, `config-no-requests`, `config-most-requests`
#[test]
fn numbers_read_as_in_the_reference() {
    for (number, requests) in [
        ("0x10", 16),
        ("010", 8),
        ("0o10", 8),
        ("0b101", 5),
        ("1_000", 1000),
        ("+7", 7),
        ("~", 0),
        ("4294967295", u32::MAX),
    ] {
        let rule = limit_of(&format!("unit: hour, requests_per_unit: {number}"), Dialect::default());
        assert_eq!(rule.limit.unwrap().requests(), requests, "{number}");
    }
    assert_eq!(limit_of("unit: hour", Dialect::default()).limit.unwrap().requests(), 0);
}

/// `config-scalars-as-values`, `numbers-and-booleans-as-values`
#[test]
fn unquoted_numbers_booleans_and_dates_are_texts_where_texts_stand() {
    for (written, value) in [
        ("15", "15"),
        ("0x1F", "0x1F"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("-3", "-3"),
        ("True", "True"),
        ("off", "off"),
        ("2026-01-02", "2026-01-02"),
        ("12:30", "12:30"),
        ("10.0.0.1", "10.0.0.1"),
        ("!!str 1.5", "1.5"),
        ("\"1.5\"", "1.5"),
        ("'~'", "~"),
        ("{a: 1}".trim_matches(|c| "{}".contains(c)).split(':').next().unwrap(), "a"),
    ] {
        let rules = rules(&format!(
            "domain: 404\ndescriptors:\n- {{key: 12, value: {written}, rate_limit: {{unit: hour}}}}"
        ));
        assert_eq!(limits(&rules, "404", &format!("12={value}")).len(), 1, "{written}");
        assert_eq!(limits(&rules, "404", "12=other").len(), 0, "{written}");
    }
    for bare in ["~", "null", "\"\"", ""] {
        let rules = rules(&format!(
            "domain: d\ndescriptors:\n- {{key: a, value: {bare}, rate_limit: {{unit: hour}}}}"
        ));
        assert_eq!(limits(&rules, "d", "a=anything").len(), 1, "{bare}");
    }
}

/// `config-flags-in-all-spellings`
#[test]
fn flags_in_all_spellings() {
    for (word, shadow) in
        [("yes", true), ("On", true), ("TRUE", true), ("y", true), ("no", false), ("~", false)]
    {
        let rules = rules(&format!(
            "domain: d\ndescriptors:\n- {{key: a, shadow_mode: {word}, rate_limit: {{unit: hour}}}}"
        ));
        assert_eq!(first(&rules, "a=x").role == Role::Shadow, shadow, "{word}");
    }
}

/// `config-carriage-returns`, `config-byte-order-mark`, `config-json-file`, `config-anchors-and-merge-keys`
#[test]
fn files_of_any_make() {
    for text in [
        "domain: d\r\ndescriptors:\r\n- key: a\r\n  rate_limit:\r\n    unit: hour\r\n    requests_per_unit: 7\r\n",
        "\u{feff}domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 7}}",
        r#"{"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "hour", "requests_per_unit": 7}}]}"#,
        "---\ndomain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: hour,\trequests_per_unit:\t7}\n---\n",
        "domain: d\ndescriptors:\n- key: b\n  rate_limit: &b {unit: hour, requests_per_unit: 1}\n- key: a\n  rate_limit:\n    <<: *b\n    requests_per_unit: 7",
        "domain: d\ndescriptors:\n- key: b\n  rate_limit: &b {unit: hour, requests_per_unit: 7}\n- key: a\n  rate_limit: *b\n",
    ] {
        assert_eq!(limits(&rules(text), "d", "a=x"), ["7/3600s"], "{text:?}");
    }
}

#[test]
fn roles_and_what_becomes_of_refused_hits() {
    use OnRefusal::{Count, Drain, Keep};
    use Role::{Enforce, Quota, Shadow};
    for (marks, mode, role, on_refusal) in [
        ("", "", Enforce, Drain),
        ("shadow_mode: true,", "", Shadow, Drain),
        ("quota_mode: true,", "", Quota, Drain),
        ("quota_mode: true, shadow_mode: true,", "", Shadow, Drain),
        ("", "mode: enforce", Enforce, Keep),
        ("", "mode: shadow", Shadow, Keep),
        ("", "mode: record", Shadow, Count),
        ("quota_mode: true,", "mode: enforce", Quota, Keep),
        ("quota_mode: true,", "mode: record", Shadow, Count),
        ("shadow_mode: true,", "mode: record", Shadow, Count),
    ] {
        let text = format!(
            "domain: d\ndescriptors:\n- {{key: a, {marks} rate_limit: {{unit: hour, requests_per_unit: 1, {mode}}}}}"
        );
        let ours = rules(&text);
        let rule = first(&ours, "a=x");
        assert_eq!((rule.role, rule.on_refusal), (role, on_refusal), "{marks} {mode}");
        let reference = compile_files(&[("a.yaml", &text)], compat()).unwrap().rules;
        let rule = first(&reference, "a=x");
        assert_eq!((rule.role, rule.on_refusal), (role, Count), "{marks} {mode}");
    }
}

#[test]
fn what_to_do_without_a_store_is_the_rules_or_the_deployments() {
    let deny = Dialect { on_store_failure: FailureMode::Deny, ..Dialect::default() };
    assert_eq!(limit_of("unit: hour", deny).on_store_failure, FailureMode::Deny);
    for (word, mode) in [
        ("allow", FailureMode::Allow),
        ("deny", FailureMode::Deny),
        ("local", FailureMode::Local),
        ("error", FailureMode::Error),
    ] {
        let rule = limit_of(&format!("unit: hour, on_store_failure: {word}"), deny);
        assert_eq!(rule.on_store_failure, mode);
        assert_eq!(rule.on_store_failure.as_str(), word);
    }
    assert!(FailureMode::Deny > FailureMode::Error && FailureMode::Error > FailureMode::Local);
}

#[test]
fn names_replacements_and_headers() {
    let rule = limit_of(
        "unit: hour, name: \"n°1 \\\"x\\\\\", headers: no, replaces: [{name: a}, {name: b}, {name: a}]",
        Dialect::default(),
    );
    assert_eq!(rule.name.as_deref(), Some("n°1 \"x\\"));
    // A header's string may hold printable ASCII only, without quote and backslash.
    assert_eq!(&*rule.policy, "n_1 _x_");
    assert!(!rule.headers);
    assert_eq!(rule.replaces.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    let nested = rules(
        "domain: d\ndescriptors: [{key: a, value: secret, descriptors: [{key: b, rate_limit: {unit: hour}}]}]",
    );
    assert_eq!(&*first(&nested, "a=secret,b=x").policy, "a.b");
    assert!(
        rules("domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, replaces: [{name: x}]}}]")
            .has_replaces()
    );
    assert!(!nested.has_replaces());
}

#[test]
fn unlimited_rules_have_no_limit_and_are_found() {
    let rule = limit_of("unlimited: true, name: n", Dialect::default());
    assert_eq!((rule.limit, rule.name.as_deref()), (None, Some("n")));
}

#[test]
fn several_limits_have_several_counters_and_metrics() {
    let rules = rules(
        "domain: d
descriptors:
- key: a
  rate_limits:
  - {unit: second, requests_per_unit: 1}
  - {unit: day, requests_per_unit: 100, name: daily}
  - {unit: day, requests_per_unit: 100, algorithm: sliding_window}
  - {unit: second, requests_per_unit: 5, algorithm: gcra}
  - {unit: day, requests_per_unit: 500, algorithm: gcra, name: long}",
    );
    assert_eq!(
        keys(&rules, "d", "a=x"),
        [
            "tg:d:a=x:fixed_window/1s",
            "tg:d:a=x:fixed_window/86400s",
            "tg:d:a=x:sliding_window/86400s",
            "tg:d:a=x:gcra",
            "tg:d:a=x:long.gcra",
        ]
    );
    let mut metrics: Vec<u32> =
        rules.domain(b"d").unwrap().find(&entries("a=x")).rules().map(|rule| rule.metric).collect();
    metrics.dedup();
    assert_eq!(metrics.len(), 5);
    assert_eq!(&*rules.metric_labels()[metrics[1] as usize].1, "a:daily");
}

/// `override-shares-the-rules-counter`
#[test]
fn an_override_shares_the_rules_counter_while_algorithm_and_window_are_the_same() {
    use tollgate::limit::Limit;
    let rules = rules("domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 3}}]");
    let domain = rules.domain(b"d").unwrap();
    let entries = entries("a=x");
    let found = domain.find(&entries);
    let rule = found.rules().next().unwrap();
    let key = |requests, window_us| {
        let limit = Limit::new(Algorithm::FixedWindow, requests, window_us, None).unwrap();
        found.key(b"d", &entries, rule, &limit)
    };
    assert_eq!(key(3, 3_600_000_000), key(9, 3_600_000_000));
    assert_ne!(key(3, 3_600_000_000), key(3, 60_000_000));
    let limit = Limit::new(Algorithm::FixedWindow, 9, 3_600_000_000, None).unwrap();
    let other = super::common::entries("b=x,c=y");
    let found = domain.find(&other);
    assert_eq!(found.override_key(b"d", &other, &limit).to_string(), "tg:d:b=x,c=y:fixed_window/3600s");
    assert_eq!(domain.find(&[]).override_key(b"d", &[], &limit).to_string(), "tg:d::fixed_window/3600s");
}

/// `config-metadata-of-any-shape`, `metadata-of-a-rule`
#[test]
fn metadata_is_kept_as_it_was_written() {
    let rules = rules(
        "domain: d
descriptors:
- key: a
  metadata: {text: hello, number: 3, fraction: 0.5, flag: yes, nothing: ~, list: [1, {x: 2}], day: 2026-01-02, 7: seven, true: t, quoted: '3'}
  rate_limit: {unit: hour}",
    );
    assert_eq!(
        first(&rules, "a=x").metadata,
        Some(serde_json::json!({
            "text": "hello", "number": 3, "fraction": 0.5, "flag": true, "nothing": null, "list": [1, {"x": 2}],
            "day": "2026-01-02", "7": "seven", "true": "t", "quoted": "3",
        }))
    );
}

/// `config-yaml-key-twice`, `config-two-documents`
#[test]
fn the_last_of_two_names_counts_and_the_first_of_two_documents_and_both_are_told() {
    let text = "domain: d
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 1}
  rate_limit: {unit: day, requests_per_unit: 2}
---
domain: [no: text";
    for dialect in [Dialect::default(), compat()] {
        let compiled = compile_files(&[("a.yaml", text)], dialect).unwrap();
        assert_eq!(limits(&compiled.rules, "d", "a=x"), ["2/86400s"]);
        let told = compiled.warnings.iter().filter(|warning| warning.level == Level::Warning);
        assert_eq!(told.map(|warning| warning.line).collect::<Vec<_>>(), [5, 7]);
    }
}

/// `merged-domain`, `config-duplicate-key-merged`
#[test]
fn domains_are_merged_where_the_deployment_says_so() {
    let merge = Dialect { merge_domains: true, ..Dialect::default() };
    let a = "domain: d\ndescriptors: [{key: u, rate_limit: {unit: hour, requests_per_unit: 1}}, {key: p, value: /a*, rate_limit: {unit: hour, requests_per_unit: 2}}]";
    let b = "domain: d\ndescriptors: [{key: u, value: v, rate_limit: {unit: hour, requests_per_unit: 3}}, {key: p, value: /ab*, rate_limit: {unit: hour, requests_per_unit: 4}}]\ndefault: {unit: hour, requests_per_unit: 9}";
    let rules = compile_files(&[("1.yaml", a), ("2.yaml", b), ("3.yaml", "domain: d")], merge).unwrap().rules;
    for (descriptor, limit) in
        [("u=x", "1/3600s"), ("u=v", "3/3600s"), ("p=/abc", "2/3600s"), ("other=", "9/3600s")]
    {
        assert_eq!(limits(&rules, "d", descriptor), [limit], "{descriptor}");
    }
    assert_eq!(rules.counts().domains, 1);
    let told = compile_files(&[("1.yaml", a), ("2.yaml", a)], merge).unwrap_err();
    assert_eq!(told.count(), 2);
    assert!(told.to_string().contains("the first stands in 1.yaml:2"), "{told}");
    let told =
        compile_files(&[("1.yaml", b), ("2.yaml", "domain: d\ndefault: {unit: hour}")], merge).unwrap_err();
    assert!(told.to_string().contains("this domain has a `default` already"), "{told}");
}

#[test]
fn revision_and_version_tell_rules_apart() {
    let text = "domain: d\nversion: 2026.1.2\n";
    let one = rules(text);
    assert_eq!(one.version(), Some("2026.1.2"));
    assert_eq!(one.revision(), rules(text).revision());
    assert_eq!(one.revision().len(), 16);
    assert_ne!(one.revision(), rules("domain: d\nversion: 2026.1.3\n").revision());
    let compat = compile_files(&[("rules.yaml", text)], compat()).unwrap().rules;
    assert_ne!(one.revision(), compat.revision());
    let several = rules_of(&[
        ("a.yaml", "{domain: a, version: 7}"),
        ("b.yaml", "{domain: b, version: 7}"),
        ("c.yaml", "{domain: c, version: x}"),
    ]);
    assert_eq!(several.version(), Some("7,x"));
    let tiers = |csv| {
        rules_of(&[
            (
                "a.yaml",
                "{domain: d, tenant: t, default_tier: a, tiers: {a: {rate: 1/s}}, tenants_from: t.csv}",
            ),
            ("t.csv", csv),
        ])
    };
    assert_ne!(tiers("x,a").revision().to_owned(), tiers("y,a").revision());
}

#[test]
fn no_files_are_no_rules() {
    let rules = rules_of(&[]);
    assert_eq!(rules.counts(), Counts::default());
    assert!(rules.domain(b"d").is_none() && rules.domain(b"").is_none());
    assert_eq!(rules.version(), None);
}

/// `rlconfig-lines`
#[test]
fn lines_of_rlconfig() {
    let rules = rules(
        "domain: rlconfig-lines
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 2, name: n}}
- {key: user, value: vip, shadow_mode: true, rate_limit: {unit: Day, requests_per_unit: 3}}
- {key: free}
- key: tenant
  value: '*:a|b'
  descriptors:
  - {key: route, value: /x.y, quota_mode: true, rate_limit: {unit: week, requests_per_unit: 4}}
  - {key: all, rate_limit: {unlimited: true}}
- {key: ours, rate_limit: {window: 40s, requests_per_unit: 4, algorithm: gcra, burst: 2}}",
    );
    let mut lines = rules.describe();
    lines.sort();
    assert_eq!(
        lines,
        [
            "rlconfig-lines.ours: unit=MINUTE requests_per_unit=4, shadow_mode: false, quota_mode: false, algorithm: gcra, window: 40s, burst: 2",
            "rlconfig-lines.tenant_*:a|b.all: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false",
            "rlconfig-lines.tenant_*:a|b.route_/x.y: unit=WEEK requests_per_unit=4, shadow_mode: false, quota_mode: true",
            "rlconfig-lines.user: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false",
            "rlconfig-lines.user_vip: unit=DAY requests_per_unit=3, shadow_mode: true, quota_mode: false",
        ]
    );
}

/// `config-known-keys-in-the-wrong-place`: a rule file of the reference that carries them must load.
#[test]
fn known_fields_in_the_wrong_place_are_no_mistake() {
    let rules = rules(
        "domain: d\nunit: hour\ndescriptors:\n- key: a\n  requests_per_unit: 5\n  rate_limit: {unit: hour, requests_per_unit: 1, shadow_mode: true, key: x}",
    );
    assert_eq!(first(&rules, "a=x").role, Role::Enforce);
    assert!(mistakes("domain: d\ndescriptors:\n- {key: a, burst: 5}").contains("has no field `burst`"));
}

#[test]
fn descriptors_nest_as_deep_as_requests_do() {
    let nested = |depth: usize| {
        let open: String = (0..depth).map(|_| "{key: k, descriptors: [").collect();
        format!("domain: d\ndescriptors: [{open}{}", "]}".repeat(depth)) + "]"
    };
    assert!(compile_files(&[("a.yaml", &nested(64))], Dialect::default()).is_ok());
    assert!(compile_files(&[("a.yaml", &nested(66))], Dialect::default()).is_err());
}

/// The samples that come with Tollgate.
#[test]
fn the_samples_compile_without_warnings() {
    let files = ["shop.yaml", "api.yaml", "tenants.csv"].map(|name| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("rules").join(name);
        (name.to_owned(), std::fs::read(path).unwrap())
    });
    let compiled = compile(&std::collections::BTreeMap::from(files), Dialect::default())
        .unwrap_or_else(|told| panic!("{told}"));
    assert!(compiled.warnings.is_empty(), "{}", compiled.warnings);
    assert_eq!(compiled.rules.counts().tenants, 8);
    assert_eq!(limits(&compiled.rules, "api", "tenant=acme,route=search"), ["50/1s", "5000000/86400s"]);
    assert_eq!(limits(&compiled.rules, "api", "tenant=wayne,route=search"), ["3/10s"]);
}
