//! Where a newcomer lands: the head and, ready to be sent with it, the records to which it leads.
//!
//! Prepared once for each head, outside of any connection, by walking from the root breadth first:
//! the root directory's inode and nodes, then those of the directories in it, until
//! [`MAX_LANDING_BYTES`] are full. The walk believes nothing that it need not: blocks must bear
//! their names or it ends there; signatures are the reader's business. A head that is none brings
//! nothing with it. Relies on `trust` for the formats (`docs/formats/tree.md`).

use std::collections::VecDeque;
use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use trust::head::Head;
use trust::inode::{Content, Entry, Inode};
use trust::map::{ChildRef, Item, Node};
use trust::policy::Policy;
use trust::root::RootRecord;
use trust::statement::VolumeId;
use trust::{BlockKind, Handle, Hasher, Record};

use crate::shelf::Shelf;

/// Most that is kept ready beside a head, bytes.
pub(crate) const MAX_LANDING_BYTES: usize = 64 << 10;
/// Directories that may wait to be walked: more would not fit anyway.
const MAX_WAITING: usize = 1024;

/// A head and what may come with it.
#[derive(Default)]
pub(crate) struct Landing {
    head: Bytes,
    records: Bytes,
    /// Where each record ends.
    ends: Vec<usize>,
}

impl Landing {
    /// Whether it is that of this head.
    pub(crate) fn is_of(&self, head: &Bytes) -> bool {
        let same = self.head.as_ptr() == head.as_ptr() && self.head.len() == head.len();
        same || self.head == head
    }

    /// The first records, of at most `around_bytes` in all.
    pub(crate) fn within(&self, around_bytes: usize) -> Bytes {
        let count = self.ends.partition_point(|end| *end <= around_bytes);
        let end = count.checked_sub(1).and_then(|last| self.ends.get(last));
        end.map_or_else(Bytes::new, |end| self.records.slice(..*end))
    }

    /// Reads from the shelf what `head` leads to, waiting as long as it takes.
    pub(crate) fn prepare(shelf: &dyn Shelf, head: Bytes) -> Landing {
        let mut walk = Walk {
            shelf,
            hasher: None,
            records: BytesMut::new(),
            ends: Vec::new(),
        };
        // Running out of room, or of anything else, ends the walk: what was gathered is good.
        if walk.walk(&head).is_none() {
            tracing::debug!(place = shelf.place(), "not all of the way into the tree");
        }
        let records = Bytes::copy_from_slice(&walk.records);
        Landing {
            head,
            records,
            ends: walk.ends,
        }
    }
}

struct Walk<'a> {
    shelf: &'a dyn Shelf,
    hasher: Option<Hasher>,
    records: BytesMut,
    ends: Vec<usize>,
}

impl Walk<'_> {
    fn walk(&mut self, head: &Bytes) -> Option<()> {
        let head = Head::decode(head).ok()?;
        let genesis = head.policies.first()?;
        let volume = VolumeId::from_bytes(genesis.hash());
        match genesis.statement().read::<Policy>(VolumeId::UNBORN).ok()? {
            Policy::Genesis(genesis) => self.hasher = Some(genesis.hasher()),
            _ => return None,
        }
        let record: RootRecord = head.record.statement().read(volume).ok()?;
        let root = self.take(&record.root)?;
        let root = Inode::from_block(&root).ok()?;
        let mut waiting = VecDeque::new();
        waiting.extend(directory(&root));
        while let Some(next) = waiting.pop_front() {
            let node = Node::decode(&self.take(&next.handle)?).ok()?;
            node.check(&next).ok()?;
            for item in node.items(&next.interval) {
                if waiting.len() >= MAX_WAITING {
                    break;
                }
                match item {
                    Item::Child(child) => waiting.push_back(child),
                    Item::Entry(_, value) => {
                        if let Ok(Entry::Inode(inode)) = Entry::decode(&value) {
                            waiting.extend(directory(&inode));
                        }
                    }
                }
            }
        }
        Some(())
    }

    /// Reads a block and keeps its record, if there is room for it and it is the right one.
    fn take<K: BlockKind>(&mut self, handle: &Handle<K>) -> Option<trust::Block<K>> {
        let mut region = Bytes::new();
        let mut keep = |bytes| {
            region = bytes;
            ControlFlow::Break(())
        };
        self.shelf
            .read_blocking(&[handle.any()], 0, &mut keep)
            .ok()?;
        let mut rest = region.clone();
        let record = Record::take(&mut rest).ok()??;
        let record_bytes = region.get(..record.len())?;
        let end = self.records.len() + record_bytes.len();
        if end > MAX_LANDING_BYTES {
            return None;
        }
        let plaintext = record.frame.plaintext::<K>().ok()?;
        let block = self.hasher.as_ref()?.check(handle, plaintext).ok()?;
        self.records.extend_from_slice(record_bytes);
        self.ends.push(end);
        Some(block)
    }
}

fn directory(inode: &Inode) -> Option<ChildRef> {
    match &inode.content {
        Content::Directory { map, .. } => map.as_ref().map(|map| map.child_ref()),
        _ => None,
    }
}
