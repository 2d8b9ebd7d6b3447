//! The `tollgate` command: what people type, and what it ends with.
//!
//! | command | ends with |
//! |---|---|
//! | `serve`, or none | 0 after a signal, 1 when stopped by a second one or when the machine refuses something |
//! | `check DIR` | 0 clean, 1 mistakes |
//! | `explain DIR DOMAIN ...` | 0 explained, 1 mistakes in the rules |
//! | `call ADDR DOMAIN ...` | 0 allowed, 1 refused, 2 no answer |
//! | `bench ADDR DOMAIN ...`, `bench compare A B DOMAIN ...` | 0 all answered, 2 no service, or not all answered |
//! | `migrate DIR` | 0 nothing to do, 1 something differs, 2 something cannot be taken over |
//! | `doctor URL` | 0 fine, 1 something to mend, 2 not reached |
//! | `schema`, `completions SHELL` | 0 |
//! | a wrong flag, setting or path | 64, one line on stderr |
//!
//! What was asked for goes to stdout, and what is wrong to stderr. A reader who goes away (`| head`) ends a command
//! quietly.

mod terminal;
mod ask;
mod answer;
mod rules;
mod check;
mod explain;
mod connect;
mod call;
mod bench;
mod migrate;
mod doctor;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::{
    rules::SCHEMA,
    server,
    settings::{EXIT_USAGE, RawSettings, Settings},
};
use terminal::Terminal;

/// Mistakes in rules; a refused call.
const EXIT_NO: u8 = 1;

/// A call that got no answer.
const EXIT_FAILED: u8 = 2;

/// A global rate limit service for Envoy
#[derive(Parser, Debug)]
#[command(name = "tollgate", version, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    serve: RawSettings,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve; also what no command does
    Serve {
        #[command(flatten)]
        settings: RawSettings,
    },
    /// Tell whether a directory of rules would be loaded, with all mistakes in it
    Check(check::CheckArgs),
    /// Tell which rules a request meets and why, and what would be answered
    Explain(Box<explain::ExplainArgs>),
    /// Ask a running service, once or several times
    Call(Box<call::CallArgs>),
    /// Put a load on a running service, and tell its speed
    Bench(Box<bench::BenchArgs>),
    /// Tell what changes for a deployment of envoyproxy/ratelimit, or translate limitador's limits
    Migrate(migrate::MigrateArgs),
    /// Tell what is wrong with a store, and how to mend it
    Doctor(Box<doctor::DoctorArgs>),
    /// Print the JSON Schema of rule files, for editors
    Schema,
    /// Print completions for a shell: source <(tollgate completions bash)
    Completions {
        /// For which one
        shell: Shell,
    },
}

/// Why a command ends with another code than 0, in one line.
#[derive(Debug)]
struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    /// A wrong flag, setting or path.
    fn usage(line: impl Into<String>) -> Self {
        Self { code: EXIT_USAGE, line: line.into() }
    }

    /// Mistakes in rules.
    fn mistakes(line: impl Into<String>) -> Self {
        Self { code: EXIT_NO, line: line.into() }
    }

    /// A call that got no answer.
    fn call(line: impl Into<String>) -> Self {
        Self { code: EXIT_FAILED, line: line.into() }
    }
}

/// Runs the command that `args`, the program's name first, ask for.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = command().try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
    let Cli { command, serve } = match parsed {
        Ok(cli) => cli,
        Err(why) => {
            // Help and version are no failure; whether anybody reads them is not our business.
            let _ = why.print();
            return if why.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match command.unwrap_or(Command::Serve { settings: serve }) {
        Command::Serve { settings } => match Settings::compile(&settings) {
            Ok(settings) => server::run(&settings),
            Err(why) => end(Err(Failure::usage(why.to_string()))),
        },
        Command::Check(args) => print(|terminal| check::run(&args, terminal).map(|()| 0)),
        Command::Explain(args) => print(|terminal| explain::run(&args, terminal).map(|()| 0)),
        Command::Call(args) => {
            print(|terminal| call::run(&args, terminal).map(|refused| if refused { EXIT_NO } else { 0 }))
        }
        Command::Bench(args) => print(|terminal| bench::run(&args, terminal)),
        Command::Migrate(args) => print(|terminal| migrate::run(&args, terminal)),
        Command::Doctor(args) => print(|terminal| doctor::run(&args, terminal)),
        Command::Schema => print(|terminal| {
            terminal.line(SCHEMA.trim_end());
            Ok(0)
        }),
        Command::Completions { shell } => print(|terminal| {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            terminal.line(String::from_utf8_lossy(&script).trim_end());
            Ok(0)
        }),
    }
}

/// `-h` shows what there is; `--help` shows every setting of `serve`, too.
fn command() -> clap::Command {
    let short = |arg: clap::Arg| if arg.get_id() == "help" { arg } else { arg.hide_short_help(true) };
    Cli::command().mut_args(short)
}

fn print(command: impl FnOnce(&mut Terminal) -> Result<u8, Failure>) -> ExitCode {
    let mut terminal = Terminal::stdout();
    let ended = command(&mut terminal);
    match terminal.end() {
        Ok(()) => end(ended),
        Err(why) => end(ended.and(Err(Failure::call(format!("the output cannot be written: {why}"))))),
    }
}

fn end(ended: Result<u8, Failure>) -> ExitCode {
    match ended {
        Ok(code) => code.into(),
        Err(Failure { code, line }) => {
            eprintln!("tollgate: {line}");
            code.into()
        }
    }
}
