//! One reading of a directory, which remembers what it saw.
//!
//! The watcher has to know later whether anything differs from what was compiled. Which files matter is known only
//! after compiling, since a rule file may name others (`tenants_from`). So the compiler reads through a [`Reading`], and
//! the reading keeps a hash of all that it handed out; that is the [`Record`] to compare with.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
};

use super::{
    dir::{Dir, DirError},
    plan::Plan,
};
use crate::rules::Files;

/// A directory's files at one time, for the rules compiler.
#[derive(Debug)]
pub struct Reading<'d> {
    dir: &'d Dir,
    names: Vec<String>,
    /// Behind a lock since [`Files`] reads through a shared reference.
    seen: Mutex<(Record, Plan)>,
}

impl<'d> Reading<'d> {
    /// Lists the directory; files are read when they are asked for.
    ///
    /// # Errors
    /// When the listing would not be whole.
    pub fn of(dir: &'d Dir) -> Result<Self, DirError> {
        let (reading, whole) = Self::begin(dir);
        whole.map(|()| reading)
    }

    /// As [`Reading::of`]; a failed one, too, says what was seen and where to wait for it to be mended.
    pub(super) fn begin(dir: &'d Dir) -> (Self, Result<(), DirError>) {
        let mut plan = Plan::default();
        let (names, whole) = match dir.list(&mut plan) {
            Ok(names) => (Ok(names), Ok(())),
            Err(why) => (Err(why.to_string()), Err(why)),
        };
        let listed = names.clone().unwrap_or_default();
        let record = Record { names, files: BTreeMap::new() };
        (Self { dir, names: listed, seen: Mutex::new((record, plan)) }, whole)
    }

    /// Whether there is no rule file at all.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// What was read, and where to wait for changes.
    pub(super) fn end(self) -> (Record, Plan) {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files for Reading<'_> {
    fn list(&self) -> Vec<String> {
        self.names.clone()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let read = self.dir.read(name);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (record, plan) = &mut *seen;
        record.files.insert(name.to_owned(), Seen::from(&read));
        // Rule files have been traced when they were listed; a second time changes nothing.
        plan.trace(Path::new("/"), &self.dir.path().join(name));
        read
    }
}

/// What a reading saw.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// `Err` says in words why there is no listing, so that the same trouble is told once.
    names: Result<Vec<String>, String>,
    files: BTreeMap<String, Seen>,
}

impl Record {
    /// Whether another reading would see the same, and where to wait for changes now. The one may hold without the
    /// other: a release that was put in another's place can have the same bytes in another folder.
    pub(super) fn compare(&self, dir: &Dir) -> (bool, Plan) {
        let mut plan = Plan::default();
        let names = dir.list(&mut plan).map_err(|why| why.to_string());
        let mut same = names == self.names;
        for (name, seen) in &self.files {
            same = same && Seen::from(&dir.read(name)) == *seen;
            plan.trace(Path::new("/"), &dir.path().join(name));
        }
        (same, plan)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Bytes(blake3::Hash),
    Failed(io::ErrorKind),
}

impl From<&io::Result<Vec<u8>>> for Seen {
    fn from(read: &io::Result<Vec<u8>>) -> Self {
        match read {
            Ok(bytes) => Self::Bytes(blake3::hash(bytes)),
            Err(why) => Self::Failed(why.kind()),
        }
    }
}
