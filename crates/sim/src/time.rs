//! The time for statements that tests sign, and waits for conditions that other tasks, threads or
//! processes bring about.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// After this a condition counts as never met. Generous, because machines that run tests are busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks at a condition.
const STEP: Duration = Duration::from_millis(5);

/// The time, unix seconds.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Waits until `holds` returns true. The runtime goes on meanwhile.
///
/// # Panics
/// When that takes longer than a minute. `what` says what was waited for.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(STEP).await;
    }
}

/// As [`eventually`], and blocks the thread.
///
/// # Panics
/// When that takes longer than a minute. `what` says what was waited for.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(STEP);
    }
}
