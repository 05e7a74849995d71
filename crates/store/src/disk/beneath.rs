//! Opens files beneath a directory. No part of a name may be a symbolic link, so a hostile directory cannot
//! make this program read or write a file outside of it.
//!
//! Relies on `openat2` (Linux 5.6). Where the kernel or a sandbox does not know it, every part of the name is
//! opened by itself, which is as strict and slower.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens `name`, or `root` itself for an empty name.
///
/// # Errors
/// The system's; `InvalidData` when a part of the name is a symbolic link.
pub(super) fn open(
    root: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let name = if name.is_empty() { "." } else { name };
    // A terminal that is opened must not become the terminal that controls this process.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match in_one_call(root, name, flags, mode) {
        Err(Errno::NOSYS) => part_by_part(root, name, flags, mode),
        opened => opened,
    };
    opened.map_err(explained)
}

/// Opens the directory that holds `name`, and gives the last part of the name.
///
/// # Errors
/// As [`open`].
pub(super) fn open_parent<'a>(
    root: BorrowedFd<'_>,
    name: &'a str,
) -> io::Result<(OwnedFd, &'a str)> {
    let (parent, last) = name.rsplit_once('/').unwrap_or(("", name));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Ok((open(root, parent, flags, Mode::empty())?, last))
}

fn in_one_call(
    root: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, name, flags, mode, resolve)
}

fn part_by_part(
    root: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    if name.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(Errno::XDEV);
    }
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut rest = name;
    let mut at: Option<OwnedFd> = None;
    while let Some((part, after)) = rest.split_once('/') {
        let directory = at.as_ref().map_or(root, AsFd::as_fd);
        at = Some(rustix::fs::openat(directory, part, through, Mode::empty())?);
        rest = after;
    }
    rustix::fs::openat(at.as_ref().map_or(root, AsFd::as_fd), rest, flags, mode)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::symlink;

    type Open = fn(BorrowedFd<'_>, &str, OFlags, Mode) -> Result<OwnedFd, Errno>;

    /// They must agree.
    const WAYS: [Open; 2] = [in_one_call, part_by_part];

    #[test]
    fn both_ways_open_files_beneath_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(inside.join("a/b/file"), "good").unwrap();
        fs::write(outside.join("file"), "secret").unwrap();
        symlink(&outside, inside.join("a/away")).unwrap();
        symlink(outside.join("file"), inside.join("a/link")).unwrap();
        symlink("b", inside.join("a/near")).unwrap();
        symlink("nothing", inside.join("a/dangling")).unwrap();
        let root = File::open(&inside).unwrap();
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let absolute = outside.join("file");
        for way in WAYS {
            let opened = way(root.as_fd(), "a/b/file", read, Mode::empty()).unwrap();
            let mut text = String::new();
            File::from(opened).read_to_string(&mut text).unwrap();
            assert_eq!(text, "good");
            assert!(way(root.as_fd(), ".", read, Mode::empty()).is_ok());
            for name in [
                "a/away/file",
                "a/link",
                "a/near/file",
                "a/dangling",
                "../out/file",
                "a/../../out/file",
                absolute.to_str().unwrap(),
            ] {
                assert!(
                    way(root.as_fd(), name, read, Mode::empty()).is_err(),
                    "{name}"
                );
                assert!(
                    way(root.as_fd(), name, write, Mode::RWXU).is_err(),
                    "{name}"
                );
            }
        }
        assert!(!inside.join("a/nothing").exists());
    }
}
