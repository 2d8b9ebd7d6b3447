//! The README tells the truth: its rules load, its examples print what it shows, its settings are the settings.

use std::{collections::BTreeSet, fs, path::Path};

use tollgate::settings::{self, table::Initial};

#[path = "support/tollgate.rs"]
mod tollgate_process;

use tollgate_process::{Served, run};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("it is in the repository")
}

/// The README's fenced blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let readme = read("README.md");
    let mut blocks = Vec::new();
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        if line == format!("```{language}") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

/// Commands of a console block, and what each is said to print.
fn examples(block: &str) -> Vec<(String, String)> {
    let mut examples: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), examples.last_mut()) {
            (Some(command), _) => examples.push((command.to_owned(), String::new())),
            (None, Some((_, printed))) => *printed += &format!("{line}\n"),
            (None, None) => panic!("{line:?} stands before any command"),
        }
    }
    examples
}

/// Durations differ from run to run: each number before a unit of time, in a `t=` and in a Retry-After reads `_`.
fn without_times(text: &str) -> String {
    let words = text.split_inclusive([' ', '\n']).map(|word| word.to_owned()).collect::<Vec<_>>();
    let mut out = String::new();
    for (index, word) in words.iter().enumerate() {
        let number = word.trim_end().parse::<f64>().is_ok();
        let next = words.get(index + 1).map(|word| word.trim_end());
        let timed = next.is_some_and(|unit| ["ms", "s", "us", "µs"].contains(&unit));
        let told = index > 0 && words[index - 1].trim_end() == "Retry-After:";
        if number && (timed || told) {
            out += &word.replace(word.trim_end(), "_");
        } else if let Some((before, _)) = word.split_once(";t=") {
            out += &format!("{before};t=_\n");
        } else {
            out += word;
        }
    }
    out
}

#[test]
fn the_commands_print_what_the_readme_shows() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    let mut served = Served::start(&rules, &[]);
    served.line("health: SERVING");
    let address = served.address("grpc");
    let mut ran = BTreeSet::new();
    for (command, printed) in blocks("console").iter().flat_map(|block| examples(block)) {
        let Some(arguments) = command.strip_prefix("cargo run --release -- ") else { continue };
        let arguments: Vec<&str> = arguments
            .split(' ')
            .map(|word| match word {
                "127.0.0.1:8081" => &address,
                "rules" => rules.to_str().expect("the path of the sources is text"),
                word => word,
            })
            .collect();
        let ended = run(&arguments);
        assert_eq!(without_times(&ended.stdout), without_times(&printed), "{command}\n{}", ended.stderr);
        ran.insert(arguments[0].to_owned());
    }
    assert_eq!(ran, BTreeSet::from(["call".to_owned(), "explain".to_owned()]));
}

#[test]
fn the_rules_that_it_shows_load_without_a_warning() {
    let rules: Vec<String> =
        blocks("yaml").into_iter().filter(|block| block.starts_with("domain:")).collect();
    assert_eq!(rules.len(), 2, "one of each form");
    for text in rules {
        let dir = tempfile::tempdir().unwrap();
        // A domain's default is what a rule file in the reference's form is noted for when it has none.
        fs::write(dir.path().join("rules.yaml"), &text).unwrap();
        fs::write(dir.path().join("tenants.csv"), "tenant,tier\ninitech,pro\n").unwrap();
        let checked = run(["check", "--strict", dir.path().to_str().unwrap()]);
        assert_eq!(checked.code, Some(0), "{text}\n{}", checked.stderr);
    }
}

#[test]
fn a_mistake_is_told_as_it_shows() {
    let shown = blocks("text").into_iter().find(|block| block.starts_with("error:")).unwrap();
    let wrong =
        read("rules/shop.yaml").replace("window: 10s, requests_per_unit", "window: 10s, request_per_unit");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("shop.yaml"), wrong).unwrap();
    let checked = run(["check", dir.path().to_str().unwrap()]);
    assert!(checked.stderr.contains(&shown), "{}", checked.stderr);
}

#[test]
fn the_samples_load_without_a_warning() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    let checked = run(["check", "--strict", rules.to_str().unwrap()]);
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
}

#[test]
fn every_setting_has_its_row_with_its_default_and_reason() {
    let readme = read("README.md");
    let escaped = |text: &str| text.replace('|', "\\|");
    for row in settings::table() {
        let default = match row.default {
            Initial::Text(text) => format!("`{}`", escaped(text)),
            Initial::Derived(text) => escaped(text),
            Initial::Unset => String::new(),
        };
        let wanted = format!("| `{}` | `--{}` | {default} | {} |", row.name, row.flag, escaped(row.why));
        assert!(readme.lines().any(|line| line == wanted), "README.md lacks this row:\n{wanted}");
    }
    let rows = readme.lines().filter(|line| line.starts_with("| `") && line.contains("` | `--")).count();
    assert_eq!(rows, settings::table().len(), "README.md has a row for what is no setting");
}

#[test]
fn the_envoy_configuration_to_paste_is_the_tested_one() {
    let tested = read("deploy/envoy.yaml");
    let tested: BTreeSet<&str> = tested.lines().map(str::trim).collect();
    let shown = blocks("yaml").into_iter().find(|block| block.starts_with("http_filters:")).unwrap();
    for line in shown.lines().map(str::trim).filter(|line| !line.starts_with("# ")) {
        assert!(tested.contains(line), "deploy/envoy.yaml has no line {line:?}");
    }
}
