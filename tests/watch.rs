//! Rules follow their files, whichever way these change.
//!
//! The compiler here is a stand-in: it joins all files to one text, so that a test can say what it expects to read. Each
//! test runs with events and no poll to speak of, or with the poll alone, so that neither can hide that the other is
//! broken. Nothing waits for a time to pass: a test waits for what it expects, up to a deadline that only a failure
//! reaches.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::{
    fmt::Write,
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::Duration,
};

use tempfile::TempDir;
use tollgate::rules::{
    Compiled, Dialect, Files, Which,
    watch::{
        self, DEPTH_MAX, Dir, DirError, FILES_MAX, FOLDERS_MAX, Failure, First, Options, Reading, Watching,
        watch,
    },
};

/// So long does a test wait before it fails.
const DEADLINE: Duration = Duration::from_secs(20);

// === in-place and whole-file changes ===

#[test]
fn a_write_in_place_is_followed() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let rules = Probe::start(dir.path(), options);
        assert_eq!(rules.first, Ok("a.yaml=one".into()));
        put(dir.path(), "a.yaml", "two");
        rules.until("a.yaml=two");
    });
}

#[test]
fn a_rename_over_the_file_is_followed() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let rules = Probe::start(dir.path(), options);
        for text in ["two", "three"] {
            replace(dir.path(), "a.yaml", text);
            rules.until(&format!("a.yaml={text}"));
        }
    });
}

#[test]
fn a_file_that_is_deleted_and_written_anew_is_followed() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one"), ("b.yaml", "b")]);
        let rules = Probe::start(dir.path(), options);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        rules.until("b.yaml=b");
        put(dir.path(), "a.yaml", "two");
        rules.until("a.yaml=two b.yaml=b");
    });
}

#[test]
fn files_and_folders_come_and_go() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "a")]);
        let rules = Probe::start(dir.path(), options);
        put(dir.path(), "b.yml", "b");
        rules.until("a.yaml=a b.yml=b");
        fs::create_dir_all(dir.path().join("team/deep")).unwrap();
        put(dir.path(), "team/deep/c.yaml", "c");
        rules.until("a.yaml=a b.yml=b team/deep/c.yaml=c");
        put(dir.path(), "team/deep/c.yaml", "c2");
        rules.until("a.yaml=a b.yml=b team/deep/c.yaml=c2");
        fs::remove_dir_all(dir.path().join("team")).unwrap();
        fs::remove_file(dir.path().join("b.yml")).unwrap();
        rules.until("a.yaml=a");
    });
}

#[test]
fn a_table_that_a_rule_file_names_is_followed() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "a +tenants.csv"), ("tenants.csv", "acme,pro")]);
        let rules = Probe::start(dir.path(), options);
        assert_eq!(rules.first, Ok("a.yaml=a +tenants.csv tenants.csv=acme,pro".into()));
        put(dir.path(), "tenants.csv", "acme,free");
        rules.until("a.yaml=a +tenants.csv tenants.csv=acme,free");
    });
}

#[test]
fn a_file_that_was_touched_and_says_the_same_is_no_change() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let rules = Probe::start(dir.path(), options);
        for _ in 0..10 {
            replace(dir.path(), "a.yaml", "one");
        }
        replace(dir.path(), "a.yaml", "two");
        // The first that arrives is the change: nothing was delivered for the ten writes before it.
        assert_eq!(rules.next(), Ok("a.yaml=two".into()));
        assert_eq!(rules.watching.status().loaded, 2);
    });
}

#[test]
fn two_hundred_edits_in_a_row_end_with_the_last() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "0")]);
        let rules = Probe::start(dir.path(), options);
        for edit in 1..=200 {
            let text = edit.to_string();
            match edit % 3 {
                0 => put(dir.path(), "a.yaml", &text),
                1 => replace(dir.path(), "a.yaml", &text),
                _ => {
                    fs::remove_file(dir.path().join("a.yaml")).unwrap();
                    put(dir.path(), "a.yaml", &text);
                }
            }
        }
        rules.until("a.yaml=200");
    });
}

// === links ===

#[test]
fn a_configmap_is_read_once_and_its_swap_is_followed() {
    each_way(|options| {
        let dir = TempDir::new().unwrap();
        configmap(dir.path(), 1, &[("a.yaml", "one")]);
        symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
        let rules = Probe::start(dir.path(), options);
        assert_eq!(rules.first, Ok("a.yaml=one".into()));
        for version in 2..5 {
            configmap(dir.path(), version, &[("a.yaml", &format!("v{version}")), ("b.yaml", "b")]);
            // As the kubelet does: the old version goes away after the swap.
            fs::remove_dir_all(dir.path().join(format!("..v{}", version - 1))).unwrap();
            rules.until(&format!("a.yaml=v{version}"));
        }
        symlink("..data/b.yaml", dir.path().join("b.yaml")).unwrap();
        rules.until("a.yaml=v4 b.yaml=b");
        // In place, behind two links.
        put(dir.path(), "..v4/a.yaml", "patched");
        rules.until("a.yaml=patched b.yaml=b");
    });
}

#[test]
fn a_swapped_link_anywhere_above_the_rules_is_followed() {
    // RUNTIME_ROOT is a link to a release; the rules are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/config.
    each_way(|options| {
        let dir = TempDir::new().unwrap();
        let (root, at) = (dir.path(), |release: &str, text: &str| {
            fs::create_dir_all(dir.path().join(release).join("ratelimit/config")).unwrap();
            put(dir.path(), &format!("{release}/ratelimit/config/a.yaml"), text);
        });
        at("releases/1", "one");
        at("releases/2", "two");
        relink("releases/1", &root.join("current"));
        let rules = Probe::start(&root.join("current/ratelimit/config"), options);
        relink("releases/2", &root.join("current"));
        rules.until("a.yaml=two");
        put(root, "releases/2/ratelimit/config/a.yaml", "patched");
        rules.until("a.yaml=patched");
        // The middle, too: the folder becomes a link.
        at("elsewhere", "moved");
        fs::remove_dir_all(root.join("releases/2/ratelimit")).unwrap();
        relink("../../elsewhere/ratelimit", &root.join("releases/2/ratelimit"));
        rules.until("a.yaml=moved");
        relink("releases/1", &root.join("current"));
        rules.until("a.yaml=one");
    });
}

#[test]
fn a_release_with_the_same_rules_is_watched_without_a_reload() {
    each_way(|options| {
        let dir = TempDir::new().unwrap();
        for release in ["1", "2"] {
            fs::create_dir(dir.path().join(release)).unwrap();
            put(dir.path(), &format!("{release}/a.yaml"), "same");
        }
        relink("1", &dir.path().join("current"));
        let rules = Probe::start(&dir.path().join("current"), options);
        relink("2", &dir.path().join("current"));
        replace(&dir.path().join("2"), "a.yaml", "new");
        assert_eq!(rules.next(), Ok("a.yaml=new".into()));
    });
}

#[test]
fn a_link_to_a_file_elsewhere_is_followed() {
    each_way(|options| {
        let (dir, other) = (TempDir::new().unwrap(), dir(&[("real.txt", "one")]));
        symlink(other.path().join("real.txt"), dir.path().join("a.yaml")).unwrap();
        let rules = Probe::start(dir.path(), options);
        assert_eq!(rules.first, Ok("a.yaml=one".into()));
        put(other.path(), "real.txt", "two");
        rules.until("a.yaml=two");
    });
}

#[test]
fn files_of_other_names_are_rules_where_that_is_asked_for() {
    let dir = dir(&[("a.yaml", "a"), ("README", "r"), (".swp", "s"), ("deep/er/none", "n")]);
    let list = |which| Reading::of(&Dir::new(dir.path()).with(which)).unwrap().list();
    assert_eq!(list(Which::Yaml), ["a.yaml"]);
    assert_eq!(list(Which::Shown), ["README", "a.yaml", "deep/er/none"]);
    assert_eq!(list(Which::All), [".swp", "README", "a.yaml", "deep/er/none"]);
}

#[test]
fn a_loop_of_links_ends() {
    let dir = dir(&[("a.yaml", "a"), ("sub/b.yaml", "b")]);
    symlink(".", dir.path().join("self")).unwrap();
    symlink("..", dir.path().join("sub/up")).unwrap();
    symlink("y", dir.path().join("x")).unwrap();
    symlink("x", dir.path().join("y")).unwrap();
    assert_eq!(list(dir.path()).unwrap(), ["a.yaml", "sub/b.yaml"]);
}

// === mistakes ===

#[test]
fn a_bad_edit_keeps_the_last_good_rules_until_it_is_mended() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let rules = Probe::start(dir.path(), options);
        replace(dir.path(), "a.yaml", "BAD");
        assert_eq!(rules.next(), Err("a.yaml is bad".into()));
        let status = rules.watching.status();
        assert_eq!((status.loaded, status.refused), (1, 1));
        assert_eq!(status.last_error.as_deref(), Some("a.yaml is bad"));
        replace(dir.path(), "a.yaml", "one");
        rules.until("a.yaml=one");
        assert_eq!(rules.watching.status().last_error, None);
    });
}

#[test]
fn real_rules_are_swapped_whole_and_mistakes_are_told_with_their_place() {
    let one =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 5}\n";
    let dir = dir(&[("shop.yaml", one)]);
    let (send, changes) = channel();
    let deliver =
        move |change: Result<Compiled, _>| send.send(change.map(|it| it.rules.counts().limits)).unwrap();
    let First { rules, watching } =
        watch::rules(Dir::new(dir.path()), Dialect::default(), events(), deliver).unwrap();
    assert_eq!(rules.unwrap().rules.counts().limits, 1);

    replace(dir.path(), "shop.yaml", &one.replace("hour", "fortnight"));
    let why = changes.recv_timeout(DEADLINE).unwrap().unwrap_err().to_string();
    assert!(why.contains("shop.yaml:4:"), "{why}");
    assert_eq!(watching.status().last_error, Some(why));

    let two = one.replace("domain: shop", "domain: other");
    replace(dir.path(), "other.yaml", &two);
    replace(dir.path(), "shop.yaml", one);
    while !matches!(changes.recv_timeout(DEADLINE).unwrap(), Ok(2)) {}
    assert_eq!(watching.status().last_error, None);
}

#[test]
fn bad_rules_at_first_are_told_and_mended_later() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "BAD")]);
        let rules = Probe::start(dir.path(), options);
        assert_eq!(rules.first, Err("a.yaml is bad".into()));
        put(dir.path(), "a.yaml", "good");
        rules.until("a.yaml=good");
    });
}

#[test]
fn a_directory_that_is_emptied_is_a_mistake_not_the_end_of_all_limits() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let rules = Probe::start(dir.path(), options);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        let why = rules.next().unwrap_err();
        assert!(why.contains("holds no rule files any more"), "{why}");
        put(dir.path(), "b.yaml", "two");
        rules.until("b.yaml=two");
    });
}

#[test]
fn a_directory_that_was_empty_from_the_start_is_no_mistake() {
    each_way(|options| {
        let dir = TempDir::new().unwrap();
        let rules = Probe::start(dir.path(), options);
        assert_eq!(rules.first, Ok(String::new()));
        put(dir.path(), "a.yaml", "one");
        rules.until("a.yaml=one");
    });
}

#[test]
fn the_directory_may_be_deleted_and_made_anew() {
    each_way(|options| {
        let parent = TempDir::new().unwrap();
        let path = parent.path().join("some/rules");
        let make = |text: &str| {
            fs::create_dir_all(&path).unwrap();
            put(&path, "a.yaml", text);
        };
        make("0");
        let rules = Probe::start(&path, options);
        // Several times, since file systems like to give out the inode again that has just become free.
        for round in 1..5 {
            fs::remove_dir_all(parent.path().join("some")).unwrap();
            if round % 2 == 0 {
                let why = rules.next().unwrap_err();
                assert!(why.contains("does not exist") || why.contains("no rule files"), "{why}");
            }
            make(&round.to_string());
            rules.until(&format!("a.yaml={round}"));
        }
        // Moved away as a whole, with another one in its place.
        fs::rename(&path, parent.path().join("old")).unwrap();
        make("moved");
        rules.until("a.yaml=moved");
        put(&path, "a.yaml", "last");
        rules.until("a.yaml=last");
    });
}

#[test]
fn a_directory_that_does_not_exist_yet_is_a_failure_that_heals() {
    each_way(|options| {
        let parent = TempDir::new().unwrap();
        let path = parent.path().join("later/rules");
        let rules = Probe::start(&path, options);
        let why = rules.first.clone().unwrap_err();
        assert_eq!(
            why,
            format!("the rule directory {} does not exist; create it, or name another one", path.display())
        );
        fs::create_dir_all(&path).unwrap();
        put(&path, "a.yaml", "one");
        rules.until("a.yaml=one");
    });
}

#[test]
fn a_panic_of_the_compiler_is_one_more_mistake() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let rules = Probe::start(dir.path(), options);
        replace(dir.path(), "a.yaml", "PANIC");
        let why = rules.next().unwrap_err();
        assert!(why.contains("a bug of Tollgate: as the test wants"), "{why}");
        replace(dir.path(), "a.yaml", "two");
        rules.until("a.yaml=two");
    });
}

#[test]
fn a_panic_of_the_receiver_does_not_end_the_watching() {
    let dir = dir(&[("a.yaml", "one")]);
    let (send, changes) = channel();
    let mut first = true;
    let watching = watch(Dir::new(dir.path()), events(), join, move |change| {
        assert!(!std::mem::take(&mut first), "as the test wants");
        send.send(change.map_err(|why| why.to_string())).unwrap();
    });
    put(dir.path(), "a.yaml", "two");
    let _watching = watching.unwrap().watching;
    // Nothing is heard of the first change, so the second has to be another one: as often as it takes.
    let heard = (0..).find_map(|edit| {
        put(dir.path(), "a.yaml", &format!("edit {edit}"));
        changes.recv_timeout(Duration::from_millis(200)).ok()
    });
    assert!(heard.unwrap().unwrap().starts_with("a.yaml=edit"));
}

#[test]
fn what_changed_while_it_was_compiled_is_compiled_again() {
    // Nothing but the comparison afterwards can notice: there are no events, and no poll for an hour.
    let dir = dir(&[("a.yaml", "one")]);
    let path = dir.path().to_owned();
    let compile = move |files: &Reading<'_>| {
        let compiled = join(files);
        put(&path, "a.yaml", "two");
        compiled
    };
    let options = Options { events: false, ..events() };
    let First { rules, .. } = watch(Dir::new(dir.path()), options, compile, |_| {}).unwrap();
    assert_eq!(rules.unwrap(), "a.yaml=two");
}

// === what a rule file is, and bounds ===

#[test]
fn rule_files_are_yaml_and_none_begins_with_a_dot() {
    let dir = dir(&[
        ("b.yml", ""),
        ("a.yaml", ""),
        ("notes.txt", ""),
        ("yaml", ""),
        ("a.yaml~", ""),
        (".hidden.yaml", ""),
        (".git/c.yaml", ""),
        ("z/a.yaml", ""),
        ("z/.b.yaml", ""),
    ]);
    assert_eq!(list(dir.path()).unwrap(), ["a.yaml", "b.yml", "z/a.yaml"]);
}

#[test]
fn what_is_no_plain_file_is_an_error_and_not_waited_for() {
    let dir = dir(&[("folder.yaml/a.yaml", "a")]);
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe.yaml")).status().unwrap().success());
    symlink("/dev/zero", dir.path().join("zero.yaml")).unwrap();
    symlink("nowhere", dir.path().join("gone.yaml")).unwrap();
    assert_eq!(list(dir.path()).unwrap(), ["folder.yaml/a.yaml", "gone.yaml", "pipe.yaml", "zero.yaml"]);
    let at = Dir::new(dir.path());
    for name in ["pipe.yaml", "zero.yaml"] {
        assert_eq!(at.read(name).unwrap_err().to_string(), "it is no plain file");
    }
    assert_eq!(at.read("gone.yaml").unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_listing_is_whole_or_an_error() {
    let deep = |levels: usize| {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join("d/".repeat(levels))).unwrap();
        list(dir.path())
    };
    assert!(deep(DEPTH_MAX).is_ok());
    assert!(deep(DEPTH_MAX + 1).unwrap_err().to_string().contains("more than 16 levels of folders"));

    let dir = TempDir::new().unwrap();
    for file in 0..FILES_MAX {
        put(dir.path(), &format!("{file}.yaml"), "");
    }
    assert_eq!(list(dir.path()).unwrap().len(), FILES_MAX);
    put(dir.path(), "more.yaml", "");
    assert!(matches!(list(dir.path()), Err(DirError::TooMuch { what: "rule files", max: FILES_MAX, .. })));

    let dir = TempDir::new().unwrap();
    // The directory itself is one of them.
    for folder in 1..FOLDERS_MAX {
        fs::create_dir(dir.path().join(folder.to_string())).unwrap();
    }
    assert!(list(dir.path()).is_ok());
    fs::create_dir(dir.path().join("more")).unwrap();
    assert!(matches!(list(dir.path()), Err(DirError::TooMuch { what: "folders", max: FOLDERS_MAX, .. })));

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let why = list(&file).unwrap_err().to_string();
    assert!(why.contains("Not a directory"), "{why}");
}

#[test]
fn watching_ends_with_its_handle() {
    each_way(|options| {
        let dir = dir(&[("a.yaml", "one")]);
        let Probe { watching, changes, .. } = Probe::start(dir.path(), options);
        drop(watching);
        // The watcher's thread owned the sender.
        assert_eq!(changes.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected));
    });
}

// === the stand-ins ===

/// Runs a test with the system's events alone, and with the poll alone.
fn each_way(test: impl Fn(Options)) {
    test(events());
    test(Options { poll: Duration::from_millis(20), events: false, ..Options::default() });
}

fn events() -> Options {
    Options { poll: Duration::from_secs(3600), ..Options::default() }
}

/// Joins all files to `name=text name=text`. A text that begins with BAD or is empty is a mistake; `+name` reads a
/// further file.
fn join(files: &Reading<'_>) -> Result<String, String> {
    let mut joined = String::new();
    for name in files.list() {
        let text = String::from_utf8(files.read(&name).map_err(|why| format!("{name}: {why}"))?).unwrap();
        if text == "PANIC" {
            panic!("as the test wants");
        }
        if text.is_empty() || text.starts_with("BAD") {
            return Err(format!("{name} is bad"));
        }
        write!(joined, " {name}={text}").unwrap();
        if let Some((_, table)) = text.split_once('+') {
            let text = files.read(table).map_err(|why| format!("{table}: {why}"))?;
            write!(joined, " {table}={}", String::from_utf8(text).unwrap()).unwrap();
        }
    }
    Ok(joined.trim_start().to_owned())
}

struct Probe {
    first: Result<String, String>,
    watching: Watching,
    changes: Receiver<Result<String, String>>,
}

impl Probe {
    fn start(dir: &Path, options: Options) -> Self {
        let (send, changes) = channel();
        let deliver = move |change: Result<String, Failure<String>>| {
            let _ = send.send(change.map_err(|why| why.to_string()));
        };
        let First { rules, watching } = watch(Dir::new(dir), options, join, deliver).unwrap();
        Self { first: rules.map_err(|why| why.to_string()), watching, changes }
    }

    /// The next change or mistake.
    fn next(&self) -> Result<String, String> {
        self.changes.recv_timeout(DEADLINE).expect("a change should arrive")
    }

    /// Waits for these rules, whatever comes before them.
    fn until(&self, wanted: &str) {
        let mut last = None;
        while last.as_ref() != Some(&Ok(wanted.to_owned())) {
            match self.changes.recv_timeout(DEADLINE) {
                Ok(change) => last = Some(change),
                Err(why) => panic!("{wanted:?} did not arrive ({why}); the last was {last:?}"),
            }
        }
    }
}

fn dir(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        put(dir.path(), name, text);
    }
    dir
}

/// Writes in place: for a moment the file is empty.
fn put(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).unwrap();
}

/// Writes beside and renames: there is no moment between old and new.
fn replace(dir: &Path, name: &str, text: &str) {
    put(dir, ".new", text);
    fs::rename(dir.join(".new"), dir.join(name)).unwrap();
}

/// Writes a version of a ConfigMap and points `..data` at it in one step, as the kubelet does.
fn configmap(dir: &Path, version: u32, files: &[(&str, &str)]) {
    let folder = format!("..v{version}");
    fs::create_dir(dir.join(&folder)).unwrap();
    for (name, text) in files {
        put(&dir.join(&folder), name, text);
    }
    relink(&folder, &dir.join("..data"));
}

/// Points a link at something else in one step.
fn relink(target: &str, link: &Path) {
    let new = link.with_file_name(".new-link");
    symlink(target, &new).unwrap();
    fs::rename(new, link).unwrap();
}

fn list(dir: &Path) -> Result<Vec<String>, DirError> {
    Ok(Reading::of(&Dir::new(dir))?.list())
}
