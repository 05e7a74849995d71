//! A process that holds a lock and is stopped (SIGSTOP), as by a user or a debugger: it neither releases
//! the lock nor ends.

use std::io::{BufRead, BufReader, Error, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long the process may take until it holds the lock and is stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process. It is killed when this is dropped, and the lock is then free.
#[derive(Debug)]
pub struct StoppedHolder {
    child: Child,
}

impl StoppedHolder {
    /// Starts a process that takes the `flock` of `lock`, and stops it.
    ///
    /// # Errors
    /// When `flock` (util-linux) or `sh` is missing, or the process does not take the lock in time.
    pub fn of(lock: &Path) -> Result<StoppedHolder> {
        let child = Command::new("flock")
            .args(["--no-fork", "--timeout", "10"])
            .arg(lock)
            .args(["sh", "-c", "echo held; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut holder = StoppedHolder { child };
        let mut line = String::new();
        let output = holder.child.stdout.take();
        let output = output.ok_or_else(|| Error::other("no output"))?;
        BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "held" {
            return Err(Error::other("the lock was not taken"));
        }
        let pid = Pid::from_child(&holder.child);
        kill_process(pid, Signal::STOP)?;
        let until = Instant::now() + PATIENCE;
        while !holder.is_stopped()? {
            if Instant::now() >= until {
                return Err(Error::other("the process does not stop"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(holder)
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn is_stopped(&self) -> Result<bool> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        Ok(state.is_some_and(|state| state.starts_with('T')))
    }
}

impl Drop for StoppedHolder {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
