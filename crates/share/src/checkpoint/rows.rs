//! The rows of a checkpoint from a server that is not trusted: level by level, each node verified by its handle and
//! against what its parent says of it, in bounded memory.

use std::collections::HashMap;

use bytes::Bytes;
use trust::handle::Hasher;
use trust::reach::{Found, Wanted};
use trust::tree::map::{ChildRef, Item, MapRoot};
use trust::{Handle, Record, Reject};

/// Most rows that a device starts from. A volume with more changes since its last folds is replayed.
pub const MAX_ROWS: u64 = 1 << 19;
/// Most bytes of rows.
pub const MAX_ROWS_BYTES: usize = 32 << 20;
/// Bytes that a row takes beside its own.
const BESIDE_BYTES: usize = 16;

/// Some levels of the tree have been read.
#[derive(Debug)]
pub struct Level {
    children: Vec<ChildRef>,
    rows: Vec<(Bytes, Bytes)>,
    bytes: usize,
}

impl Level {
    /// Nothing has been read. `None`: the tree is larger than what a device starts from.
    pub fn begin(root: &MapRoot) -> Option<Level> {
        (root.entries <= MAX_ROWS).then(|| Level {
            children: vec![root.child_ref()],
            rows: Vec::new(),
            bytes: 0,
        })
    }

    /// The nodes of the next level, in order. None: the rows are whole.
    pub fn wanted(&self) -> Vec<Handle> {
        let handles = self.children.iter().map(|child| child.handle.any());
        handles.collect()
    }

    /// Reads the next level. `records` has all nodes of it.
    ///
    /// # Errors
    /// [`Reject`] for a node that is missing or is not what its parent says; [`Reject::Malformed`] for too many bytes.
    pub fn take(
        mut self,
        hasher: &Hasher,
        records: &HashMap<Handle, Record>,
    ) -> Result<Level, Reject> {
        let mut below = Vec::new();
        for child in std::mem::take(&mut self.children) {
            let wanted = Wanted::Map(child.handle);
            let record = records.get(&wanted.handle()).ok_or(Reject::WrongBlock)?;
            let Found::Map(node) = wanted.unpack(hasher, &record.frame)? else {
                return Err(Reject::WrongBlock);
            };
            node.check(&child)?;
            for item in node.iter_from(std::ops::Bound::Unbounded, &child.interval) {
                match item {
                    Item::Child(child) => below.push(child),
                    Item::Entry(key, value) => {
                        let bytes = key.len().saturating_add(value.len());
                        self.bytes = self
                            .bytes
                            .saturating_add(bytes.saturating_add(BESIDE_BYTES));
                        // A row keeps no whole node in memory.
                        let copy = |part: &[u8]| Bytes::copy_from_slice(part);
                        self.rows.push((copy(&key), copy(&value)));
                    }
                }
            }
            if self.bytes > MAX_ROWS_BYTES {
                let (what, why) = ("checkpoint", "more bytes than a device starts from");
                return Err(Reject::Malformed { what, why });
            }
        }
        self.children = below;
        Ok(self)
    }

    /// The rows, once all levels are read.
    pub fn rows(self) -> Vec<(Bytes, Bytes)> {
        self.rows
    }
}
