//! `tollgate migrate`: what changes for a deployment of envoyproxy/ratelimit when its image does, or what becomes of
//! limitador's limits.
//!
//! | ends with | |
//! |---|---|
//! | 0 | nothing to do: all that was read works as before |
//! | 1 | it works, and differs in what is told |
//! | 2 | something cannot be taken over |
//!
//! Nothing is changed and nobody is asked: it reads files, and prints.

mod differences;
mod environment;
mod limitador;

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, ValueEnum};

use super::{
    EXIT_FAILED, EXIT_NO, Failure,
    terminal::{Terminal, count},
};
use crate::{
    rules::{
        Dialect, FailureMode, Files, Which, compile,
        watch::{Dir, DirError, Reading},
    },
    settings::{RawSettings, Settings, SettingsError, ignored, strange as slips, told},
};
use differences::{Difference, Rules};
use environment::{Environment, is_ours};

#[derive(Args, Clone, Debug)]
pub(super) struct MigrateArgs {
    /// The directory of the rule files; with `--from limitador` the file of its limits
    path: PathBuf,

    /// What is replaced
    #[arg(long, value_enum, default_value = "reference")]
    from: From,

    /// The deployment's environment: a file of NAME=VALUE lines
    #[arg(long, value_name = "FILE", conflicts_with = "manifest")]
    env_file: Option<PathBuf>,

    /// The deployment's environment: a Kubernetes manifest
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Which container of the manifest, where its image does not tell
    #[arg(long, value_name = "NAME", requires = "manifest")]
    container: Option<String>,

    /// Where to write the translated rules, a file for each namespace, instead of printing them
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// envoyproxy/ratelimit
    Reference,
    /// Kuadrant's limitador
    Limitador,
}

/// The exit code.
///
/// # Errors
/// A path, an environment or a file that cannot be read.
pub(super) fn run(args: &MigrateArgs, terminal: &mut Terminal) -> Result<u8, Failure> {
    match args.from {
        From::Limitador if args.env_file.is_some() || args.manifest.is_some() => Err(Failure::usage(
            "--env-file and --manifest are for envoyproxy/ratelimit: limitador's settings have nothing in common with ours",
        )),
        From::Limitador => limitador::run(&args.path, args.out.as_deref(), terminal),
        From::Reference if args.out.is_some() => {
            Err(Failure::usage("--out is for limitador: the reference's rule files are read as they are"))
        }
        From::Reference => reference(args, terminal),
    }
}

/// What was found out.
#[derive(Default)]
struct Report {
    /// What differs.
    differs: Vec<Difference>,
    /// What cannot be taken over, and what to do.
    cannot: Vec<String>,
}

fn reference(args: &MigrateArgs, terminal: &mut Terminal) -> Result<u8, Failure> {
    let path = &args.path;
    if !path.is_dir() {
        return Err(Failure::usage(format!("{}: name the directory of the rule files", path.display())));
    }
    let environment = match (&args.env_file, &args.manifest) {
        (Some(file), _) => Some(environment::from_env_file(file)?),
        (None, Some(file)) => Some(environment::from_manifest(file, args.container.as_deref())?),
        (None, None) => None,
    };
    let mut report = Report::default();
    let known = environment.clone().unwrap_or_default();
    let rules = rules(args, &known, &mut report, terminal)?;
    match &environment {
        Some(environment) => variables(environment, &mut report, terminal),
        None => terminal.line("environment  not looked at: give it with --env-file or --manifest"),
    }
    report.differs = differences::that_concern(rules, &known);
    if environment.is_some() {
        report.differs.extend(differences::of_defaults(&known));
    }
    Ok(conclude(&report, &known, terminal))
}

/// Compiles the rules: the files that the reference reads, since a mistake in one that is not read here is worth knowing.
fn rules(
    args: &MigrateArgs,
    environment: &Environment,
    report: &mut Report,
    terminal: &mut Terminal,
) -> Result<Rules, Failure> {
    let compat = environment.is("TOLLGATE_COMPAT", "reference");
    let hidden = if environment.is("RUNTIME_IGNOREDOTFILES", "true") { Which::Shown } else { Which::All };
    let there = Dir::new(&args.path).with(hidden);
    let here = Dir::new(&args.path).with(if compat { hidden } else { Which::default() });
    let unreadable = |why: DirError| Failure::usage(why.to_string());
    let (there, here) = (Reading::of(&there).map_err(unreadable)?, Reading::of(&here).map_err(unreadable)?);
    let (names, read) = (there.list(), here.list());
    let mut unread: Vec<String> = names.iter().filter(|name| !read.contains(name)).cloned().collect();
    let has = |word: &[u8]| {
        let bytes = |name: &String| there.read(name).unwrap_or_default();
        names.iter().any(|name| bytes(name).windows(word.len()).any(|part| part == word))
    };
    let found = Rules {
        stars: has(b"*"),
        values_in_metrics: has(b"value_to_metric") || has(b"detailed_metric"),
        unread: unread.len(),
    };
    let dialect = Dialect {
        compat,
        on_store_failure: FailureMode::Error,
        merge_domains: environment.is("MERGE_DOMAIN_CONFIG", "true"),
        ..Dialect::default()
    };
    match compile(&there, dialect).and_then(|_| compile(&here, dialect)) {
        Ok(compiled) => {
            let counts = compiled.rules.counts();
            let limits = count(counts.limits, "limit");
            terminal
                .line(format!("rules  {limits} in {}: read as they are", count(counts.domains, "domain")));
            if !compiled.warnings.is_empty() {
                terminal.line(indented(&compiled.warnings.to_string()));
            }
        }
        Err(mistakes) => {
            terminal.line(format!("rules  {}: refused", count(names.len(), "file")));
            let mistakes = mistakes.to_string();
            // Their mistakes say why they are not meant to be read.
            unread.retain(|name| !mistakes.contains(&format!("--> {name}:")));
            report.cannot.push(format!("rules that are refused, as in the reference:\n{mistakes}"));
        }
    }
    if !unread.is_empty() {
        terminal.line(format!("  not read here, for their names: {}", unread.join(", ")));
    }
    Ok(found)
}

/// Sorts the variables: what works, what is not needed, what nobody knows, what is wrong.
fn variables(environment: &Environment, report: &mut Report, terminal: &mut Terminal) {
    let known = &environment.known;
    // Whatever their values are: one that asks for nothing is needed as little.
    let unneeded = |name: &str| !ignored([(name, "1")]).is_empty();
    let names = || known.keys().chain(environment.unseen.keys()).map(String::as_str);
    let wrong = wrong_values(known);
    let stays: Vec<&str> =
        names().filter(|name| is_ours(name) && wrong.iter().all(|why| why.name != *name)).collect();
    let not_needed: Vec<&str> = names().filter(|name| unneeded(name)).collect();
    let strange: Vec<&str> =
        names().filter(|name| !is_ours(name) && ignored([(*name, "1")]).is_empty()).collect();
    let mut slips = slips(strange.iter().copied());
    slips.retain(|slip| slip.meant.is_some());
    terminal.line(format!("environment  {}", count(known.len() + environment.unseen.len(), "variable")));
    for (what, names) in [("stays", stays), ("needed no more", not_needed), ("known to neither", strange)] {
        if !names.is_empty() {
            terminal.line(format!("  {what}: {}", names.join(", ")));
        }
    }
    if !slips.is_empty() {
        terminal.line(format!("  misspelt: {}", told(&slips)));
    }
    for (name, from) in &environment.unseen {
        terminal.line(format!("  not seen: {name} ({from})"));
    }
    report.cannot.extend(wrong.iter().map(ToString::to_string));
}

/// Every value that the service would refuse.
fn wrong_values(known: &BTreeMap<String, String>) -> Vec<SettingsError> {
    let mut given: BTreeMap<&str, &str> = known.iter().map(|(name, value)| (&**name, &**value)).collect();
    let mut wrong = Vec::new();
    loop {
        let raw = RawSettings::of(given.iter().map(|(name, value)| (*name, *value)));
        let Err(why) = Settings::compile(&raw) else { return wrong };
        // Without it the next one shows; one that is missing cannot be taken away.
        let is_last = given.remove(why.name).is_none();
        wrong.push(why);
        if is_last {
            return wrong;
        }
    }
}

/// Prints what was found, and says so in the exit code.
fn conclude(report: &Report, environment: &Environment, terminal: &mut Terminal) -> u8 {
    let paint = terminal.paint();
    if !report.differs.is_empty() {
        terminal.line(format!("\n{}", paint.strong("differs")));
    }
    for Difference { what, there, here, keep } in &report.differs {
        terminal.line(format!("  {what}\n    there  {there}\n    here   {here}\n    keep   {keep}"));
    }
    if !report.cannot.is_empty() {
        terminal.line(format!("\n{}", paint.bad("cannot be taken over")));
    }
    for line in &report.cannot {
        terminal.line(indented(line));
    }
    if report.differs.iter().any(|row| row.keep.starts_with("compat")) {
        terminal.line("\nTOLLGATE_COMPAT=reference (compat) keeps all of the old answers.");
    }
    if environment.has("REDIS_URL") && !environment.is("KEY_FORMAT", "reference") {
        terminal.line("\nFor the time that both run, KEY_FORMAT=reference lets them share every budget.");
    }
    match (report.cannot.is_empty(), report.differs.is_empty()) {
        (false, _) => EXIT_FAILED,
        (true, false) => EXIT_NO,
        (true, true) => {
            terminal.line("\nnothing to do");
            0
        }
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
