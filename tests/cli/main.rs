//! The `tollgate` command as people and pipelines meet it: the real binary, its words and its exit codes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

#[path = "../support/tollgate.rs"]
mod tollgate;

#[path = "../support/pki.rs"]
mod pki;

mod fake;

mod check;
mod explain;
mod call;
mod reach;
mod bench;
mod migrate;

use std::{
    fs::{self, File},
    io::pipe,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;
use tollgate::{command, ended, run};

const SHOP: &str = "\
domain: shop
descriptors:
  - key: user
    value: banned
    rate_limit: {unit: day, requests_per_unit: 0, algorithm: token_bucket}
  - key: user
    rate_limit: {name: a-user, unit: day, requests_per_unit: 3, algorithm: token_bucket, mode: enforce}
  - key: path
    descriptors:
      - key: method
        value: POST
        rate_limit: {unit: hour, requests_per_unit: 100, algorithm: gcra, burst: 10, mode: shadow}
  - key: staff
    rate_limit: {unlimited: true}
";

const API: &str = "\
domain: api
tenant: tenant
route: route
default_tier: free
tiers:
  free: { rate: 2/h }
  pro: { rate: 100/s, burst: 200, routes: { search: { rate: 20/s } } }
tenants:
  acme: { tier: pro }
";

#[test]
fn schema_prints_the_json_schema() {
    let told = run(["schema"]);
    assert_eq!(told.code, Some(0));
    assert!(serde_json::from_str::<Value>(&told.stdout).unwrap().is_object());
}

#[test]
fn completions_are_a_script_for_the_shell() {
    let told = run(["completions", "bash"]);
    assert_eq!(told.code, Some(0));
    assert!(told.stdout.contains("complete -F _tollgate"), "{}", told.stdout);
}

#[test]
fn help_and_version_are_no_failure() {
    for args in [&["--help"][..], &["-h"], &["--version"], &["call", "--help"], &["serve", "--help"]] {
        let told = run(args);
        assert_eq!((told.code, &*told.stderr), (Some(0), ""), "{args:?}");
    }
    assert!(!run(["-h"]).stdout.contains("--grpc-port"));
    assert!(run(["--help"]).stdout.contains("--grpc-port"));
}

#[test]
fn what_is_wrong_on_a_command_line_ends_with_64() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    let dir = path(&dir);
    for (args, why) in [
        (&["--bogus"][..], "--bogus"),
        (&["bogus"], "bogus"),
        (&["check"], "<DIR>"),
        (&["check", "/does/not/exist"], "/does/not/exist does not exist"),
        (&["check", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], "is no directory"),
        (&["check", dir, "--compat", "maybe"], "`maybe` is wrong"),
        (&["check", dir, "--grpc-port", "1"], "--grpc-port"),
        (&["explain", dir, "shop"], "<DESCRIPTOR>"),
        (&["explain", dir, "shop", "=x"], "entry 1 has no key"),
        (&["explain", dir, "", "a=b"], "rate limit domain must not be empty"),
        (&["explain", "/does/not/exist", "shop", "a=b"], "does not exist"),
        (&["call", "127.0.0.1:1", "shop"], "<DESCRIPTOR>"),
        (&["call", "127.0.0.1:1", "shop", "a=\\x1"], "two hexadecimal digits"),
        (&["call", "ftp://a:1", "shop", "a=b"], "write it as HOST:PORT"),
        (&["call", "unix:", "shop", "a=b"], "a file's path"),
        (&["call", "a:1", "shop", "a=b", "--cert", "c.pem"], "--key"),
        (&["call", "a:1", "shop", "a=b", "--ca", "/does/not/exist"], "--ca: /does/not/exist cannot be read"),
        (
            &["call", "a:1", "shop", "a=b", "--ca", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
            "holds no PEM CERTIFICATE",
        ),
        (&["call", "http://a:1", "shop", "a=b", "--tls"], "http:// is without TLS"),
        (&["call", "a:b:c:d", "shop", "a=b"], "write it as HOST:PORT"),
        (&["call", "127.0.0.1:1", "shop", "a=b", "--hits", "-1"], "-1"),
        (&["call", "127.0.0.1:1", "shop", "a=b", "--hits", "18446744073709551616"], "--hits"),
        (&["call", "127.0.0.1:1", "shop", "a=b", "--limit", "10/q"], "none of second"),
        (&["call", "127.0.0.1:1", "shop", "a=b", "--timeout", "5"], "needs a unit"),
        (&["call", "127.0.0.1:1", "shop", "a=b", "-n", "0"], "1..=1000000"),
        (&["call", "127.0.0.1:1", "shop", "a=b", "-n", "1000001"], "1..=1000000"),
        (&["bench"], "Usage: tollgate bench"),
        (&["bench", "127.0.0.1:1", "shop"], "<DESCRIPTOR>"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "--keys", "5"], "such as user={key}"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "--zipf", "1.1"], "such as user={key}"),
        (&["bench", "127.0.0.1:1", "shop", "a={key}", "--keys", "0"], "--keys"),
        (&["bench", "127.0.0.1:1", "shop", "a={key}", "--zipf", "0"], "write a number above 0"),
        (&["bench", "127.0.0.1:1", "shop", "a={key}", "--zipf", "NaN"], "write a number above 0"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "--rate", "0"], "1..=10000000"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "--duration", "5"], "needs a unit"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "-n", "0"], "--requests"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "-c", "0"], "1..=10000"),
        (&["bench", "127.0.0.1:1", "shop", "a=b", "--pid", "4294967295"], "there is no process 4294967295"),
        (&["bench", "compare", "127.0.0.1:1", "127.0.0.1:1", "shop"], "<DESCRIPTOR>"),
        (&["bench", "compare", "127.0.0.1:1", "127.0.0.1:1", "shop", "a=b", "--rounds", "0"], "1..=10000"),
        (&["bench", "compare", "127.0.0.1:1", "127.0.0.1:1", "shop", "a=b", "--pid-b", "x"], "--pid-b"),
        (&["serve", "--grpc-port", "x"], "GRPC_PORT"),
        (&["schema", "more"], "more"),
    ] {
        let told = run(args);
        assert_eq!((told.code, &*told.stdout), (Some(64), ""), "{args:?}: {}", told.stderr);
        assert!(told.stderr.contains(why), "{args:?}: {}", told.stderr);
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let dir = rules(&[("shop.yaml", SHOP)]);
    // `script` gives a command a terminal.
    let on_terminal = |variable: (&str, &str)| {
        let explain = format!("{} explain {} shop user=ann", env!("CARGO_BIN_EXE_tollgate"), path(&dir));
        let mut script = Command::new("script");
        script.env_clear().env("PATH", "/usr/bin:/bin").env("TERM", "xterm").env(variable.0, variable.1);
        let told = ended(script.args(["-qec", &explain, "/dev/null"]).stdin(Stdio::null()));
        assert!(told.stdout.contains("allowed"), "{told:?}");
        told.stdout.contains('\x1b')
    };
    assert!(on_terminal(("LANG", "C")));
    assert!(on_terminal(("NO_COLOR", "")));
    assert!(!on_terminal(("NO_COLOR", "1")));
    assert!(!on_terminal(("TERM", "dumb")));
    assert!(!run(["explain", path(&dir), "shop", "user=ann"]).stdout.contains('\x1b'));
}

#[test]
fn a_reader_who_went_away_ends_a_command_quietly() {
    let dir = rules(&[("api.yaml", API)]);
    for args in [&["schema"][..], &["check", path(&dir)], &["explain", path(&dir), "api", "tenant=ann"]] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut command = command();
        let child = command.args(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_told() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = command().arg("schema").stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8(ended.stderr).unwrap().contains("the output cannot be written: No space left"));
}

fn rules(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn path(dir: &TempDir) -> &str {
    dir.path().to_str().unwrap()
}
