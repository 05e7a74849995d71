//! Where a reader lands: the head and, ready to be sent with it, the records to which it leads.
//!
//! A newcomer who does not say where it goes gets what lies nearest, breadth first: the root
//! directory's inode and nodes, then those of the directories in it; that is prepared once for each
//! head, outside of any connection. A reader who names a path gets the blocks on the way there and
//! what stands at its end. A walk believes nothing that it need not: blocks must bear their names or
//! it ends there; signatures are the reader's business. A head that is none leads nowhere. Whatever
//! ends a walk, what was gathered until then is good. Relies on `trust` for the formats
//! (`docs/formats/tree.md`).

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use store::Patience;
use trust::array::{Child, Extent};
use trust::head::Head;
use trust::inode::{Content, Entry, FileContent, Inode};
use trust::map::{ChildRef, Find, Item, Node};
use trust::policy::Policy;
use trust::root::RootRecord;
use trust::statement::VolumeId;
use trust::{BlockKind, Handle, Hasher, InodeBlock, Record};

use crate::mirror::reader::RepositoryReader;

/// Most that goes with a head, bytes.
pub(crate) const MAX_BUNDLE_BYTES: usize = 64 << 10;
/// Most blocks that one walk along a path reads.
const MAX_WAY_BLOCKS: usize = 64;
/// Directories that may wait to be walked: more would not fit anyway.
const MAX_WAITING: usize = 1024;

/// Numbers landings, so that what was found under one is never sent under another.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A head and what may come with it.
pub(crate) struct HeadBundle {
    head: Bytes,
    number: u64,
    start: Option<Start>,
    near: PathRecords,
}

/// Where walks under a head begin.
struct Start {
    hasher: Hasher,
    root: Handle<InodeBlock>,
}

/// Records found on a walk, in the order in which a reader needs them.
#[derive(Default)]
pub(crate) struct PathRecords {
    records: Bytes,
    /// Where each record ends.
    ends: Vec<usize>,
    /// The walk came to its end, or to the proof that there is none.
    whole: bool,
}

impl PathRecords {
    /// Whether this is all that the way has, and within `around_bytes`.
    pub(crate) fn is_whole(&self, around_bytes: usize) -> bool {
        self.whole && self.records.len() <= around_bytes
    }

    /// The first records, of at most `around_bytes` in all.
    pub(crate) fn within(&self, around_bytes: usize) -> Bytes {
        let count = self.ends.partition_point(|end| *end <= around_bytes);
        let end = count.checked_sub(1).and_then(|last| self.ends.get(last));
        end.map_or_else(Bytes::new, |end| self.records.slice(..*end))
    }

    /// Memory behind it, bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.records.len() + self.ends.len() * size_of::<usize>()
    }
}

impl HeadBundle {
    /// Whether it is that of this head.
    pub(crate) fn is_of(&self, head: &Bytes) -> bool {
        let same = self.head.as_ptr() == head.as_ptr() && self.head.len() == head.len();
        same || self.head == head
    }

    /// The head.
    pub(crate) fn head(&self) -> Bytes {
        self.head.clone()
    }

    /// Its number, which no other landing of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What lies nearest to the head.
    pub(crate) fn near(&self) -> &PathRecords {
        &self.near
    }

    /// Reads from the shelf what `head` leads to, waiting as long as it takes.
    pub(crate) fn prepare(shelf: &dyn RepositoryReader, head: Bytes) -> HeadBundle {
        let start = Start::of(&head);
        let near = start.as_ref().map_or_else(PathRecords::default, |start| {
            let mut walk = Walk::new(shelf, &start.hasher, Patience::Wait, usize::MAX);
            if walk.wander(start).is_none() {
                tracing::debug!(place = shelf.place(), "not all of the way into the tree");
            }
            walk.way()
        });
        HeadBundle {
            head,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            start,
            near,
        }
    }

    /// Walks along `path` as far as it goes; `None` when that would wait for a device and
    /// `patience` does not allow it.
    pub(crate) fn toward(
        &self,
        shelf: &dyn RepositoryReader,
        path: &[u8],
        patience: Patience,
    ) -> Option<PathRecords> {
        let Some(start) = &self.start else {
            return Some(PathRecords::default());
        };
        let mut walk = Walk::new(shelf, &start.hasher, patience, MAX_WAY_BLOCKS);
        let ended = walk.follow(start, path).is_none();
        if ended && walk.would_wait {
            return None;
        }
        Some(walk.way())
    }
}

impl Start {
    fn of(head: &Bytes) -> Option<Start> {
        let head = Head::decode(head).ok()?;
        let genesis = head.policies.first()?;
        let volume = VolumeId::from_bytes(genesis.hash());
        let Policy::Genesis(genesis) = genesis.statement().read(VolumeId::UNBORN).ok()? else {
            return None;
        };
        let record: RootRecord = head.record.statement().read(volume).ok()?;
        Some(Start {
            hasher: genesis.hasher(),
            root: record.root,
        })
    }
}

/// Steps give `None` where the walk ends.
struct Walk<'a> {
    shelf: &'a dyn RepositoryReader,
    hasher: &'a Hasher,
    patience: Patience,
    would_wait: bool,
    blocks_left: usize,
    records: BytesMut,
    ends: Vec<usize>,
    whole: bool,
}

impl<'a> Walk<'a> {
    fn new(
        shelf: &'a dyn RepositoryReader,
        hasher: &'a Hasher,
        patience: Patience,
        blocks_left: usize,
    ) -> Walk<'a> {
        Walk {
            shelf,
            hasher,
            patience,
            would_wait: false,
            blocks_left,
            records: BytesMut::new(),
            ends: Vec::new(),
            whole: false,
        }
    }

    fn way(self) -> PathRecords {
        PathRecords {
            // No more memory than its bytes: it is kept.
            records: Bytes::copy_from_slice(&self.records),
            ends: self.ends,
            whole: self.whole,
        }
    }

    /// Everything that lies near, breadth first.
    fn wander(&mut self, start: &Start) -> Option<()> {
        let root = self.root(start)?;
        let mut waiting: VecDeque<ChildRef> = directory(&root).into_iter().collect();
        while let Some(next) = waiting.pop_front() {
            let node = self.node(&next)?;
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

    /// The blocks on the way to `path`: where it leads nowhere, those that prove so; where it leads
    /// to a directory, its nodes; to a file, its block or the top of its array tree.
    fn follow(&mut self, start: &Start, path: &[u8]) -> Option<()> {
        let mut at = self.root(start)?;
        for name in path.split(|b| *b == b'/') {
            at = match self.step(&at, name)? {
                Some(inode) => inode,
                None => {
                    self.whole = true;
                    return Some(());
                }
            };
        }
        let mut long = false;
        match &at.content {
            Content::Directory { .. } => {
                let mut waiting: VecDeque<ChildRef> = directory(&at).into_iter().collect();
                while let Some(next) = waiting.pop_front() {
                    let node = self.node(&next)?;
                    for item in node.items(&next.interval) {
                        match item {
                            Item::Child(child) if waiting.len() < MAX_WAITING => {
                                waiting.push_back(child);
                            }
                            _ => break,
                        }
                    }
                }
            }
            Content::Regular(FileContent::Array(root)) => match root.top() {
                Child::Extent(Extent::Data { handle, .. }) => drop(self.take(&handle)?),
                Child::Node { handle, .. } => {
                    self.take(&handle)?;
                    long = true;
                }
                Child::Extent(Extent::Hole { .. }) => {}
            },
            _ => {}
        }
        self.whole = !long;
        Some(())
    }

    fn root(&mut self, start: &Start) -> Option<Inode> {
        Inode::from_block(&self.take(&start.root)?).ok()
    }

    /// The inode of `name` in a directory, if there is one.
    fn step(&mut self, at: &Inode, name: &[u8]) -> Option<Option<Inode>> {
        let mut next = directory(at)?;
        loop {
            let node = self.node(&next)?;
            match node.find(name, &next.interval) {
                Find::Absent => return Some(None),
                Find::Child(child) => next = child,
                Find::Value(value) => {
                    return match Entry::decode(&value).ok()? {
                        Entry::Inode(inode) => Some(Some(inode)),
                        Entry::Block(handle) => {
                            Some(Some(Inode::from_block(&self.take(&handle)?).ok()?))
                        }
                    };
                }
            }
        }
    }

    fn node(&mut self, at: &ChildRef) -> Option<Node> {
        let node = Node::decode(&self.take(&at.handle)?).ok()?;
        node.check(at).ok()?;
        Some(node)
    }

    /// Reads a block and keeps its record, if there is room for it and it is the right one.
    fn take<K: BlockKind>(&mut self, handle: &Handle<K>) -> Option<trust::Block<K>> {
        self.blocks_left = self.blocks_left.checked_sub(1)?;
        let region = self.read(handle.any())?;
        let mut rest = region.clone();
        let record = Record::take(&mut rest).ok()??;
        let record_bytes = region.get(..record.len())?;
        let end = self.records.len() + record_bytes.len();
        if end > MAX_BUNDLE_BYTES {
            return None;
        }
        let plaintext = record.frame.plaintext::<K>().ok()?;
        let block = self.hasher.check(handle, plaintext).ok()?;
        self.records.extend_from_slice(record_bytes);
        self.ends.push(end);
        Some(block)
    }

    fn read(&mut self, handle: Handle) -> Option<Bytes> {
        if self.patience == Patience::Never {
            let Some(regions) = self.shelf.read_if_cached(&[handle], 0).ok()? else {
                self.would_wait = true;
                return None;
            };
            return regions.into_iter().next();
        }
        let mut region = Bytes::new();
        let mut keep = |bytes| {
            region = bytes;
            ControlFlow::Break(())
        };
        self.shelf.read_blocking(&[handle], 0, &mut keep).ok()?;
        Some(region)
    }
}

fn directory(inode: &Inode) -> Option<ChildRef> {
    match &inode.content {
        Content::Directory { map, .. } => map.as_ref().map(|map| map.child_ref()),
        _ => None,
    }
}
