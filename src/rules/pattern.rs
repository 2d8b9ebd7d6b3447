//! Patterns: texts with `*`, each of which stands for any bytes, none included.
//!
//! Only the star is special, as in the reference; nothing escapes it. What stands before the first star must begin the
//! value, what stands after the last must end it, and the parts between are sought from left to right, each at its first
//! place after the one before. Taking the first place is enough: a later one leaves less room for the rest. So matching
//! never goes back, and costs at most the value's length times the pattern's (values are a client's choice, patterns are
//! not).

/// A text with at least one star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// As written.
    text: Box<[u8]>,
    /// Where the first star stands, and where what follows the last star begins.
    first: usize,
    after_last: usize,
}

impl Pattern {
    /// `None` where the text has no star.
    pub(super) fn new(text: &[u8]) -> Option<Self> {
        let first = text.iter().position(|byte| *byte == b'*')?;
        let after_last = text.iter().rposition(|byte| *byte == b'*').map_or(text.len(), |last| last + 1);
        Some(Self { text: text.into(), first, after_last })
    }

    /// As written.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether a value fits.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let (prefix, suffix) = (&self.text[..self.first], &self.text[self.after_last..]);
        let Some(rest) = value.strip_prefix(prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(suffix) else { return false };
        if self.after_last - self.first == 1 {
            return true;
        }
        for part in self.text[self.first..self.after_last].split(|byte| *byte == b'*') {
            let Some(at) = find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

/// Where `part` stands first.
fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let Some((first, more)) = part.split_first() else { return Some(0) };
    let last = text.len().checked_sub(part.len())?;
    (0..=last).find(|at| text[*at] == *first && text[at + 1..].starts_with(more))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::new(pattern.as_bytes()).unwrap().matches(value.as_bytes())
    }

    /// The golden cases of 03-wildcards, by name.
    #[test]
    fn stars_match_as_in_the_reference() {
        for (case, pattern, fits, does_not) in [
            ("star-at-the-end", "/api/*", &["/api/a", "/api/"][..], &["/api", "/web/api/a"][..]),
            ("star-at-the-start", "*.pdf", &["/a.pdf", ".pdf"], &["/a.pdf.txt"]),
            (
                "star-in-the-middle",
                "/users/*/orders",
                &["/users/1/orders", "/users/1/2/orders", "/users//orders"],
                &["/users/orders", "/users/1/orders/2"],
            ),
            (
                "several-stars",
                "/a*b*c",
                &["/abc", "/a1b2c", "/acbc", "/abbc", "/a-c-b-c"],
                &["/acb", "/ac", "/abcd"],
            ),
            ("several-stars", "*.eu.*", &["x.eu.example", ".eu."], &["eu.example"]),
            ("several-stars", "a**b", &["ab", "a-b"], &["a-c"]),
            ("star-parts-do-not-overlap", "aba*aba", &["abaaba", "aba-aba"], &["aba", "ababa"]),
            ("star-parts-do-not-overlap", "x*y*y", &["xyy", "x1y2y"], &["xy"]),
            ("star-alone", "*", &["", "a"], &[]),
        ] {
            for value in fits {
                assert!(matches(pattern, value), "{case}: {pattern} {value}");
            }
            for value in does_not {
                assert!(!matches(pattern, value), "{case}: {pattern} {value}");
            }
        }
        assert!(Pattern::new(b"plain").is_none());
    }

    /// All ways to cut the value, tried out.
    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => (0..=value.len()).any(|skip| naive(rest, &value[skip..])),
            Some((byte, rest)) => {
                value.split_first().is_some_and(|(first, more)| first == byte && naive(rest, more))
            }
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_trying_everything(pattern in "[ab*]{0,6}\\*[ab*]{0,6}", value in "[ab*]{0,12}") {
            let compiled = Pattern::new(pattern.as_bytes()).unwrap();
            prop_assert_eq!(compiled.matches(value.as_bytes()), naive(pattern.as_bytes(), value.as_bytes()));
        }
    }
}
