//! Opens files beneath a directory. No part of a name may be a symbolic link, so a hostile directory cannot
//! make this program read or write a file outside of it.
//!
//! Relies on `openat2` (Linux 5.6). Where the kernel or a sandbox does not know it, every part of the name is
//! opened by itself, which is as strict and slower.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens `name`, or `root` itself for an empty name.
///
/// # Errors
/// The system's; [`Errno::LOOP`] when a part of the name is a symbolic link, or [`Errno::NOTDIR`] where the kernel opens
/// part by part.
pub fn open(
    root: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let name = if name.is_empty() { b"." } else { name };
    let mut flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A terminal that is opened must not become the terminal that controls this process. With PATH nothing is opened,
    // and the kernel takes no such flag.
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NOCTTY;
    }
    match in_one_call(root, name, flags, mode) {
        Err(Errno::NOSYS) => part_by_part(root, name, flags, mode),
        opened => opened,
    }
}

fn in_one_call(
    root: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, name, flags, mode, resolve)
}

fn part_by_part(
    root: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let mut parts = name.split(|byte| *byte == b'/').peekable();
    if parts.clone().any(|part| part.is_empty() || part == b"..") {
        return Err(Errno::XDEV);
    }
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    loop {
        let part = parts.next().unwrap_or_default();
        let directory = at.as_ref().map_or(root, AsFd::as_fd);
        if parts.peek().is_none() {
            return rustix::fs::openat(directory, part, flags, mode);
        }
        at = Some(rustix::fs::openat(directory, part, through, Mode::empty())?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::symlink;

    type Open = fn(BorrowedFd<'_>, &[u8], OFlags, Mode) -> Result<OwnedFd, Errno>;

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
            let opened = way(root.as_fd(), b"a/b/file", read, Mode::empty()).unwrap();
            let mut text = String::new();
            File::from(opened).read_to_string(&mut text).unwrap();
            assert_eq!(text, "good");
            assert!(way(root.as_fd(), b".", read, Mode::empty()).is_ok());
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
                    way(root.as_fd(), name.as_bytes(), read, Mode::empty()).is_err(),
                    "{name}"
                );
                assert!(
                    way(root.as_fd(), name.as_bytes(), write, Mode::RWXU).is_err(),
                    "{name}"
                );
            }
        }
        assert!(!inside.join("a/nothing").exists());
    }
}
