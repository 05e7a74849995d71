//! The rows of a checkpoint from a server that is not trusted: level by level, each node verified by its handle and
//! against what its parent says of it. Few nodes are in memory at a time, because nobody knows what they are before they
//! are verified.

use std::collections::{HashMap, VecDeque};
use std::ops::Bound;

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

/// The rows of a tree whose nodes come from the root down, level by level, some at a time.
#[derive(Debug)]
pub struct Descent {
    /// Nodes of this level that have not been read, in order.
    children: VecDeque<ChildRef>,
    /// Nodes of the next level.
    below: VecDeque<ChildRef>,
    rows: Vec<(Bytes, Bytes)>,
    bytes: usize,
}

impl Descent {
    /// Nothing has been read. `None`: the tree is larger than what a device starts from.
    pub fn begin(root: &MapRoot) -> Option<Descent> {
        (root.entries <= MAX_ROWS).then(|| Descent {
            children: VecDeque::from([root.child_ref()]),
            below: VecDeque::new(),
            rows: Vec::new(),
            bytes: 0,
        })
    }

    /// The next nodes, at most so many. None: the rows are whole.
    pub fn wanted(&self, most: usize) -> Vec<Handle> {
        let next = self.children.iter().take(most);
        next.map(|child| child.handle.any()).collect()
    }

    /// Reads the next `count` nodes, which [`Descent::wanted`] has named. Nothing of `records` is kept but rows.
    ///
    /// # Errors
    /// [`Reject`] for a node that is missing or is not what its parent says; [`Reject::Malformed`] for too many bytes.
    pub fn take(
        &mut self,
        hasher: &Hasher,
        count: usize,
        records: &HashMap<Handle, Record>,
    ) -> Result<(), Reject> {
        for child in self.children.drain(..count.min(self.children.len())) {
            let wanted = Wanted::Map(child.handle);
            let record = records.get(&wanted.handle()).ok_or(Reject::WrongBlock)?;
            let Found::Map(node) = wanted.unpack(hasher, &record.frame)? else {
                return Err(Reject::WrongBlock);
            };
            node.check(&child)?;
            for item in node.iter_from(Bound::Unbounded, &child.interval) {
                match item {
                    Item::Child(child) => self.below.push_back(child),
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
        if self.children.is_empty() {
            self.children = std::mem::take(&mut self.below);
        }
        Ok(())
    }

    /// The rows, once all nodes are read.
    pub fn rows(self) -> Vec<(Bytes, Bytes)> {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use trust::frame::Packer;
    use trust::handle::Kind;
    use trust_shared::checkpoint::{Builder, File, Row};

    type Records = HashMap<Handle, Record>;

    /// A state with many names, and its nodes.
    fn state(hasher: &Hasher) -> (MapRoot, Records) {
        let nodes: Arc<Mutex<Records>> = Arc::default();
        let sink = Arc::clone(&nodes);
        let mut builder = Builder::new(hasher, move |handle: Handle<_>, bytes: &Bytes| {
            let frame = Packer::new().pack(Kind::Map, bytes).unwrap();
            let handle = handle.any();
            sink.lock()
                .unwrap()
                .insert(handle, Record { handle, frame });
        });
        for counter in 0..3000 {
            let file = File {
                principal: [6; 32],
                device: 1,
                counter,
            };
            builder.push(&Row::Inode(file), &[7; 40]).unwrap();
        }
        let root = builder.finish().unwrap();
        let nodes = nodes.lock().unwrap().clone();
        (root, nodes)
    }

    #[test]
    fn rows_come_in_order_however_few_nodes_are_read_at_a_time() {
        let hasher = Hasher::new(&[2; 32]);
        let (root, nodes) = state(&hasher);
        assert!(nodes.len() > 6, "{}", nodes.len());
        for most in [1, 3, 1000] {
            let mut descent = Descent::begin(&root).unwrap();
            loop {
                let wanted = descent.wanted(most);
                if wanted.is_empty() {
                    break;
                }
                assert!(wanted.len() <= most);
                let records = wanted.iter().map(|it| (*it, nodes[it].clone())).collect();
                descent.take(&hasher, wanted.len(), &records).unwrap();
            }
            let rows = descent.rows();
            assert_eq!(rows.len(), 3000);
            assert!(rows.is_sorted());
        }
    }

    /// A server that sends long nonsense for each node is found out by the first few, not when the memory is full.
    #[test]
    fn nodes_are_verified_a_few_at_a_time() {
        let hasher = Hasher::new(&[2; 32]);
        let (root, nodes) = state(&hasher);
        let mut descent = Descent::begin(&root).unwrap();
        let wanted = descent.wanted(2);
        assert_eq!(wanted, [root.child_ref().handle.any()]);
        descent.take(&hasher, 1, &nodes).unwrap();
        let wanted = descent.wanted(2);
        assert_eq!(wanted.len(), 2);
        let mut wrong: Records = wanted.iter().map(|it| (*it, nodes[it].clone())).collect();
        let frame = Packer::new().pack(Kind::Map, b"nonsense").unwrap();
        let handle = wanted[1];
        wrong.insert(handle, Record { handle, frame });
        let found = descent.take(&hasher, 2, &wrong);
        assert_eq!(found, Err(Reject::WrongBlock));
    }
}
