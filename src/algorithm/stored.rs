//! What stands in Redis, read back.
//!
//! `scripts/spend.lua` writes the states, and whoever reads one must take exactly those that the script takes, by the same
//! bounds: within them nothing that is done with a state leaves the integers that doubles hold.
//!
//! A state is the letter of its algorithm and its numbers, each a double, little end first: what Lua counts with, the same
//! on all machines, and read and written by one function call each, where texts took half of the script's time. The last
//! number is until when the server keeps the state, which only the script needs.
//!
//! ```text
//! b  tokens  part  of  at  kept      a token bucket
//! g  ahead   part  of  at  kept      a GCRA
//! s  start   this  last    kept      a sliding window
//! f  start   count         kept      a fixed window
//! ```
//!
//! A plain count is digits, as the reference writes it.

use super::{FixedWindow, Gcra, SlidingWindow, State, TokenBucket, arith::TIME_MAX_US};
use crate::limit::{COUNT_MAX, WAIT_MAX_US};

/// No plain count is longer; one of a thousand digits is nobody's.
const PLAIN_MAX: usize = 80;

impl State {
    /// How many bytes a state has that begins with this letter. `None` for a plain count, and what is no state.
    pub fn stored_bytes(letter: u8) -> Option<usize> {
        Some(match letter {
            b'b' | b'g' => 41,
            b's' => 33,
            b'f' => 25,
            _ => return None,
        })
    }

    /// The state that a store holds, or `None` when no Tollgate wrote it. A plain count may be another's, and more than
    /// we would count.
    pub fn parse(stored: &[u8]) -> Option<Self> {
        let (&letter, numbers) = stored.split_first()?;
        match letter {
            b'b' => {
                let [tokens, part, of, at, kept] = doubles(numbers)?;
                let tokens = match whole(tokens, WAIT_MAX_US) {
                    Some(tokens) => tokens as i64,
                    None => -(whole(-tokens, COUNT_MAX)? as i64),
                };
                let (part, of, at) = part_of(part, of, at, kept)?;
                Some(Self::TokenBucket(TokenBucket::of(tokens, part, of, at)))
            }
            b'g' => {
                let [us, part, of, at, kept] = doubles(numbers)?;
                let (part, of, at) = part_of(part, of, at, kept)?;
                Some(Self::Gcra(Gcra::of(whole(us, WAIT_MAX_US)?, part, of, at)))
            }
            b's' => {
                let [start, this, last, kept] = doubles(numbers)?;
                whole(kept, TIME_MAX_US)?;
                let (this, last) = (whole(this, COUNT_MAX)?, whole(last, COUNT_MAX)?);
                Some(Self::SlidingWindow(SlidingWindow::of(whole(start, TIME_MAX_US)?, this, last)))
            }
            b'f' => {
                let [start, count, kept] = doubles(numbers)?;
                whole(kept, TIME_MAX_US)?;
                let (start, count) = (whole(start, TIME_MAX_US)?, whole(count, COUNT_MAX)?);
                Some(Self::FixedWindow(FixedWindow::of(start, count)))
            }
            _ => plain(stored),
        }
    }
}

fn plain(stored: &[u8]) -> Option<State> {
    let text = std::str::from_utf8(stored).ok().filter(|text| text.len() <= PLAIN_MAX)?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    // Digits that are no number are too many of them.
    digits.then(|| State::Plain(text.parse().unwrap_or(COUNT_MAX).min(COUNT_MAX)))
}

fn part_of(part: f64, of: f64, at: f64, kept: f64) -> Option<(u64, u64, u64)> {
    whole(kept, TIME_MAX_US)?;
    let of = whole(of, COUNT_MAX)?;
    Some((whole(part, of.checked_sub(1)?)?, of, whole(at, TIME_MAX_US)?))
}

/// Exactly so many numbers.
fn doubles<const N: usize>(bytes: &[u8]) -> Option<[f64; N]> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let numbers: &[[u8; 8]; N] = numbers.try_into().ok()?;
    rest.is_empty().then(|| numbers.map(f64::from_le_bytes))
}

/// A number that is a whole one from 0 to `max`, which is below 2^53.
fn whole(number: f64, max: u64) -> Option<u64> {
    (number >= 0.0 && number <= max as f64 && number.fract() == 0.0).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(letter: u8, numbers: &[f64]) -> Vec<u8> {
        let mut bytes = vec![letter];
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes
    }

    const TIME_BEYOND: f64 = (1_u64 << 53) as f64;
    const COUNT_BEYOND: f64 = (COUNT_MAX + 1) as f64;
    const WAIT_BEYOND: f64 = (WAIT_MAX_US + 1) as f64;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        for (letter, numbers, text) in [
            (b'b', &[5., 0., 1., 100., 200.][..], "b 5 0 1 100"),
            (b'b', &[-5., 8., 9., 100., 200.], "b -5 8 9 100"),
            (b'g', &[7., 1., 2., 3., 4.], "g 7 1 2 3"),
            (b's', &[1., 2., 3., 4.], "s 1 2 3"),
            (b'f', &[1., 2., 3.], "f 1 2"),
        ] {
            let bytes = stored(letter, numbers);
            assert_eq!(State::stored_bytes(letter), Some(bytes.len()));
            assert_eq!(State::parse(&bytes).map(|state| state.to_string()).as_deref(), Some(text));
        }
        for text in ["0", "17"] {
            assert_eq!(State::parse(text.as_bytes()).map(|state| state.to_string()).as_deref(), Some(text));
        }
        assert_eq!(State::parse(b"99999999999999999999999"), Some(State::Plain(COUNT_MAX)));
    }

    #[test]
    fn what_we_did_not_write_is_no_state() {
        for text in ["", " ", "x", "b", "b 5 0 1 100", "-1", "+1", "1 ", "f 1 \u{e9}", &"1".repeat(81)] {
            assert_eq!(State::parse(text.as_bytes()), None, "{text:?}");
        }
        for (letter, good) in [
            (b'b', &[5., 0., 1., 100., 200.][..]),
            (b'g', &[7., 1., 2., 3., 4.]),
            (b's', &[1., 2., 3., 4.]),
            (b'f', &[1., 2., 3.]),
        ] {
            assert!(State::parse(&stored(letter, good)).is_some());
            assert_eq!(State::parse(&stored(letter, &good[1..])), None, "too short");
            assert_eq!(State::parse(&[&stored(letter, good)[..], b" "].concat()), None, "too long");
            for place in 0..good.len() {
                for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 0.5, -1e300, TIME_BEYOND] {
                    let mut numbers = good.to_vec();
                    numbers[place] = bad;
                    assert_eq!(State::parse(&stored(letter, &numbers)), None, "{letter} {numbers:?}");
                }
            }
        }
        for (letter, numbers) in [
            (b'b', &[5., 1., 1., 2., 3.][..]),
            (b'b', &[5., 0., 0., 2., 3.]),
            (b'b', &[WAIT_BEYOND, 0., 1., 2., 3.]),
            (b'b', &[-COUNT_BEYOND, 0., 1., 2., 3.]),
            (b'g', &[-1., 0., 1., 2., 3.]),
            (b'g', &[5., 0., COUNT_BEYOND, 2., 3.]),
            (b's', &[1., 2., COUNT_BEYOND, 3.]),
            (b'f', &[1., COUNT_BEYOND, 3.]),
            (b'f', &[1., -1., 3.]),
        ] {
            assert_eq!(State::parse(&stored(letter, numbers)), None, "{letter} {numbers:?}");
        }
    }
}
