//! The units of the reference's form, as it writes them.

use super::{
    Unit,
    words::{list_of, nearest},
};

/// In the order of [`Unit::ALL`].
const WORDS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];

/// The reference's units, in any case (`config-each-unit`).
pub(super) fn unit_word(text: &str) -> Option<Unit> {
    let found = WORDS.iter().position(|word| text.eq_ignore_ascii_case(word))?;
    Some(Unit::ALL[found])
}

/// How to mend a unit that is none.
pub(super) fn unit_help(text: &str) -> String {
    match nearest(text, &WORDS) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("it is one of {}; or write a `window`, such as `30s`", list_of(&WORDS)),
    }
}

/// A unit's name as the reference's `/rlconfig` writes it.
pub(super) fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "SECOND",
        Unit::Minute => "MINUTE",
        Unit::Hour => "HOUR",
        Unit::Day => "DAY",
        Unit::Week => "WEEK",
        Unit::Month => "MONTH",
        Unit::Year => "YEAR",
    }
}
