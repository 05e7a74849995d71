//! The differences between two versions of a tree, as they are shown to people.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::tree::inode::{Content, Inode};

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Difference {
    /// Only in the new tree.
    Added,
    /// The content or an attribute differs.
    Changed,
    /// Only in the old version, with everything below it.
    Removed,
}

/// A path that differs between two versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Relative to the root directory, which is `.` itself.
    pub path: PathBuf,
    /// The kind of difference.
    pub difference: Difference,
    /// Whether it is (or was) a directory. A directory in which only entries changed is not reported.
    pub is_directory: bool,
}

/// The path of a [`Change`]: the bytes of the volume's path, or `.` for the root directory.
pub fn path(relative: &[u8]) -> PathBuf {
    match relative {
        b"" => PathBuf::from("."),
        relative => PathBuf::from(OsStr::from_bytes(relative)),
    }
}

/// Whether two inodes are equal, apart from the entries of directories and from when they changed. True for two
/// directories with the same attributes and for two equal files.
pub fn alike(old: &Inode, new: &Inode) -> bool {
    let compared = |inode: &Inode| {
        let mut inode = inode.clone();
        inode.ctime = None;
        if let Content::Directory { map, .. } = &mut inode.content {
            *map = None;
        }
        inode.size = 0;
        inode
    };
    compared(old) == compared(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use crate::tree::inode::{Extension, FileContent, Time};
    use crate::tree::map::MapRoot;

    fn directory(mode: u16, entries: u64, opaque: bool) -> Inode {
        let map = (entries > 0).then(|| MapRoot {
            handle: Handle::from_bytes([entries as u8; 32]),
            height: 1,
            entries,
            salt: [0; 16],
        });
        Inode::new(mode, Time::default(), Content::Directory { map, opaque })
    }

    #[test]
    fn directories_are_alike_regardless_of_entries() {
        let plain = directory(0o755, 1, false);
        assert!(alike(&plain, &directory(0o755, 2, false)));
        assert!(alike(&plain, &directory(0o755, 0, false)));
        assert!(!alike(&plain, &directory(0o700, 1, false)));
        assert!(!alike(&plain, &directory(0o755, 1, true)));
    }

    #[test]
    fn directories_are_not_alike_when_an_extension_differs() {
        let plain = directory(0o755, 1, false);
        let mut extended = directory(0o755, 1, false);
        extended.extensions.push(Extension {
            tag: 0x80,
            value: "later".into(),
        });
        assert!(!alike(&plain, &extended));
        assert!(alike(&extended, &extended.clone()));
    }

    #[test]
    fn files_are_alike_only_when_entirely_equal() {
        let file = |bytes: &'static [u8]| {
            let content = Content::Regular(FileContent::Inline(bytes.into()));
            Inode::new(0o644, Time::default(), content)
        };
        assert!(alike(&file(b"x"), &file(b"x")));
        assert!(!alike(&file(b"x"), &file(b"y")));
        assert!(!alike(&file(b"x"), &directory(0o644, 1, false)));
    }
}
