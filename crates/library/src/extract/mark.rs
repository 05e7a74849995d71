//! The mark of an unfinished extraction: a file in the target, from its first moment to its last. Only a directory
//! with the mark of the same volume and path is gone on with, so nothing that a user keeps in a directory is taken
//! for the work of `extract`. Its lock keeps a second extraction out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use reader::ReadError;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use trust::Reject;
use trust::statement::VolumeId;

use super::ExtractError;
use super::target::write_all;
use crate::tree::{Entry, Tree};
use store::beneath;

/// Names that a tree may take from the mark before it gets none.
const MOST_NAMES: usize = 100;
/// A longer mark is none.
const MOST_BYTES: usize = 16 << 10;

/// The mark, and the lock on it.
pub(super) struct Mark {
    pub name: Vec<u8>,
    _file: OwnedFd,
}

/// A name for the mark that `top`, the inode of what is extracted, does not have itself; `base` if it is no directory.
pub(super) async fn name(
    tree: &Tree<'_>,
    (base, top): (&[u8], &Entry),
) -> Result<Vec<u8>, ExtractError> {
    for number in 1..=MOST_NAMES {
        let name = match number {
            1 => ".bulla-extract".to_owned(),
            number => format!(".bulla-extract-{number}"),
        };
        let is_taken = match top.is_directory() {
            true => {
                let taken = tree.inside(top, name.as_bytes()).await;
                taken.map_err(|why| ExtractError::read(&top.path, why))?
            }
            false => base == name.as_bytes(),
        };
        if !is_taken {
            return Ok(name.into_bytes());
        }
    }
    let why = ReadError::of_signed(Reject::BadTree {
        what: "directory",
        why: "it has every name that the mark of an extraction can have",
    });
    Err(ExtractError::read(&top.path, why.into()))
}

/// What the mark of an extraction of `path` says.
pub(super) fn text(volume: VolumeId, path: &[u8]) -> Vec<u8> {
    let mut text = format!("bulla extract of {volume}\npath ").into_bytes();
    text.extend_from_slice(path);
    text.push(b'\n');
    text
}

/// Marks the target. Gives the mark, and whether an extraction goes on that was begun earlier.
pub(super) fn begin(
    root: BorrowedFd<'_>,
    target: &Path,
    name: Vec<u8>,
    text: &[u8],
) -> Result<(Mark, bool), ExtractError> {
    let wrong = |errno: Errno| ExtractError::System {
        path: target.to_owned(),
        source: errno.into(),
    };
    let not_empty = || ExtractError::NotEmpty {
        path: target.to_owned(),
    };
    let in_use = || ExtractError::InUse {
        path: target.to_owned(),
    };
    let (mut is_marked, mut others) = (false, false);
    for entry in Dir::read_from(root).map_err(wrong)? {
        match entry.map_err(wrong)?.file_name().to_bytes() {
            b"." | b".." => {}
            found if found == name => is_marked = true,
            _ => others = true,
        }
    }
    if others && !is_marked {
        return Err(not_empty());
    }
    let (mut flags, mut mode) = (OFlags::RDWR | OFlags::NONBLOCK, Mode::empty());
    if !is_marked {
        flags |= OFlags::CREATE | OFlags::EXCL;
        mode = Mode::RUSR | Mode::WUSR;
    }
    let file = match beneath::open(root, &name, flags, mode) {
        Ok(file) => file,
        Err(Errno::EXIST) => return Err(in_use()),
        // Whatever has the name, it is no mark.
        Err(_) if is_marked => return Err(not_empty()),
        Err(errno) => return Err(wrong(errno)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(in_use()),
        // A file system without locks: two at a time are the user's own doing.
        Err(_) => {}
    }
    if others {
        let mut found = vec![0; MOST_BYTES];
        let read = rustix::io::pread(&file, &mut found, 0).unwrap_or(0);
        if found.get(..read) != Some(text) {
            return Err(not_empty());
        }
    } else {
        rustix::fs::ftruncate(&file, 0).map_err(wrong)?;
        write_all(file.as_fd(), text, 0).map_err(wrong)?;
    }
    Ok((Mark { name, _file: file }, others))
}

impl Mark {
    /// Takes the mark away.
    pub(super) fn remove(&self, root: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::fs::unlinkat(root, &*self.name, AtFlags::empty())
    }
}
