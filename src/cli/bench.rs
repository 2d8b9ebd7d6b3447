//! `tollgate bench`: a load on a running service, and what becomes of it.
//!
//! A load generator is easy to write so that it flatters:
//!
//! - **It waits for answers.** While the service stalls it sends nothing, and so measures one slow request where callers
//!   would have met a thousand. With `--rate` requests have times of their own, and a latency begins when its request
//!   *should* have been sent (see `schedule`); a request that nobody could send in time counts as one that timed out.
//! - **It costs more than what it measures.** This one speaks HTTP/2 from one thread, with requests that are encoded but
//!   for their key (see `connection`, `question`), tells its own CPU a request, and warns when it was the bound.
//! - **It counts errors as fast answers.** They are counted apart, by kind, with an example of each; only who waited in
//!   vain is a latency.
//! - **One run on one day** is mostly the machine. `bench compare` lets two services take turns, and gives the ratio.
//!
//! Any service that speaks `envoy.service.ratelimit.v3` can be asked.

mod target;
mod load;
mod question;
mod keys;
mod schedule;
mod connection;
mod worker;
mod tally;
mod cpu;
mod measure;
mod figures;
mod chart;
mod compare;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};
use serde_json::json;

use super::{EXIT_FAILED, Failure, connect::Service, terminal::Terminal};
use cpu::Process;
use figures::Figures;
use load::{LoadArgs, Pace, Plan};
use measure::{Interrupt, measure};

#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,

    #[command(flatten)]
    one: WithoutCommand,
}

/// What is there when no command is. (`Option<OneArgs>` would do, if clap saw through what is flattened in turn.)
#[derive(Clone, Debug)]
struct WithoutCommand(Option<OneArgs>);

#[derive(Clone, Debug, Subcommand)]
enum BenchCommand {
    /// Let two services take turns under the same load, and tell the ratios
    Compare(Box<compare::CompareArgs>),
}

#[derive(Args, Clone, Debug)]
struct OneArgs {
    #[command(flatten)]
    service: Service,

    #[command(flatten)]
    load: LoadArgs,

    /// Tell the CPU a request of this process, too; several times: of each, such as the service and its Redis
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
}

impl FromArgMatches for WithoutCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // Without a command an address is required.
        let given = matches.contains_id("addr");
        given.then(|| OneArgs::from_arg_matches(matches)).transpose().map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for WithoutCommand {
    fn augment_args(command: clap::Command) -> clap::Command {
        OneArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        OneArgs::augment_args_for_update(command)
    }
}

/// The exit code: 0, or 2 when requests were not answered.
///
/// # Errors
/// Wrong flags, or a service that cannot be reached.
pub(super) fn run(args: &BenchArgs, terminal: &mut Terminal) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| Failure::call(format!("the system gives no runtime: {why}")))?;
    runtime.block_on(async {
        match (&args.command, &args.one.0) {
            (Some(BenchCommand::Compare(args)), _) => compare::run(args, terminal).await,
            (None, Some(args)) => one(args, terminal).await,
            (None, None) => Err(Failure::usage("bench wants an address, a domain and a descriptor")),
        }
    })
}

async fn one(args: &OneArgs, terminal: &mut Terminal) -> Result<u8, Failure> {
    let plan = args.load.plan(&args.service)?;
    let processes = processes(&args.pids)?;
    let mut interrupt = Interrupt::new()?;
    let measured = measure(&plan, &processes, &mut interrupt, "").await?;
    let figures = figures(&plan, &processes, &measured);
    if args.load.ask.json {
        let mut told = json!({"address": args.service.shown(), "load": args.load.to_json(&plan)});
        told["result"] = json!(figures);
        terminal.line(format!("{told:#}"));
    } else {
        terminal.line(format!("{}: {}\n", args.service.shown(), args.load.told(&plan)));
        figures.show(terminal, &measured.tally);
    }
    Ok(code(&[figures]))
}

fn figures(plan: &Plan, processes: &[Process], measured: &measure::Measured) -> Figures {
    Figures::of(measured, processes, plan.threads, matches!(plan.pace, Pace::Rate { .. }))
}

fn processes(pids: &[u32]) -> Result<Vec<Process>, Failure> {
    pids.iter().map(|&pid| Process::of(pid)).collect::<Result<_, _>>().map_err(Failure::usage)
}

/// Whoever runs it in a pipeline wants to know that not all was answered.
fn code(runs: &[Figures]) -> u8 {
    if runs.iter().any(|figures| figures.errors > 0) { EXIT_FAILED } else { 0 }
}
