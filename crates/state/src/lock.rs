//! A lock file with a deadline.
//!
//! Kernel locks have no time-out, and a thread that waits inside `flock` cannot be interrupted safely. So the
//! lock is tried without waiting, after pauses of 1 to 25 ms. It is `flock`, as in earlier versions, so that
//! processes of both exclude each other. The kernel releases it when its holder ends, for whatever reason. A
//! holder that is stopped keeps it; `/proc/locks` names the process.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{StateError, failed};
use crate::private;

const LINE: &[u8] = b"bulla-lock-1\n";
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// A file that is locked or waits to be locked.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    file: File,
    pause: Duration,
}

impl LockFile {
    /// Opens the lock file, or creates it. Does not lock it.
    pub(crate) fn open(path: PathBuf) -> Result<LockFile, StateError> {
        private::tighten(&path)?;
        Ok(LockFile {
            file: private::open_file(&path)?,
            path,
            pause: FIRST_PAUSE,
        })
    }

    /// Opens the lock file and takes the lock; waits for it on this thread.
    ///
    /// # Errors
    /// [`StateError::Locked`] at the deadline.
    pub(crate) fn take(path: PathBuf, deadline: Instant) -> Result<LockFile, StateError> {
        let began = Instant::now();
        let mut lock = LockFile::open(path)?;
        while !lock.try_take()? {
            let Some(pause) = lock.next_pause(deadline) else {
                return Err(refusal(&lock.path, began));
            };
            std::thread::sleep(pause);
        }
        Ok(lock)
    }

    /// Takes the lock if it is free. It is held until the value is dropped.
    pub(crate) fn try_take(&self) -> Result<bool, StateError> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.mark_own();
                Ok(true)
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
            Err(e) => Err(failed(&self.path, e)),
        }
    }

    /// Writes the line by which `publish` knows a copy of this directory as bulla's own ([`crate::own_files`]).
    fn mark_own(&self) {
        if self.file.metadata().is_ok_and(|it| it.len() == 0) {
            // A lock works without it, for example on a full disk.
            let _ = self.file.write_all_at(LINE, 0);
        }
    }

    /// Time to wait before the next attempt; `None` when the deadline has passed.
    pub(crate) fn next_pause(&mut self, deadline: Instant) -> Option<Duration> {
        let left = deadline.saturating_duration_since(Instant::now());
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (!pause.is_zero()).then_some(pause)
    }
}

/// The error for a lock that was not free at the deadline, after a wait since `began`.
pub(crate) fn refusal(path: &Path, began: Instant) -> StateError {
    let holder = fs::read_to_string("/proc/locks")
        .ok()
        .zip(fs::metadata(path).ok())
        .and_then(|(locks, metadata)| holder(&locks, metadata.dev(), metadata.ino()));
    StateError::Locked {
        path: path.display().to_string(),
        holder: holder.map_or_else(|| "another process".to_owned(), describe),
        waited_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

/// The process that holds the lock on a file, from `/proc/locks`. Some file systems show another device
/// number there than `stat` does. So if no device matches, the inode number alone decides.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = format!("{major:02x}:{minor:02x}");
    let mut by_inode = None;
    for line in locks.lines() {
        // 1: FLOCK  ADVISORY  WRITE 1234 08:01:131090 0 EOF (a waiting process has "->" after "1:").
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words.as_slice() else {
            continue;
        };
        let Some((on, number)) = place.rsplit_once(':') else {
            continue;
        };
        if number.parse() != Ok(inode) {
            continue;
        }
        // Zero or below: a process outside this namespace.
        let pid = pid.parse().ok().filter(|pid| *pid > 0);
        if on == device {
            return pid;
        }
        by_inode = by_inode.or(pid);
    }
    by_inode
}

/// Describes a process: its number, its name, and whether it is stopped.
fn describe(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    let stopped = match state {
        Some("T" | "t") => ", which is stopped: resume it (kill -CONT) or end it",
        _ => "",
    };
    match name.trim() {
        "" => format!("process {pid}{stopped}"),
        name => format!("process {pid} ({name}){stopped}"),
    }
}

/// Path of the lock file for `path`.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 08:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 11 08:02:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 13 08:01:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 08:01:78 0 EOF\n\
                     nonsense\n";
        let device = rustix::fs::makedev(8, 1);
        assert_eq!(holder(locks, device, 77), Some(12));
        assert_eq!(holder(locks, device, 78), None);
        assert_eq!(holder(locks, device, 79), None);
        // Another device number than stat's.
        assert_eq!(holder(locks, rustix::fs::makedev(0, 99), 77), Some(11));
    }
}
