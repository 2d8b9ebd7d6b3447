//! What a plain scalar reads as.
//!
//! The reference reads YAML 1.1 the way Go's YAML library does, and rule files rely on it without knowing: `010` is 8,
//! `1_000` a thousand, `yes` a boolean where a boolean stands and a text where a text stands. YAML 1.2 parsers differ in
//! each of these, so the rules are written down here, by the golden cases (`config-numbers-of-other-bases`,
//! `config-flags-in-all-spellings`, `config-scalars-as-values`).
//!
//! An unquoted fraction in a place for a text is refused, as in the reference (`config-fraction-as-value`): `1.10` and
//! `1.1` are one number and two texts, and only quotes say which was meant. So are numbers beyond 63 bits.

/// What a plain scalar reads as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reads {
    /// `~`, `null`, or nothing at all.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites, in the usual capitals.
    Bool(bool),
    /// A whole number, decimal, hexadecimal, octal or binary, `_` ignored.
    Whole(i64),
    /// A number that a text may not be: a fraction, infinite, none, or beyond 63 bits.
    Other(f64),
    /// Anything else.
    Text,
}

/// Reads a plain scalar.
pub(super) fn read(text: &str) -> Reads {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Reads::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Reads::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Reads::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Reads::Other(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Reads::Other(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Reads::Other(f64::NEG_INFINITY),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Reads::Text;
    }
    let digits = text.replace('_', "");
    match whole(&digits) {
        Some(n) => i64::try_from(n).map_or(Reads::Other(n as f64), Reads::Whole),
        // Rust's own parser takes words such as `infinity`, which begin with no digit, sign or dot that got here.
        None if is_fraction(&digits) => match digits.parse::<f64>() {
            Ok(n) if n.is_finite() => Reads::Other(n),
            _ => Reads::Text,
        },
        None => Reads::Text,
    }
}

/// A whole number with its prefix. Go tries signed, then unsigned numbers of 64 bits.
fn whole(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // A second sign would be taken by the parser below.
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let n = i128::from_str_radix(digits, base).ok()?;
    let n = if negative { -n } else { n };
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&n).then_some(n)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_fraction(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let some = !before.is_empty() || !after.is_empty();
    let exponent_fits = exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent));
    some && digits(before) && digits(after) && exponent_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_in_the_reference() {
        for (text, n) in [
            ("0", 0),
            ("15", 15),
            ("010", 8),
            ("0o10", 8),
            ("0x10", 16),
            ("0b101", 5),
            ("-0b101", -5),
            ("1_000", 1000),
            ("+7", 7),
            ("-3", -3),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(read(text), Reads::Whole(n), "{text}");
        }
    }

    #[test]
    fn fractions_and_large_numbers_are_no_texts() {
        for text in [
            "1.5",
            "5.0",
            "1.",
            ".5",
            "1e3",
            "1E+3",
            "-2.5",
            "08",
            "09.1",
            "18446744073709551615",
            ".inf",
            ".nan",
        ] {
            assert!(matches!(read(text), Reads::Other(_)), "{text} {:?}", read(text));
        }
        assert!(matches!(read("99999999999999999999"), Reads::Other(_)));
    }

    #[test]
    fn the_rest_is_text() {
        for text in [
            "1:30",
            "12:30:45",
            "2026-01-02",
            "10.0.0.1",
            "1.5.2",
            "0x",
            "0xG",
            "-",
            "+",
            ".",
            "1e",
            "--1",
            "+-1",
            "0x-1",
            "1k",
            "tRue",
            "nULL",
            "_1",
            "30s",
            "10/s",
            "e3",
            "1e999",
        ] {
            assert_eq!(read(text), Reads::Text, "{text}");
        }
    }
}
