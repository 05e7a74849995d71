//! Unmounts, whether the server still answers or not, and never waits for it. Relies on `table` to
//! know what is mounted.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount as umount2};

use super::table;
use crate::error::MountError;

/// Most mounts of ours on one directory that are removed at a time.
const MAX_LAYERS: usize = 64;
/// How long a mount may take to say that it lives.
const PATIENCE: Duration = Duration::from_secs(2);

/// Unmounts the volume on `directory`.
///
/// `directory` may be any name of the mount that the kernel takes: a symbolic link, a path with `..`, a bind mount
/// of it (only that one is unmounted). The directory is free at once. Programs keep the files that they have open until they close them,
/// unless the server has ended. A dead mount is cleared the same way.
///
/// # Errors
/// [`MountError::NotMounted`] when no bulla volume is mounted there; [`MountError::Unmount`] when
/// the kernel or `fusermount3` refuses.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    let refused = |cause: String| MountError::Unmount {
        directory: directory.to_owned(),
        cause,
    };
    let mounted = table::named(directory).map_err(|source| MountError::Directory {
        directory: directory.to_owned(),
        source,
    })?;
    let Some(line) = mounted.filter(table::Line::is_ours) else {
        return Err(MountError::NotMounted {
            directory: directory.to_owned(),
        });
    };
    detach(&line.directory).map_err(refused)
}

/// Removes every mount of the file system with this `major:minor` that this process sees, also bind mounts of it.
/// `connection` is its descriptor of `/dev/fuse`.
///
/// # Errors
/// The first refusal; the other mounts are removed nevertheless.
pub(crate) fn detach_all(device: &str, connection: BorrowedFd) -> Result<(), String> {
    let mut refused = Vec::new();
    // One round for each mount that lies over another one on the same directory.
    for _ in 0..MAX_LAYERS {
        let lines = table::with_device(device).map_err(|error| error.to_string())?;
        // The kernel gives the number of a file system that has ended to the next one, which may be anybody's. It
        // ends the connection before: if that stands after the table was read, the lines are of this file system.
        // If not, they may also be of this one that was aborted: those are dead, and nobody needs them.
        let is_connected = is_connected(connection)?;
        let is_ours = |line: &table::Line| is_connected || line.life(PATIENCE) == table::Life::Dead;
        let lines: Vec<table::Line> = lines.into_iter().filter(is_ours).collect();
        if lines.is_empty() {
            break;
        }
        refused.clear();
        // The deepest first: a directory in it may have a bind mount of it.
        let results = lines.iter().rev().map(|line| detach(&line.directory));
        refused.extend(results.filter_map(Result::err));
        if refused.len() == lines.len() {
            break;
        }
    }
    refused.into_iter().next().map_or(Ok(()), Err)
}

/// Whether the kernel still has the file system of this descriptor of `/dev/fuse`.
pub(super) fn is_connected(connection: BorrowedFd) -> Result<bool, String> {
    let mut polled = [PollFd::from_borrowed_fd(connection, PollFlags::empty())];
    let now = Timespec::default();
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now))).map_err(|e| e.to_string())?;
    Ok(!polled[0].revents().contains(PollFlags::ERR))
}

/// Removes dead mounts of volumes of this user from `directory`. Whether there was one.
///
/// # Errors
/// When the kernel or `fusermount3` refuses.
pub(crate) fn clear_dead(directory: &Path) -> Result<bool, MountError> {
    let user = rustix::process::geteuid().as_raw();
    for layer in 0..MAX_LAYERS {
        let line = table::named(directory).ok().flatten();
        let own = line.filter(|line| line.is_volume() && line.user == Some(user));
        if own.is_none_or(|line| line.life(PATIENCE) != table::Life::Dead) {
            return Ok(layer > 0);
        }
        unmount(directory)?;
    }
    Ok(true)
}

/// Removes the topmost mount from `path` at once; programs keep the files that they have open.
pub(crate) fn detach(path: &Path) -> Result<(), String> {
    match umount2(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => by_helper(path),
        Err(error) => Err(error.to_string()),
    }
}

/// Users other than root unmount through the set-user-id helper that mounted for them.
fn by_helper(path: &Path) -> Result<(), String> {
    let mut told = String::new();
    for helper in ["fusermount3", "fusermount"] {
        let run = Command::new(helper)
            .args(["-u", "-z", "--"])
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output();
        match run {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => told = format!("{helper}: {error}"),
        }
    }
    Err(told)
}
