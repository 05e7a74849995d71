//! Two directories of one path in two versions.

use bytes::Bytes;
use trust::inode::{Content, Inode};
use trust::map::MapRoot;

/// Two directories of one path.
pub(super) struct Pair {
    pub(super) path: Bytes,
    pub(super) old: Option<MapRoot>,
    pub(super) new: Option<MapRoot>,
}

/// The two directories to compare below a path, if they differ.
pub(super) fn below(path: Bytes, before: Option<&Inode>, after: Option<&Inode>) -> Option<Pair> {
    let new = after.and_then(map_or_empty)?;
    let differs = before.and_then(map_or_empty) != Some(new);
    differs.then(|| Pair {
        path,
        old: before.and_then(map_of),
        new,
    })
}

/// The entries of a directory that may be listed.
pub(super) fn map_of(inode: &Inode) -> Option<MapRoot> {
    map_or_empty(inode).flatten()
}

/// `None` if it is not a directory, or an opaque one.
pub(super) fn map_or_empty(inode: &Inode) -> Option<Option<MapRoot>> {
    match &inode.content {
        Content::Directory { map, opaque: false } => Some(*map),
        _ => None,
    }
}
