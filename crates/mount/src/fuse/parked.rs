//! Requests that wait: each is a task of the runtime with a deadline. So no thread of the mount waits, and
//! every caller gets an answer at the deadline at the latest.
//!
//! A caller that is interrupted is found by its pending signals. The kernel reports interruptions as
//! FUSE_INTERRUPT, but `fuser` 0.18 answers that with ENOSYS without showing it to the file system;
//! from then on the kernel waits for the answer whatever signal arrives, SIGKILL included. So a wait
//! that may be long looks at `/proc/PID/status` of its caller a few times a second.

use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;

use super::answer::{Later, Signals};
use super::error::{Error, Refusal};

/// By how much work may exceed its deadline before it is dropped.
const GRACE: Duration = Duration::from_millis(200);
/// Pause between two looks at the signals of a caller.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// Starts waits and ends them.
#[derive(Debug, Clone)]
pub struct Parking {
    runtime: Runtime,
    /// Counts the calls of [`Parking::interrupt_all`].
    interruptions: watch::Sender<u64>,
}

impl Parking {
    /// Waits run on `runtime`.
    pub fn new(runtime: Runtime) -> Parking {
        Parking {
            runtime,
            interruptions: watch::Sender::new(0),
        }
    }

    /// Ends the interruptible waits that are under way.
    pub fn interrupt_all(&self) {
        self.interruptions.send_modify(|count| *count += 1);
    }

    /// Waits for `later` and gives its result to `finish`. `pid` is the caller's thread, 0 if unknown.
    pub fn park<T, E, Finish>(&self, later: Later<T, E>, pid: u32, finish: Finish)
    where
        T: Send + 'static,
        E: Refusal,
        Finish: FnOnce(Result<T, E>) + Send + 'static,
    {
        // A reader says itself at the deadline what was missing.
        let until = match later.ends_by {
            Signals::Deadly => later.deadline + GRACE,
            Signals::Any => later.deadline,
        };
        let mut interruptions = self.interruptions.subscribe();
        self.runtime.spawn(async move {
            // In this order: a wait that ends at the moment of the interruption has taken effect.
            let result = tokio::select! {
                biased;
                result = later.work => result,
                () = signal_pending(pid, later.ends_by) => Err(Error::Interrupted.into()),
                _ = interruptions.changed() => Err(later.at_deadline),
                () = tokio::time::sleep_until(until.into()) => Err(later.at_deadline),
            };
            finish(result);
        });
    }
}

/// Returns when thread `pid` has such a signal pending.
async fn signal_pending(pid: u32, which: Signals) {
    loop {
        tokio::time::sleep(SIGNAL_CHECK).await;
        // Unreadable if the caller is in another PID namespace; then the deadline ends the wait.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        if status.is_ok_and(|status| has_signal(&status, which)) {
            return;
        }
    }
}

/// SIGKILL as a bit of a mask. The kernel makes it pending for each thread of a program that another signal ends.
const KILL: u64 = 1 << 8;
/// Signals that end a program unless it handles them: HUP, INT, QUIT, PIPE, ALRM, TERM.
const DEADLY: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 12 | 1 << 13 | 1 << 14;

/// Whether a `/proc/PID/status` shows a signal that is about to be handled, or to end the program;
/// proc_pid_status(5).
fn has_signal(status: &str, which: Signals) -> bool {
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    let handled = pending & !mask("SigBlk:") & !mask("SigIgn:");
    match which {
        Signals::Any => handled != 0,
        Signals::Deadly => handled & (KILL | DEADLY & !mask("SigCgt:")) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_and_ignored_signals_do_not_interrupt() {
        let status = |pending: &str, shared: &str, blocked: &str, ignored: &str| {
            format!(
                "Name:\tx\nSigQ:\t1/9\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n\
                 SigIgn:\t{ignored}\nSigCgt:\t0\n"
            )
        };
        assert!(!has_signal(&status("0", "0", "0", "0"), Signals::Any));
        assert!(has_signal(
            &status("0000000000000100", "0", "0", "0"),
            Signals::Any
        ));
        assert!(has_signal(
            &status("0", "0000000000004000", "0", "0"),
            Signals::Any
        ));
        assert!(!has_signal(&status("4000", "0", "4000", "0"), Signals::Any));
        assert!(!has_signal(&status("0", "4000", "0", "4000"), Signals::Any));
        assert!(has_signal(&status("4100", "0", "4000", "0"), Signals::Any));
        assert!(!has_signal("no such fields", Signals::Any));
    }

    #[test]
    fn only_signals_that_end_the_program_end_a_read() {
        let status = |pending: &str, handled: &str| {
            format!("SigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t{handled}\n")
        };
        let ends = |pending, handled| has_signal(&status(pending, handled), Signals::Deadly);
        assert!(ends("100", "0"), "SIGKILL");
        assert!(ends("2", "0"), "SIGINT");
        assert!(!ends("2", "2"), "SIGINT, handled");
        assert!(!ends("8010000", "0"), "SIGCHLD and SIGWINCH");
        assert!(!ends("2000", "2000"), "SIGALRM, handled");
    }
}
