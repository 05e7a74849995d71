//! What lies in the target of an extraction that goes on: it is compared with the tree by content, taken over where it
//! is the same, and replaced where it is not. Links are never followed, only removed.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use reader::Here;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use trust::inode::Inode;

use store::beneath;

/// Read at a time, bytes.
const PIECE_BYTES: usize = 256 << 10;

/// A regular file in the target.
pub(super) enum There {
    /// It can be mended where it lies.
    Own(OwnedFd),
    /// It has other names too, or cannot be written: it is taken over as it is, or made anew.
    Fixed(OwnedFd),
}

/// The regular file of this name, if there is one that can be read.
pub(super) fn file(directory: BorrowedFd<'_>, name: &[u8]) -> Option<There> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let open = |flags| beneath::open(directory, name, flags, Mode::empty());
    let writable = match open(OFlags::RDWR | OFlags::NONBLOCK) {
        // An earlier run had set its mode already.
        Err(Errno::ACCESS) => {
            let held = open(OFlags::PATH).ok()?;
            let unlocked = unlock(held.as_fd(), Mode::RUSR | Mode::WUSR);
            unlocked.and_then(|()| open(OFlags::RDWR | OFlags::NONBLOCK))
        }
        other => other,
    };
    let is_writable = writable.is_ok();
    let fd = writable.or_else(|_| open(OFlags::RDONLY | OFlags::NONBLOCK));
    let fd = fd.ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    Some(match is_writable && stat.st_nlink == 1 {
        true => There::Own(fd),
        false => There::Fixed(fd),
    })
}

/// Opens a directory that is there, whatever mode an earlier run has set.
pub(super) fn directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let held = beneath::open(
        parent,
        name,
        OFlags::PATH | OFlags::DIRECTORY,
        Mode::empty(),
    )?;
    // Refused to one who is not its owner, who may have rights enough.
    let _ = unlock(held.as_fd(), Mode::RWXU);
    beneath::open(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY,
        Mode::empty(),
    )
}

/// Sets the mode of a file that is held without being open.
fn unlock(held: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    rustix::fs::chmod(path, mode)
}

/// Removes what has this name: anything but a directory that is not empty.
pub(super) fn clear(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
        }
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Makes something of this name; where the name is taken, in its place.
pub(super) fn replace<T>(
    goes_on: bool,
    (directory, name): (BorrowedFd<'_>, &[u8]),
    make: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) if goes_on => {
            clear(directory, name)?;
            make()
        }
        other => other,
    }
}

/// `len` bytes at an offset, if the file has so many.
pub(super) fn read_at(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let read =
            rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *rest, offset + done as u64));
        match read {
            Ok(0) | Err(_) => return None,
            Ok(read) => done += read,
        }
    }
    Some(bytes)
}

/// The first stretch of a hole of the tree's file in which this file has other bytes than zeros.
pub(super) fn not_zero(fd: BorrowedFd<'_>, hole: &Range<u64>) -> Result<Option<Range<u64>>, Errno> {
    let end = hole.end.min(rustix::fs::fstat(fd)?.st_size.unsigned_abs());
    let mut at = hole.start;
    while at < end {
        at = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => return Ok(None),
            // The file system knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        let len = end.saturating_sub(at).min(PIECE_BYTES as u64);
        if len == 0 {
            return Ok(None);
        }
        let bytes = read_at(fd, at, len as usize).ok_or(Errno::IO)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some(at..at + len));
        }
        at += len;
    }
    Ok(None)
}

/// Says of a file of the tree whether the target has one of its length. Most such files are whole, and their content is
/// not fetched ahead; all of them are compared afterwards. `base`: the path that is extracted.
pub(super) fn of_same_length(root: &Arc<OwnedFd>, base: &[u8]) -> Here {
    let (root, base) = (Arc::clone(root), base.to_owned());
    Here::new(move |path: &[u8], inode: &Inode| {
        let path = below(&base, path);
        let found = beneath::open(root.as_fd(), path, OFlags::PATH, Mode::empty());
        let stat = found.and_then(rustix::fs::fstat);
        stat.is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_size.unsigned_abs() == inode.content.size()
        })
    })
}

/// The path in the target of a path in the tree.
pub(super) fn below<'a>(base: &[u8], path: &'a [u8]) -> &'a [u8] {
    let rest = path.strip_prefix(base).unwrap_or(path);
    rest.strip_prefix(b"/").unwrap_or(rest)
}

/// The directory of a path, and the last name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => {
            let (parent, base) = path.split_at(at);
            (parent, base.strip_prefix(b"/").unwrap_or(base))
        }
        None => (b"", path),
    }
}
