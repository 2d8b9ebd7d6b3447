//! What is wrong, as people see it: a fixture for each kind of mistake, and the message that it gets.
//!
//! A fixture is a file, or a folder of files, below `tests/fixtures/mistakes`. To add one, write it, run the test and read
//! the new message before accepting it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use tollgate::rules::{Dialect, FILE_MAX, Level, compile, mistake::MISTAKES_MAX};

use super::common::{compile_files, mistakes};

#[test]
fn each_mistake_is_told_with_its_place_and_how_to_mend_it() {
    let mut seen = 0;
    for (name, files) in fixtures("mistakes") {
        let Err(told) = compile(&files, Dialect::default()) else { panic!("{name} compiles") };
        assert!(told.iter().all(|mistake| mistake.level == Level::Error), "{name}: {told}");
        assert!(told.iter().is_sorted_by_key(|mistake| (mistake.file.clone(), mistake.line, mistake.column)));
        insta::assert_snapshot!(name, told.to_string());
        seen += 1;
    }
    assert!(seen > 50, "only {seen} fixtures were found");
}

#[test]
fn what_is_legal_and_perhaps_not_meant_is_told_too() {
    for (name, files) in fixtures("warnings") {
        let compiled = compile(&files, Dialect::default()).unwrap_or_else(|told| panic!("{name}: {told}"));
        assert!(compiled.warnings.iter().all(|warning| warning.level != Level::Error));
        insta::assert_snapshot!(name, compiled.warnings.to_string());
    }
}

/// (name, files) of each fixture, in order.
pub(crate) fn fixtures(kind: &str) -> Vec<(String, BTreeMap<String, Vec<u8>>)> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kind);
    let mut paths: Vec<PathBuf> = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let fixture = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut files = BTreeMap::new();
        let root = if path.is_dir() { path.clone() } else { base.clone() };
        collect(&path, &root, &mut files);
        (name, files)
    };
    paths.into_iter().map(fixture).collect()
}

fn collect(path: &Path, root: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| collect(&entry.unwrap().path(), root, files));
    } else {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        files.insert(name, fs::read(path).unwrap());
    }
}

#[test]
fn a_file_in_another_encoding_is_a_mistake() {
    let files = BTreeMap::from([("latin.yaml".to_owned(), b"domain: shop\n# caf\xe9\n".to_vec())]);
    let told = compile(&files, Dialect::default()).unwrap_err().to_string();
    assert_eq!(told, "error: line 2 is no UTF-8\n --> latin.yaml\n  = help: save the file as UTF-8");
}

#[test]
fn a_file_is_too_large_on_the_other_side_of_the_edge_only() {
    let told = |size: usize| {
        let files = BTreeMap::from([("large.yaml".to_owned(), vec![b'\xff'; size])]);
        compile(&files, Dialect::default()).unwrap_err().to_string()
    };
    assert!(told(FILE_MAX).contains("is no UTF-8"));
    assert!(told(FILE_MAX + 1).contains("is larger than 64 MiB"));
}

#[test]
fn a_million_mistakes_are_counted_and_the_first_hundred_told() {
    let mut csv = String::new();
    for tenant in 0..2_000 {
        csv += &format!("t{tenant},nothing\n");
    }
    let rules = "{domain: d, tenant: t, default_tier: a, tiers: {a: {rate: 1/s}}, tenants_from: t.csv}";
    let told = compile_files(&[("a.yaml", rules), ("t.csv", &csv)], Dialect::default()).unwrap_err();
    assert_eq!((told.iter().count(), told.count()), (MISTAKES_MAX, 2_000));
    assert!(told.to_string().ends_with("\n\nand 1900 more"));
}

/// The rules of `{domain: d, tiers: {a, b}}` with this csv file: what is wrong with them, or how many tenants there are.
fn tenants_of(csv: &str) -> String {
    let rules = "{domain: d, tenant: t, default_tier: a, tiers: {a: {rate: 1/s}, b: {rate: 1/s}}, tenants_from: t.csv}";
    match compile_files(&[("a.yaml", rules), ("t.csv", csv)], Dialect::default()) {
        Ok(compiled) => format!("{} tenants", compiled.rules.counts().tenants),
        Err(told) => told.to_string(),
    }
}

#[test]
fn a_csv_file_from_another_system_is_read_and_its_lines_are_counted_as_there() {
    for end in ["\n", "\r\n", "\r"] {
        let good =
            ["# from billing, \"weekly\"", "tenant,tier", "", "x,a", "  ", " # and", "\"y\",b", ""].join(end);
        assert_eq!(tenants_of(&good), "2 tenants", "{end:?}");
        let bad = ["x,a", "", "y,gold", "z,b", "x,b", ""].join(end);
        assert_eq!(
            tenants_of(&bad),
            "error: no tier is called `gold`\n --> t.csv:3\n  |\n3 | y,gold\n  = help: the tiers are `a` and `b`\n\n\
             error: the tenant `x` stands in the file twice\n --> t.csv:5\n  |\n5 | x,b\n  \
             = note: the first stands in t.csv:1\n  = help: keep one of the lines",
            "{end:?}"
        );
    }
}

#[test]
fn a_quote_that_nobody_closes_is_told_where_it_opens_and_not_at_the_end_of_the_file() {
    for bad in ["x,a\n\"y,b\nz,a\n", "x,a\ny,\"b\nz,a\nu,b", "x,a\n#,\"y\nz,a"] {
        let told = tenants_of(bad);
        assert!(
            told.starts_with("error: a quote opens on this line, and does not close on it\n --> t.csv:2\n"),
            "{told}"
        );
    }
}

#[test]
fn an_empty_csv_file_is_a_mistake_since_a_file_being_written_is_empty_for_a_moment() {
    for empty in ["", "\n\n", "\u{feff}", "# nobody yet\n"] {
        let told = "error: the file is empty\n --> t.csv\n  = help: write the line `tenant,tier` if there are no tenants yet";
        assert_eq!(tenants_of(empty), told);
    }
    assert_eq!(tenants_of("tenant,tier\n"), "0 tenants");
}

#[test]
fn a_csv_file_of_any_bytes_gets_a_message() {
    let mut random = 1_u64;
    for _ in 0..500 {
        let alphabet = b"ab,\"\r\n#\x00 \t;";
        let csv: String = (0..40)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(alphabet[(random >> 33) as usize % alphabet.len()])
            })
            .collect();
        assert!(!tenants_of(&csv).is_empty());
    }
}

#[test]
fn a_whole_file_on_one_line_is_told_by_an_excerpt() {
    let many: Vec<String> = (0..500).map(|n| format!(r#"{{"key": "k{n}"}}"#)).collect();
    let told =
        mistakes(&format!(r#"{{"domain": "d", "descriptors": [{}, {{"kye": "x"}}]}}"#, many.join(", ")));
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() < 140), "{told}");
    let told_at = lines.iter().position(|line| line.contains("no field `kye`")).unwrap();
    let (line, carets) = (lines[told_at + 3], lines[told_at + 4]);
    let at = carets.find('^').unwrap();
    assert_eq!(&line[at..at + 5], "\"kye\"", "{told}");
}

#[test]
fn control_characters_of_a_file_do_not_reach_the_terminal() {
    let told = mistakes(
        "domain: d\ndescriptors:\n- {key: \"\\e[31m\", \"\\e[2J\": 1}\n- {key: a, value: b, x\u{9b}: 1}",
    );
    let named = compile_files(&[("a\r\u{1b}[31m.yaml", "x")], Dialect::default()).unwrap_err().to_string();
    for told in [told, named] {
        assert!(told.chars().all(|c| c == '\n' || !c.is_control()), "{told:?}");
    }
}
