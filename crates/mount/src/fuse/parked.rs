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

use super::answer::Later;
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
        if !later.interruptible {
            self.runtime.spawn(async move {
                let deadline = later.deadline + GRACE;
                let result = tokio::time::timeout_at(deadline.into(), later.work).await;
                finish(result.unwrap_or(Err(later.at_deadline)));
            });
            return;
        }
        let mut interruptions = self.interruptions.subscribe();
        self.runtime.spawn(async move {
            // In this order: a wait that ends at the moment of the interruption has taken effect.
            let result = tokio::select! {
                biased;
                result = later.work => result,
                () = signal_pending(pid) => Err(Error::Interrupted.into()),
                _ = interruptions.changed() => Err(later.at_deadline),
                () = tokio::time::sleep_until(later.deadline.into()) => Err(later.at_deadline),
            };
            finish(result);
        });
    }
}

/// Returns when thread `pid` has a signal pending that it neither blocks nor ignores.
async fn signal_pending(pid: u32) {
    loop {
        tokio::time::sleep(SIGNAL_CHECK).await;
        // Unreadable if the caller is in another PID namespace; then the deadline ends the wait.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        if status.is_ok_and(|status| has_signal(&status)) {
            return;
        }
    }
}

/// Whether a `/proc/PID/status` shows a signal that is about to be handled; proc_pid_status(5).
fn has_signal(status: &str) -> bool {
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !mask("SigBlk:") & !mask("SigIgn:") != 0
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
        assert!(!has_signal(&status("0", "0", "0", "0")));
        assert!(has_signal(&status("0000000000000100", "0", "0", "0")));
        assert!(has_signal(&status("0", "0000000000004000", "0", "0")));
        assert!(!has_signal(&status("4000", "0", "4000", "0")));
        assert!(!has_signal(&status("0", "4000", "0", "4000")));
        assert!(has_signal(&status("4100", "0", "4000", "0")));
        assert!(!has_signal("no such fields"));
    }
}
