//! Where to wait for events.
//!
//! The system tells of changes by folder: names that come and go in it, and writes to the files in it. A link is
//! followed when the watch is set, not later. So to notice that `limits.yaml -> ..data/limits.yaml` means other bytes,
//! or that a `ROOT` above the rules was pointed at another release, one must watch every folder that holds a link on
//! the way, and the folder at its end. A [`Plan`] is the list of these folders, made while the way is walked.
//!
//! Folders may be busy with other things: `/tmp` above the rules, or a log that someone writes beside them. So of a
//! folder outside only some names matter, and of one with rules in it a write to a file that is no rule does not.
//!
//! A watch belongs to an inode, not to a path. A folder that was renamed away and replaced leaves a watch that will
//! never speak again, under a path that looks right. So a plan remembers inodes, and when anything in it differs all
//! watches are set anew: it costs microseconds a folder, and is the one way that cannot go stale. (File systems like to
//! give a new folder the inode of the one that was just removed. Therefore a folder's own end is an event that asks for
//! new watches, whatever the plan says.)

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use notify::{
    Event, EventKind, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};

use crate::rules::Which;

/// Links on the way to one file, as the kernel bounds them (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// Folders to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    folders: BTreeMap<PathBuf, Folder>,
    /// Which files in a folder of rules matter by their names.
    which: Which,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    /// Device and inode; `None` where the folder has just vanished.
    id: Option<(u64, u64)>,
    /// Rules are in it: any name may come to matter, as a folder or a link.
    whole: bool,
    /// What matters in any case: links on the way, files that rules name, what is missing.
    names: BTreeSet<OsString>,
}

impl Plan {
    /// Says which files are rules; `*.yaml` and `*.yml` until then.
    pub(super) fn files(&mut self, which: Which) {
        self.which = which;
    }

    /// Adds a folder that holds rules.
    pub(super) fn whole(&mut self, folder: &Path) {
        self.folder(folder).whole = true;
    }

    /// Walks a path from a folder that has no links in it, adds each folder where the way could turn, and returns where
    /// it ends; `None` when it ends nowhere (then the nearest folder is watched, for the name that is missing).
    pub(super) fn trace(&mut self, from: &Path, path: &Path) -> Option<PathBuf> {
        let mut real = from.to_owned();
        let mut todo = steps(path);
        let mut links = 0;
        while let Some(step) = todo.pop() {
            if step == ".." {
                real.pop();
                continue;
            }
            if step == "/" {
                real = PathBuf::from("/");
                continue;
            }
            let next = real.join(&step);
            let Ok(found) = next.symlink_metadata() else {
                self.name(&real, &step);
                return None;
            };
            if !found.is_symlink() {
                let known =
                    self.which.is_rule(&next) && self.folders.get(&real).is_some_and(|folder| folder.whole);
                if todo.is_empty() && !found.is_dir() && !known {
                    self.name(&real, &step);
                }
                real = next;
                continue;
            }
            self.name(&real, &step);
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            todo.extend(steps(&next.read_link().ok()?));
        }
        Some(real)
    }

    /// Sets watches on all folders; `touched` is called, often, from another thread, when something changes, with
    /// whether the watches have to be set anew.
    ///
    /// What could not be watched is told in words beside the watches that could; none at all is possible.
    pub(super) fn watch(&self, touched: impl Fn(bool) + Send + 'static) -> (Option<Watches>, Option<String>) {
        let plan = self.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error may mean that events were lost, so it counts as one.
            match event.map_or(Concern::Look, |event| plan.concern(&event)) {
                Concern::Nothing => {}
                Concern::Look => touched(false),
                Concern::Anew => touched(true),
            }
        });
        let mut watcher = match watcher {
            Ok(watcher) => watcher,
            Err(why) => return (None, Some(why.to_string())),
        };
        let mut trouble = None;
        for path in self.folders.keys() {
            match watcher.watch(path, RecursiveMode::NonRecursive) {
                Ok(()) => {}
                // It vanished since it was listed; whoever looks again makes a new plan.
                Err(why) if matches!(why.kind, notify::ErrorKind::PathNotFound) => {}
                Err(why) => trouble = Some(format!("{}: {why}", path.display())),
            }
        }
        (Some(Watches { _watcher: watcher }), trouble)
    }

    /// What an event means for the rules.
    fn concern(&self, event: &Event) -> Concern {
        let content = match event.kind {
            // Reading opens files, which is an event too: our own reading must not wake us.
            EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write) => {
                return Concern::Nothing;
            }
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
                if event.paths.iter().any(|path| self.folders.contains_key(path)) =>
            {
                return Concern::Anew;
            }
            EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)) => true,
            _ => false,
        };
        // Without a path it tells that events were lost.
        if event.paths.is_empty() || event.paths.iter().any(|path| self.knows(path, content)) {
            Concern::Look
        } else {
            Concern::Nothing
        }
    }

    /// `content`: the bytes of a file have changed, and no name.
    fn knows(&self, path: &Path, content: bool) -> bool {
        let Some(folder) = path.parent().and_then(|parent| self.folders.get(parent)) else { return false };
        let named = path.file_name().is_some_and(|name| folder.names.contains(name));
        named || (folder.whole && (!content || self.which.is_rule(path)))
    }

    fn name(&mut self, folder: &Path, name: &OsStr) {
        self.folder(folder).names.insert(name.to_owned());
    }

    fn folder(&mut self, path: &Path) -> &mut Folder {
        if !self.folders.contains_key(path) {
            let id = path.metadata().ok().map(|found| (found.dev(), found.ino()));
            self.folders.insert(path.to_owned(), Folder { id, whole: false, names: BTreeSet::new() });
        }
        self.folders.get_mut(path).expect("it was just put in")
    }
}

/// What an event asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concern {
    Nothing,
    Look,
    Anew,
}

/// Watches that were set; they end when dropped.
pub(super) struct Watches {
    _watcher: notify::RecommendedWatcher,
}

/// A path's steps, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let step = |component: Component<'_>| match component {
        Component::CurDir => None,
        other => Some(other.as_os_str().to_owned()),
    };
    let mut steps: Vec<_> = path.components().filter_map(step).collect();
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use notify::event::{CreateKind, DataChange, MetadataKind, RemoveKind, RenameMode};

    use super::*;

    #[test]
    fn an_event_matters_where_rules_could_have_changed() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let (rules, release) = (at.join("rules"), at.join("release"));
        fs::create_dir(&release).unwrap();
        symlink("release", &rules).unwrap();
        for name in ["a.yaml", "tenants.csv", "some.log"] {
            fs::write(release.join(name), "").unwrap();
        }
        let mut plan = Plan::default();
        assert_eq!(plan.trace(Path::new("/"), &rules), Some(release.clone()));
        plan.whole(&release);
        for name in ["a.yaml", "tenants.csv"] {
            plan.trace(Path::new("/"), &rules.join(name));
        }
        assert!(plan.folders.keys().eq([&at, &release]), "{plan:?}");

        let write = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let created = EventKind::Create(CreateKind::Any);
        let removed = EventKind::Remove(RemoveKind::Any);
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        let touched = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        use Concern::{Anew, Look, Nothing};
        for (kind, path, wanted) in [
            (write, "release/a.yaml", Look),
            (write, "release/new.yml", Look),
            (closed, "release/a.yaml", Look),
            (opened, "release/a.yaml", Nothing),
            (write, "release/tenants.csv", Look),
            (write, "release/some.log", Nothing),
            (closed, "release/some.log", Nothing),
            (touched, "release/folder", Look),
            (created, "release/folder", Look),
            (renamed, "release/..data", Look),
            (removed, "release/a.yaml", Look),
            (removed, "release", Anew),
            (renamed, "release", Anew),
            (renamed, "rules", Look),
            (created, "other", Nothing),
            (write, "other/a.yaml", Nothing),
        ] {
            let event = Event::new(kind).add_path(at.join(path));
            assert_eq!(plan.concern(&event), wanted, "{kind:?} {path}");
        }
        assert_eq!(plan.concern(&Event::new(EventKind::Other)), Look, "lost events");
    }
}
