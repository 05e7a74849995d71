//! How two versions of a tree differ, as it is told to people.

use std::path::PathBuf;

use crate::inode::{Content, Inode};

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Difference {
    /// Only in the new tree.
    Added,
    /// Content or an attribute is another.
    Changed,
    /// Only in the old version, with everything below it.
    Removed,
}

/// A path that differs between two versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Relative to the top of the volume.
    pub path: PathBuf,
    /// How.
    pub difference: Difference,
    /// Whether it is (or was) a directory. One that only holds changed entries is not changed itself.
    pub is_directory: bool,
}

/// Whether two inodes are equal apart from a directory's entries: two directories with the same
/// attributes, or two equal files.
pub fn alike(old: &Inode, new: &Inode) -> bool {
    let without_entries = |inode: &Inode| {
        let mut inode = inode.clone();
        if let Content::Directory { map, .. } = &mut inode.content {
            *map = None;
        }
        inode.size = 0;
        inode
    };
    without_entries(old) == without_entries(new)
}
