//! How two versions of one path differ. What counts as a change is the same for a rehearsed publication
//! and for two published versions. Relies on [`crate::tree::inode`].

use crate::tree::inode::{Content, Inode};

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Difference {
    /// Only in the new tree, with everything below it.
    Added,
    /// Content or an attribute differs.
    Changed,
    /// Only in the old tree, with everything below it.
    Removed,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Names joined by slashes; empty for the root.
    pub path: Vec<u8>,
    /// How it differs.
    pub difference: Difference,
    /// Whether it is a directory, or was one when it is removed. A directory that only holds changed
    /// entries is not changed itself.
    pub is_directory: bool,
}

impl Change {
    /// What to tell about `path`, of which the old tree has `before` and the new one `after`. The
    /// entries of a directory in both are to be compared one by one, but for an opaque directory,
    /// which changes as a whole.
    pub fn between(path: &[u8], before: Option<&Inode>, after: Option<&Inode>) -> Option<Change> {
        let (difference, inode) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => (Difference::Added, after),
            (Some(before), None) => (Difference::Removed, before),
            (Some(before), Some(after)) if same(before, after) => return None,
            (Some(_), Some(after)) => (Difference::Changed, after),
        };
        Some(Change {
            path: path.to_vec(),
            difference,
            is_directory: matches!(inode.content, Content::Directory { .. }),
        })
    }
}

fn same(before: &Inode, after: &Inode) -> bool {
    let opaque = |inode: &Inode| matches!(inode.content, Content::Directory { opaque: true, .. });
    if opaque(before) && opaque(after) {
        return before == after;
    }
    alike(before, after)
}

/// Whether two inodes are equal, but for the entries of a directory.
pub fn alike(before: &Inode, after: &Inode) -> bool {
    let without_entries = |inode: &Inode| {
        let mut inode = inode.clone();
        if let Content::Directory { map, .. } = &mut inode.content {
            *map = None;
            inode.size = 0;
        }
        inode
    };
    without_entries(before) == without_entries(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use crate::tree::inode::{FileContent, Mtime};
    use crate::tree::map::MapRoot;

    fn inode(mode: u16, content: Content) -> Inode {
        Inode::new(mode, Mtime::default(), content)
    }

    fn directory(mode: u16, entries: u64, opaque: bool) -> Inode {
        let map = (entries > 0).then(|| MapRoot {
            handle: Handle::from_bytes([entries as u8; 32]),
            height: 1,
            entries,
            salt: [0; 16],
        });
        inode(mode, Content::Directory { map, opaque })
    }

    #[test]
    fn directory_changes_by_its_attributes_and_not_by_its_entries() {
        let told = |before: &Inode, after: &Inode| {
            Change::between(b"a/b", Some(before), Some(after)).map(|change| change.is_directory)
        };
        let plain = directory(0o755, 1, false);
        assert_eq!(told(&plain, &directory(0o755, 2, false)), None);
        assert_eq!(told(&plain, &directory(0o755, 0, false)), None);
        assert_eq!(told(&plain, &directory(0o700, 1, false)), Some(true));
        assert_eq!(told(&plain, &directory(0o755, 1, true)), Some(true));
        let opaque = directory(0o755, 1, true);
        assert_eq!(told(&opaque, &opaque), None);
        assert_eq!(told(&opaque, &directory(0o755, 2, true)), Some(true));
        let file = |bytes: &'static [u8]| {
            inode(0o644, Content::Regular(FileContent::Inline(bytes.into())))
        };
        assert_eq!(told(&file(b"x"), &file(b"x")), None);
        assert_eq!(told(&file(b"x"), &file(b"y")), Some(false));
        assert_eq!(told(&plain, &file(b"y")), Some(false));
    }

    #[test]
    fn path_in_one_tree_is_added_or_removed() {
        let plain = directory(0o755, 1, false);
        let added = Change::between(b"p", None, Some(&plain)).unwrap();
        let removed = Change::between(b"p", Some(&plain), None).unwrap();
        assert_eq!(added.difference, Difference::Added);
        assert_eq!(removed.difference, Difference::Removed);
        assert!(added.is_directory && removed.is_directory && added.path == b"p");
        assert_eq!(Change::between(b"p", None, None), None);
    }
}
