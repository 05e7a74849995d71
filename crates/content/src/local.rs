//! Files of this machine as `put` reads them. What the user names may be a symbolic link. Below it
//! no link is followed: every directory is opened by its name in the directory above, so a program that puts a link in
//! the place of a directory meanwhile does not lead the command to other files.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use trust::inode::Time;

/// A name on this machine.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The open directory that it is in. None: it is what the user has named.
    directory: Option<Arc<OwnedFd>>,
    name: PathBuf,
    /// The whole path, for messages.
    path: PathBuf,
}

/// What a name leads to.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open.
    File(OwnedFd, Attributes),
    /// A symbolic link, and its target.
    Symlink(Vec<u8>, Attributes),
    /// A directory.
    Directory,
    /// A pipe, a socket or a device file.
    Other,
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u16,
    /// Time of modification.
    pub mtime: Time,
    /// Which file it is, if it has several names.
    pub linked: Option<Linked>,
}

/// A file that has several names: device and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Linked(u32, u32, u64);

impl Entry {
    /// What the user has named. If it is a symbolic link, it is followed.
    pub fn named(path: &Path) -> Entry {
        Entry {
            directory: None,
            name: path.to_owned(),
            path: path.to_owned(),
        }
    }

    /// The path of the entry, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn at(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, |fd| fd.as_fd())
    }

    fn stat(&self) -> io::Result<Statx> {
        let follow = match self.directory {
            None => AtFlags::empty(),
            Some(_) => AtFlags::SYMLINK_NOFOLLOW,
        };
        let flags = follow | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(self.at(), &self.name, flags, StatxFlags::BASIC_STATS);
        Ok(stat?)
    }

    fn open(&self, more: OFlags) -> io::Result<OwnedFd> {
        let follow = match self.directory {
            None => OFlags::empty(),
            Some(_) => OFlags::NOFOLLOW,
        };
        // The call does not wait for a pipe, and no terminal becomes that of this process.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = flags | follow | more;
        Ok(rustix::fs::openat(
            self.at(),
            &self.name,
            flags,
            Mode::empty(),
        )?)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> io::Result<bool> {
        Ok(kind(&self.stat()?) == FileType::Directory)
    }

    /// Its length, bytes.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.stat()?.stx_size)
    }

    /// Finds out what the name leads to, and opens it if that is a regular file.
    ///
    /// # Errors
    /// Those of the system; another one if something else took the place of a regular file meanwhile.
    pub fn find(&self) -> io::Result<Found> {
        let stat = self.stat()?;
        match kind(&stat) {
            FileType::RegularFile => {
                let (fd, stat) = self.regular()?;
                Ok(Found::File(fd, attributes(&stat)))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(self.at(), &self.name, Vec::new())?;
                Ok(Found::Symlink(target.into_bytes(), attributes(&stat)))
            }
            FileType::Directory => Ok(Found::Directory),
            _ => Ok(Found::Other),
        }
    }

    /// Opens a regular file.
    fn regular(&self) -> io::Result<(OwnedFd, Statx)> {
        let fd = self.open(OFlags::empty())?;
        let stat = stat_of(&fd)?;
        match kind(&stat) {
            FileType::RegularFile => Ok((fd, stat)),
            _ => Err(io::Error::other("it is no regular file any more")),
        }
    }
}

/// A directory of this machine, open.
#[derive(Debug)]
pub struct Directory {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    /// Its attributes.
    pub attributes: Attributes,
}

impl Directory {
    fn opened(fd: OwnedFd, path: PathBuf) -> io::Result<Directory> {
        Ok(Directory {
            attributes: attributes(&stat_of(&fd)?),
            fd: Arc::new(fd),
            path,
        })
    }

    /// Opens the directory that the user has named.
    pub fn named(path: &Path) -> io::Result<Directory> {
        let fd = Entry::named(path).open(OFlags::DIRECTORY)?;
        Directory::opened(fd, path.to_owned())
    }

    /// Opens a directory below this one, by its names from here, one by one: together they may be longer than a path can
    /// be. Only one directory is open for each that is used, whatever the depth.
    pub fn below(&self, names: &[OsString]) -> io::Result<Directory> {
        let Some((last, way)) = names.split_last() else {
            return Directory::opened(self.fd.try_clone()?, self.path.clone());
        };
        let mut here = Arc::clone(&self.fd);
        for name in way {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = rustix::fs::openat(&here, name, flags, Mode::empty())?;
            here = Arc::new(next);
        }
        let entry = Entry {
            directory: Some(here),
            name: last.into(),
            path: names
                .iter()
                .fold(self.path.clone(), |path, name| path.join(name)),
        };
        Directory::opened(entry.open(OFlags::DIRECTORY)?, entry.path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// A name in it.
    pub fn entry(&self, name: &OsStr) -> Entry {
        Entry {
            directory: Some(Arc::clone(&self.fd)),
            name: name.into(),
            path: self.path.join(name),
        }
    }

    /// Its names, sorted.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        names.sort();
        Ok(names)
    }
}

fn stat_of(fd: &OwnedFd) -> io::Result<Statx> {
    let flags = StatxFlags::BASIC_STATS;
    Ok(rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, flags)?)
}

fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

fn number(stat: &Statx) -> Linked {
    Linked(stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

fn attributes(stat: &Statx) -> Attributes {
    Attributes {
        mode: stat.stx_mode & 0o7777,
        mtime: Time {
            seconds: stat.stx_mtime.tv_sec,
            nanos: stat.stx_mtime.tv_nsec,
        },
        linked: (stat.stx_nlink > 1).then_some(number(stat)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn text(found: Found) -> String {
        let Found::File(fd, _) = found else {
            panic!("{found:?}");
        };
        let mut text = String::new();
        fs::File::from(fd).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn file_that_became_a_link_or_a_pipe_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "x").unwrap();
        symlink("file", at("link")).unwrap();
        let (mode, pipe) = (Mode::RUSR | Mode::WUSR, FileType::Fifo);
        rustix::fs::mknodat(CWD, at("pipe"), pipe, mode, 0).unwrap();
        let directory = Directory::named(dir.path()).unwrap();
        let inside = |name: &str| directory.entry(OsStr::new(name));
        assert_eq!(text(inside("file").find().unwrap()), "x");
        assert!(inside("link").regular().is_err());
        assert!(matches!(
            inside("link").find().unwrap(),
            Found::Symlink(target, _) if target == b"file"
        ));
        // One that the user names is followed.
        assert_eq!(text(Entry::named(&at("link")).find().unwrap()), "x");
        for pipe in [inside("pipe"), Entry::named(&at("pipe"))] {
            assert!(pipe.regular().is_err());
            assert!(matches!(pipe.find().unwrap(), Found::Other));
        }
    }

    #[test]
    fn directory_that_became_a_link_is_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("tree/a/b")).unwrap();
        fs::write(at("tree/a/b/file"), "inside").unwrap();
        fs::create_dir_all(at("secret/b")).unwrap();
        fs::write(at("secret/b/file"), "outside").unwrap();
        let top = Directory::named(&at("tree")).unwrap();
        let names = |names: &[&str]| -> Vec<OsString> { names.iter().map(Into::into).collect() };
        let open = top.below(&names(&["a", "b"])).unwrap();
        fs::rename(at("tree/a"), at("away")).unwrap();
        symlink("../secret", at("tree/a")).unwrap();
        assert!(top.below(&names(&["a"])).is_err());
        assert!(top.below(&names(&["a", "b"])).is_err());
        assert!(!top.entry(OsStr::new("a")).is_directory().unwrap());
        // One that is open stays what it was.
        assert_eq!(open.names().unwrap(), names(&["file"]));
        assert_eq!(
            text(open.entry(OsStr::new("file")).find().unwrap()),
            "inside"
        );
        assert_eq!(open.path(), at("tree/a/b"));
        assert!(top.below(&[]).is_ok());
        // One that the user names is followed.
        let linked = Directory::named(&at("tree/a")).unwrap();
        assert_eq!(linked.names().unwrap(), names(&["b"]));
    }
}
