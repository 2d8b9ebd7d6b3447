//! `tollgate check`: whether a directory of rules would be loaded, for editors, pull requests and pipelines.

use std::io::IsTerminal;

use clap::Args;

use super::{
    Failure,
    rules::{self, Loaded, RuleSettings},
    terminal::{Paint, Terminal, count},
};
use crate::rules::{Level, Mistakes};

#[derive(Args, Clone, Debug)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    dir: rules::DirArg,

    /// Let warnings fail, too
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    settings: RuleSettings,
}

/// Prints how many there are.
///
/// # Errors
/// The mistakes, rendered, or why the directory cannot be read.
pub(super) fn run(args: &CheckArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let settings = args.settings.compile()?;
    let Loaded { compiled, files } = rules::load(&args.dir, &settings)?;
    let warnings = &compiled.warnings;
    let paint = Paint::where_wanted(std::io::stderr().is_terminal());
    if !warnings.is_empty() {
        eprintln!("{}\n", rendered(paint, warnings));
    }
    if files == 0 {
        let warning = paint.warning("warning:");
        eprintln!("{warning} there are no rule files (*.yaml, *.yml): every request would pass\n");
    }
    // A note says what is legal and often meant, such as rules without a default.
    let failing = warnings.iter().filter(|warning| warning.level == Level::Warning).count();
    let failing = failing + usize::from(files == 0);
    if args.strict && failing > 0 {
        return Err(Failure::mistakes(format!("{} (--strict)", count(failing, "warning"))));
    }
    let counts = compiled.rules.counts();
    terminal.line(format!(
        "{}, {}, {}",
        count(counts.domains, "domain"),
        count(counts.limits, "limit"),
        count(counts.tenants, "tenant")
    ));
    Ok(())
}

/// Mistakes with their first words painted.
pub(super) fn rendered(paint: Paint, mistakes: &Mistakes) -> String {
    let text = mistakes.to_string();
    let painted = text.lines().map(|line| {
        for (word, painted) in [
            ("error:", paint.bad("error:")),
            ("warning:", paint.warning("warning:")),
            ("note:", paint.strong("note:")),
        ] {
            if let Some(rest) = line.strip_prefix(word) {
                return format!("{painted}{}", paint.strong(rest));
            }
        }
        line.to_owned()
    });
    painted.collect::<Vec<_>>().join("\n")
}
