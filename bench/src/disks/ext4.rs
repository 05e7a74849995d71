//! ext4 on a block device under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Disk, Up};
use crate::mounts;
use crate::process::short;

/// A file system that is mounted until this is dropped, and the device that it is on.
pub struct Ext4 {
    // The mount ends before the device: fields are dropped in this order.
    mount: Option<Mount>,
    up: Up,
    dir: PathBuf,
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        mounts::unmount(&self.0);
    }
}

impl Ext4 {
    /// Makes a file system on a device that was just made, and mounts it at a directory. Nothing is
    /// discarded: the device has zeros already.
    pub fn make(disk: &Disk, dir: &Path) -> Result<Ext4> {
        let up = disk.up()?;
        let lazy = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let mut mkfs = Command::new("mkfs.ext4");
        short(mkfs.args(["-q", "-F", "-E", lazy]).arg(up.path()))?;
        let mut made = Ext4 {
            mount: None,
            up,
            dir: dir.to_owned(),
        };
        made.mount()?;
        Ok(made)
    }

    /// Its root.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts and mounts again, so that the kernel has nothing of it in its caches.
    pub fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// Unmounts, checks the file system, and takes the device down.
    ///
    /// # Errors
    /// If something still uses it, or it is damaged: then the measurement means nothing.
    pub fn finish(mut self) -> Result<()> {
        self.unmount()?;
        short(
            Command::new("e2fsck")
                .args(["-f", "-n"])
                .arg(self.up.path()),
        )?;
        self.up.down()
    }

    fn mount(&mut self) -> Result<()> {
        short(
            Command::new("mount")
                .args(["-t", "ext4"])
                .arg(self.up.path())
                .arg(&self.dir),
        )?;
        self.mount = Some(Mount(self.dir.clone()));
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        short(Command::new("umount").arg(&self.dir))?;
        self.mount = None;
        Ok(())
    }
}
