//! `tollgate bench compare A B`: two services under the same load, in turn.
//!
//! A B A B …, so that a machine that slows down, or a neighbour who wakes up, meets both. Each figure is the median of
//! its rounds; a ratio is the median of the rounds' ratios, each of a pair that ran one after the other, and stands beside
//! the smallest and the largest of them, which say how far to trust it.

use clap::Args;
use serde_json::{Value, json};

use super::{
    super::{
        Failure,
        connect::{At, Service, Tls},
        terminal::{Terminal, columns, count},
    },
    code,
    cpu::Process,
    figures,
    figures::{Figures, grouped, three_digits, time},
    load::{LoadArgs, Plan},
    measure::{Interrupt, measure},
    processes,
};

/// Rounds at most: a day of them.
const ROUNDS_MAX: u64 = 10_000;

#[derive(Args, Clone, Debug)]
pub(super) struct CompareArgs {
    /// Where the one service listens for gRPC
    a: At,

    /// Where the other does, which the ratios are to
    b: At,

    #[command(flatten)]
    tls: Tls,

    #[command(flatten)]
    load: LoadArgs,

    /// How many turns each has
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,

    /// Tell the CPU a request of A's process, too; several times: of each. The first of A is compared with the first of
    /// B, such as the services, and the second with the second, such as their Redis
    #[arg(long, value_name = "PID")]
    pid_a: Vec<u32>,

    /// Of B's process
    #[arg(long, value_name = "PID")]
    pid_b: Vec<u32>,
}

/// One of the two, and its turns.
struct Side {
    name: &'static str,
    plan: Plan,
    processes: Vec<Process>,
    turns: Vec<Figures>,
}

/// The exit code: 0, or 2 when requests were not answered.
///
/// # Errors
/// Wrong flags, or a service that cannot be reached.
pub(super) async fn run(args: &CompareArgs, terminal: &mut Terminal) -> Result<u8, Failure> {
    let side = |name, at: &At, pids: &[u32]| {
        let plan = args.load.plan(&Service::new(at.clone(), args.tls.clone()))?;
        Ok(Side { name, plan, processes: processes(pids)?, turns: Vec::new() })
    };
    let mut sides = [side("A", &args.a, &args.pid_a)?, side("B", &args.b, &args.pid_b)?];
    let mut interrupt = Interrupt::new()?;
    'rounds: for round in 1..=args.rounds {
        for side in &mut sides {
            let title = format!("round {round} of {}, {}: ", args.rounds, side.name);
            let measured = measure(&side.plan, &side.processes, &mut interrupt, &title).await?;
            // A turn that was cut short compares with nothing.
            if measured.interrupted {
                break 'rounds;
            }
            side.turns.push(figures(&side.plan, &side.processes, &measured));
        }
    }
    let rounds = sides[1].turns.len();
    if rounds == 0 {
        return Err(Failure::call("interrupted before both had a turn"));
    }
    sides[0].turns.truncate(rounds);
    let rows = rows(&sides);
    if args.load.ask.json {
        terminal.line(format!("{:#}", to_json(args, &sides, &rows)));
    } else {
        show(args, terminal, &sides, &rows);
    }
    Ok(code(&sides.map(|side| side.turns).concat()))
}

/// What is compared, and how it is said.
struct Row {
    name: String,
    /// In JSON.
    key: String,
    say: fn(f64) -> String,
    median: [Option<f64>; 2],
    /// Of the rounds' ratios: the median, the smallest, the largest.
    ratio: Option<[f64; 3]>,
}

impl Row {
    fn new(
        name: &str,
        key: &str,
        say: fn(f64) -> String,
        sides: &[Side; 2],
        of: impl Fn(&Figures) -> Option<f64>,
    ) -> Self {
        let values: [Vec<Option<f64>>; 2] =
            [0, 1].map(|side: usize| sides[side].turns.iter().map(&of).collect());
        let ratio = |(a, b): (&Option<f64>, &Option<f64>)| (*b != Some(0.0)).then_some((*a)? / (*b)?);
        let mut ratios: Vec<f64> = values[0].iter().zip(&values[1]).filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        let ends = ratios.first().copied().zip(ratios.last().copied());
        Self {
            name: name.into(),
            key: key.into(),
            say,
            median: values.map(|values| median(values.into_iter().flatten().collect())),
            ratio: median(ratios).zip(ends).map(|(median, (least, most))| [median, least, most]),
        }
    }
}

fn rows(sides: &[Side; 2]) -> Vec<Row> {
    let row = |name, key, say, of: fn(&Figures) -> Option<f64>| Row::new(name, key, say, sides, of);
    let mut rows = vec![
        row("requests a second", "requestsPerSecond", grouped, |f| Some(f.requests_per_second)),
        row("latency p50", "latencyUsP50", time, |f| Some(f.latency_us.p50)),
        row("latency p90", "latencyUsP90", time, |f| Some(f.latency_us.p90)),
        row("latency p99", "latencyUsP99", time, |f| Some(f.latency_us.p99)),
        row("latency p999", "latencyUsP999", time, |f| Some(f.latency_us.p999)),
        row("latency max", "latencyUsMax", time, |f| Some(f.latency_us.max)),
        row("granted", "granted", grouped, |f| Some(f.granted as f64)),
        row("refused", "refused", grouped, |f| Some(f.refused as f64)),
        row("errors", "errors", grouped, |f| Some(f.errors as f64)),
    ];
    let [a, b] = [0, 1].map(|side: usize| &sides[side].processes);
    for at in 0..a.len().max(b.len()) {
        let name = |of: &[Process]| of.get(at).map_or("?".into(), |process| process.name.clone());
        let (a, b) = (name(a), name(b));
        let who = if a == b { a } else { format!("{a} / {b}") };
        rows.push(Row::new(
            &format!("CPU a request, {who}"),
            &format!("cpuUsPerRequest{}", at + 1),
            time,
            sides,
            |f| f.processes.get(at)?.cpu_us_per_request,
        ));
    }
    rows.push(row("CPU a request, this client", "clientCpuUsPerRequest", time, |f| {
        f.client_cpu_us_per_request
    }));
    rows
}

fn show(args: &CompareArgs, terminal: &mut Terminal, sides: &[Side; 2], rows: &[Row]) {
    let paint = terminal.paint();
    terminal.line(format!("A: {}\nB: {}", sides[0].plan.target.shown(), sides[1].plan.target.shown()));
    terminal.line(format!("each: {}\n", args.load.told(&sides[0].plan)));
    let title = format!("medians of {}", count(sides[0].turns.len(), "round"));
    let mut cells = vec![[title, "A".into(), "B".into(), "A/B".into(), "from, to".into()]];
    for row in rows {
        let said = |value: Option<f64>| value.map_or("-".into(), row.say);
        let [ratio, range] = match row.ratio {
            Some([ratio, least, most]) => {
                [three_digits(ratio), format!("{} {}", three_digits(least), three_digits(most))]
            }
            None => ["-".into(), String::new()],
        };
        cells.push([row.name.clone(), said(row.median[0]), said(row.median[1]), ratio, range]);
    }
    for (at, row) in columns(&cells).into_iter().enumerate() {
        let [name, a, b, ratio, range] = row;
        let line = format!("{name}  {a}  {b}  {}  {}", paint.strong(ratio), paint.faint(range.trim_end()));
        terminal.line(if at == 0 { paint.faint(line.trim_end()) } else { line.trim_end().to_owned() });
    }
    for side in sides {
        if side.turns.iter().any(|turn| turn.client_busy.is_some_and(|busy| busy >= figures::BUSY)) {
            terminal.line(paint.warning(format!(
                "with {} this client was busy all the time: that service may do better than this; try more --threads",
                side.name
            )));
        }
        if let Some(error) = side.turns.iter().find_map(|turn| turn.error_kinds.first()) {
            terminal.line(paint.bad(format!("errors of {}, such as {error}", side.name)));
        }
    }
}

fn to_json(args: &CompareArgs, sides: &[Side; 2], rows: &[Row]) -> Value {
    let side = |at: usize| {
        let medians: Value = rows.iter().map(|row| (row.key.clone(), json!(row.median[at]))).collect();
        json!({"address": sides[at].plan.target.shown(), "medians": medians, "rounds": sides[at].turns})
    };
    let ratio = |row: &Row| {
        let ratio = row.ratio.map(|[median, min, max]| json!({"median": median, "min": min, "max": max}));
        (row.key.clone(), json!(ratio))
    };
    json!({
        "load": args.load.to_json(&sides[0].plan),
        "a": side(0),
        "b": side(1),
        "ratios": rows.iter().map(ratio).collect::<Value>(),
    })
}

/// The middle one, or the lower of the two; of none none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0]), Some(1.0));
        assert_eq!(median(vec![9.0, 1.0, 5.0]), Some(5.0));
    }
}
