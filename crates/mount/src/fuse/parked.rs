//! Requests that wait: each is a task of the runtime with a deadline. So no thread of the mount waits, and
//! every caller gets an answer at the deadline at the latest.
//!
//! The kernel reports a caller's first signal by FUSE_INTERRUPT ([`super::under_way`]). A wait for a lock ends with it.
//! Other waits end only by a signal that ends the program: many programs take EINTR of a read for an error. Such a
//! signal may come after the first, of which the kernel says nothing more; so after the first `/proc/PID/status` of the
//! caller is looked at a few times a second.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::{Notify, watch};

use super::answer::{Later, Signals};
use super::error::{Error, Refusal};

/// By how much work may exceed its deadline before it is dropped.
const GRACE: Duration = Duration::from_millis(200);
/// Pause between two looks at the signals of a caller who had one.
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

    /// Waits for `later` and gives its result to `finish`. `pid` is the caller's thread, 0 if unknown; `signal` is
    /// notified when it has a signal.
    pub fn park<T, E, Finish>(
        &self,
        later: Later<T, E>,
        pid: u32,
        signal: Arc<Notify>,
        finish: Finish,
    ) where
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
                () = ending_signal(pid, &signal, later.ends_by) => Err(Error::Interrupted.into()),
                _ = interruptions.changed() => Err(later.at_deadline),
                () = tokio::time::sleep_until(until.into()) => Err(later.at_deadline),
            };
            finish(result);
        });
    }
}

/// Returns when thread `pid`, of which `signal` tells, has such a signal pending.
async fn ending_signal(pid: u32, signal: &Notify, which: Signals) {
    signal.notified().await;
    if which == Signals::Any {
        return;
    }
    loop {
        // The FLUSH of a program that was ended comes with that signal: a short one ends before the look.
        tokio::time::sleep(SIGNAL_CHECK).await;
        // Unreadable if the caller is in another PID namespace; then the deadline ends the wait.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        if status.is_ok_and(|status| has_deadly_signal(&status)) {
            return;
        }
    }
}

/// SIGKILL as a bit of a mask. The kernel makes it pending for each thread of a program that another signal ends.
const KILL: u64 = 1 << 8;
/// Signals that end a program unless it handles them: HUP, INT, PIPE, ALRM, TERM, and those that dump memory, for which
/// SIGKILL does not become pending: QUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS.
const DEADLY: u64 = 1 | 1 << 1 | 1 << 12 | 1 << 13 | 1 << 14 | DUMPING;
const DUMPING: u64 =
    1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 23 | 1 << 24 | 1 << 30;

/// Whether a `/proc/PID/status` shows a signal that is about to end the program; proc_pid_status(5).
fn has_deadly_signal(status: &str) -> bool {
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    let handled = pending & !mask("SigBlk:") & !mask("SigIgn:");
    handled & (KILL | DEADLY & !mask("SigCgt:")) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_and_ignored_signals_do_not_end_a_wait() {
        let status = |pending: &str, shared: &str, blocked: &str, ignored: &str| {
            format!(
                "Name:\tx\nSigQ:\t1/9\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n\
                 SigIgn:\t{ignored}\nSigCgt:\t0\n"
            )
        };
        assert!(!has_deadly_signal(&status("0", "0", "0", "0")));
        assert!(has_deadly_signal(&status(
            "0000000000000100",
            "0",
            "0",
            "0"
        )));
        assert!(has_deadly_signal(&status(
            "0",
            "0000000000004000",
            "0",
            "0"
        )));
        assert!(!has_deadly_signal(&status("4000", "0", "4000", "0")));
        assert!(!has_deadly_signal(&status("0", "4000", "0", "4000")));
        assert!(has_deadly_signal(&status("4100", "0", "4000", "0")));
        assert!(!has_deadly_signal("no such fields"));
    }

    #[test]
    fn only_signals_that_end_the_program_end_a_read() {
        let status = |pending: &str, handled: &str| {
            format!("SigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t{handled}\n")
        };
        let ends = |pending, handled| has_deadly_signal(&status(pending, handled));
        assert!(ends("100", "0"), "SIGKILL");
        assert!(ends("2", "0"), "SIGINT");
        assert!(!ends("2", "2"), "SIGINT, handled");
        assert!(!ends("8010000", "0"), "SIGCHLD and SIGWINCH");
        assert!(!ends("2000", "2000"), "SIGALRM, handled");
    }
}
