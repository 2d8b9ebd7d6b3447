//! The order of the house: which file may know what, how long it may be, and what nobody may write.
//!
//! A rule that no test holds is a wish. The table below is the design's layers; the rest is the style guide's.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A part of `src/` and what it may import: modules of its own layer and of lower ones, and these crates.
struct Part {
    layer: u8,
    /// A file without `.rs`, or a folder; of several that fit the longest counts.
    path: &'static str,
    crates: &'static str,
}

const fn part(layer: u8, path: &'static str, crates: &'static str) -> Part {
    Part { layer, path, crates }
}

#[rustfmt::skip]
const PARTS: &[Part] = &[
    // 0: pure. No tokio, no I/O, no serde; time is an argument.
    part(0, "clock",           ""),
    part(0, "limit",           "bytes smallvec thiserror"),
    part(0, "key",             "bytes blake3 foldhash itoa smallvec"),
    part(0, "algorithm",       "smallvec"),

    // 1: parse, don't validate. No I/O either; rules reach files through a trait.
    part(1, "rules",           "blake3 bytes csv foldhash hashbrown saphyr_parser serde_json thiserror"),
    part(1, "settings",        "clap thiserror"),
    part(1, "metrics",         "prometheus_client regex serde_json"),

    // 2: what waits. Redis only under store/redis, notify only in rules/watch.
    part(2, "timer",           "rustix tokio"),
    part(2, "store",           "bytes thiserror"),
    part(2, "near_cache",      "foldhash smallvec"),
    part(2, "lease",           "foldhash tokio"),
    part(2, "split",           "foldhash"),
    part(2, "store/memory",    "smallvec"),
    part(2, "store/script",    "foldhash hashbrown"),
    part(2, "store/redis",     "arc_swap percent_encoding rustls_native_certs thiserror tokio tokio_rustls tracing"),
    part(2, "rules/watch",     "blake3 notify thiserror tracing"),
    // tonic and prost here too: a management server is a place that rules come from, as a directory is.
    part(2, "rules/xds",       "prost prost_types serde_json thiserror tokio tokio_stream tonic tracing"),
    // 3: decides. It knows no proto, no Redis, no HTTP.
    part(3, "limiter",         "arc_swap bytes futures_util smallvec thiserror tracing"),

    // 4: the edges. tonic and prost only here, in server, in cli and in rules/xds; axum only in admin.
    part(4, "proto",           "tonic"),
    part(4, "service",         "bytes http itoa prost prost_types serde_json smallvec tokio tonic"),
    part(4, "admin",           "axum bytes prost_types serde serde_json tokio"),
    part(4, "telemetry",       "prometheus_client tracing tracing_subscriber"),
    // A collector may speak gRPC.
    part(4, "telemetry/spans", "http opentelemetry opentelemetry_http opentelemetry_otlp opentelemetry_sdk prometheus_client tokio tonic tracing"),
    part(4, "telemetry/b3",    "http opentelemetry"),
    part(4, "telemetry/collector", "hyper_rustls opentelemetry_http opentelemetry_otlp tokio_rustls tonic"),
    // 5: composition.
    part(5, "server",          "arc_swap bytes h2 http hyper hyper_util socket2 tokio tokio_rustls tonic tonic_health tonic_reflection tower tracing"),
    part(5, "server/http2",    "bytes futures_util h2 http tokio"),
    part(5, "server/awaited",  "bytes h2 pin_project_lite tonic"),
    part(5, "server/exchange", "bytes h2 http http_body tokio tonic tracing"),
    part(5, "cli",             "bytes clap clap_complete http hyper_util prost prost_types serde serde_json tokio tokio_rustls tonic tower"),
    part(5, "cli/bench",       "bytes clap h2 hdrhistogram http hyper_rustls prost rand rand_distr rustix serde serde_json tokio tokio_rustls tonic"),
    part(5, "main",            "tollgate"),
    part(5, "lib",             ""),
];

/// Lines of a file.
const LINES_MAX: usize = 400;

/// Files that are longer, and why one idea needs so many lines there.
const LONGER: &[(&str, usize, &str)] = &[
    ("src/limiter/tests.rs", 460, "a case for each promise, on one harness"),
    ("src/rules/tiered/read.rs", 460, "the tiered form's fields, all of them"),
    ("src/rules/yaml.rs", 450, "YAML as rule files have it"),
    ("tests/rules/reading.rs", 450, "a case for each thing that files may say"),
    ("tests/settings.rs", 760, "a case for each setting"),
    ("tests/tidy.rs", 420, "a row for each part and for each exception"),
    ("tests/watch.rs", 600, "a case for each kind of change, on one harness"),
];

/// Lines of a function in `src/`.
const FUNCTION_LINES_MAX: usize = 70;

/// What may lie at the top; `benches`, `.ci` and the like are optional.
const TOP: &str = "Cargo.toml Cargo.lock build.rs clippy.toml rustfmt.toml README.md LICENSE .gitignore \
                   proto src scripts rules deploy tests benches .ci .git target";

/// What nobody may write, where, and what to do instead.
#[rustfmt::skip]
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("#[ignore",        &["src", "tests", "benches"], "a test that does not run tests nothing"),
    ("#[allow(",        &["src", "tests", "benches"], "write #[expect(.., reason = \"..\")]"),
    ("#![allow(",       &["src", "tests", "benches"], "write #![expect(.., reason = \"..\")]"),
    ("unimplemented!(", &["src", "tests", "benches"], "do it, or say what is not available"),
    ("todo!(",          &["src", "tests", "benches"], "do it, or say what is not available"),
    ("TODO",            &["src", "tests", "benches", "scripts", "rules", "proto"], "do it, or file it"),
    ("FIXME",           &["src", "tests", "benches", "scripts", "rules", "proto"], "do it, or file it"),
    ("thread::sleep",   &["tests"], "poll with a deadline (tests/support), or pass the time in"),
];

/// Where one may wait between two looks.
const MAY_SLEEP: &str = "tests/support/";

#[test]
fn a_file_imports_only_from_its_own_layer_and_lower_ones() {
    let mut wrong = Vec::new();
    for (name, text) in program() {
        let module = name.trim_start_matches("src/").trim_end_matches(".rs").to_owned();
        let Some(own) = part_of(&module) else {
            wrong.push(format!("{name}: no row of the table is about it"));
            continue;
        };
        for imported in modules(&text) {
            match part_of(&imported) {
                Some(part) if part.layer <= own.layer => {}
                Some(part) => {
                    wrong.push(format!("{name} (layer {}) imports {imported} ({})", own.layer, part.layer))
                }
                None => wrong.push(format!("{name} imports {imported}, which no row of the table is about")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_knows_only_the_crates_of_its_row() {
    let known = dependencies();
    let mut wrong = Vec::new();
    for (name, text) in program() {
        let module = name.trim_start_matches("src/").trim_end_matches(".rs").to_owned();
        let Some(own) = part_of(&module) else { continue };
        let may: BTreeSet<&str> = own.crates.split_whitespace().collect();
        for used in crates(&text, &known) {
            if !may.contains(used.as_str()) {
                wrong.push(format!("{name} uses {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_is_one_idea_and_seldom_over_400_lines() {
    // Recorded cases are data: one step is as good as the next, and their files are by subject.
    let is_data = |name: &str| name.starts_with("tests/golden/cases/");
    let longer: BTreeMap<&str, usize> = LONGER.iter().map(|(name, lines, _)| (*name, *lines)).collect();
    let mut wrong = Vec::new();
    for (name, text) in ["src", "tests", "benches"].into_iter().flat_map(files) {
        let (lines, max) = (text.lines().count(), longer.get(name.as_str()).copied().unwrap_or(LINES_MAX));
        if lines > max && !is_data(&name) {
            wrong.push(format!("{name}: {lines} lines are more than {max}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_function_fits_on_a_screen() {
    let mut wrong = Vec::new();
    for (name, text) in files("src") {
        for (function, lines) in functions(&text) {
            if lines > FUNCTION_LINES_MAX {
                wrong.push(format!("{name}: {function}: {lines} lines are more than {FUNCTION_LINES_MAX}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nobody_writes_what_is_forbidden() {
    let mut wrong = Vec::new();
    for (word, folders, instead) in FORBIDDEN {
        for (name, text) in folders.iter().flat_map(|folder| files(folder)) {
            let own = name == "tests/tidy.rs" || (*word == "thread::sleep" && name.starts_with(MAY_SLEEP));
            for (number, line) in text.lines().enumerate().filter(|(_, line)| !own && line.contains(word)) {
                wrong.push(format!("{name}:{}: {}: {instead}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_module_opens_with_an_essay() {
    let bare = files("src").into_iter().filter(|(_, text)| !text.starts_with("//! "));
    let bare: Vec<String> = bare.map(|(name, _)| name).collect();
    assert!(bare.is_empty(), "no //! at the top: {}", bare.join(" "));
}

#[test]
fn the_top_level_is_a_table_of_contents() {
    let may: BTreeSet<&str> = TOP.split_whitespace().collect();
    let there = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let extra: Vec<String> = there.filter(|name| !may.contains(name.as_str())).collect();
    assert!(extra.is_empty(), "what is this at the top? {}", extra.join(" "));
}

#[test]
fn each_dependency_says_why_it_is_here() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (mut inside, mut mute) = (false, Vec::new());
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && line.contains('=') && !line.contains('#') {
            mute.push(line);
        }
    }
    assert!(mute.is_empty(), "no reason in Cargo.toml: {mute:#?}");
}

// === reading files ==================================================================================================

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All text files of a folder, by their path from the root.
fn files(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    found.sort();
    found
}

/// The files of the program, without those of its tests.
fn program() -> Vec<(String, String)> {
    files("src").into_iter().filter(|(name, _)| !name.ends_with("/tests.rs")).collect()
}

fn walk(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|ext| ["rs", "lua", "proto", "yaml"].iter().any(|e| ext == *e))
        {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            // Fixtures of mistakes are no code of ours.
            if !name.starts_with("tests/fixtures/") {
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
}

/// The row about a module, such as `store/redis/link`.
fn part_of(module: &str) -> Option<&'static Part> {
    let about = |part: &&Part| {
        module.strip_prefix(part.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    PARTS.iter().filter(about).max_by_key(|part| part.path.len())
}

/// Our dependencies as they are written in code.
fn dependencies() -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut names = BTreeSet::from(["tollgate".to_owned()]);
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if let (true, Some((name, _))) = (inside, line.split_once('=')) {
            names.insert(name.trim().replace('-', "_"));
        }
    }
    names
}

// === reading Rust ===================================================================================================

/// What the compiler sees of a file when it builds the program: no comments, no tests.
fn code(text: &str) -> String {
    let program = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
    let lines = program.lines().map(|line| match line.find("//") {
        Some(at) if !line[..at].contains('"') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Words and `::`, `{`, `}`, `,`, `;`.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if !token.trim().is_empty() {
            tokens.push(token);
        }
        rest = after;
    }
    tokens
}

/// What stands behind `crate::`, alone or in braces, as paths: `limit/Entry`.
fn modules(text: &str) -> BTreeSet<String> {
    let code = code(text);
    let tokens = tokens(&code);
    let mut found = BTreeSet::new();
    for at in 0..tokens.len() {
        if tokens[at] == "crate" && tokens.get(at + 1) == Some(&"::") {
            tree(&tokens[at + 2..], "", &mut found);
        }
    }
    found
}

/// Reads one path, or all those in a pair of braces; returns how many tokens it took.
fn tree(tokens: &[&str], above: &str, found: &mut BTreeSet<String>) -> usize {
    let mut at = 0;
    if tokens.first() == Some(&"{") {
        while tokens.get(at).is_some_and(|token| *token != "}") {
            at += 1 + tree(&tokens[at + 1..], above, found);
        }
        return at + 1;
    }
    // Behind a trailing comma there is none.
    let Some(name) = tokens.first().filter(|token| **token != "}") else { return 0 };
    let path = if above.is_empty() { (*name).to_owned() } else { format!("{above}/{name}") };
    if tokens.get(1) == Some(&"::") {
        at = 2 + tree(&tokens[2..], &path, found);
    } else {
        found.insert(path);
    }
    // `as Other`, up to what ends this branch.
    at + tokens[at..].iter().position(|token| [",", "}", ";"].contains(token)).unwrap_or(tokens.len() - at)
}

/// Which of `known` begin a path.
fn crates(text: &str, known: &BTreeSet<String>) -> BTreeSet<String> {
    let code = code(text);
    let tokens = tokens(&code);
    let (mut found, mut in_use) = (BTreeSet::new(), false);
    for at in 0..tokens.len() {
        let (before, after) = (at.checked_sub(1).map(|at| tokens[at]), tokens.get(at + 1));
        match tokens[at] {
            "use" => in_use = true,
            ";" => in_use = false,
            // Within the braces of a `use`, what begins a path is part of another.
            name if before == Some("use") || (!in_use && after == Some(&"::") && before != Some("::")) => {
                found.insert(name.to_owned());
            }
            _ => {}
        }
    }
    &found & known
}

/// Functions and their lines. The formatter puts a function's end at its beginning's indentation.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let head = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "]
            .iter()
            .fold(line.trim_start(), |head, word| head.strip_prefix(word).unwrap_or(head));
        let Some(name) = head.strip_prefix("fn ") else { continue };
        let end = format!("{}}}", " ".repeat(indent));
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let Some(length) = lines[start..].iter().position(|line| *line == end) else { continue };
        found.push((name.split(['(', '<']).next().unwrap(), length + 1));
    }
    found
}

#[test]
fn this_file_reads_rust_well_enough() {
    let text = "use crate::{\n    limit::{Entry, Limit},\n    rules::watch::Dir,\n    store::{Store, redis::{self, X}},\n};\n\
                use tokio::time; // use axum::x\nfn f() { crate::service::headers::headers(bytes::Bytes::new(), std::axum::x) }\n\
                \n#[cfg(test)]\nmod tests { use crate::server::run; }";
    let expected = [
        "limit/Entry",
        "limit/Limit",
        "rules/watch/Dir",
        "service/headers/headers",
        "store/Store",
        "store/redis/X",
        "store/redis/self",
    ];
    assert_eq!(modules(text), expected.map(str::to_owned).into());
    let known = ["tokio", "axum", "bytes", "redis"].map(str::to_owned).into();
    assert_eq!(crates(text, &known), ["bytes", "tokio"].map(str::to_owned).into());
    assert_eq!(functions("fn a() {\n    x;\n}\n\npub async fn b(\n) {\n}"), [("a", 3), ("b", 3)]);
}
