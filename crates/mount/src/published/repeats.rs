//! Reads that the kernel repeats: when the answer for several pages fails, it asks once more for the page that a program
//! waits for. A read that has waited until its deadline fails then too, so that the program does not wait twice.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use volume::VolumeError;

/// The kernel repeats a request at once; a busy machine may take so long for it.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A read that failed so shortly before its deadline has waited for it.
const NEAR: Duration = Duration::from_millis(250);
/// Most reads that are remembered.
const MOST: usize = 256;

/// The reads that failed at their deadlines just now.
#[derive(Debug, Default)]
pub struct Repeats {
    failed: Mutex<VecDeque<Failed>>,
}

#[derive(Debug)]
struct Failed {
    number: u64,
    from: u64,
    until: u64,
    at: Instant,
    error: VolumeError,
}

impl Repeats {
    /// Notes a read of `len` bytes of a file that failed; its deadline was `deadline`.
    pub fn note(
        &self,
        number: u64,
        (from, len): (u64, usize),
        deadline: Instant,
        error: &VolumeError,
    ) {
        let at = Instant::now();
        if at + NEAR < deadline {
            return;
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.len() >= MOST {
            failed.pop_front();
        }
        failed.push_back(Failed {
            number,
            from,
            until: from.saturating_add(len as u64),
            at,
            error: error.clone(),
        });
    }

    /// The error of a read that failed just now, if this one repeats a part of it. It is given once.
    pub fn take(&self, number: u64, (from, len): (u64, usize)) -> Option<VolumeError> {
        let until = from.saturating_add(len as u64);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|failed| failed.at.elapsed() < AT_ONCE);
        let same = |failed: &Failed| {
            failed.number == number && failed.from <= from && until <= failed.until
        };
        let at = failed.iter().position(same)?;
        failed.remove(at).map(|failed| failed.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_repeated_part_of_a_read_that_waited_fails_at_once() {
        let (repeats, error) = (Repeats::default(), VolumeError::unavailable("x", "y"));
        let now = Instant::now();
        repeats.note(1, (8192, 4096), now + Duration::from_secs(9), &error);
        assert!(repeats.take(1, (8192, 4096)).is_none(), "it did not wait");
        repeats.note(1, (8192, 8192), now, &error);
        assert!(repeats.take(2, (8192, 4096)).is_none(), "another file");
        assert!(repeats.take(1, (4096, 4096)).is_none(), "another part");
        assert!(repeats.take(1, (8192, 4096)).is_some());
        assert!(
            repeats.take(1, (8192, 4096)).is_none(),
            "a program tries again"
        );
    }
}
