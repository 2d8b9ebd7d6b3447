//! Waiting for what has to happen.

use std::{
    thread,
    time::{Duration, Instant},
};

/// So long is waited; only a failure takes it.
const AT_LAST: Duration = Duration::from_secs(60);

/// Looks again and again until it is so, and says how long that took.
#[expect(clippy::disallowed_methods, reason = "a test's deadline")]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < AT_LAST, "waited {AT_LAST:?} for {what}");
        thread::sleep(Duration::from_millis(2));
    }
    began.elapsed()
}
