//! A resource means what the file means that says the same.

use std::collections::BTreeMap;

use prost_types::{ListValue, Struct, Value, value::Kind};
use tollgate::rules::{
    Compiled, Dialect, compile,
    xds::{
        compile_all,
        wire::ratelimit::config::ratelimit::v3::{
            RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
        },
    },
};

use crate::server::any;

fn from_file(text: &str) -> Compiled {
    let files = BTreeMap::from([("rules.yaml".to_owned(), text.as_bytes().to_vec())]);
    compile(&files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn from_resource(config: &RateLimitConfig) -> Compiled {
    compile_all(&[any(config)], Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// All that `/rules` and `/rlconfig` tell about a rule set but where its rules stand.
fn told(compiled: &Compiled) -> (Vec<String>, String) {
    let mut json = compiled.rules.to_json();
    forget(&mut json);
    (compiled.rules.describe(), format!("{json:#}"))
}

fn forget(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Object(fields) => {
            for name in ["at", "file", "line", "revision"] {
                fields.remove(name);
            }
            fields.values_mut().for_each(forget);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

fn limit(unit: RateLimitUnit, requests_per_unit: u32) -> RateLimitPolicy {
    RateLimitPolicy { unit: unit as i32, requests_per_unit, ..Default::default() }
}

fn descriptor(key: &str, value: &str, rate_limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
    RateLimitDescriptor { key: key.into(), value: value.into(), rate_limit, ..Default::default() }
}

fn domain(descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: "shop".into(), domain: "shop".into(), descriptors }
}

#[test]
fn every_field_means_what_it_means_in_a_file() {
    let file = from_file(
        "domain: shop\n\
         descriptors:\n\
         - key: user\n\
         \x20 rate_limit: {unit: second, requests_per_unit: 1, name: users, replaces: [{name: all}, {name: some}]}\n\
         - key: user\n\
         \x20 value: vip\n\
         \x20 shadow_mode: true\n\
         \x20 rate_limit: {unit: week, requests_per_unit: 4294967295}\n\
         \x20 descriptors:\n\
         \x20 - key: path\n\
         \x20   value: /search/*\n\
         \x20   quota_mode: true\n\
         \x20   rate_limit: {unit: month, requests_per_unit: 0}\n\
         \x20   descriptors:\n\
         \x20   - {key: deep, rate_limit: {unit: year, requests_per_unit: 3}}\n\
         - {key: robot, detailed_metric: true, rate_limit: {unlimited: true}}\n\
         - key: nothing\n",
    );
    let mut users = limit(RateLimitUnit::Second, 1);
    users.name = "users".into();
    users.replaces = ["all", "some"].map(|name| RateLimitReplace { name: name.into() }).into();
    let mut path = descriptor("path", "/search/*", Some(limit(RateLimitUnit::Month, 0)));
    path.quota_mode = true;
    path.descriptors = vec![descriptor("deep", "", Some(limit(RateLimitUnit::Year, 3)))];
    let mut vip = descriptor("user", "vip", Some(limit(RateLimitUnit::Week, u32::MAX)));
    vip.shadow_mode = true;
    vip.descriptors = vec![path];
    let unlimited = RateLimitPolicy { unlimited: true, ..Default::default() };
    let mut robot = descriptor("robot", "", Some(unlimited));
    robot.detailed_metric = true;
    let resource = from_resource(&domain(vec![
        descriptor("user", "", Some(users)),
        vip,
        robot,
        descriptor("nothing", "", None),
    ]));
    assert_eq!(told(&resource), told(&file));
    assert!(resource.rules.has_replaces());
}

#[test]
fn each_unit_is_its_own() {
    for unit in ["second", "minute", "hour", "day", "week", "month", "year"] {
        let number = RateLimitUnit::from_str_name(&unit.to_ascii_uppercase()).unwrap();
        let file = format!(
            "domain: shop\ndescriptors: [{{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}]"
        );
        let resource = domain(vec![descriptor("a", "", Some(limit(number, 5)))]);
        assert_eq!(told(&from_resource(&resource)), told(&from_file(&file)));
    }
}

#[test]
fn texts_stay_what_they_are_whatever_is_in_them() {
    let controls: String = (0..0x20_u8).chain(0x7f..=0x9f).map(char::from).collect();
    let others = "\u{85}\u{a0}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}\u{1f600}\u{10ffff}";
    let texts = [
        "true", "null", "~", "010", "1.0", "- a", "a: b", "a #b", "'", "\"", "\\n", "{{x}}", "<<", "---",
        " a ", "\n", "äöü", &controls, others,
    ];
    let list = texts.map(|text| descriptor(text, text, Some(limit(RateLimitUnit::Hour, 5))));
    let compiled = from_resource(&domain(list.into()));
    let lines = compiled.rules.describe();
    assert_eq!(lines.len(), texts.len());
    for text in texts {
        let wanted = format!("shop.{text}_{text}: unit=HOUR requests_per_unit=5");
        assert!(lines.iter().any(|line| line.starts_with(&wanted)), "{text:?} is not in {lines:#?}");
    }
}

#[test]
fn metadata_is_the_same_tree() {
    let value = |kind| Value { kind: Some(kind) };
    let text = |text: &str| value(Kind::StringValue(text.into()));
    let inner = [
        ("flag", value(Kind::BoolValue(true))),
        ("none", value(Kind::NullValue(0))),
        (
            "list",
            value(Kind::ListValue(ListValue { values: vec![text("yes"), value(Kind::NumberValue(-0.25))] })),
        ),
        ("big", value(Kind::NumberValue(1e300))),
        ("line", text("a\u{2028}b")),
    ];
    let inner = Struct { fields: inner.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() };
    let fields = [("on: #", value(Kind::StructValue(inner)))];
    let metadata =
        Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() };
    let mut described = descriptor("a", "", Some(limit(RateLimitUnit::Hour, 5)));
    described.metadata = Some(metadata);
    let resource = from_resource(&domain(vec![described]));
    let file = from_file(
        "domain: shop\ndescriptors:\n- key: a\n  rate_limit: {unit: hour, requests_per_unit: 5}\n  metadata:\n    'on: #': \
         {flag: true, none: null, list: ['yes', -0.25], big: 1.0e300, line: \"a\\u2028b\"}\n",
    );
    assert_eq!(told(&resource), told(&file));
}

#[test]
fn what_a_file_may_not_say_a_resource_may_not_either() {
    let unlimited_hour =
        RateLimitPolicy { unlimited: true, unit: RateLimitUnit::Hour as i32, ..Default::default() };
    let mut deep = descriptor("a", "", None);
    for _ in 0..64 {
        deep = RateLimitDescriptor { descriptors: vec![deep], ..descriptor("a", "", None) };
    }
    let twice = descriptor("a", "b", Some(limit(RateLimitUnit::Hour, 5)));
    let cases = [
        (vec![descriptor("", "b", None)], "a descriptor names a key"),
        (vec![descriptor("a", "", Some(RateLimitPolicy::default()))], "a limit names a `unit`"),
        (vec![descriptor("a", "", Some(unlimited_hour))], "`unit` contradicts `unlimited`"),
        (vec![twice.clone(), twice], "a second descriptor with key `a` and value `b`"),
        (vec![deep], "nest deeper than 64"),
    ];
    for (descriptors, why) in cases {
        let mistakes = compile_all(&[any(&domain(descriptors))], Dialect::default()).unwrap_err().to_string();
        assert!(mistakes.contains(why) && mistakes.contains("--> shop"), "{why}: {mistakes}");
    }
}

#[test]
fn resources_without_a_name_or_with_one_that_is_taken_are_told_apart() {
    let named = |name: &str, domain: &str| RateLimitConfig {
        name: name.into(),
        domain: domain.into(),
        descriptors: vec![descriptor("", "", None)],
    };
    let resources = [named("a", "x"), named("a", "y"), named("", "z"), named("", ""), named("b\nc", "w")];
    let resources: Vec<_> = resources.iter().map(any).collect();
    let mistakes = compile_all(&resources, Dialect::default()).unwrap_err();
    let mut files: Vec<_> = mistakes.iter().map(|mistake| &*mistake.file).collect();
    files.dedup();
    assert_eq!(files, ["(no name)", "a", "a (2)", "b·c", "z"]);
}
