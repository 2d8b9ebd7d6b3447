//! The distribution of latencies, as bars.
//!
//! Two humps (answered here, asked in the store) or a long tail are seen at once, and hidden by any single figure. Rows
//! are steps of a factor of √2 or more, since latencies spread over powers of ten.

use hdrhistogram::Histogram;

use super::{
    super::terminal::{Terminal, columns},
    figures::time,
};

/// Rows at most, and cells of the longest bar.
const ROWS_MAX: usize = 12;
const WIDTH: usize = 40;

/// What part of a cell each of these fills, in eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// One row: from the last one's end up to `end`, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    end: f64,
    count: u64,
}

pub(super) fn show(terminal: &mut Terminal, latency: &Histogram<u64>) {
    let rows = rows(latency);
    if rows.is_empty() {
        return;
    }
    let most = rows.iter().map(|row| row.count).max().unwrap_or(1).max(1);
    let cells: Vec<[String; 3]> = rows
        .iter()
        .map(|row| {
            let share = format!("{:.2} %", 100.0 * row.count as f64 / latency.len() as f64);
            [format!("up to {}", time(row.end / 1e3)), share, bar(row.count, most)]
        })
        .collect();
    let paint = terminal.paint();
    terminal.line("");
    for [end, share, bar] in columns(&cells) {
        terminal.line(format!("  {end}  {share}  {}", paint.faint(bar.trim_end())).trim_end());
    }
}

/// From the fastest answer to the slowest, in equal factors.
fn rows(latency: &Histogram<u64>) -> Vec<Row> {
    if latency.is_empty() {
        return Vec::new();
    }
    let (min, max) = (latency.min().max(1) as f64, latency.max().max(1) as f64);
    let halves = ((max / min).log2() * 2.0).ceil().max(1.0);
    let step = (halves / ROWS_MAX as f64).ceil() / 2.0;
    let count = (halves / 2.0 / step).ceil() as usize;
    let mut begin = 0;
    (1..=count)
        .map(|row| {
            let end = if row == count { max } else { min * (step * row as f64).exp2() };
            let below = latency.count_between(begin, end as u64);
            begin = latency.next_non_equivalent(end as u64);
            Row { end, count: below }
        })
        .collect()
}

/// What is there is seen, however little it is.
fn bar(count: u64, most: u64) -> String {
    let eighths = (count as f64 / most as f64 * (WIDTH * 8) as f64).round() as usize;
    let eighths = eighths.max(usize::from(count > 0));
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(nanos: &[u64]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_max(3_600_000_000_000, 3).unwrap();
        nanos.iter().for_each(|&nanos| histogram.saturating_record(nanos));
        histogram
    }

    #[test]
    fn every_latency_is_in_one_row() {
        for nanos in [
            &[][..],
            &[5],
            &[0],
            &[1_000, 1_000],
            &[1_000, 1_500, 2_000, 4_000, 1_000_000],
            &[1, 3_600_000_000_000],
            &[100_000, 100_100, 100_200, 900_000_000],
        ] {
            let rows = rows(&histogram(nanos));
            assert!(rows.len() <= ROWS_MAX, "{nanos:?}: {rows:?}");
            assert_eq!(
                rows.iter().map(|row| row.count).sum::<u64>(),
                nanos.len() as u64,
                "{nanos:?}: {rows:?}"
            );
        }
    }

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        assert_eq!(bar(100, 100), "█".repeat(WIDTH));
        assert_eq!(bar(0, 100), "");
        assert_eq!(bar(1, 1_000_000), "▏");
        assert_eq!(bar(1, 2), "█".repeat(WIDTH / 2));
    }
}
