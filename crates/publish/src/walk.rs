//! Walks the tree to be published, in the order that all other parts rely on.
//!
//! A directory comes after all its sub-directories. Sub-directories, and the names in a directory, come in
//! byte order. Only this order is a promise (hard links are named by the first path in it, the stat cache is
//! merged along it). Everything is opened relative to a directory that is open already and never through a
//! symbolic link, so that a concurrent rename cannot lead outside. One listing (about 8 bytes and the name
//! for each entry) is held for each directory on the way down, and at most [`OPEN_DIRECTORIES`] of these are
//! open at once.

use content::attributes::device;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Statx, StatxFlags};
use rustix::io::Errno;

use crate::exclude::Exclude;
use crate::limits;
use crate::publish_error::{PublishError, Unreadable};

/// Directories on the way down that are kept open; farther ancestors are opened again through `..`.
const OPEN_DIRECTORIES: usize = 64;
const LISTING_BUFFER_BYTES: usize = 64 << 10;

/// Receives what the walk finds.
pub(crate) trait Visitor {
    /// A directory. All its sub-directories came before.
    fn directory(&mut self, directory: &Listed<'_>) -> Result<(), PublishError>;

    /// A directory that cannot be read: an error ends the walk, `Ok` leaves the directory out.
    fn unreadable(&mut self, path: &[u8], why: Unreadable) -> Result<(), PublishError>;
}

/// A directory as it was found.
pub(crate) struct Listed<'a> {
    /// The open directory.
    pub fd: &'a Arc<OwnedFd>,
    /// Relative to the top, which is the empty path.
    pub path: &'a [u8],
    /// Its attributes as they were before it was listed.
    pub stat: &'a Statx,
    /// How many of its sub-directories came before.
    pub subdirectories: usize,
    /// The names of everything else, in order.
    pub others: &'a Names,
}

/// Which part of the tree is walked.
pub(crate) struct Scope<'a> {
    /// Names to leave out.
    pub exclude: &'a Exclude,
    /// Whether directories on other file systems are treated as empty.
    pub one_file_system: bool,
    /// A directory that must not be met: the repository itself.
    pub forbidden: Option<(u64, u64)>,
    /// Another one: what this machine remembers of its volumes.
    pub state: Option<(u64, u64)>,
}

/// Names in one allocation, each followed by NUL.
#[derive(Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    /// Start and length without NUL.
    spans: Vec<(u32, u16)>,
}

impl Names {
    fn push(&mut self, name: &CStr) -> Result<(), Unreadable> {
        let full = || std::io::Error::other("the directory is too large");
        let start = u32::try_from(self.bytes.len()).map_err(|_| full())?;
        let len = u16::try_from(name.to_bytes().len()).map_err(|_| full())?;
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
        self.spans.push((start, len));
        Ok(())
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let name = |span: &(u32, u16)| &bytes[span.0 as usize..][..span.1 as usize];
        self.spans.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        self.spans.dedup_by(|a, b| name(a) == name(b));
    }

    /// How many names.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The name at `index`.
    pub fn get(&self, index: usize) -> Option<&CStr> {
        let (start, len) = *self.spans.get(index)?;
        let bytes = self.bytes.get(start as usize..)?.get(..=len as usize)?;
        CStr::from_bytes_with_nul(bytes).ok()
    }

    /// All names in order.
    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

/// Attributes of a name, not following a symbolic link.
pub(crate) fn stat_at(directory: &OwnedFd, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS)
}

/// Attributes of an open file.
pub(crate) fn stat_open(fd: &OwnedFd) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Opens for reading. Does not follow a link or wait for a pipe, and leaves the access time unchanged if
/// that is allowed.
pub(crate) fn open_at(directory: &OwnedFd, name: &CStr, more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | more;
    let flags = flags | OFlags::NOCTTY;
    match rustix::fs::openat(directory, name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner may use `O_NOATIME`.
        Err(Errno::PERM) => rustix::fs::openat(directory, name, flags, Mode::empty()),
        other => other,
    }
}

/// Walks the tree under `top`.
pub(crate) fn walk(
    top: &OwnedFd,
    scope: &Scope<'_>,
    visitor: &mut impl Visitor,
) -> Result<(), PublishError> {
    let mut walk = Walk {
        scope,
        path: Vec::new(),
        stack: Vec::new(),
        buffer: Vec::with_capacity(LISTING_BUFFER_BYTES),
        top_device: None,
    };
    // If the top cannot be opened, there is no tree to publish.
    let entered = open_at(top, c".", OFlags::DIRECTORY).map_err(Unreadable::from);
    entered
        .and_then(|top| walk.enter(Arc::new(top)))
        .map_err(|why| PublishError::Unreadable {
            path: ".".into(),
            why,
        })?;
    walk.check_allowed()?;
    while let Some(level) = walk.stack.last_mut() {
        let next = level.next;
        level.next += 1;
        match level.directories.get(next).map(CStr::to_owned) {
            Some(name) => walk.descend(&name, visitor)?,
            None => walk.leave(visitor)?,
        }
    }
    Ok(())
}

struct Walk<'a> {
    scope: &'a Scope<'a>,
    /// Path of the directory at the top of the stack.
    path: Vec<u8>,
    stack: Vec<Level>,
    buffer: Vec<u8>,
    top_device: Option<u64>,
}

struct Level {
    fd: Option<Arc<OwnedFd>>,
    stat: Statx,
    /// Length of the path of the directory above.
    parent_path_len: usize,
    directories: Names,
    others: Names,
    /// Which of `directories` is next.
    next: usize,
    told: usize,
}

impl Walk<'_> {
    fn descend(&mut self, name: &CStr, visitor: &mut impl Visitor) -> Result<(), PublishError> {
        let above = self.path.len();
        if above > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        if let Err(why) = limits::check_path(self.path.len(), self.stack.len()) {
            visitor.unreadable(&self.path, why)?;
            self.path.truncate(above);
            return Ok(());
        }
        let Some(parent) = self.stack.last().and_then(|level| level.fd.clone()) else {
            return Err(PublishError::WorkerDied);
        };
        let entered = open_at(&parent, name, OFlags::DIRECTORY)
            .map_err(Unreadable::from)
            .and_then(|fd| self.enter(Arc::new(fd)));
        match entered {
            Ok(()) => {
                self.check_allowed()?;
                if let Some(level) = self.stack.last_mut() {
                    level.parent_path_len = above;
                }
                let far = self.stack.len().checked_sub(OPEN_DIRECTORIES + 1);
                if let Some(level) = far.and_then(|far| self.stack.get_mut(far)) {
                    level.fd = None;
                }
                return Ok(());
            }
            Err(Unreadable::Io(e)) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                tracing::debug!(path = %self.path.escape_ascii(), "vanished during the walk");
            }
            Err(why) => visitor.unreadable(&self.path, why)?,
        }
        self.path.truncate(above);
        Ok(())
    }

    /// Refuses to publish the repository into itself, and what this machine remembers.
    fn check_allowed(&self) -> Result<(), PublishError> {
        let here = self.stack.last().map(|l| (device(&l.stat), l.stat.stx_ino));
        if here.is_some() && here == self.scope.forbidden {
            return Err(PublishError::RepositoryInside {
                path: trust::change::path(&self.path),
            });
        }
        if here.is_some() && here == self.scope.state {
            return Err(PublishError::OwnFile {
                path: trust::change::path(&self.path),
                what: "the directory of bulla's own state",
            });
        }
        Ok(())
    }

    /// Lists a directory and puts it on the stack.
    fn enter(&mut self, fd: Arc<OwnedFd>) -> Result<(), Unreadable> {
        let stat = stat_open(&fd)?;
        let mut level = Level {
            fd: None,
            stat,
            parent_path_len: 0,
            directories: Names::default(),
            others: Names::default(),
            next: 0,
            told: 0,
        };
        let here = *self.top_device.get_or_insert(device(&stat));
        if !(self.scope.one_file_system && device(&stat) != here) {
            self.list(&fd, &mut level)?;
        }
        level.fd = Some(fd);
        self.stack.push(level);
        Ok(())
    }

    fn list(&mut self, fd: &OwnedFd, level: &mut Level) -> Result<(), Unreadable> {
        self.buffer.clear();
        let spare: &mut [MaybeUninit<u8>] = self.buffer.spare_capacity_mut();
        let mut entries = RawDir::new(fd, spare);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Directory => true,
                FileType::Unknown => match stat_at(fd, name) {
                    Ok(s) => FileType::from_raw_mode(s.stx_mode.into()) == FileType::Directory,
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno.into()),
                },
                _ => false,
            };
            let exclude = self.scope.exclude;
            if !exclude.is_empty() && exclude.leaves_out(&self.path, name.to_bytes(), is_directory)
            {
                continue;
            }
            if is_directory {
                level.directories.push(name)?;
            } else {
                level.others.push(name)?;
            }
        }
        level.directories.sort();
        level.others.sort();
        Ok(())
    }

    /// Passes the directory at the top of the stack to the visitor and returns to the one above.
    fn leave(&mut self, visitor: &mut impl Visitor) -> Result<(), PublishError> {
        let Some(level) = self.stack.pop() else {
            return Ok(());
        };
        let Some(fd) = &level.fd else {
            return Err(PublishError::WorkerDied);
        };
        visitor.directory(&Listed {
            fd,
            path: &self.path,
            stat: &level.stat,
            subdirectories: level.told,
            others: &level.others,
        })?;
        if let Some(above) = self.stack.last_mut() {
            above.told += 1;
            if above.fd.is_none() {
                above.fd = Some(Arc::new(reopen(fd, &above.stat).map_err(|why| {
                    PublishError::Unreadable {
                        path: trust::change::path(&self.path),
                        why,
                    }
                })?));
            }
        }
        self.path.truncate(level.parent_path_len);
        Ok(())
    }
}

/// Opens the directory above `below`, provided that it is still the one that it was.
fn reopen(below: &OwnedFd, expected: &Statx) -> Result<OwnedFd, Unreadable> {
    let fd = open_at(below, c"..", OFlags::DIRECTORY)?;
    let found = stat_open(&fd)?;
    if found.stx_ino == expected.stx_ino && device(&found) == device(expected) {
        Ok(fd)
    } else {
        Err(Unreadable::Replaced)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    struct Told(Vec<(String, usize, Vec<String>)>);

    impl Visitor for Told {
        fn directory(&mut self, d: &Listed<'_>) -> Result<(), PublishError> {
            let text = |b: &[u8]| b.escape_ascii().to_string();
            let names = d.others.iter().map(|n| text(n.to_bytes())).collect();
            self.0.push((text(d.path), d.subdirectories, names));
            Ok(())
        }
        fn unreadable(&mut self, path: &[u8], why: Unreadable) -> Result<(), PublishError> {
            panic!("{}: {why}", path.escape_ascii());
        }
    }

    fn told(dir: &std::path::Path, patterns: &[&str]) -> Vec<(String, usize, Vec<String>)> {
        let exclude = Exclude::new(patterns).unwrap();
        let scope = Scope {
            exclude: &exclude,
            one_file_system: true,
            forbidden: None,
            state: None,
        };
        let mut told = Told(Vec::new());
        let top = std::fs::File::open(dir).unwrap();
        walk(&top.into(), &scope, &mut told).unwrap();
        told.0
    }

    #[test]
    fn sub_directories_come_first_and_names_in_byte_order() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &[u8], is_dir: bool| {
            let path = dir.path().join(std::ffi::OsStr::from_bytes(name));
            if is_dir {
                std::fs::create_dir_all(path).unwrap();
            } else {
                std::fs::write(path, b"x").unwrap();
            }
        };
        for d in [&b"b/c"[..], b"a\xff", b"a"] {
            make(d, true);
        }
        for f in [&b"b/z"[..], b"b/c/\xfe", b"b/c/M", b"m", b"a.txt"] {
            make(f, false);
        }
        std::os::unix::fs::symlink("b", dir.path().join("link")).unwrap();
        let row = |p: &str, n: usize, names: &[&str]| {
            (
                p.to_owned(),
                n,
                names.iter().map(|s| s.to_string()).collect(),
            )
        };
        assert_eq!(
            told(dir.path(), &[]),
            [
                row("a", 0, &[]),
                row("a\\xff", 0, &[]),
                row("b/c", 0, &["M", "\\xfe"]),
                row("b", 1, &["z"]),
                row("", 3, &["a.txt", "link", "m"]),
            ]
        );
        assert_eq!(
            told(dir.path(), &["b/c/", "a*", "m/"]),
            [row("b", 0, &["z"]), row("", 1, &["link", "m"])]
        );
    }

    #[test]
    fn trees_deeper_than_the_limit_of_open_files_are_walked() {
        let dir = tempfile::tempdir().unwrap();
        let depth = OPEN_DIRECTORIES * 3;
        let mut path = dir.path().to_owned();
        for i in 0..depth {
            path.push(format!("d{i}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::create_dir(path.join("z")).unwrap();
        }
        let told = told(dir.path(), &[]);
        assert_eq!(told.len(), 2 * depth + 1);
        assert_eq!(told.last().unwrap().0, "");
    }
}
