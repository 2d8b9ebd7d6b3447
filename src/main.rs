//! The `tollgate` command.

use std::process::ExitCode;

use clap::{Args, FromArgMatches};
use tollgate::{
    server,
    settings::{EXIT_USAGE, RawSettings, Settings},
};

fn main() -> ExitCode {
    let command = RawSettings::augment_args(
        clap::Command::new("tollgate").about("A global rate limit service for Envoy"),
    );
    let raw = command.try_get_matches().and_then(|matches| RawSettings::from_arg_matches(&matches));
    let raw = match raw {
        Ok(raw) => raw,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match Settings::compile(&raw) {
        Ok(settings) => server::run(&settings),
        Err(error) => {
            eprintln!("tollgate: {error}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
