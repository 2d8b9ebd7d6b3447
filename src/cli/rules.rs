//! Rules for the commands that read them: the directory, and those settings that change what a rule means or how an
//! answer looks. They have the names that `serve` knows, so that one environment means one thing.

use std::{fmt, io::IsTerminal, marker::PhantomData, path::PathBuf};

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::{
    Failure,
    check::rendered,
    terminal::{Paint, count},
};
use crate::{
    rules::{
        Compiled, Files, compile,
        watch::{Dir, Reading},
    },
    settings::{RawSettings, Settings},
};

#[derive(Args, Clone, Debug)]
pub(super) struct DirArg {
    /// The directory of the rule files
    dir: PathBuf,
}

/// What a directory holds.
pub(super) struct Loaded {
    pub(super) compiled: Compiled,
    /// How many rule files there are.
    pub(super) files: usize,
}

/// Compiles a directory as the service does.
///
/// # Errors
/// A path that does not exist is a wrong argument; everything else is a mistake of the rules.
pub(super) fn load(dir: &DirArg, settings: &Settings) -> Result<Loaded, Failure> {
    let path = &dir.dir;
    if !path.is_dir() {
        let what = if path.exists() { "is no directory" } else { "does not exist" };
        return Err(Failure::usage(format!(
            "{} {what}: name the directory of the rule files",
            path.display()
        )));
    }
    let dir = Dir::new(path).with(settings.rules.which);
    let reading = Reading::of(&dir).map_err(|why| Failure::mistakes(why.to_string()))?;
    let files = reading.list().len();
    match compile(&reading, settings.dialect()) {
        Ok(compiled) => Ok(Loaded { compiled, files }),
        Err(mistakes) => {
            let paint = Paint::where_wanted(std::io::stderr().is_terminal());
            eprintln!("{}\n", rendered(paint, &mistakes));
            let n = mistakes.count();
            Err(Failure::mistakes(format!("{} in {}", count(n, "mistake"), path.display())))
        }
    }
}

/// What decides what a rule means.
pub(super) type RuleSettings = Picked<Rules>;

/// And how an answer looks.
pub(super) type AnswerSettings = Picked<Answers>;

/// Some of the settings.
pub(super) struct Picked<S> {
    raw: RawSettings,
    of: PhantomData<S>,
}

/// Names of settings.
pub(super) trait Subset {
    const NAMES: &'static [&'static str];
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Rules {}

#[derive(Clone, Copy, Debug)]
pub(super) enum Answers {}

impl Subset for Rules {
    const NAMES: &'static [&'static str] =
        &["TOLLGATE_COMPAT", "MERGE_DOMAIN_CONFIG", "ON_STORE_FAILURE", "RUNTIME_IGNOREDOTFILES"];
}

impl Subset for Answers {
    const NAMES: &'static [&'static str] = &[
        "TOLLGATE_COMPAT",
        "MERGE_DOMAIN_CONFIG",
        "ON_STORE_FAILURE",
        "RUNTIME_IGNOREDOTFILES",
        "LIMIT_HEADERS",
        "LIMIT_RESPONSE_HEADERS_ENABLED",
        "LIMIT_LIMIT_HEADER",
        "LIMIT_REMAINING_HEADER",
        "LIMIT_RESET_HEADER",
        "SHADOW_MODE",
        "QUOTA_MODE",
        "CACHE_KEY_PREFIX",
        "KEY_FORMAT",
    ];
}

impl<S> Picked<S> {
    /// # Errors
    /// A setting that is wrong.
    pub(super) fn compile(&self) -> Result<Settings, Failure> {
        Settings::compile(&self.raw).map_err(|why| Failure::usage(why.to_string()))
    }
}

impl<S: Subset> Picked<S> {
    /// The same with one that was named otherwise.
    ///
    /// # Errors
    /// A setting that is wrong.
    pub(super) fn compile_with(&self, name: &str, value: &str) -> Result<Settings, Failure> {
        let raw = self.raw.clone().with(name, value);
        Settings::compile(&raw).map_err(|why| Failure::usage(why.to_string()))
    }
}

impl<S> Clone for Picked<S> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), of: PhantomData }
    }
}

impl<S> fmt::Debug for Picked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<S: Subset> Args for Picked<S> {
    fn augment_args(command: Command) -> Command {
        RawSettings::augment_with(command, S::NAMES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Subset> FromArgMatches for Picked<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { raw: RawSettings::from_arg_matches(matches)?, of: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.raw.update_from_arg_matches(matches)
    }
}
