//! What a run comes to: figures for people and for programs.

use std::{fmt, time::Duration};

use serde::Serialize;

use super::{
    super::terminal::{Terminal, columns},
    chart,
    cpu::Process,
    measure::Measured,
    tally::Tally,
};

/// From then on the client was busy all the time, and may be what bounds the figures.
pub(super) const BUSY: f64 = 0.9;

/// A run in figures. Latencies and CPU are microseconds.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    pub(super) seconds: f64,
    pub(super) requests: u64,
    pub(super) requests_per_second: f64,
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) errors: u64,
    pub(super) error_kinds: Vec<ErrorKind>,
    pub(super) latency_us: Latency,
    /// From when a request was due to when it was sent; only where a rate says when they are due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sent_late_us: Option<Latency>,
    /// In the order in which processes were named.
    pub(super) processes: Vec<ProcessCpu>,
    pub(super) client_cpu_us_per_request: Option<f64>,
    /// Of the threads that it has: 1 is busy all the time.
    pub(super) client_busy: Option<f64>,
    pub(super) interrupted: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ErrorKind {
    kind: String,
    count: u64,
    example: String,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, example } = self;
        write!(f, "{count} x {kind}: {example}")
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessCpu {
    pub(super) pid: u32,
    pub(super) name: String,
    /// `None` where nothing was answered, or it has ended.
    pub(super) cpu_us_per_request: Option<f64>,
}

impl Figures {
    /// `paced` says whether requests were due at times of their own.
    pub(super) fn of(measured: &Measured, processes: &[Process], threads: usize, paced: bool) -> Self {
        let Measured { tally, took, .. } = measured;
        let seconds = took.as_secs_f64();
        let each = |cpu: Option<Duration>| {
            let answers = tally.answers();
            cpu.filter(|_| answers > 0).map(|cpu| cpu.as_secs_f64() * 1e6 / answers as f64)
        };
        let process = |(process, cpu): (&Process, &Option<Duration>)| ProcessCpu {
            pid: process.pid,
            name: process.name.clone(),
            cpu_us_per_request: each(*cpu),
        };
        let error = |(kind, (count, example)): (_, &(u64, String))| ErrorKind {
            kind: format!("{kind}"),
            count: *count,
            example: example.clone(),
        };
        let busy = |cpu: Duration| (seconds > 0.0).then(|| cpu.as_secs_f64() / seconds / threads as f64);
        Self {
            seconds,
            requests: tally.answers() + tally.errors(),
            requests_per_second: if seconds > 0.0 { tally.answers() as f64 / seconds } else { 0.0 },
            granted: tally.granted,
            refused: tally.refused,
            errors: tally.errors(),
            error_kinds: tally.faults.iter().map(error).collect(),
            latency_us: Latency::of(&tally.latency),
            sent_late_us: paced.then(|| Latency::of(&tally.sent_late)),
            processes: processes.iter().zip(&measured.cpu).map(process).collect(),
            client_cpu_us_per_request: each(measured.own_cpu),
            client_busy: measured.own_cpu.and_then(busy),
            interrupted: measured.interrupted,
        }
    }

    /// All of it in words.
    pub(super) fn show(&self, terminal: &mut Terminal, tally: &Tally) {
        let paint = terminal.paint();
        let of_all = |count: u64| match self.requests {
            0 => String::new(),
            all => format!("{:.1} %", 100.0 * count as f64 / all as f64),
        };
        let per_second = format!("{} a second, in {}", grouped(self.requests_per_second), secs(self.seconds));
        let counts = columns(&[
            ["requests".into(), self.requests.to_string(), per_second],
            ["granted".into(), self.granted.to_string(), of_all(self.granted)],
            ["refused".into(), self.refused.to_string(), of_all(self.refused)],
            ["errors".into(), self.errors.to_string(), of_all(self.errors)],
        ]);
        for [what, count, more] in counts {
            let line = format!("{what}  {count}  {more}");
            let bad = what.trim_end() == "errors" && self.errors > 0;
            terminal.line(if bad { paint.bad(line.trim_end()) } else { line.trim_end().to_owned() });
        }
        for error in &self.error_kinds {
            terminal.line(format!("  {error}"));
        }
        self.show_times(terminal);
        chart::show(terminal, &tally.latency);
        self.show_cpu(terminal);
        if self.interrupted {
            terminal.line(paint.warning("interrupted: what was in flight is not counted"));
        }
        if self.client_busy.is_some_and(|busy| busy >= BUSY) {
            terminal.line(paint.warning(
                "this client was busy all the time: the service may do better than this; try more --threads",
            ));
        }
    }

    fn show_times(&self, terminal: &mut Terminal) {
        let row = |name: &str, latency: &Latency| {
            let Latency { p50, p90, p99, p999, max } = *latency;
            let [a, b, c, d, e] = [p50, p90, p99, p999, max].map(time);
            [name.to_owned(), a, b, c, d, e]
        };
        let names = ["", "p50", "p90", "p99", "p999", "max"].map(str::to_owned);
        let mut rows = vec![names, row("latency", &self.latency_us)];
        rows.extend(self.sent_late_us.iter().map(|late| row("of it, sent late", late)));
        terminal.line("");
        for row in columns(&rows) {
            terminal.line(row.join("  ").trim_end());
        }
    }

    fn show_cpu(&self, terminal: &mut Terminal) {
        let told = |us: Option<f64>| us.map_or("?".into(), |us| format!("{us:.2} µs a request"));
        let mut rows: Vec<[String; 3]> = self
            .processes
            .iter()
            .map(|of| ["CPU".into(), told(of.cpu_us_per_request), format!("{} (pid {})", of.name, of.pid)])
            .collect();
        if self.client_cpu_us_per_request.is_some() {
            let busy =
                self.client_busy.map(|busy| format!(", {:.0} % busy", busy * 100.0)).unwrap_or_default();
            let us = told(self.client_cpu_us_per_request);
            rows.push(["CPU".into(), us, format!("this client{busy}")]);
        }
        if !rows.is_empty() {
            terminal.line("");
        }
        for row in columns(&rows) {
            terminal.line(row.join("  ").trim_end());
        }
    }
}

impl Latency {
    fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let us = |nanos: u64| (nanos as f64 / 10.0).round() / 100.0;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        // A quantile is the end of its bucket, which may lie beyond the largest value.
        let max = us(histogram.max());
        let at = |quantile| f64::min(at(quantile), max);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max }
    }
}

/// Microseconds with three digits, as people say them.
pub(super) fn time(us: f64) -> String {
    let (number, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(number))
}

/// A number with three digits before or behind its point; more before it where it has more.
pub(super) fn three_digits(number: f64) -> String {
    let digits = match number {
        n if n < 9.995 => 2,
        n if n < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}")
}

/// A whole number with its thousands apart.
pub(super) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn secs(seconds: f64) -> String {
    format!("{} s", three_digits(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (us, told) in [
            (0.0, "0.00 µs"),
            (87.34, "87.3 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (12_345.0, "12.3 ms"),
            (999_600.0, "1.00 s"),
            (123_456_789.0, "123 s"),
        ] {
            assert_eq!(time(us), told);
        }
    }

    #[test]
    fn thousands_stand_apart() {
        for (number, told) in [(0.0, "0"), (999.4, "999"), (1_000.0, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(grouped(number), told);
        }
    }
}
