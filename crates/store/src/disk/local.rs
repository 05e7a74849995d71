//! [`Local`]: a directory of the local file system as a [`Disk`].

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::{Disk, DiskFile, Lock};

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

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path(name))?;
        Ok(Arc::new(LocalFile::new(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        // O_NONBLOCK: opening a named pipe must not block for ever.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(self.path(name))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a regular file",
            ));
        }
        Ok(Arc::new(LocalFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        if path.is_dir() {
            return Ok(());
        }
        std::fs::create_dir_all(&path)?;
        match path.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    fn sync_dir(&self, name: &str) -> io::Result<()> {
        File::open(self.path(name))?.sync_all()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.path(dir))? {
            if let Ok(name) = OsString::into_string(entry?.file_name()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path(name))?;
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
