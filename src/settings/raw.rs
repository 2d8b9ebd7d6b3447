//! What came in: texts by the names of the table, from flags and the environment.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Command};

use super::{
    table::{Initial, Kind, Row, row, table},
    values::Want,
};

/// How variables begin whose names a setting lists (USE_DOG_STATSD_MOGRIFIERS).
const LISTED: &str = "DOG_STATSD_MOGRIFIER_";

/// The texts of all settings that were given, by variable; and those of variables that a setting lists. As a group of arguments it can be flattened into any
/// command of `clap`'s.
#[derive(Clone, Default)]
pub struct RawSettings(BTreeMap<&'static str, String>, BTreeMap<String, String>);

/// A setting that is wrong, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} (--{flag}): {}{want}", value.as_ref().map(|v| format!("`{v}` is wrong: ")).unwrap_or_default())]
pub struct SettingsError {
    /// The variable.
    pub name: &'static str,
    /// The flag.
    pub flag: &'static str,
    /// What was given, where it may be shown and something was.
    pub value: Option<String>,
    /// What would be right.
    pub want: String,
}

impl RawSettings {
    /// Only those with these names, as arguments of a command that needs no others.
    ///
    /// # Panics
    /// When the table has no such name.
    pub fn augment_with(command: Command, names: &[&str]) -> Command {
        names.iter().fold(command, |command, name| command.arg(argument(row(name))))
    }

    /// Sets one by its variable's name; for tests and for commands that start a service themselves.
    ///
    /// # Panics
    /// When the table has no such name.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.insert(row(name).name, value.into());
        self
    }

    /// Takes those of an environment's variables that are settings, or that a setting lists.
    #[must_use]
    pub fn of<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        variables.into_iter().fold(Self::default(), |raw, (name, value)| {
            if table().iter().any(|row| row.name == name) {
                raw.with(name, value)
            } else if name.starts_with(LISTED) {
                raw.with_listed(name, value)
            } else {
                raw
            }
        })
    }

    /// Sets a variable that a setting lists by a name of the caller's.
    #[must_use]
    pub fn with_listed(mut self, name: &str, value: impl Into<String>) -> Self {
        self.1.insert(name.to_owned(), value.into());
        self
    }
}

impl std::fmt::Debug for RawSettings {
    /// Only the names: which values are secret depends on what people wrote into them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl clap::Args for RawSettings {
    fn augment_args(command: Command) -> Command {
        table().iter().fold(command, |command, row| command.arg(argument(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for RawSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut raw = Self::default();
        raw.update_from_arg_matches(matches)?;
        Ok(raw)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((
                name.into_string().ok().filter(|name| name.starts_with(LISTED))?,
                value.into_string().ok()?,
            ))
        });
        self.1.extend(variables);
        for row in table() {
            // A command may have only some of them.
            if let Ok(Some(text)) = matches.try_get_one::<String>(row.name) {
                self.0.insert(row.name, text.clone());
            }
        }
        Ok(())
    }
}

/// The flag of a row. Values are parsed by [`super::Settings::compile`], so that a variable and a flag fail alike.
fn argument(row: &Row) -> Arg {
    let arg = Arg::new(row.name)
        .long(row.flag)
        .env(row.name)
        .value_name(row.value)
        .hide_env_values(true)
        .help_heading(row.group.title())
        .help(match row.default {
            Initial::Text(text) => format!("{} [default: {text}]", row.why),
            Initial::Derived(words) => format!("{} [default: {words}]", row.why),
            Initial::Unset => row.why.to_owned(),
        });
    match row.kind {
        // `--shadow-mode` alone means true; a value needs the equals sign, or it would swallow the next word.
        Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Kind::Text | Kind::Secret => arg,
    }
}

/// Reads texts by the rows of the table.
pub(super) struct Reader<'r>(pub(super) &'r RawSettings);

impl Reader<'_> {
    /// The text that was given; an empty one is none.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.0.0.get(row(name).name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// The text of a variable that a setting lists; an empty one is none.
    pub(super) fn listed(&self, name: &str) -> Option<&str> {
        self.0.1.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// The value that was given, if any.
    pub(super) fn opt<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, Want>,
    ) -> Result<Option<T>, SettingsError> {
        let Some(text) = self.given(name) else { return Ok(None) };
        let row = row(name);
        parse(text).map(Some).map_err(|want| SettingsError {
            name: row.name,
            flag: row.flag,
            value: matches!(row.kind, Kind::Text | Kind::Switch).then(|| one_line(text)),
            want,
        })
    }

    /// The value that was given, or the table's default.
    pub(super) fn one<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, Want>,
    ) -> Result<T, SettingsError> {
        if let Some(value) = self.opt(name, &parse)? {
            return Ok(value);
        }
        let Initial::Text(text) = row(name).default else { unreachable!("{name} has no default to parse") };
        Ok(parse(text).unwrap_or_else(|want| unreachable!("the default of {name} is wrong: {want}")))
    }

    /// A setting that is not there and has to be.
    pub(super) fn missing(&self, name: &str, want: &str) -> SettingsError {
        let row = row(name);
        SettingsError { name: row.name, flag: row.flag, value: None, want: want.to_owned() }
    }
}

/// What was given, so that it fits into one line of a log.
fn one_line(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    let shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN_MAX { format!("{shown}…") } else { shown }
}
