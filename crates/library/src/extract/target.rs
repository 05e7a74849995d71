//! One file of an extraction: it is opened beneath the target, never through a link. Then it gets its
//! content and those attributes that a stranger may set.
//!
//! Relies on [`reader::Tree`] for proved bytes. `extract` decides what is made, and in which order.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use trust::inode::Inode;

use super::outcome::shown;
use super::{ExtractError, ExtractOptions, Refused, there};
use reader::Tally;
use reader::{Fetch, ReadError, Tree};

/// Content of one file that is in memory at a time, bytes.
const WINDOW_BYTES: u64 = 2 << 20;

pub(super) fn system(path: &[u8]) -> impl Fn(Errno) -> ExtractError + '_ {
    move |errno| ExtractError::System {
        path: shown(path),
        source: errno.into(),
    }
}

/// Opens the target, which is made when missing.
pub(super) fn open_target(target: &Path) -> Result<OwnedFd, ExtractError> {
    let wrong = |errno: Errno| ExtractError::System {
        path: target.to_owned(),
        source: errno.into(),
    };
    let mut made = rustix::fs::mkdir(target, Mode::RWXU);
    if let (Err(Errno::NOENT), Some(above)) = (made, target.parent()) {
        let above = std::fs::create_dir_all(above);
        above.map_err(|source| ExtractError::System {
            path: target.to_owned(),
            source,
        })?;
        made = rustix::fs::mkdir(target, Mode::RWXU);
    }
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(wrong(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(target, flags, Mode::empty()).map_err(wrong)
}

/// What all files need.
pub(super) struct Shared {
    /// How long a step may take.
    pub deadline: Duration,
    /// What the walk has fetched ahead is all that is wanted.
    pub tree: Tree,
    pub options: ExtractOptions,
    pub tally: Arc<Tally>,
    pub refused: Mutex<Refused>,
}

/// What to do with the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// The file was just made: write all of it.
    Write,
    /// Write what differs.
    Mend,
    /// Only say whether it differs.
    Compare,
}

/// Whether the file system refuses an attribute, as one that cannot store it does, or one that keeps it from this user.
fn refuses(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PERM
            | Errno::ACCESS
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::INVAL
            | Errno::OVERFLOW
    )
}

impl Shared {
    pub(super) fn how(&self) -> Fetch {
        Fetch::Until(Instant::now() + self.deadline)
    }

    /// Checks that `bytes` more and one more file leave enough space free.
    pub(super) fn check_room(
        &self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        bytes: u64,
    ) -> Result<(), ExtractError> {
        let is_left = self.options.keep_free.is_left(fd, bytes);
        match is_left.map_err(system(path))? {
            true => Ok(()),
            false => Err(ExtractError::NoRoom { path: shown(path) }),
        }
    }

    /// Counts what the file system refuses; other errors are errors. False if it was refused.
    fn unless_refused(
        &self,
        outcome: Result<(), Errno>,
        path: &[u8],
        count: impl FnOnce(&mut Refused) -> &mut u64,
    ) -> Result<bool, ExtractError> {
        let errno = match outcome {
            Ok(()) => return Ok(true),
            Err(errno) if refuses(errno) => errno,
            Err(errno) => return Err(system(path)(errno)),
        };
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *count(&mut refused) += 1;
        if refused.first.is_none() {
            refused.first = Some((shown(path), errno.into()));
        }
        Ok(false)
    }

    /// The permission bits that may be set of a file with its owner.
    pub(super) fn allowed(&self) -> u32 {
        if self.options.owner { 0o7777 } else { 0o1777 }
    }

    /// Sets the owner, if that is asked for. Gives the permission bits that may be set then: a file that does not have
    /// the owner of the volume must not lend the rights of the one it has.
    pub(super) fn owner(
        &self,
        path: &[u8],
        inode: &Inode,
        set: impl FnOnce(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> Result<Mode, ExtractError> {
        let mut allowed = self.allowed();
        if let (true, Some(owner)) = (self.options.owner, &inode.owner) {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            let outcome = set(Some(uid), Some(gid));
            if !self.unless_refused(outcome, path, |refused| &mut refused.owners)? {
                allowed = 0o1777;
            }
        }
        Ok(Mode::from_raw_mode(u32::from(inode.mode) & allowed))
    }

    /// Counts a mode that was refused.
    pub(super) fn mode(
        &self,
        path: &[u8],
        outcome: Result<(), Errno>,
    ) -> Result<bool, ExtractError> {
        self.unless_refused(outcome, path, |refused| &mut refused.modes)
    }

    /// Counts a time that was refused.
    pub(super) fn time(
        &self,
        path: &[u8],
        outcome: Result<(), Errno>,
    ) -> Result<bool, ExtractError> {
        self.unless_refused(outcome, path, |refused| &mut refused.times)
    }

    /// Owner, mode, extended attributes and time of an open file, in the order in which one does not
    /// undo another. Gives back attributes that could not be set.
    pub(super) async fn attributes(
        &self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        inode: &Inode,
    ) -> Result<Vec<String>, ExtractError> {
        let mode = self.owner(path, inode, |uid, gid| rustix::fs::fchown(fd, uid, gid))?;
        let mut left_out = Vec::new();
        let xattrs = self.tree.xattrs(inode, self.how()).await;
        let xattrs = xattrs.map_err(|why| ExtractError::read(path, why.into()))?;
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
        self.mode(path, rustix::fs::fchmod(fd, mode))?;
        self.time(path, rustix::fs::futimens(fd, &times(inode)))?;
        Ok(left_out)
    }

    /// Brings a file to the content of the tree's, or only compares it. Holes are left out. Gives back whether nothing
    /// differed.
    pub(super) async fn content(
        &self,
        fd: BorrowedFd<'_>,
        path: &[u8],
        inode: &Inode,
        work: Fill,
    ) -> Result<bool, ExtractError> {
        let read = |why: ReadError| ExtractError::read(path, why.into());
        let len = inode.content.size();
        let is_there = work != Fill::Write;
        let found_bytes = rustix::fs::fstat(fd).map_err(system(path))?.st_size;
        let mut same = found_bytes.unsigned_abs() == len;
        let mut at = 0;
        while at < len && (same || work != Fill::Compare) {
            let until = at.saturating_add(WINDOW_BYTES).min(len);
            let runs = self.tree.data_runs(inode, at, until, self.how()).await;
            let runs = runs.map_err(read)?;
            let mut wanted = runs.data.clone();
            let mut in_holes = false;
            if is_there {
                let copy = |offset, len| there::read_at(fd, offset, len);
                let differing = self
                    .tree
                    .differing_runs(inode, (at, until), self.how(), copy);
                wanted = differing.await.map_err(read)?;
                for hole in holes(&runs.data, at..runs.until) {
                    let found = there::not_zero(fd, &hole).map_err(system(path))?;
                    in_holes |= found.is_some();
                    if work == Fill::Mend {
                        zero(fd, &hole).map_err(system(path))?;
                    }
                }
            }
            if is_there && (in_holes || !wanted.is_empty()) {
                same = false;
                if work == Fill::Compare {
                    break;
                }
                // What it is going to hold may be more private. Only its owner can do that.
                let _ = rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR);
            }
            for run in wanted {
                let bytes = (run.end - run.start) as usize;
                self.check_room(fd, path, bytes as u64)?;
                let pieces = self.tree.read(inode, run.start, bytes, self.how()).await;
                let mut to = run.start;
                for piece in pieces.map_err(read)? {
                    write_all(fd, &piece, to).map_err(system(path))?;
                    to += piece.len() as u64;
                }
            }
            if work != Fill::Compare {
                self.tally.add(0, runs.until.saturating_sub(at));
            }
            at = runs.until;
        }
        if work != Fill::Compare {
            rustix::fs::ftruncate(fd, len).map_err(system(path))?;
        }
        Ok(same)
    }
}

/// What is not data in a stretch of a file.
fn holes(data: &[Range<u64>], all: Range<u64>) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    let mut at = all.start;
    for run in data {
        if at < run.start {
            holes.push(at..run.start);
        }
        at = run.end;
    }
    if at < all.end {
        holes.push(at..all.end);
    }
    holes
}

/// Writes zeros where a hole has other bytes.
fn zero(fd: BorrowedFd<'_>, hole: &Range<u64>) -> Result<(), Errno> {
    let mut rest = hole.clone();
    while let Some(found) = there::not_zero(fd, &rest)? {
        let zeros = vec![0; (found.end - found.start) as usize];
        write_all(fd, &zeros, found.start)?;
        rest.start = found.end;
    }
    Ok(())
}

pub(super) fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
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
