//! The `tollgate` command.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    tollgate::cli::run(env::args_os())
}
