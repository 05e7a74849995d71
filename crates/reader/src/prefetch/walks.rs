//! Notices readers that list one directory after the other, as `find`, `du` and backups do, and has the directories below
//! fetched ahead. Pure but for [`Ahead`], which it opens.
//!
//! A reader who has listed [`PROVEN_LISTINGS`] directories below one that it listed before is believed to go on. What is
//! fetched then and not listed stays below a bound, because the budget grows only with what is listed.

use std::collections::VecDeque;

use bytes::Bytes;
use trust::inode::Inode;
use trust::map::MapRoot;

use crate::ahead::Ahead;

/// Walks that are remembered.
const MAX_WALKS: usize = 8;
/// Directories below the top that a reader lists before others are fetched ahead.
const PROVEN_LISTINGS: u32 = 3;

/// A directory that was listed, and the listings below it.
#[derive(Debug)]
struct Walk {
    ahead: Ahead,
    listings: u32,
}

/// The walks of a volume's readers, newest first.
#[derive(Debug, Default)]
pub(super) struct Walks {
    walks: VecDeque<Walk>,
}

impl Walks {
    /// A reader has listed these entries of a directory. `begin` begins a walk at a directory.
    pub(super) fn listed(
        &mut self,
        directory: &MapRoot,
        entries: &[(Bytes, Inode)],
        begin: impl FnOnce(&MapRoot) -> Ahead,
    ) {
        let known = self
            .walks
            .iter()
            .position(|walk| walk.ahead.used(directory, entries));
        let Some(mut walk) = known.and_then(|at| self.walks.remove(at)) else {
            let walk = Walk {
                ahead: begin(directory),
                listings: 0,
            };
            walk.ahead.used(directory, entries);
            self.walks.truncate(MAX_WALKS - 1);
            self.walks.push_front(walk);
            return;
        };
        walk.listings = walk.listings.saturating_add(1);
        if walk.listings >= PROVEN_LISTINGS {
            walk.ahead.open();
        }
        self.walks.push_front(walk);
    }
}
