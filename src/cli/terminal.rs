//! What people see: colours where a person looks, none where a program reads, and numbers in human units.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::Duration,
};

/// Writes lines to stdout until nobody reads them any more.
pub(super) struct Terminal {
    out: io::StdoutLock<'static>,
    paint: Paint,
    ended: Option<io::Error>,
}

impl Terminal {
    pub(super) fn stdout() -> Self {
        let out = io::stdout().lock();
        let paint = Paint::where_wanted(out.is_terminal());
        Self { out, paint, ended: None }
    }

    /// Writes a line. After a failure it does nothing; see [`Terminal::end`].
    pub(super) fn line(&mut self, text: impl Display) {
        if self.ended.is_none() {
            self.ended = writeln!(self.out, "{text}").err();
        }
    }

    /// Whether there is a reader still, so that a long command can stop early.
    pub(super) fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    pub(super) fn paint(&self) -> Paint {
        self.paint
    }

    /// A reader who went away (`| head`) is no failure; a full disk is.
    ///
    /// # Errors
    /// Why not all was written.
    pub(super) fn end(mut self) -> io::Result<()> {
        match self.ended.take().map_or_else(|| self.out.flush(), Err) {
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    on: bool,
}

impl Paint {
    /// Only on a terminal, and not where `NO_COLOR` (<https://no-color.org>) or a dumb terminal says no.
    pub(super) fn where_wanted(is_terminal: bool) -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: is_terminal && !refused && !dumb }
    }

    pub(super) fn good(self, text: impl Display) -> String {
        self.with("1;32", text)
    }

    pub(super) fn bad(self, text: impl Display) -> String {
        self.with("1;31", text)
    }

    pub(super) fn warning(self, text: impl Display) -> String {
        self.with("1;33", text)
    }

    pub(super) fn strong(self, text: impl Display) -> String {
        self.with("1", text)
    }

    pub(super) fn faint(self, text: impl Display) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Cells in columns that are as wide as their widest cell. Colours come after padding, since their codes have no width.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<[String; N]> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let pad = |row: &[String; N]| std::array::from_fn(|column| format!("{:1$}", row[column], widths[column]));
    rows.iter().map(pad).collect()
}

/// A duration as people say it, rounded up: who waits that long is not too early.
pub(super) fn human(span: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    if us < 1_000 {
        return format!("{us} µs");
    }
    if us <= 999_000 {
        return format!("{} ms", us.div_ceil(1_000));
    }
    if us <= 9_900_000 {
        let tenths = us.div_ceil(100_000);
        return match tenths % 10 {
            0 => format!("{} s", tenths / 10),
            rest => format!("{}.{rest} s", tenths / 10),
        };
    }
    let seconds = us.div_ceil(1_000_000);
    let two = |large: u64, name: &str, small: u64, small_name: &str| {
        let (whole, rest) = match (seconds / large, (seconds % large).div_ceil(small)) {
            (whole, rest) if rest * small == large => (whole + 1, 0),
            both => both,
        };
        if rest == 0 { format!("{whole} {name}") } else { format!("{whole} {name} {rest} {small_name}") }
    };
    match seconds {
        0..120 => format!("{seconds} s"),
        120..HOUR => two(MINUTE, "min", 1, "s"),
        HOUR..DAY => two(HOUR, "h", MINUTE, "min"),
        _ => two(DAY, "d", HOUR, "h"),
    }
}

/// `1 rule`, `2 rules`.
pub(super) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        for (us, said) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1 ms"),
            (1_001, "2 ms"),
            (999_000, "999 ms"),
            (999_001, "1 s"),
            (3_140_000, "3.2 s"),
            (9_900_000, "9.9 s"),
            (9_900_001, "10 s"),
            (119_000_000, "119 s"),
            (119_000_001, "2 min"),
            (125_000_000, "2 min 5 s"),
            (3_599_000_001, "1 h"),
            (3_661_000_000, "1 h 2 min"),
            (86_399_000_000, "24 h"),
            (90_000_000_000, "1 d 1 h"),
            (172_799_000_000, "2 d"),
            (31_536_000_000_000, "365 d"),
        ] {
            assert_eq!(human(Duration::from_micros(us)), said, "{us} µs");
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "bb".into()], ["ünn".into(), String::new()]];
        assert_eq!(columns(&rows), [["a  ", "bb"], ["ünn", "  "]]);
    }

    #[test]
    fn nothing_is_painted_where_a_program_reads() {
        let (on, off) = (Paint { on: true }, Paint { on: false });
        assert_eq!((on.bad("x"), off.bad("x")), ("\x1b[1;31mx\x1b[0m".into(), "x".into()));
    }
}
