//! The tiered form: who is charged what, by which key.

use tollgate::{
    limit::{OnRefusal, Role},
    rules::{Counts, FailureMode, RuleSet},
};

use super::common::{entries, keys, limits, mistakes, rules_of};

/// The design's example, and a csv file with every liberty that it may take.
const API: &str = "domain: api
tenant: tenant
route: route
default_tier: free
tiers:
  free:       { rate: 10/s, burst: 20, on_store_failure: allow, routes: { bulk: { rate: 1/m } } }
  pro:        { rate: 100/s, burst: 200, routes: { search: { rate: 20/s } } }
  enterprise: { rate: 1000/s, burst: 2000, daily: { rate: 5000000/d, algorithm: fixed_window } }
tenants:
  acme:   { tier: enterprise, routes: { search: { rate: 50/s, burst: 100 } } }
  globex: { tier: pro }
  faster: { tier: pro, rate: 300/s }
  own:    { tier: enterprise, hourly: { rate: 7/h, algorithm: fixed_window } }
  less:   { tier: enterprise, daily: { rate: 9/d } }
tenants_from: tenants.csv
";
const CSV: &str = "\u{feff}Tenant,TIER\n# a comment\n\ninitech,pro\r\n\"Smith, J\",enterprise\n  spaced , pro \n\
                   globex,free\n\"a\"\"b\",pro\nlast,enterprise";

fn api() -> RuleSet {
    rules_of(&[("api.yaml", API), ("tenants.csv", CSV)])
}

#[test]
fn the_most_specific_wins() {
    let rules = api();
    for (descriptor, expected) in [
        ("tenant=acme,route=search", "50/1s 5000000/86400s"),
        ("tenant=acme,route=cart", "1000/1s 5000000/86400s"),
        ("tenant=acme", "1000/1s 5000000/86400s"),
        ("tenant=globex,route=search", "20/1s"),
        ("tenant=globex,route=cart", "100/1s"),
        ("tenant=faster,route=search", "20/1s"),
        ("tenant=faster,route=cart", "300/1s"),
        ("tenant=own,route=x", "1000/1s 7/3600s 5000000/86400s"),
        ("tenant=less", "1000/1s 9/86400s"),
        ("tenant=initech,route=search", "20/1s"),
        ("tenant=spaced", "100/1s"),
        ("tenant=a\"b", "100/1s"),
        ("tenant=last", "1000/1s 5000000/86400s"),
        ("tenant=nobody", "10/1s"),
        ("tenant=nobody,route=bulk", "1/60s"),
        ("tenant=", "10/1s"),
        ("route=bulk", "1/60s"),
        ("", "10/1s"),
    ] {
        assert_eq!(limits(&rules, "api", descriptor).join(" "), expected, "{descriptor}");
    }
    let smith = [tollgate::limit::Entry { key: "tenant".into(), value: "Smith, J".into() }];
    assert_eq!(rules.domain(b"api").unwrap().find(&smith).rules().count(), 2);
}

#[test]
fn entries_are_found_by_name_in_any_order_and_others_are_ignored() {
    let rules = api();
    let key = "tg:{globex}:api:tenant=globex,route=search:token_bucket";
    for descriptor in
        ["tenant=globex,route=search", "route=search,tenant=globex", "x=y,route=search,z=1,tenant=globex"]
    {
        assert_eq!(keys(&rules, "api", descriptor), [key], "{descriptor}");
    }
}

#[test]
fn a_tiers_limit_is_one_budget_and_further_limits_have_their_own() {
    let rules = api();
    for (descriptor, expected) in [
        ("tenant=globex,route=a", &["tg:{globex}:api:tenant=globex:token_bucket"][..]),
        ("tenant=globex,route=b", &["tg:{globex}:api:tenant=globex:token_bucket"]),
        (
            "tenant=acme,route=search",
            &[
                "tg:{acme}:api:tenant=acme,route=search:token_bucket",
                "tg:{acme}:api:tenant=acme:daily.fixed_window/86400s",
            ],
        ),
        ("user=ann", &["tg:api::token_bucket"]),
        ("user=bob,route=bulk", &["tg:api:route=bulk:token_bucket"]),
        ("tenant=x{y}", &["tg:{x%7By%7D}:api:tenant=x%7By%7D:token_bucket"]),
    ] {
        assert_eq!(keys(&rules, "api", descriptor), expected, "{descriptor}");
    }
}

#[test]
fn a_tenant_who_changes_tier_keeps_his_counter() {
    let rules = api();
    let of = |tenant: &str| keys(&rules, "api", &format!("tenant={tenant},route=x"))[0].replace(tenant, "T");
    assert_eq!(of("globex"), of("nobody"));
    assert_eq!(of("globex"), of("faster"));
}

#[test]
fn per_counts_further_entries_apart() {
    let rules = rules_of(&[(
        "a.yaml",
        "{domain: d, tenant: t, route: r, default_tier: a, tiers: {a: {rate: 1/s, per: [user, device],
          routes: {up: {rate: 2/s, per: user}}, daily: {rate: 9/d}}}}",
    )]);
    assert_eq!(
        keys(&rules, "d", "device=d,user=u,t=x"),
        ["tg:{x}:d:t=x,user=u,device=d:token_bucket", "tg:{x}:d:t=x:daily.token_bucket"]
    );
    assert_eq!(keys(&rules, "d", "user=u,t=x")[0], "tg:{x}:d:t=x,user=u:token_bucket");
    assert_eq!(keys(&rules, "d", "t=x")[0], "tg:{x}:d:t=x:token_bucket");
    assert_eq!(keys(&rules, "d", "t=x,r=up,user=u")[0], "tg:{x}:d:t=x,r=up,user=u:token_bucket");
}

#[test]
fn what_is_not_said_is_as_the_tier_says() {
    let rules = api();
    let domain = rules.domain(b"api").unwrap();
    let rule = |descriptor: &str| domain.find(&entries(descriptor)).rules().next().unwrap();
    assert_eq!(rule("tenant=nobody,route=bulk").on_store_failure, FailureMode::Allow);
    assert_eq!(rule("tenant=globex").on_store_failure, FailureMode::Error);
    // A new rate has a new burst, not the old tier's.
    assert_eq!(rule("tenant=faster").limit.unwrap().burst(), 300);
    assert_eq!(rule("tenant=globex").limit.unwrap().burst(), 200);
    assert_eq!(
        (rule("tenant=globex").role, rule("tenant=globex").on_refusal),
        (Role::Enforce, OnRefusal::Keep)
    );
    assert_eq!(&*rule("tenant=faster").policy, "pro");
    assert_eq!(&*rule("tenant=globex,route=search").policy, "pro.search");
}

#[test]
fn modes_of_tiers() {
    let rules = rules_of(&[(
        "a.yaml",
        "{domain: d, tenant: t, route: r, default_tier: a, tiers: {a: {rate: 1/s, mode: record, headers: false,
          routes: {x: {rate: 1/s, mode: enforce}, y: {rate: 1/s}}}, b: {rate: 0/s, mode: shadow},
          c: {unlimited: true}}, tenants: {b: {tier: b}, c: {tier: c}}}",
    )]);
    let domain = rules.domain(b"d").unwrap();
    let rule = |descriptor: &str| domain.find(&entries(descriptor)).rules().next().unwrap();
    for (descriptor, role, on_refusal, headers) in [
        ("", Role::Shadow, OnRefusal::Count, false),
        ("r=x", Role::Enforce, OnRefusal::Keep, false),
        ("r=y", Role::Shadow, OnRefusal::Count, false),
        ("t=b", Role::Shadow, OnRefusal::Keep, true),
        ("t=c", Role::Enforce, OnRefusal::Keep, true),
    ] {
        let rule = rule(descriptor);
        assert_eq!((rule.role, rule.on_refusal, rule.headers), (role, on_refusal, headers), "{descriptor}");
    }
    assert_eq!(rule("t=c").limit, None);
    assert_eq!(rule("t=b").limit.unwrap().requests(), 0);
}

/// A tenant is his tier with changes, so what he says of all his limits holds for those that he has from his tier.
#[test]
fn a_tenant_on_trial_is_on_trial_everywhere() {
    let rules = rules_of(&[(
        "a.yaml",
        "{domain: d, tenant: t, route: r, default_tier: a, tiers: {a: {rate: 1/s, on_store_failure: allow,
          routes: {x: {rate: 2/s}, y: {rate: 3/s, mode: enforce}}, daily: {rate: 4/d}}},
          tenants: {new: {mode: shadow, routes: {z: {rate: 5/s}}}}}",
    )]);
    let domain = rules.domain(b"d").unwrap();
    for (descriptor, roles) in [
        ("t=new", [Role::Shadow, Role::Shadow]),
        ("t=new,r=x", [Role::Shadow, Role::Shadow]),
        ("t=new,r=y", [Role::Enforce, Role::Shadow]),
        ("t=new,r=z", [Role::Shadow, Role::Shadow]),
        ("t=old,r=x", [Role::Enforce, Role::Enforce]),
    ] {
        let entries = entries(descriptor);
        let found: Vec<_> = domain.find(&entries).rules().collect();
        assert_eq!(found.iter().map(|rule| rule.role).collect::<Vec<_>>(), roles, "{descriptor}");
        assert!(found.iter().all(|rule| rule.on_store_failure == FailureMode::Allow), "{descriptor}");
    }
    assert_eq!(limits(&rules, "d", "t=new,r=x"), ["2/1s", "4/86400s"]);
}

#[test]
fn tenants_are_counted_and_listed_by_their_own_rules_only() {
    let rules = api();
    // globex stands in both, and counts once.
    assert_eq!(rules.counts(), Counts { domains: 1, limits: 11, tenants: 10 });
    let lines = rules.describe();
    assert!(lines.iter().all(|line| !line.contains("initech")));
    for line in [
        "api.free: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 20",
        "api.pro.search: unit=SECOND requests_per_unit=20, shadow_mode: false, quota_mode: false, algorithm: token_bucket",
        "api.enterprise:daily: unit=DAY requests_per_unit=5000000, shadow_mode: false, quota_mode: false",
        "api.tenant_acme.search: unit=SECOND requests_per_unit=50, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 100",
    ] {
        assert!(lines.iter().any(|known| known == line), "{line}\n{}", lines.join("\n"));
    }
    let json = rules.to_json();
    assert_eq!(json["counts"]["tenants"], 10);
    assert_eq!(json["domains"][0]["default_tier"], "free");
    assert_eq!(json["domains"][0]["tiers"], serde_json::json!(["free", "pro", "enterprise"]));
    assert_eq!(json["domains"][0]["rules"][0]["line"], 6);
}

#[test]
fn names_of_metrics_are_those_of_tiers_however_many_tenants_there_are() {
    let rules = api();
    let names: Vec<&str> = rules.metric_labels().iter().map(|(_, name)| &**name).collect();
    assert_eq!(
        names,
        [
            "free",
            "free.bulk",
            "pro",
            "pro.search",
            "enterprise",
            "enterprise:daily",
            "enterprise.search",
            "enterprise:hourly"
        ]
    );
}

#[test]
fn a_csv_file_is_sought_beside_the_rules() {
    let rules = rules_of(&[("team/api.yaml", API), ("team/tenants.csv", CSV)]);
    assert_eq!(limits(&rules, "api", "tenant=initech"), ["100/1s"]);
    assert!(mistakes(API).contains("`tenants.csv` cannot be read"));
}
