//! Waits for the lock of a repository, for `--wait`. The lock is the kernel's and has no queue, so a command tries
//! again: each attempt begins anew and has changed nothing when it finds the lock taken.

use std::time::{Duration, Instant};

use crate::args::LockWait;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::units;

/// Pause after the first attempt; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Makes attempts until one does not find the lock taken, or the time is over. `is_stopped` says that the user has
/// pressed Ctrl-C, where that does not end the process by itself.
pub fn until_free<T>(
    lock_wait: &LockWait,
    is_stopped: &dyn Fn() -> bool,
    output: &mut Output,
    mut attempt: impl FnMut() -> Outcome<T>,
) -> Outcome<T> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let failure = match attempt() {
            Err(failure) if failure.kind == Kind::Locked => failure,
            other => return other,
        };
        let Some(wait) = lock_wait.wait else {
            return Err(failure);
        };
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() {
            let hint = "the process that holds the lock still works: `fuser -v` on the files of the repository names \
                        it. Run the same command again with a longer --wait";
            return Err(failure.with_hint(hint));
        }
        if pause == FIRST_PAUSE {
            let most = units::span(left);
            output.note(&format!("{failure}; waiting up to {most} for it"));
        }
        let until = Instant::now() + pause.min(left);
        while Instant::now() < until {
            if is_stopped() {
                return Err(Failure::new(
                    Kind::Interrupted,
                    "interrupted while waiting for the lock",
                ));
            }
            std::thread::sleep(FIRST_PAUSE.min(until.saturating_duration_since(Instant::now())));
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
