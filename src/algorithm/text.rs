//! What stands in Redis, read back.
//!
//! `Display` writes a state, `scripts/spend.lua` writes the same, and whoever reads either must take exactly the texts
//! that the script takes, by the same bounds: within them nothing that is done with a state leaves the integers that
//! doubles hold.

use super::{FixedWindow, Gcra, SlidingWindow, State, TokenBucket, arith::TIME_MAX_US};
use crate::limit::{COUNT_MAX, WAIT_MAX_US};

/// No state is a longer text; a count of a thousand digits is nobody's.
const TEXT_MAX: usize = 80;

impl State {
    /// The state of a text that a store holds, or `None` when no Tollgate wrote it. A plain count may be another's, and
    /// more than we would count.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_MAX)?;
        let Some((letter, rest)) = text.split_once(' ') else { return plain(text) };
        match letter {
            "b" => {
                let (overdrawn, rest) = rest.strip_prefix('-').map_or((false, rest), |rest| (true, rest));
                let [tokens, part, of, at] = numbers(rest)?;
                let bound = if overdrawn { COUNT_MAX } else { WAIT_MAX_US };
                let tokens = i64::try_from(tokens).ok().filter(|_| tokens <= bound)?;
                let tokens = if overdrawn { -tokens } else { tokens };
                part_of(part, of, at)?;
                Some(Self::TokenBucket(TokenBucket::of(tokens, part, of, at)))
            }
            "g" => {
                let [us, part, of, at] = numbers(rest)?;
                part_of(part, of, at)?;
                (us <= WAIT_MAX_US).then(|| Self::Gcra(Gcra::of(us, part, of, at)))
            }
            "s" => {
                let [start, this, last] = numbers(rest)?;
                let good = start <= TIME_MAX_US && this <= COUNT_MAX && last <= COUNT_MAX;
                good.then(|| Self::SlidingWindow(SlidingWindow::of(start, this, last)))
            }
            "f" => {
                let [start, count] = numbers(rest)?;
                let good = start <= TIME_MAX_US && count <= COUNT_MAX;
                good.then(|| Self::FixedWindow(FixedWindow::of(start, count)))
            }
            _ => None,
        }
    }
}

fn plain(text: &str) -> Option<State> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Digits that are no number are too many of them.
    digits.then(|| State::Plain(text.parse().unwrap_or(COUNT_MAX).min(COUNT_MAX)))
}

fn part_of(part: u64, of: u64, at: u64) -> Option<()> {
    (part < of && of <= COUNT_MAX && at <= TIME_MAX_US).then_some(())
}

/// Exactly so many numbers, one blank between two.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut all = text.split(' ');
    let mut numbers = [0; N];
    for number in &mut numbers {
        let digits = all.next()?;
        // A sign would parse, too.
        *number = digits.parse().ok().filter(|_| digits.as_bytes()[0].is_ascii_digit())?;
    }
    all.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_it_was_written() {
        for text in ["b 5 0 1 100", "b -5 8 9 100", "g 7 1 2 3", "s 1 2 3", "f 1 2", "0", "17"] {
            assert_eq!(State::parse(text.as_bytes()).map(|state| state.to_string()).as_deref(), Some(text));
        }
        assert_eq!(State::parse(b"99999999999999999999999"), Some(State::Plain(COUNT_MAX)));
    }

    #[test]
    fn what_we_did_not_write_is_no_state() {
        for text in [
            "",
            " ",
            "x",
            "b",
            "b ",
            "b 5 0 1",
            "b 5 0 1 2 3",
            "b +5 0 1 2",
            "b --5 0 1 2",
            "b 5 1 1 2",
            "b 5 0 0 2",
            "b 1e5 0 1 2",
            "b 5 0 1 9007199254740992",
            "b 4503599627370497 0 1 2",
            "b -562949953421312 0 1 2",
            "g -1 0 1 2",
            "g 5 0 562949953421312 2",
            "s 1 2",
            "s 1 2 562949953421312",
            "f 1 +2",
            "f 1  2",
            "f 1 2 ",
            "-1",
            "+1",
            "1 ",
        ] {
            assert_eq!(State::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(State::parse(b"f 1 \xff"), None);
    }
}
