//! The answer to one READDIR: as many entries as fit, each with the position that follows it.
//! Position 1 follows `.`, position 2 `..`, position *n* + 2 entry *n* of
//! [`crate::published::directory`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trust::inode::Inode;
use volume::Fetch;

use crate::fuse::FileAttr;
use crate::published::directory::OpenDirectory;
use crate::published::failure::Failure;
use crate::published::operations::Core;

/// One entry of a listing.
pub enum Inside<'a> {
    /// The directory itself or the one above it, by number.
    Known(u64),
    /// An entry of the directory.
    Child(&'a Inode),
}

/// Entries for the answer to one READDIR.
pub struct Listing {
    directory: Arc<OpenDirectory>,
    offset: u64,
    /// Index of the first of `entries`.
    index: u64,
    entries: Vec<(Bytes, Inode)>,
}

/// Positions of `.` and `..`, before the first entry.
const DOTS: u64 = 2;

/// Entries from position `offset` on.
///
/// # Errors
/// As the reader's.
pub async fn listing(
    core: &Core,
    handle: u64,
    offset: u64,
    how: Fetch,
) -> Result<Listing, Failure> {
    let directory = core.opened_directory(handle)?;
    let index = offset.saturating_sub(DOTS);
    let entries = directory.entries_from(index, how).await?;
    Ok(Listing {
        directory,
        offset,
        index,
        entries,
    })
}

impl Listing {
    /// Gives entries to `add`, each with the position that follows it, until `add` returns `true` (full).
    /// The directory keeps the rest.
    pub fn fill<Add>(self, core: &Core, mut add: Add)
    where
        Add: FnMut(&Core, &OpenDirectory, u64, &[u8], &Inside<'_>) -> bool,
    {
        let Listing {
            directory,
            offset,
            mut index,
            entries,
        } = self;
        let own = directory.node.number();
        let above = directory
            .node
            .parent()
            .map_or(own, |parent| parent.number());
        let dots: [(&[u8], u64); 2] = [(b".", own), (b"..", above)];
        let mut full = false;
        for (place, (name, number)) in (0u64..).zip(dots) {
            full |= !full
                && place >= offset
                && add(core, &directory, place + 1, name, &Inside::Known(number));
        }
        let mut rest = entries.into_iter().peekable();
        let mut before = None;
        while let Some((name, inode)) = rest.peek() {
            let place = index + DOTS + 1;
            full = full || add(core, &directory, place, name, &Inside::Child(inode));
            if full {
                break;
            }
            index += 1;
            before = rest.next().map(|(name, _)| name);
        }
        // An answer without entries (the end, or dots alone) has no position to remember.
        if before.is_some() {
            directory.keep(index, before, rest.collect());
        }
    }
}

/// Counts a listed name as looked up. A name of an older version gets a time to live of zero, because the
/// kernel would otherwise use it as one of the newest version.
pub fn entered(
    core: &Core,
    directory: &OpenDirectory,
    name: &[u8],
    inode: &Inode,
) -> (FileAttr, Duration) {
    let view = &directory.view;
    let attributes = core.enter(&directory.node, name, inode.clone(), view);
    let newest = core.view().serial == view.serial;
    let ttl = if newest {
        core.ttl(view)
    } else {
        Duration::ZERO
    };
    (attributes, ttl)
}
