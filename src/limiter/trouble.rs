//! What people hear of a lost store: one line of the log a second and cause, and a list for `/ready`.
//!
//! A lost store fails every request, and a line for each would be thousands a second that all say the same. So the first
//! one of a cause is told, and after that one a second, with how many were left out since.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::store::StoreError;

/// Between two lines of one cause.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long `/ready` tells of a failure: a few periods of a probe.
const RECENT: Duration = Duration::from_secs(10);

/// Failures of the store by cause. There are as many causes as kinds of [`StoreError`].
#[derive(Debug, Default)]
pub(super) struct Troubles(Mutex<Vec<Trouble>>);

#[derive(Debug)]
struct Trouble {
    kind: &'static str,
    /// In the words of the one that was told last.
    why: String,
    told: Instant,
    last: Instant,
    left_out: u64,
}

impl Troubles {
    /// Takes note of a failure at `now`. Says whether it is to be told, and how many of its cause were not since the last
    /// one that was.
    pub(super) fn note(&self, error: &StoreError, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = error.kind();
        let Some(trouble) = all.iter_mut().find(|trouble| trouble.kind == kind) else {
            all.push(Trouble { kind, why: error.to_string(), told: now, last: now, left_out: 0 });
            return Some(0);
        };
        trouble.last = now;
        if now.saturating_duration_since(trouble.told) < TOLD_EVERY {
            trouble.left_out += 1;
            return None;
        }
        trouble.told = now;
        trouble.why = error.to_string();
        Some(std::mem::take(&mut trouble.left_out))
    }

    /// What went wrong lately, in words, one for each cause.
    pub(super) fn recent(&self, now: Instant) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = all.iter().filter(|trouble| now.saturating_duration_since(trouble.last) <= RECENT);
        recent.map(|trouble| trouble.why.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn a_line_a_second_and_cause_with_the_number_of_those_left_out() {
        let troubles = Troubles::default();
        let began = SystemClock.instant();
        let late = StoreError::Timeout { shard: "r:1".into(), after: Duration::from_millis(5) };
        let gone = StoreError::Unavailable { shard: "r:1".into(), why: "refused".into() };
        // Ten seconds of a thousand requests a second.
        let mut told = Vec::new();
        for ms in 0..10_000 {
            told.extend(troubles.note(&late, began + Duration::from_millis(ms)));
        }
        assert_eq!(told, [[0].as_slice(), &[999; 9]].concat());
        let now = began + Duration::from_secs(10);
        assert_eq!(troubles.note(&gone, now), Some(0), "another cause waits for nobody");
        assert_eq!(troubles.recent(now).len(), 2);
        assert_eq!(troubles.recent(now + RECENT), ["the store r:1 cannot be reached: refused"]);
        assert_eq!(troubles.note(&late, now + RECENT), Some(999));
    }
}
