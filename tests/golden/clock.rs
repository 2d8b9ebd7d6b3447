//! Windows of the wall clock, which cases talk about.

use tollgate::clock::{Clock, SystemClock};

const UNITS: [(&str, u64); 7] = [
    ("SECOND", 1),
    ("MINUTE", 60),
    ("HOUR", 3_600),
    ("DAY", 86_400),
    ("WEEK", 7 * 86_400),
    ("MONTH", 30 * 86_400),
    ("YEAR", 365 * 86_400),
];

/// A case about hours does not begin so near the end of one.
const NEAR_S: u64 = 20;

/// From when to when something took place, in whole seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Span {
    /// `R` where so many seconds lead to the end of the unit's window, seen from some time in the span. Whole seconds and
    /// fractions are both right.
    pub(crate) fn reset(self, seconds: f64, unit: &str) -> String {
        let length = length(unit);
        let ends = |now: u64| length.is_some_and(|s| ((s - now % s) as f64 - seconds).abs() < 1.0);
        if (self.from..=self.to).any(ends) { "R".to_owned() } else { format!("{seconds}s") }
    }
}

pub(crate) fn seconds() -> u64 {
    SystemClock.now().0 / 1_000_000
}

fn length(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, length)| *length)
}

/// Which window of a unit it is.
pub(crate) fn window(unit: &str) -> u64 {
    seconds() / length(unit).unwrap()
}

/// Whether there is time before the window ends that a case is about: an hour, unless it says a shorter one.
pub(crate) fn is_calm(unit: Option<&str>) -> bool {
    let now_us = SystemClock.now().0;
    let within = |s: u64| now_us / 1_000_000 % s;
    let early = match unit {
        Some("SECOND") => now_us % 1_000_000 < 250_000,
        Some("MINUTE") => within(60) < 50,
        _ => true,
    };
    early && within(3_600) < 3_600 - NEAR_S
}
