//! Walks from a head into its tree and collects the records on the way.
//!
//! A walk verifies no signature, because the reader does, but each block must match its handle. Whatever ends
//! a walk, the records collected until then are correct. Relies on `trust` for the formats
//! (`docs/formats/tree.md`) and on `trust::reach::Lookup` to follow a path. The walk near the root is its
//! own: breadth first, and it stops when no more records fit.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use store::Patience;
use trust::array::{Child, Extent};
use trust::head::Head;
use trust::inode::{Content, Entry, FileContent, Inode};
use trust::map::{ChildRef, Item, Node};
use trust::policy::Policy;
use trust::reach::{Absence, Found, Lookup, Outcome, Wanted};
use trust::root::RootRecord;
use trust::statement::VolumeId;
use trust::{Handle, Hasher, InodeBlock, Record};

use crate::mirror::path_records::PathRecords;
use crate::mirror::reader::RepositoryReader;

/// Most bytes of records of one walk.
const MAX_BUNDLE_BYTES: usize = 64 << 10;
/// Most directories that wait to be walked: the records of more would not fit.
const MAX_WAITING: usize = 1024;

/// Where the walks of a head begin.
pub(crate) struct Start {
    pub(crate) hasher: Hasher,
    root: Handle<InodeBlock>,
}

impl Start {
    /// `None` when the head cannot be decoded.
    pub(crate) fn of(head: &Bytes) -> Option<Start> {
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

/// A walk; a step gives `None` where it ends.
pub(crate) struct Walk<'a> {
    reader: &'a dyn RepositoryReader,
    hasher: &'a Hasher,
    patience: Patience,
    /// The walk ended at a block that is not in memory.
    pub(crate) would_wait: bool,
    blocks_left: usize,
    records: BytesMut,
    ends: Vec<usize>,
    whole: bool,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        reader: &'a dyn RepositoryReader,
        hasher: &'a Hasher,
        patience: Patience,
        blocks_left: usize,
    ) -> Walk<'a> {
        Walk {
            reader,
            hasher,
            patience,
            would_wait: false,
            blocks_left,
            records: BytesMut::new(),
            ends: Vec::new(),
            whole: false,
        }
    }

    pub(crate) fn records(self) -> PathRecords {
        PathRecords {
            // A copy without spare room: caches keep it.
            records: Bytes::copy_from_slice(&self.records),
            ends: self.ends,
            whole: self.whole,
        }
    }

    /// Collects everything near the root, breadth first.
    pub(crate) fn wander(&mut self, start: &Start) -> Option<()> {
        let Found::Inode(root) = self.take(&Wanted::Inode(start.root))? else {
            return None;
        };
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

    /// Collects the blocks on `path`, and those at its end: the nodes of a directory, the only block of a
    /// file or the top of its array tree. If nothing is at `path`, the blocks prove that.
    pub(crate) fn follow(&mut self, start: &Start, path: &[u8]) -> Option<()> {
        let mut lookup = Lookup::new(start.root, path).ok()?;
        while let Some(wanted) = lookup.wants() {
            lookup.supply(self.take(&wanted)?).ok()?;
        }
        match lookup.outcome()? {
            Outcome::Present(inode) => self.whole = self.end_of_path(inode)?,
            Outcome::Absent(Absence::NoEntry { .. }) => self.whole = true,
            // It may be a symbolic link, which a reader follows to another path.
            Outcome::Absent(Absence::NotADirectory { .. }) => {}
        }
        Some(())
    }

    /// Collects the blocks that a reader needs of the inode at the end of a path; false for a large file,
    /// of which it collects only the top.
    fn end_of_path(&mut self, at: &Inode) -> Option<bool> {
        match &at.content {
            Content::Directory { .. } => {
                let mut waiting: VecDeque<ChildRef> = directory(at).into_iter().collect();
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
                Some(true)
            }
            Content::Regular(FileContent::Array(root)) => match root.top() {
                Child::Extent(Extent::Data { handle, len }) => {
                    self.take(&Wanted::Data { handle, len })?;
                    Some(true)
                }
                Child::Node { handle, len, level } => {
                    self.take(&Wanted::Array { handle, len, level })?;
                    Some(false)
                }
                Child::Extent(Extent::Hole { .. }) => Some(true),
            },
            _ => Some(true),
        }
    }

    fn node(&mut self, at: &ChildRef) -> Option<Node> {
        let Found::Map(node) = self.take(&Wanted::Map(at.handle))? else {
            return None;
        };
        node.check(at).ok()?;
        Some(node)
    }

    /// Reads a block and keeps its record, if there is room and the block has the right hash.
    fn take(&mut self, wanted: &Wanted) -> Option<Found> {
        self.blocks_left = self.blocks_left.checked_sub(1)?;
        let region = self.read(wanted.handle())?;
        let mut rest = region.clone();
        let record = Record::take(&mut rest).ok()??;
        let record_bytes = region.get(..record.len())?;
        let end = self.records.len() + record_bytes.len();
        if end > MAX_BUNDLE_BYTES {
            return None;
        }
        let found = wanted.unpack(self.hasher, &record.frame).ok()?;
        self.records.extend_from_slice(record_bytes);
        self.ends.push(end);
        Some(found)
    }

    fn read(&mut self, handle: Handle) -> Option<Bytes> {
        if self.patience == Patience::Never {
            let Some(regions) = self.reader.read_if_cached(&[handle], 0).ok()? else {
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
        self.reader.read_blocking(&[handle], 0, &mut keep).ok()?;
        Some(region)
    }
}

fn directory(inode: &Inode) -> Option<ChildRef> {
    match &inode.content {
        Content::Directory { map, .. } => map.as_ref().map(|map| map.child_ref()),
        _ => None,
    }
}
