//! Reads directories: looks a name up in a verified map tree, and lists one. Relies on
//! [`crate::blocks`] for the nodes.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use trust::inode::{Content, Entry, Inode};
use trust::map::{ChildRef, Item, MapRoot, Node};
use trust::{Handle, MapNode};

use crate::blocks::{Blocks, Fetch};
use crate::error::ReadError;
use crate::read_around::Expect;

/// Leaves of a large directory that a listing requests at once.
const LIST_AHEAD: usize = 16;

/// The map tree of a directory; `None` when the directory is empty.
///
/// # Errors
/// [`ReadError::WrongKind`] when `inode` is not a directory.
pub(crate) fn map_of(inode: &Inode) -> Result<Option<&MapRoot>, ReadError> {
    match &inode.content {
        Content::Directory { map, .. } => Ok(map.as_ref()),
        _ => Err(ReadError::wrong_kind("not a directory")),
    }
}

/// A node of a map tree, checked against what its parent says of it.
pub(crate) async fn node(
    blocks: &Blocks,
    child: &ChildRef,
    how: Fetch,
) -> Result<Arc<Node>, ReadError> {
    let node = blocks.get(&child.handle, Expect::Near, how).await?;
    node.check(child).map_err(ReadError::of_signed)?;
    Ok(node)
}

/// The inode that a directory entry holds or refers to.
pub(crate) async fn entry(blocks: &Blocks, value: &[u8], how: Fetch) -> Result<Inode, ReadError> {
    match Entry::decode(value).map_err(ReadError::of_signed)? {
        Entry::Inode(inode) => Ok(inode),
        Entry::Block(handle) => blocks
            .get(&handle, Expect::Nothing, how)
            .await
            .map(|inode| inode.as_ref().clone()),
    }
}

/// Up to `max` entries after the name `after`, in order of their names.
pub(crate) async fn list(
    blocks: &Blocks,
    root: &MapRoot,
    after: Option<&[u8]>,
    max: usize,
    how: Fetch,
) -> Result<Vec<(Bytes, Inode)>, ReadError> {
    let mut entries = Vec::new();
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut stack = vec![root.child_ref()];
    while let Some(child) = stack.pop() {
        let node = node(blocks, &child, how).await?;
        let mut below = Vec::new();
        for item in node.iter_from(from, &child.interval) {
            match item {
                Item::Child(next) => below.push(next),
                Item::Entry(..) if entries.len() >= max => return Ok(entries),
                Item::Entry(name, value) => {
                    trust::inode::check_name(&name).map_err(ReadError::of_signed)?;
                    entries.push((name, entry(blocks, &value, how).await?));
                }
            }
        }
        if child.level == 2 {
            let leaves: Vec<Handle<MapNode>> =
                below.iter().take(LIST_AHEAD).map(|c| c.handle).collect();
            blocks.get_many(&leaves, how).await?;
        }
        below.reverse();
        stack.append(&mut below);
    }
    Ok(entries)
}
