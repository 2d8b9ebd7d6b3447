//! `tollgate check`.

use std::path::Path;

use tempfile::TempDir;

use super::{API, SHOP, rules};
use crate::tollgate::{Ended, command, ended, run};

#[test]
fn check_counts_what_good_rules_hold() {
    let dir = rules(&[("shop.yaml", SHOP), ("api.yaml", API)]);
    let told = check(dir.path(), &[]);
    assert_eq!((told.code, &*told.stdout), (Some(0), "2 domains, 7 limits, 1 tenant\n"), "{}", told.stderr);
}

#[test]
fn check_tells_all_mistakes_of_all_files_and_ends_with_1() {
    let dir = rules(&[
        (
            "a.yaml",
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n",
        ),
        ("team/b.yaml", "domain: b\ndescriptor: []\n"),
    ]);
    let told = check(dir.path(), &[]);
    assert_eq!((told.code, &*told.stdout), (Some(1), ""));
    for part in ["a.yaml:4:", "fortnight", "team/b.yaml:2:1", "did you mean `descriptors`?", "2 mistakes in "]
    {
        assert!(told.stderr.contains(part), "{part} is missing in:\n{}", told.stderr);
    }
}

#[test]
fn check_lets_warnings_fail_only_when_it_is_strict() {
    // A tier that nobody is in is legal, and perhaps not meant.
    let dir = rules(&[("api.yaml", &API.replace("acme: { tier: pro }", "acme: { tier: free }"))]);
    let told = check(dir.path(), &[]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stderr.starts_with("warning: "), "{}", told.stderr);
    assert!(told.stdout.starts_with("1 domain, "), "{}", told.stdout);
    let told = check(dir.path(), &["--strict"]);
    assert_eq!((told.code, &*told.stdout), (Some(1), ""));
    assert!(told.stderr.ends_with("tollgate: 1 warning (--strict)\n"), "{}", told.stderr);
}

#[test]
fn what_the_reference_loads_and_nobody_can_have_meant_is_told_and_not_strict_enough() {
    let rule = "domain: a\ndescriptors:\n- key: k\n  rate_limit: &l {unit: hour, requests_per_unit: 1}\n";
    for (more, line, words) in [
        ("  value: x\n  value: y\n", "a.yaml:6:3", "`value` stands twice in one map"),
        ("---\ndomain: b\n", "a.yaml:6:1", "second document is not read"),
        ("  unit: day\n", "a.yaml:5:3", "it belongs into `rate_limit`"),
        (
            "- key: j\n  rate_limit:\n    requests_per_unit: 5\n    <<: *l\n",
            "a.yaml:7:5",
            "does not override",
        ),
    ] {
        let dir = rules(&[("a.yaml", &format!("{rule}{more}"))]);
        for compat in [&[][..], &["--compat", "reference"]] {
            let told = check(dir.path(), compat);
            assert_eq!(told.code, Some(0), "{}", told.stderr);
            assert!(told.stderr.contains(line) && told.stderr.contains(words), "{}", told.stderr);
            let strict = check(dir.path(), &[compat, &["--strict"]].concat());
            assert_eq!(strict.code, Some(1), "{}", strict.stderr);
        }
    }
}

#[test]
fn check_of_an_empty_directory_warns() {
    let dir = TempDir::new().unwrap();
    let told = check(dir.path(), &[]);
    assert_eq!((told.code, &*told.stdout), (Some(0), "0 domains, 0 limits, 0 tenants\n"));
    assert!(told.stderr.contains("there are no rule files"), "{}", told.stderr);
    assert_eq!(check(dir.path(), &["--strict"]).code, Some(1));
}

#[test]
fn check_reads_rules_as_the_service_with_the_same_settings_would() {
    let dir = rules(&[("a.yaml", SHOP), ("b.yaml", "domain: shop\ndescriptors: [{key: other}]\n")]);
    assert_eq!(check(dir.path(), &[]).code, Some(1));
    assert_eq!(check(dir.path(), &["--merge-domain-config"]).code, Some(0));
    let by_variable = ended(command().env("MERGE_DOMAIN_CONFIG", "true").arg("check").arg(dir.path()));
    assert_eq!(by_variable.code, Some(0), "{}", by_variable.stderr);
}

fn check(dir: &Path, args: &[&str]) -> Ended {
    run(["check", dir.to_str().unwrap()].iter().chain(args))
}
