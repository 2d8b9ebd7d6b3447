//! A directory of rules as it is on disk: which files there are, and their bytes.
//!
//! Rule files are `*.yaml` and `*.yml` in the directory and its subdirectories, none that begins with a dot. That last
//! rule is what makes a Kubernetes ConfigMap work: it mounts every file three times,
//!
//! ```text
//! rules/limits.yaml -> ..data/limits.yaml          the one that counts
//! rules/..data -> ..2026_01_31_12_00_00.123        swapped at once when the ConfigMap changes
//! rules/..2026_01_31_12_00_00.123/limits.yaml      where the bytes are
//! ```
//!
//! and skipping what begins with a dot leaves one. (The reference reads files of any name, see [`Which`](crate::rules::Which).) Links are followed, to files and to folders; a folder that was
//! walked already is not walked again, so a loop of links ends.
//!
//! Whoever lists a directory that cannot be read must not report "no rules": that would let everything pass. So a
//! listing is whole or a [`DirError`], also when a bound is reached.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::plan::Plan;
use crate::rules::Which;

/// Rule files in one directory; a file is a domain or more, and a thousand domains is a large company.
pub const FILES_MAX: usize = 10_000;

/// Subfolders in one directory, since each costs one of the system's watches.
pub const FOLDERS_MAX: usize = 1_000;

/// How deep subfolders go.
pub const DEPTH_MAX: usize = 16;

/// Bytes in one file. A million lines of `tenants.csv` take about 20 MB.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Reads of one file that changes while it is read. Who writes longer than that causes another event at the end.
const TORN_READS_MAX: usize = 5;

/// Where rules are.
#[derive(Clone, Debug)]
pub struct Dir {
    path: PathBuf,
    which: Which,
}

impl Dir {
    /// A directory by its path, which need not exist yet. A relative one is seen from the current directory of now.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        // Where even the current directory is gone, the path as it stands gives the clearest error.
        Self { path: std::path::absolute(&path).unwrap_or(path), which: Which::default() }
    }

    /// The same directory, with other files of it.
    #[must_use]
    pub fn with(self, which: Which) -> Self {
        Self { which, ..self }
    }

    /// Its absolute path, links and all.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all rule files in a stable order, and where to wait for changes of them.
    ///
    /// # Errors
    /// When the directory or a part of it cannot be read, or a bound is reached. `plan` is as far as it came then, which
    /// suffices to notice when that is mended.
    pub fn list(&self, plan: &mut Plan) -> Result<Vec<String>, DirError> {
        plan.files(self.which);
        let Some(real) = plan.trace(Path::new("/"), &self.path) else {
            let path = self.path.clone();
            return Err(match path.metadata() {
                Err(why) if why.kind() != io::ErrorKind::NotFound => DirError::Unreadable { path, why },
                _ => DirError::Missing { path },
            });
        };
        let mut walk = Walk { which: self.which, names: Vec::new(), seen: BTreeSet::new(), plan };
        walk.folder(&real, "", 0)?;
        walk.names.sort_unstable();
        Ok(walk.names)
    }

    /// The bytes of a file by its name relative to the directory.
    ///
    /// # Errors
    /// As the file system says; also for what is no plain file (a pipe would never end) and beyond [`FILE_BYTES_MAX`].
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let path = self.path.join(name);
        let mut bytes = Vec::new();
        for _ in 0..TORN_READS_MAX {
            // Asked before opening, since opening a pipe waits for a writer.
            if !path.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
            }
            let file = File::open(&path)?;
            let before = file.metadata()?;
            if before.len() > FILE_BYTES_MAX {
                let why = format!("it is larger than {} MiB", FILE_BYTES_MAX >> 20);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
            bytes.clear();
            (&file).take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            let after = file.metadata()?;
            if signature(&before) == signature(&after) && after.len() == bytes.len() as u64 {
                break;
            }
        }
        Ok(bytes)
    }
}

fn signature(of: &Metadata) -> (u64, i64, i64, i64, i64) {
    (of.len(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec())
}

/// Why there is no listing. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It, or what a link on the way to it names, does not exist.
    #[error("the rule directory {} does not exist; create it, or name another one", path.display())]
    Missing {
        /// The directory as it was named.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("{} cannot be read: {why}; mend it or move it out of the rule directory", path.display())]
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// The system's reason.
        why: io::Error,
    },
    /// A name that no message could show.
    #[error("the name of {} is no UTF-8; rename it or move it out of the rule directory", path.display())]
    Name {
        /// The folder or file.
        path: PathBuf,
    },
    /// A bound is reached.
    #[error("{} holds more than {max} {what}; is this the right directory?", path.display())]
    TooMuch {
        /// Where.
        path: PathBuf,
        /// Of what there is too much.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// Rules were loaded from it, and now there are none. It is what a directory that is written anew is for a moment,
    /// and to take it literally would let everything pass.
    #[error("the rule directory {} holds no rule files any more; put one back, or restart to serve without rules", path.display())]
    Emptied {
        /// The directory as it was named.
        path: PathBuf,
    },
}

struct Walk<'p> {
    which: Which,
    names: Vec<String>,
    /// Folders that were walked, by their real paths.
    seen: BTreeSet<PathBuf>,
    plan: &'p mut Plan,
}

impl Walk<'_> {
    /// `real` has no links in it; `prefix` is how names in this folder begin.
    fn folder(&mut self, real: &Path, prefix: &str, depth: usize) -> Result<(), DirError> {
        if !self.seen.insert(real.to_owned()) {
            return Ok(());
        }
        let too_much = |what, max| DirError::TooMuch { path: real.to_owned(), what, max };
        if depth > DEPTH_MAX {
            return Err(too_much("levels of folders", DEPTH_MAX));
        }
        if self.seen.len() > FOLDERS_MAX {
            return Err(too_much("folders", FOLDERS_MAX));
        }
        self.plan.whole(real);
        let unreadable = |why| DirError::Unreadable { path: real.to_owned(), why };
        let mut inside = BTreeSet::new();
        for entry in real.read_dir().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name();
            let plain = entry.file_type().is_ok_and(|of| of.is_file());
            let skip = self.which.skips(&name) || (plain && !self.which.is_rule(Path::new(&name)));
            if !skip {
                inside.insert(name);
            }
        }
        for name in inside {
            let path = real.join(&name);
            let is_rule = self.which.is_rule(&path);
            let Some(target) = self.plan.trace(real, Path::new(&name)) else {
                // A link to nothing. Where it should be a rule file, reading it will say so.
                if is_rule {
                    self.file(&path, prefix, &name)?;
                }
                continue;
            };
            if target.is_dir() {
                let name = name.to_str().ok_or(DirError::Name { path })?;
                self.folder(&target, &format!("{prefix}{name}/"), depth + 1)?;
            } else if is_rule {
                self.file(&path, prefix, &name)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, prefix: &str, name: &OsStr) -> Result<(), DirError> {
        if self.names.len() == FILES_MAX {
            let path = path.parent().unwrap_or(path).to_owned();
            return Err(DirError::TooMuch { path, what: "rule files", max: FILES_MAX });
        }
        let name = name.to_str().ok_or_else(|| DirError::Name { path: path.to_owned() })?;
        self.names.push(format!("{prefix}{name}"));
        Ok(())
    }
}
