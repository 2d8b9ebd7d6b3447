//! Which rule a descriptor gets. Tables follow the golden cases of the same names.

use super::common::{compat, compile_files, entries, keys, limits, rules};

/// Checks (descriptor, limits) pairs, the limits joined by a space.
fn check(case: &str, text: &str, cases: &[(&str, &str)]) {
    let rules = rules(&format!("domain: d\ndescriptors:\n{text}"));
    for (descriptor, expected) in cases {
        assert_eq!(limits(&rules, "d", descriptor).join(" "), *expected, "{case}: {descriptor}");
    }
}

#[test]
fn exact_value_then_pattern_then_bare_key() {
    check(
        "exact-then-star-then-bare",
        "- {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: path, value: /a*, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: path, value: /abc, rate_limit: {unit: hour, requests_per_unit: 3}}",
        &[("path=/abc", "3/3600s"), ("path=/ab", "2/3600s"), ("path=/b", "1/3600s"), ("other=/b", "")],
    );
    check(
        "star-alone",
        "- {key: user, value: '*', rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: user, value: known, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}",
        &[("user=a", "1/3600s"), ("user=", "1/3600s"), ("user=known", "5/3600s")],
    );
}

#[test]
fn the_first_pattern_of_the_file_wins_also_among_keys() {
    check(
        "first-star-in-the-file-wins",
        "- {key: path, value: /a*, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: path, value: /a/b*, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: path, value: '*z', rate_limit: {unit: hour, requests_per_unit: 3}}",
        &[("path=/a/bc", "1/3600s"), ("path=/a/z", "1/3600s"), ("path=/c/z", "3/3600s")],
    );
    check(
        "star-in-a-key",
        "- {key: x-*, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: y-*, value: on, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: y-b, value: 'o*', rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: z-a, value: 'o*', rate_limit: {unit: hour, requests_per_unit: 4}}
- {key: z-*, rate_limit: {unit: hour, requests_per_unit: 5}}",
        &[
            ("x-plan=gold", "1/3600s"),
            ("x-=", "1/3600s"),
            ("plan=x-", ""),
            ("y-flag=on", "2/3600s"),
            ("y-flag=off", ""),
            ("y-b=on", "2/3600s"),
            ("y-b=off", "3/3600s"),
            ("z-a=off", "4/3600s"),
            ("z-a=x", "5/3600s"),
        ],
    );
}

/// `star-in-values-asked`: in the reference a client who sends a pattern's own text gets that pattern, here the first one.
#[test]
fn a_client_who_sends_a_star_gets_no_choice_among_patterns() {
    let text = "domain: d
descriptors:
- {key: path, value: /a/*, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: path, value: /a/b*, rate_limit: {unit: hour, requests_per_unit: 7}}";
    let ours = rules(text);
    let reference = compile_files(&[("a.yaml", text)], compat()).unwrap().rules;
    for (descriptor, of_ours, of_reference) in [
        ("path=/a/b*", "1/3600s", "7/3600s"),
        ("path=/a/bc", "1/3600s", "1/3600s"),
        ("path=/a/**", "1/3600s", "1/3600s"),
    ] {
        assert_eq!(limits(&ours, "d", descriptor), [of_ours], "{descriptor}");
        assert_eq!(limits(&reference, "d", descriptor), [of_reference], "{descriptor}");
    }
}

#[test]
fn there_is_no_way_back() {
    check(
        "no-way-back-from-an-exact-value, no-way-back-from-a-star",
        "- key: t
  value: big
  descriptors: [{key: r, value: search, rate_limit: {unit: hour, requests_per_unit: 9}}]
- key: t
  value: b*
  descriptors: [{key: r, value: search, rate_limit: {unit: hour, requests_per_unit: 8}}]
- key: t
  descriptors: [{key: r, rate_limit: {unit: hour, requests_per_unit: 1}}]",
        &[
            ("t=big,r=search", "9/3600s"),
            ("t=big,r=cart", ""),
            ("t=bad,r=search", "8/3600s"),
            ("t=bad,r=cart", ""),
            ("t=small,r=cart", "1/3600s"),
        ],
    );
}

#[test]
fn depth_must_match_exactly() {
    check(
        "shallower-than-the-rule, deeper-than-the-rule",
        "- key: tenant
  descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1}
    descriptors:
    - {key: path, rate_limit: {unit: hour, requests_per_unit: 5}}",
        &[
            ("", ""),
            ("tenant=t", ""),
            ("tenant=t,user=a", "1/3600s"),
            ("tenant=t,user=a,path=/", "5/3600s"),
            ("tenant=t,user=a,path=/,method=GET", ""),
            ("user=a,tenant=t", ""),
        ],
    );
}

#[test]
fn each_value_counts_alone_unless_the_threshold_is_shared() {
    let rules = rules(
        "domain: d
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: file
  value: docs/*
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 2}
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: file, value: docs/big, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: c*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}",
    );
    for (descriptor, key) in [
        ("user=a", "tg:d:user=a:fixed_window/3600s"),
        ("file=docs/a", "tg:d:file=*docs/%2A:fixed_window/3600s"),
        ("file=docs/*", "tg:d:file=*docs/%2A:fixed_window/3600s"),
        ("file=docs/big", "tg:d:file=docs/big:fixed_window/3600s"),
        ("file=docs/a,user=u", "tg:d:file=*docs/%2A,user=u:fixed_window/86400s"),
        ("cat=x", "tg:d:c%2A=*:fixed_window/3600s"),
        ("cow=y", "tg:d:c%2A=*:fixed_window/3600s"),
    ] {
        assert_eq!(keys(&rules, "d", descriptor), [key], "{descriptor}");
    }
}

#[test]
fn the_default_limits_what_no_rule_matched_but_not_what_is_exempt() {
    let rules = rules(
        "domain: d
default: {unit: minute, requests_per_unit: 6}
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: user, value: monitor}
- key: tenant
  descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 3}}]",
    );
    for (descriptor, limit) in [
        ("user=a", "2/3600s"),
        ("user=monitor", ""),
        ("other=a", "6/60s"),
        ("user=a,path=/", "6/60s"),
        ("tenant=t", "6/60s"),
        ("", "6/60s"),
    ] {
        assert_eq!(limits(&rules, "d", descriptor).join(" "), limit, "{descriptor}");
    }
    assert_eq!(keys(&rules, "d", "other=a,b=c"), ["tg:d:other=a,b=c:fixed_window/60s"]);
    let domain = rules.domain(b"d").unwrap();
    assert!(domain.find(&super::common::entries("user=monitor")).is_exempt());
    assert!(!domain.find(&super::common::entries("other=a")).is_exempt());
}

/// `share-threshold-*` and `tests/golden/keys.jsonl`: what is written for an entry whose values share a counter.
#[test]
fn the_references_name_of_a_counter_has_the_rules_value_where_it_is_shared() {
    let rules = rules(
        "domain: d
descriptors:
- key: file
  value: img/*
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 3}
  descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
- key: h*
  value: x
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 3}
- key: several
  rate_limits: [{unit: hour, requests_per_unit: 3}]
- key: two
  rate_limits: [{unit: hour, requests_per_unit: 3}, {unit: day, requests_per_unit: 5}]
",
    );
    let domain = rules.domain(b"d").unwrap();
    let stem = |descriptor: &str| {
        let entries = entries(descriptor);
        domain.find(&entries).reference_stem(b"d", &entries).map(|stem| String::from_utf8(stem).unwrap())
    };
    for (descriptor, expected) in [
        ("file=img/a.png", Some("d_file_img/*_")),
        ("file=img/a.png,user=ann", Some("d_file_img/*_user_ann_")),
        ("host=x", Some("d_host_h*_x_")),
        ("several=x", Some("d_several_x_")),
        ("two=x", None),
        ("unknown=x", None),
    ] {
        assert_eq!(stem(descriptor).as_deref(), expected, "{descriptor}");
    }
    let entries = entries("file=img/a.png");
    let overriding = domain.find(&entries).reference_override_stem(b"d", &entries).unwrap();
    assert_eq!(overriding, b"d_file_img/a.png_");
}
