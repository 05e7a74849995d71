//! Unmounts, whether the server still answers or not, and never waits for it. Relies on `table` to
//! know what is mounted.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount as umount2};

use super::table;
use crate::error::MountError;

/// Unmounts the volume on `directory`.
///
/// The directory is free at once. Programs keep the files that they have open until they close them,
/// unless the server has ended. A dead mount is cleared the same way.
///
/// # Errors
/// [`MountError::NotMounted`] when no bulla volume is mounted there; [`MountError::Unmount`] when
/// the kernel or `fusermount3` refuses.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    let path = table::absolute(directory).map_err(|source| MountError::Directory {
        directory: directory.to_owned(),
        source,
    })?;
    let refused = |cause: String| MountError::Unmount {
        directory: directory.to_owned(),
        cause,
    };
    let mounted = table::find(&path).map_err(|error| refused(error.to_string()))?;
    if !mounted.is_some_and(|line| line.is_ours()) {
        return Err(MountError::NotMounted {
            directory: directory.to_owned(),
        });
    }
    detach(&path).map_err(refused)
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
