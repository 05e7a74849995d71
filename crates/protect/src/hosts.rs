//! This machine among others that share its disks: what its claims say, and the claim that an attached device holds.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use wal::{Host, Keeper, Lease, Life, Process};

/// The claim of an attached device.
pub(crate) struct Held {
    lease: Arc<Lease>,
    _keeper: Option<Keeper>,
}

impl Held {
    /// Answers other hosts from a thread, if `keep`.
    pub fn new(lease: Arc<Lease>, keep: bool) -> io::Result<Held> {
        Ok(Held {
            _keeper: keep.then(|| lease.keep()).transpose()?,
            lease,
        })
    }

    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// If this fails, the next host only waits for nothing.
    pub fn give_back(&self) {
        if let Err(error) = self.lease.release() {
            tracing::warn!(%error, "cannot give back the claim on the log");
        }
    }
}

/// The machine and the process that this program runs in, by `/proc` and `/etc/machine-id`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    fn name(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    /// The id of the boot, and that of the machine: a virtual machine that was copied while it ran has the same boot, and
    /// may have another machine id.
    fn system(&self) -> Vec<u8> {
        let Ok(mut system) = fs::read("/proc/sys/kernel/random/boot_id") else {
            return Vec::new();
        };
        // Not every system has one.
        system.extend(fs::read("/etc/machine-id").unwrap_or_default());
        system
    }

    fn process(&self) -> Process {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Process {
            namespace: namespace().unwrap_or_default(),
            pid: pid.unsigned_abs().into(),
            started: look(pid.unsigned_abs().into()).map_or(0, |(_, started)| started),
        }
    }

    fn life(&self, process: &Process) -> Life {
        if process.pid == 0 || process.started == 0 || namespace().ok() != Some(process.namespace) {
            return Life::Unknown;
        }
        judge(process, look(process.pid))
    }

    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        )
    }

    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The namespace that numbers this process.
fn namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// What became of a process of which `/proc` says this.
fn judge(process: &Process, found: io::Result<(char, u64)>) -> Life {
    match found {
        Ok((state, started)) if started == process.started && !matches!(state, 'Z' | 'X') => {
            Life::Runs
        }
        Ok(_) => Life::Ended,
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_no_process(process.pid) => {
            Life::Ended
        }
        Err(_) => Life::Unknown,
    }
}

/// `/proc` may hide processes (the option hidepid, ProtectProc= of systemd). The kernel tells of each whether it exists.
fn is_no_process(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// The state of a process, and when it started (proc(5), *stat*).
fn look(pid: u64) -> io::Result<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program before may have spaces and parentheses.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let mut fields = fields.unwrap_or_default().split(' ');
    let state = fields.next().and_then(|state| state.chars().next());
    let started = fields.nth(18).and_then(|started| started.parse().ok());
    match (state, started) {
        (Some(state), Some(started)) => Ok((state, started)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_runs_until_it_has_ended_and_its_number_alone_is_no_proof() {
        let host = ThisHost;
        let own = host.process();
        assert_eq!(host.life(&own), Life::Runs);
        let before = Process {
            started: own.started + 1,
            ..own
        };
        assert_eq!(
            host.life(&before),
            Life::Ended,
            "another one has its number"
        );
        let elsewhere = Process {
            namespace: own.namespace + 1,
            ..own
        };
        assert_eq!(host.life(&elsewhere), Life::Unknown);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = u64::from(child.id());
        let process = Process {
            pid,
            started: look(pid).unwrap().1,
            ..own
        };
        assert_eq!(host.life(&process), Life::Runs);
        let hidden = || judge(&process, Err(io::ErrorKind::NotFound.into()));
        assert_eq!(hidden(), Life::Unknown, "it runs, and /proc hides it");
        child.kill().unwrap();
        // It is not waited for yet.
        let until = host.now() + Duration::from_secs(10);
        while host.life(&process) == Life::Runs && host.now() < until {
            host.wait(Duration::from_millis(10));
        }
        assert_eq!(host.life(&process), Life::Ended);
        child.wait().unwrap();
        assert_eq!(host.life(&process), Life::Ended);
        assert_eq!(hidden(), Life::Ended);
    }

    #[test]
    fn this_host_has_a_name_and_a_clock() {
        assert!(!ThisHost.name().is_empty());
        assert!(!ThisHost.system().is_empty());
        let before = ThisHost.now();
        ThisHost.wait(Duration::from_millis(2));
        assert!(ThisHost.now() > before);
    }
}
