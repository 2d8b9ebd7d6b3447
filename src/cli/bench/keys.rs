//! Which key a request is about.
//!
//! Real callers are not alike: a few ask most of the time, and a long tail asks once a day. Zipf's law is the usual
//! model of that: the key of rank k is asked for 1/k^s times as often as the first. Uniform keys are the hard case for
//! caches, and the fair one for a comparison of stores.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, Zipf};

/// Keys from 0 to below a number, drawn at random and the same in each run of a seed.
#[derive(Debug)]
pub(super) struct Keys {
    random: Xoshiro256PlusPlus,
    law: Law,
}

#[derive(Debug)]
enum Law {
    Uniform(u64),
    Zipf(Zipf<f64>),
}

impl Keys {
    /// `keys` at least 1, `zipf` finite and above 0. `stream` tells threads of one seed apart.
    pub(super) fn new(keys: u64, zipf: Option<f64>, seed: u64, stream: usize) -> Self {
        let law = match zipf {
            // No other numbers come here, see `load`; where they did, uniform keys are keys too.
            Some(s) => Zipf::new(keys as f64, s).map_or(Law::Uniform(keys), Law::Zipf),
            None => Law::Uniform(keys),
        };
        // Any two numbers give streams that have nothing in common; seeds are small.
        Self { random: Xoshiro256PlusPlus::seed_from_u64(seed ^ ((stream as u64) << 48)), law }
    }

    /// The next key; with Zipf's law 0 is the most frequent.
    pub(super) fn draw(&mut self) -> u64 {
        match &self.law {
            Law::Uniform(keys) => self.random.random_range(0..*keys),
            // Ranks count from 1 and are whole.
            Law::Zipf(zipf) => zipf.sample(&mut self.random) as u64 - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn counts(keys: u64, zipf: Option<f64>) -> Vec<usize> {
        let mut counts = vec![0; usize::try_from(keys).unwrap()];
        let mut drawn = Keys::new(keys, zipf, 1, 0);
        for _ in 0..DRAWS {
            counts[usize::try_from(drawn.draw()).unwrap()] += 1;
        }
        counts
    }

    /// Within five standard deviations of what is expected; the seed is fixed, so it is so always or never.
    fn near(count: usize, share: f64) {
        let expected = share * DRAWS as f64;
        assert!((count as f64 - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{count}, not {expected}");
    }

    #[test]
    fn uniform_keys_are_asked_for_equally_often() {
        counts(100, None).into_iter().for_each(|count| near(count, 0.01));
    }

    #[test]
    fn keys_by_zipfs_law_are_asked_for_by_their_rank() {
        for s in [0.5, 1.0, 1.1, 2.0] {
            let all: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-s)).sum();
            for (rank, count) in (1..=1000).zip(counts(1000, Some(s))) {
                near(count, f64::from(rank).powf(-s) / all);
            }
        }
    }

    #[test]
    fn one_key_is_always_the_same() {
        assert_eq!(counts(1, None), [DRAWS]);
        assert_eq!(counts(1, Some(1.1)), [DRAWS]);
    }

    #[test]
    fn a_seed_gives_the_same_keys_again_and_its_threads_different_ones() {
        let of = |seed, stream| {
            let mut keys = Keys::new(1 << 40, None, seed, stream);
            [keys.draw(), keys.draw(), keys.draw()]
        };
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(1, 1));
        assert_ne!(of(1, 0), of(2, 0));
    }
}
