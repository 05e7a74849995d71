//! Other names of files that were made before.

use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::there::{clear, replace};

/// The first name of a file, and the number of the file that was made under it.
#[derive(Clone)]
pub(super) struct First {
    /// In the volume.
    pub path: Bytes,
    number: Number,
}

/// Device and inode number.
type Number = (u64, u64);

/// What became of another name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Linked {
    /// It is there.
    Made,
    /// The file system has no links. Nothing was made.
    Refused,
    /// The file has as many names as it can have. Nothing was made.
    Full,
    /// Another program has put another file under the first name. Nothing was made.
    Replaced,
}

impl First {
    /// The file that was made under a name of a directory.
    pub(super) fn of(
        path: Bytes,
        (directory, name): (BorrowedFd<'_>, &[u8]),
    ) -> Result<First, Errno> {
        let number = number(directory, name)?;
        Ok(First { path, number })
    }

    /// Gives it another name. `from`: the directory and the first name. With `goes_on` the name may be there from an
    /// earlier run.
    pub(super) fn link(
        &self,
        from: (BorrowedFd<'_>, &[u8]),
        to: (BorrowedFd<'_>, &[u8]),
        goes_on: bool,
    ) -> Result<Linked, Errno> {
        let make = || match rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty()) {
            Err(Errno::EXIST) if goes_on && number(to.0, to.1)? == self.number => Ok(()),
            made => made,
        };
        match replace(goes_on, to, make) {
            Err(Errno::PERM | Errno::OPNOTSUPP) => return Ok(Linked::Refused),
            Err(Errno::MLINK) => return Ok(Linked::Full),
            made => made?,
        }
        if number(to.0, to.1)? == self.number {
            return Ok(Linked::Made);
        }
        clear(to.0, to.1)?;
        Ok(Linked::Replaced)
    }
}

/// The number of the file with this name. A symbolic link is not followed.
fn number(directory: impl AsFd, name: &[u8]) -> Result<Number, Errno> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_that_can_have_no_other_name_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::File::open(dir.path()).unwrap();
        let name = |name: &'static [u8]| (top.as_fd(), name);
        // No file system links directories.
        fs::create_dir(dir.path().join("one")).unwrap();
        let first = First::of(Bytes::from_static(b"one"), name(b"one")).unwrap();
        let linked = first.link(name(b"one"), name(b"two"), false);
        assert_eq!(linked, Ok(Linked::Refused));
        assert!(!dir.path().join("two").exists());
    }

    #[test]
    fn link_to_a_file_that_was_replaced_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let top = fs::File::open(dir.path()).unwrap();
        let name = |name: &'static [u8]| (top.as_fd(), name);
        fs::write(at("one"), "made").unwrap();
        let first = First::of(Bytes::from_static(b"one"), name(b"one")).unwrap();
        assert_eq!(
            first.link(name(b"one"), name(b"two"), false),
            Ok(Linked::Made)
        );
        assert!(at("two").exists());
        // From an earlier run.
        assert_eq!(
            first.link(name(b"one"), name(b"two"), true),
            Ok(Linked::Made)
        );
        fs::rename(at("one"), at("away")).unwrap();
        fs::write(at("one"), "another").unwrap();
        assert_eq!(
            first.link(name(b"one"), name(b"three"), false),
            Ok(Linked::Replaced)
        );
        assert!(!at("three").exists());
    }
}
