//! One file of an extraction: it is opened beneath the target, never through a link. Then it gets its
//! content and those attributes that a stranger may set.
//!
//! Relies on [`reader::Tree`] for proved bytes. `extract` decides what is made, and in which order.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use trust::inode::Inode;

use super::{ExtractError, ExtractOptions};
use crate::verify::Tally;
use crate::volume::Volume;
use reader::{Fetch, Tree};

/// Content of one file that is in memory at a time, bytes.
const WINDOW_BYTES: u64 = 2 << 20;

pub(super) fn system(path: &[u8]) -> impl Fn(Errno) -> ExtractError + '_ {
    move |errno| ExtractError::System {
        path: shown(path),
        source: errno.into(),
    }
}

pub(super) fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if path.is_empty() { b"." } else { path }))
}

pub(super) fn open_target(target: &Path) -> Result<OwnedFd, ExtractError> {
    let wrong = |source: io::Error| ExtractError::System {
        path: target.to_owned(),
        source,
    };
    match rustix::fs::mkdir(target, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(wrong(errno.into())),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(target, flags, Mode::empty()).map_err(|e| wrong(e.into()))?;
    if std::fs::read_dir(target).map_err(wrong)?.next().is_some() {
        return Err(ExtractError::NotEmpty {
            path: target.to_owned(),
        });
    }
    Ok(root)
}

/// Opens a name in `directory`; never outside of it, never through a link.
pub(super) fn open_beneath(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(directory, name, flags, mode, resolve) {
        // Kernels before 5.6, and sandboxes that do not know the call. A single checked name
        // leads outside only through a link, and links are not followed.
        Err(Errno::NOSYS) if !name.contains(&b'/') => {
            rustix::fs::openat(directory, name, flags, mode)
        }
        other => other,
    }
}

/// What all files need.
pub(super) struct Shared {
    pub volume: Arc<Volume>,
    /// What the walk has fetched ahead is all that is wanted.
    pub tree: Tree,
    pub options: ExtractOptions,
    pub tally: Arc<Tally>,
}

impl Shared {
    pub(super) fn how(&self) -> Fetch {
        Fetch::Until(self.volume.deadline())
    }

    /// Checks that `bytes` more and one more file leave enough space free.
    pub(super) fn check_room(
        &self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        bytes: u64,
    ) -> Result<(), ExtractError> {
        let room = rustix::fs::fstatvfs(fd).map_err(system(path))?;
        let free_bytes = room.f_bavail.saturating_mul(room.f_frsize);
        let few_files = room.f_files > 0 && room.f_favail < self.options.keep_free_files;
        if free_bytes < self.options.keep_free_bytes.saturating_add(bytes) || few_files {
            return Err(ExtractError::NoRoom { path: shown(path) });
        }
        Ok(())
    }

    /// The permission bits that may be set.
    pub(super) fn mode(&self, inode: &Inode) -> Mode {
        let allowed = if self.options.owner { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(u32::from(inode.mode) & allowed)
    }

    /// Owner, mode, extended attributes and time of an open file, in the order in which one does not
    /// undo another. Gives back attributes that could not be set.
    pub(super) async fn attributes(
        &self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        inode: &Inode,
    ) -> Result<Vec<String>, ExtractError> {
        if let (true, Some(owner)) = (self.options.owner, &inode.owner) {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            rustix::fs::fchown(fd, Some(uid), Some(gid)).map_err(system(path))?;
        }
        let mut left_out = Vec::new();
        let xattrs = self.tree.xattrs(inode, self.how()).await;
        let xattrs = xattrs.map_err(|why| ExtractError::Read {
            path: shown(path),
            why,
        })?;
        for (name, value) in xattrs {
            if !name.starts_with(b"user.") && !self.options.owner {
                left_out.push(format!("{}: set only with --owner", name.escape_ascii()));
                continue;
            }
            match rustix::fs::fsetxattr(fd, &*name, &value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC) => {
                    left_out.push(format!(
                        "{}: refused by the file system",
                        name.escape_ascii()
                    ));
                }
                Err(errno) => return Err(system(path)(errno)),
            }
        }
        rustix::fs::fchmod(fd, self.mode(inode)).map_err(system(path))?;
        rustix::fs::futimens(fd, &times(inode)).map_err(system(path))?;
        Ok(left_out)
    }

    /// Writes the content of a file that was just made. Holes are left out.
    pub(super) async fn content(
        &self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        inode: &Inode,
    ) -> Result<(), ExtractError> {
        let read = |why| ExtractError::Read {
            path: shown(path),
            why,
        };
        let len = inode.content.size();
        let mut at = 0;
        while at < len {
            let until = at.saturating_add(WINDOW_BYTES).min(len);
            let runs = self.tree.data_runs(inode, at, until, self.how()).await;
            let runs = runs.map_err(read)?;
            for run in runs.data {
                let bytes = (run.end - run.start) as usize;
                self.check_room(fd, path, bytes as u64)?;
                let pieces = self.tree.read(inode, run.start, bytes, self.how()).await;
                let mut to = run.start;
                for piece in pieces.map_err(read)? {
                    write_all(fd, &piece, to).map_err(system(path))?;
                    to += piece.len() as u64;
                }
            }
            self.tally.add(0, runs.until.saturating_sub(at));
            at = runs.until;
        }
        rustix::fs::ftruncate(fd, len).map_err(system(path))
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, bytes, at))?;
        at += written as u64;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

pub(super) fn times(inode: &Inode) -> Timestamps {
    let mtime = Timespec {
        tv_sec: inode.mtime.seconds,
        tv_nsec: inode.mtime.nanos.into(),
    };
    Timestamps {
        last_access: mtime,
        last_modification: mtime,
    }
}
