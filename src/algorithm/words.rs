//! States as four words, for stores that keep a million of them: an enum of the same takes five.

use super::{FixedWindow, Gcra, SlidingWindow, State, TokenBucket};

/// The kind of a state stands in the lowest bits of the first word. What stands above is a time or a count, below 2^54.
const KIND_BITS: u32 = 3;
const KIND: u64 = (1 << KIND_BITS) - 1;

impl State {
    /// The same in four words, for [`State::from_words`].
    pub(crate) fn to_words(self) -> [u64; 4] {
        let (kind, [first, rest @ ..]) = match self {
            Self::TokenBucket(s) => (0, s.words()),
            Self::Gcra(s) => (1, s.words()),
            Self::SlidingWindow(s) => (2, s.words()),
            Self::FixedWindow(s) => (3, s.words()),
            Self::Plain(count) => (4, [count, 0, 0, 0]),
        };
        debug_assert!(first < 1 << 54, "{first} is no time and no count");
        let [second, third, fourth] = rest;
        [first << KIND_BITS | kind, second, third, fourth]
    }

    /// What [`State::to_words`] made four words of.
    pub(crate) fn from_words([first, a, b, c]: [u64; 4]) -> Self {
        let kind = first & KIND;
        let first = first >> KIND_BITS;
        match kind {
            0 => Self::TokenBucket(TokenBucket::from_words([first, a, b, c])),
            1 => Self::Gcra(Gcra::of(a, b, c, first)),
            2 => Self::SlidingWindow(SlidingWindow::of(first, a, b)),
            3 => Self::FixedWindow(FixedWindow::of(first, a)),
            _ => Self::Plain(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::arith::TIME_MAX_US,
        limit::{COUNT_MAX, WAIT_MAX_US},
    };

    #[test]
    fn a_state_comes_back_from_its_words_as_it_was() {
        for state in [
            State::TokenBucket(TokenBucket::of(-(COUNT_MAX as i64), 8, COUNT_MAX, TIME_MAX_US)),
            State::Gcra(Gcra::of(WAIT_MAX_US, 1, 4_294_967_295, TIME_MAX_US)),
            State::SlidingWindow(SlidingWindow::of(TIME_MAX_US, COUNT_MAX, 3)),
            State::FixedWindow(FixedWindow::of(TIME_MAX_US, COUNT_MAX)),
            State::Plain(0),
            State::Plain(COUNT_MAX),
        ] {
            assert_eq!(State::from_words(state.to_words()), state);
        }
    }
}
