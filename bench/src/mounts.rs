//! Mounts that are removed when the bench ends.
//!
//! A [`Mounted`] unmounts when it is dropped, lazily if a normal unmount fails. [`clear`] removes the
//! mounts that a killed bench left below the work directory, and no others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::process::Daemon;

/// A file system mounted by a daemon in the foreground.
pub struct Mounted {
    dir: PathBuf,
    daemon: Daemon,
}

impl Mounted {
    /// Starts a daemon that mounts at `dir` and waits until the kernel lists the mount.
    pub fn start(name: &str, command: &mut Command, dir: &Path, log: &Path) -> Result<Mounted> {
        let daemon = Daemon::start(name, command, log)?;
        // The guard exists before the mount, so that an early return leaves no mount.
        let mut mounted = Mounted {
            dir: dir.to_owned(),
            daemon,
        };
        let dir = dir.to_owned();
        mounted
            .daemon
            .wait_until("mounted", || is_mounted(&dir).unwrap_or(false))?;
        Ok(mounted)
    }

    /// Processor seconds of the daemon so far.
    pub fn cpu_s(&self) -> Result<f64> {
        self.daemon.cpu_s()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.dir);
        // A FUSE daemon ends by itself after unmounting; the daemon's guard ends one that does not.
        self.daemon.ended();
    }
}

/// Unmounts a directory, lazily if a normal unmount fails. Does nothing if it is not mounted.
pub fn unmount(dir: &Path) {
    for arguments in [&["umount"][..], &["umount", "-l"][..]] {
        if !is_mounted(dir).unwrap_or(false) {
            return;
        }
        let [program, rest @ ..] = arguments else {
            continue;
        };
        let ran = Command::new(program)
            .args(rest)
            .arg(dir)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if let Err(error) = ran {
            eprintln!("warning: umount {}: {error}", dir.display());
        }
    }
    if is_mounted(dir).unwrap_or(true) {
        eprintln!("warning: {} is still mounted", dir.display());
    }
}

/// Whether the kernel lists a mount at this path.
pub fn is_mounted(dir: &Path) -> Result<bool> {
    Ok(mount_points()?.iter().any(|point| point == dir))
}

/// Unmounts everything below a directory that a killed run has left.
pub fn clear(below: &Path) -> Result<()> {
    let mut left: Vec<PathBuf> = mount_points()?
        .into_iter()
        .filter(|point| point.starts_with(below))
        .collect();
    left.sort();
    for point in left.iter().rev() {
        eprintln!("unmounting {}, which an earlier run left", point.display());
        unmount(point);
    }
    Ok(())
}

fn mount_points() -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("reading mountinfo")?;
    Ok(table.lines().filter_map(mount_point).collect())
}

/// The mount point of one `mountinfo` line (`proc(5)`), its octal escapes undone.
fn mount_point(line: &str) -> Option<PathBuf> {
    let escaped = line.split(' ').nth(4)?;
    let mut plain = escaped.to_owned();
    for (escape, character) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        plain = plain.replace(escape, character);
    }
    Some(PathBuf::from(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_with_a_blank_is_read() {
        let line = "36 35 98:0 / /a\\040b rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(PathBuf::from("/a b")));
        assert_eq!(mount_point("36 35"), None);
    }

    #[test]
    fn the_kernel_lists_proc_and_not_its_inside() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(!is_mounted(Path::new("/proc/self")).unwrap());
    }
}
