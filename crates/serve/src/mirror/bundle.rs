//! A head bundle: the head and, ready to be sent with it, the records that it leads to.
//!
//! A reader that names no path gets the records nearest to the head, breadth first: the root
//! directory's inode and nodes, then those of the directories in it. They are prepared once for each
//! head, outside of any connection. A reader that names a path gets the blocks on it and the blocks at its
//! end. A head that cannot be decoded comes without records.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use store::Patience;

use crate::mirror::path_records::PathRecords;
use crate::mirror::reader::RepositoryReader;
use crate::mirror::walk::{Start, Walk};

/// Most blocks that a walk along one path reads.
const MAX_PATH_BLOCKS: usize = 64;

/// Numbers bundles, so that records found under one are never sent under another.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A head and the records that it leads to.
pub(crate) struct HeadBundle {
    head: Bytes,
    number: u64,
    start: Option<Start>,
    near: PathRecords,
}

impl HeadBundle {
    /// Whether this is the bundle of `head`.
    pub(crate) fn is_of(&self, head: &Bytes) -> bool {
        let same = self.head.as_ptr() == head.as_ptr() && self.head.len() == head.len();
        same || self.head == head
    }

    /// The head.
    pub(crate) fn head(&self) -> Bytes {
        self.head.clone()
    }

    /// A number that no other bundle of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The records nearest to the head.
    pub(crate) fn near(&self) -> &PathRecords {
        &self.near
    }

    /// Reads what `head` leads to, waiting as long as it takes.
    pub(crate) fn prepare(reader: &dyn RepositoryReader, head: Bytes) -> HeadBundle {
        let start = Start::of(&head);
        let near = start.as_ref().map_or_else(PathRecords::default, |start| {
            let mut walk = Walk::new(reader, &start.hasher, Patience::Wait, usize::MAX);
            if walk.wander(start).is_none() {
                tracing::debug!(place = reader.place(), "the walk from the head ended early");
            }
            walk.records()
        });
        HeadBundle {
            head,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            start,
            near,
        }
    }

    /// The records on `path`; `None` when reading them would wait for a device and `patience` does
    /// not allow that.
    pub(crate) fn toward(
        &self,
        reader: &dyn RepositoryReader,
        path: &[u8],
        patience: Patience,
    ) -> Option<PathRecords> {
        let Some(start) = &self.start else {
            return Some(PathRecords::default());
        };
        let mut walk = Walk::new(reader, &start.hasher, patience, MAX_PATH_BLOCKS);
        let ended = walk.follow(start, path).is_none();
        if ended && walk.would_wait {
            return None;
        }
        Some(walk.records())
    }
}
