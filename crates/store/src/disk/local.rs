//! [`Local`]: a directory of the local file system as a [`Disk`].
//!
//! The path of the directory may lead through symbolic links. Below it none is followed ([`crate::beneath`]):
//! a link that somebody plants in a repository must not give a private file away or have one overwritten.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::{Disk, DiskFile, Lock, Space};
use crate::beneath;

/// Permissions of new files and directories, before the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

/// A directory of the local file system.
#[derive(Debug)]
pub struct Local {
    root: PathBuf,
    place: String,
}

impl Local {
    /// A disk on this directory, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let place = root.display().to_string();
        Local { root, place }
    }

    /// The directory itself. It is opened for each call, so that an open repository does not keep a file
    /// system from being unmounted, and finds the one that is mounted later.
    fn root(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.root, flags, Mode::empty())?)
    }

    fn open_beneath(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let opened = beneath::open(self.root()?.as_fd(), name.as_bytes(), flags, mode);
        opened.map(File::from).map_err(explained)
    }

    fn open_directory(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.open_beneath(name, flags, Mode::empty())
    }

    /// Makes the directory itself. The path to it is the caller's, so links in it are followed.
    fn make_root(&self) -> io::Result<()> {
        if self.root.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(&self.root)?;
        match (self.root.parent()).filter(|p| !p.as_os_str().is_empty()) {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Makes one directory durably, unless it is there.
    fn make_one(&self, name: &str) -> io::Result<()> {
        let (parent, last) = open_parent(self.root()?.as_fd(), name)?;
        match rustix::fs::mkdirat(&parent, last, DIRECTORY_MODE) {
            Ok(()) => File::from(parent).sync_all(),
            Err(Errno::EXIST) => self.open_directory(name).map(drop),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A file that was just opened, if it is a regular one. It was opened with `O_NONBLOCK`: opening a named pipe
/// must not block for ever.
fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a regular file",
        )),
    }
}

impl Disk for Local {
    fn place(&self) -> &str {
        &self.place
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() {
            self.root.clone()
        } else {
            self.root.join(name)
        }
    }

    fn space(&self) -> io::Result<Space> {
        let there = rustix::fs::fstatvfs(self.root()?)?;
        Ok(Space {
            total_bytes: there.f_blocks.saturating_mul(there.f_frsize),
            free_bytes: there.f_bavail.saturating_mul(there.f_frsize),
        })
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        // A crash may have left a file of this name, and a stranger a link or a pipe. It is removed, never
        // opened.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = match self.open_beneath(name, flags, FILE_MODE) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.remove(name)?;
                self.open_beneath(name, flags, FILE_MODE)?
            }
            opened => opened?,
        };
        Ok(Arc::new(LocalFile::new(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = regular(self.open_beneath(name, flags, Mode::empty())?)?;
        Ok(Arc::new(LocalFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let root = self.root()?;
        let (from_directory, from) = open_parent(root.as_fd(), from)?;
        let (to_directory, to) = open_parent(root.as_fd(), to)?;
        Ok(rustix::fs::renameat(
            from_directory,
            from,
            to_directory,
            to,
        )?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (directory, last) = open_parent(self.root()?.as_fd(), name)?;
        Ok(rustix::fs::unlinkat(directory, last, AtFlags::empty())?)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        if name.is_empty() {
            return self.make_root();
        }
        match self.open_directory(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map(drop),
        }
        let parents = name.match_indices('/').map(|(end, _)| end);
        for end in parents.chain([name.len()]) {
            self.make_one(name.get(..end).unwrap_or(name))?;
        }
        Ok(())
    }

    fn sync_dir(&self, name: &str) -> io::Result<()> {
        self.open_directory(name)?.sync_all()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open_directory(dir)?)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let file = regular(self.open_beneath(name, flags, FILE_MODE)?)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(FlockGuard(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }
}

/// Unlocks when dropped. Closing the file is not enough: a child process that another thread is just
/// forking has the file open too, until it calls exec.
struct FlockGuard(File);

impl Drop for FlockGuard {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

struct LocalFile {
    file: File,
    in_memory: bool,
}

impl LocalFile {
    fn new(file: File) -> Self {
        // tmpfs does not support RWF_NOWAIT, and its reads never wait for a device.
        const TMPFS: i64 = 0x0102_1994;
        let system = rustix::fs::fstatfs(&file);
        LocalFile {
            file,
            in_memory: system.is_ok_and(|s| s.f_type == TMPFS),
        }
    }
}

impl DiskFile for LocalFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            match self.file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn read_at_if_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.in_memory {
            return self.read_at(buf, offset).map(Some);
        }
        let want = buf.len();
        let mut slices = [io::IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(n) if n == want => Ok(Some(n)),
            // A short read: either the file or the cached part ends here.
            Ok(n) => {
                let end = self.len_bytes()?;
                Ok((offset.saturating_add(n as u64) == end).then_some(n))
            }
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Opens the directory that holds `name`, and gives the last part of the name.
///
/// # Errors
/// The system's; `InvalidData` when a part of the name is a symbolic link.
fn open_parent<'a>(root: BorrowedFd<'_>, name: &'a str) -> io::Result<(OwnedFd, &'a str)> {
    let (parent, last) = name.rsplit_once('/').unwrap_or(("", name));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let opened = beneath::open(root, parent.as_bytes(), flags, Mode::empty());
    Ok((opened.map_err(explained)?, last))
}

fn explained(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP => io::Error::new(
            io::ErrorKind::InvalidData,
            "a symbolic link, and links inside a repository are not followed",
        ),
        other => other.into(),
    }
}
