//! `tollgate migrate`: what is told of a deployment, and how it ends.

use std::fs;

use super::{path, rules, run};

const PLAIN: &str = "\
domain: shop
default: {unlimited: true}
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 5}
";

/// All of the old ways, each by its name.
const KEPT: &str = "\
# As the deployment has it.
export REDIS_URL=\"redis:6379\"
REDIS_SOCKET_TYPE=tcp
REDIS_POOL_SIZE=20
USE_STATSD='false'
RUNTIME_ROOT=/data
RUNTIME_SUBDIRECTORY=ratelimit
LOG_LEVEL=warn
TOLLGATE_COMPAT=reference
STORE_TIMEOUT=10s
";

const MANIFEST: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: limits}
data:
  REDIS_URL: redis:6379
  LOG_LEVEL: debug
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: proxy
        image: envoyproxy/envoy:v1.31
      - name: limits
        image: envoyproxy/ratelimit:master
        envFrom:
        - configMapRef: {name: limits}
        - secretRef: {name: passwords}
        env:
        - {name: LOG_LEVEL, value: warn}
        - name: REDIS_AUTH
          valueFrom: {secretKeyRef: {name: redis, key: password}}
        - {name: REDIS_TYPE, value: clster}
        - {name: BACKEND_TYPE, value: memcache}
";

/// Names that no row of the settings has, and that work here as there.
const LISTED: &str = "\
USE_STATSD=false
USE_DOG_STATSD=true
USE_DOG_STATSD_MOGRIFIERS=HITS
DOG_STATSD_MOGRIFIER_HITS_PATTERN=^(.*)_hits$
DOG_STATSD_MOGRIFIER_HITS_NAME=hits
TRACING_ENABLED=true
OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318
OTEL_SERVICE_VERSION=1
";

#[test]
fn what_a_setting_lists_and_what_opentelemetry_reads_stays() {
    let dir = rules(&[("rules/shop.yaml", PLAIN), ("env", LISTED)]);
    let [of_rules, env] = ["rules", "env"].map(|name| dir.path().join(name).display().to_string());
    let told = run(["migrate", &of_rules, "--env-file", &env]);
    let stays = told.stdout.lines().find(|line| line.starts_with("  stays: ")).unwrap();
    for name in LISTED.lines().filter_map(|line| line.split('=').next()).take(7) {
        assert!(stays.contains(name), "{name}: {}", told.stdout);
    }
    assert!(told.stdout.contains("  known to neither: OTEL_SERVICE_VERSION\n"), "{}", told.stdout);
    assert!(!told.stdout.contains("cannot be taken over"), "{}", told.stdout);
}

#[test]
fn nothing_to_do_is_0_and_says_what_stays() {
    let dir = rules(&[("shop.yaml", PLAIN)]);
    let env = rules(&[("env", KEPT)]);
    let file = env.path().join("env");
    let told = run(["migrate", path(&dir), "--env-file", file.to_str().unwrap()]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{}", told.stdout);
    for words in [
        "2 limits in 1 domain: read as they are",
        "environment  9 variables",
        "stays: LOG_LEVEL, REDIS_SOCKET_TYPE, REDIS_URL, ",
        "needed no more: REDIS_POOL_SIZE",
        "KEY_FORMAT=reference lets them share every budget",
        "nothing to do",
    ] {
        assert!(told.stdout.contains(words), "no {words:?} in\n{}", told.stdout);
    }
}

#[test]
fn what_differs_is_1_and_says_what_keeps_the_old_way() {
    let dir = rules(&[("shop.yaml", PLAIN)]);
    let env = rules(&[("env", &KEPT.replace("TOLLGATE_COMPAT=reference\nSTORE_TIMEOUT=10s", ""))]);
    let file = env.path().join("env");
    let told = run(["migrate", path(&dir), "--env-file", file.to_str().unwrap()]);
    assert_eq!((told.code, &*told.stderr), (Some(1), ""), "{}", told.stdout);
    for words in ["A refused request", "`STORE_TIMEOUT=10s`", "TOLLGATE_COMPAT=reference (compat) keeps all"]
    {
        assert!(told.stdout.contains(words), "no {words:?} in\n{}", told.stdout);
    }
    for words in
        ["A value that is the text of a wildcard", "Names of rule files", "A field twice", "is not set"]
    {
        assert!(!told.stdout.contains(words), "{words:?} in\n{}", told.stdout);
    }
}

#[test]
fn rules_that_are_read_otherwise_here_are_told_with_their_lines() {
    let twice = "domain: d\ndescriptors:\n- key: a\n  value: x*\n  value: y*\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    let dir = rules(&[("d.yaml", twice), ("more", PLAIN)]);
    let told = run(["migrate", path(&dir)]);
    assert_eq!(told.code, Some(1), "{}{}", told.stdout, told.stderr);
    for words in [
        "read as they are",
        "d.yaml:5",
        "not read here, for their names: more",
        "A value that is the text of a wildcard",
        "Names of rule files",
        "environment  not looked at",
    ] {
        assert!(told.stdout.contains(words), "no {words:?} in\n{}", told.stdout);
    }
}

#[test]
fn what_cannot_be_taken_over_is_2_with_every_reason() {
    let dir = rules(&[("shop.yaml", PLAIN)]);
    let manifest = rules(&[("deploy.yaml", MANIFEST)]);
    let file = manifest.path().join("deploy.yaml");
    let told = run(["migrate", path(&dir), "--manifest", file.to_str().unwrap()]);
    assert_eq!((told.code, &*told.stderr), (Some(2), ""), "{}", told.stdout);
    for words in [
        "environment  6 variables",
        "not seen: * (all of Secret passwords)",
        "not seen: REDIS_AUTH (Secret redis, key password)",
        "cannot be taken over",
        "BACKEND_TYPE (--backend-type): `memcache` is wrong: memcache is not available",
        "REDIS_TYPE (--redis-type): `clster` is wrong",
        "RUNTIME_ROOT is not set",
    ] {
        assert!(told.stdout.contains(words), "no {words:?} in\n{}", told.stdout);
    }
    let stays = told.stdout.lines().find(|line| line.starts_with("  stays: ")).unwrap();
    assert!(!stays.contains("BACKEND_TYPE") && !stays.contains("REDIS_TYPE"), "{stays}");
    // What `env` says wins over `envFrom`.
    assert!(!told.stdout.contains("LOG_LEVEL is not set"));

    let dir = rules(&[("bad.yaml", "domain: d\ndescriptors: [{kee: a}]\n")]);
    let told = run(["migrate", path(&dir)]);
    assert_eq!(told.code, Some(2), "{}", told.stdout);
    assert!(told.stdout.contains("refused, as in the reference") && told.stdout.contains("bad.yaml:2"));

    let dir = rules(&[("shop.yaml", PLAIN), ("tenants.csv", "tenant,tier\nacme,pro\n  x: [\n")]);
    let told = run(["migrate", path(&dir)]);
    assert!(
        told.stdout.contains("files of all names are rules with TOLLGATE_COMPAT=reference"),
        "{}",
        told.stdout
    );
    // Once, with what is wrong in it.
    assert!(!told.stdout.contains("not read here"), "{}", told.stdout);
}

const LIMITS: &str = "\
- namespace: shop
  max_value: 10
  seconds: 60
  conditions: [\"descriptors[0]['req.method'] == 'GET'\"]
  variables: ['descriptors[0].user']
- namespace: shop
  max_value: 5
  seconds: 90
  conditions: [\"req.method == \\\"POST\\\" && tier == gold\"]
- {namespace: shop, name: each, max_value: 100, seconds: 1, variables: [user]}
- {namespace: shop, max_value: 1000, seconds: 86400, variables: [user]}
- {namespace: shop, max_value: 3, seconds: 3600, conditions: [\"user == 'bob'\"]}
- {namespace: all, max_value: 7, seconds: 604800}
";

#[test]
fn limits_of_limitador_become_rules_that_load() {
    let from = rules(&[("limits.yaml", LIMITS)]);
    let (file, out) = (from.path().join("limits.yaml"), rules(&[]));
    let args = ["migrate", "--from", "limitador", file.to_str().unwrap(), "--out", path(&out)];
    let told = run(args);
    assert_eq!((told.code, &*told.stderr), (Some(1), ""), "{}", told.stdout);
    assert_eq!(told.stdout.lines().count(), 2);
    let checked = run(["check", path(&out)]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert_eq!(checked.stdout, "2 domains, 8 limits, 0 tenants\n");
    for (domain, descriptor, limits) in [
        ("shop", "req.method=GET,user=ann", &["10 a minute"][..]),
        ("shop", "req.method=POST,tier=gold", &["5 in 90 s"]),
        ("shop", "user=ann", &["100 a second", "1000 a day"]),
        // Both the condition and the variable hold for bob.
        ("shop", "user=bob", &["3 an hour", "100 a second", "1000 a day"]),
        ("all", "generic_key=all", &["7 a week"]),
    ] {
        let explained = run(["explain", path(&out), domain, descriptor]);
        let rules: Vec<&str> = explained.stdout.lines().filter(|line| line.starts_with("  rule")).collect();
        assert_eq!(rules.len(), limits.len(), "{descriptor}: {}", explained.stdout);
        for (rule, limit) in rules.iter().zip(limits) {
            assert!(rule.contains(limit), "{descriptor}: {rule} is not {limit}");
        }
    }
    assert_eq!(
        run(["migrate", "--from", "limitador", file.to_str().unwrap()]).stdout.matches("domain: ").count(),
        2
    );
}

#[test]
fn a_limit_that_no_rule_can_say_is_2_and_told_with_its_line() {
    for (limit, why) in [
        ("{max_value: 1, seconds: 1}", "no `namespace`"),
        ("{namespace: a, seconds: 1}", "no `max_value`"),
        ("{namespace: a, max_value: 4294967296, seconds: 1}", "more than 4294967295"),
        ("{namespace: a, max_value: 1, seconds: 0}", "a window of 0 s"),
        ("{namespace: a, max_value: 1, seconds: x}", "`seconds: x` is no whole number"),
        ("{namespace: a, max_value: 1, seconds: 1, conditions: [\"a != 'b'\"]}", "`a != 'b'`"),
        ("{namespace: a, max_value: 1, seconds: 1, conditions: [\"a == 'b*'\"]}", "wildcard"),
        (
            "{namespace: a, max_value: 1, seconds: 1, conditions: [\"descriptors[1].a == 'b'\"]}",
            "`descriptors[1].a",
        ),
        ("{namespace: a, max_value: 1, seconds: 1, variables: [\"a.matches('x')\"]}", "the variable"),
    ] {
        let from =
            rules(&[("limits.yaml", &format!("- {{namespace: ok, max_value: 1, seconds: 1}}\n- {limit}\n"))]);
        let file = from.path().join("limits.yaml");
        let told = run(["migrate", "--from", "limitador", file.to_str().unwrap()]);
        assert_eq!(told.code, Some(2), "{limit}: {}", told.stderr);
        assert!(
            told.stderr.contains("limits.yaml:2: ") && told.stderr.contains(why),
            "{limit}: {}",
            told.stderr
        );
        assert!(told.stdout.contains("domain: \"ok\""), "the others are translated: {}", told.stdout);
    }
}

#[test]
fn what_is_wrong_on_its_command_line_ends_with_64() {
    let dir =
        rules(&[("shop.yaml", PLAIN), ("env", "NAME\n"), ("two.yaml", MANIFEST), ("empty.yaml", "a: 1\n")]);
    let file = |name: &str| fs::canonicalize(dir.path().join(name)).unwrap().to_str().unwrap().to_owned();
    let (env, two, empty) = (file("env"), file("two.yaml"), file("empty.yaml"));
    for (args, why) in [
        (&["migrate"][..], "<PATH>"),
        (&["migrate", "/does/not/exist"], "name the directory"),
        (&["migrate", path(&dir), "--env-file", "/does/not/exist"], "cannot be read"),
        (&["migrate", path(&dir), "--env-file", &env], "env:1: `NAME` is no assignment"),
        (&["migrate", path(&dir), "--env-file", &env, "--manifest", &two], "cannot be used with"),
        (&["migrate", path(&dir), "--container", "x"], "--manifest"),
        (&["migrate", path(&dir), "--manifest", &two, "--container", "x"], "no container is called `x`"),
        (&["migrate", path(&dir), "--manifest", &empty], "no container runs ratelimit"),
        (&["migrate", path(&dir), "--out", "x"], "--out is for limitador"),
        (&["migrate", "--from", "limitador", &empty], "no list of limits"),
        (&["migrate", "--from", "limitador", &empty, "--env-file", &env], "are for envoyproxy/ratelimit"),
    ] {
        let told = run(args);
        assert_eq!((told.code, &*told.stdout), (Some(64), ""), "{args:?}: {}", told.stderr);
        assert!(told.stderr.contains(why), "{args:?}: {}", told.stderr);
    }
}
