//! Whether a repository has every block of a version: only what differs from a version that is whole
//! is looked at. Directories and the trees of long files are read and checked; of data blocks it is
//! asked whether the index has them.

use std::collections::HashSet;
use std::ops::ControlFlow;

use store::read::Region;
use store::repository::Repository;
use trust::array::{self, ArrayRoot, Child, Extent};
use trust::handle::{BlockKind, InodeBlock};
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs};
use trust::map::{Diff, MapRoot};
use trust::{Block, Handle, Hasher, Record};

use crate::publish_error::PublishError;

/// How many blocks of the version under `root` the repository lacks; what lies below a missing
/// directory or node is not counted. The version under `whole` is known to be there.
///
/// # Errors
/// [`PublishError`] when the repository cannot be read, or the tree is malformed.
pub(crate) fn missing(
    repository: &Repository,
    hasher: &Hasher,
    whole: Option<&Handle<InodeBlock>>,
    root: &Handle<InodeBlock>,
) -> Result<u64, PublishError> {
    let mut search = Search {
        repository,
        hasher,
        missing: 0,
        seen: HashSet::new(),
        directories: Vec::new(),
    };
    if whole == Some(root) {
        return Ok(0);
    }
    let new = search.inode(root)?;
    let old = match whole {
        Some(whole) => search.inode(whole)?,
        None => None,
    };
    if let Some(new) = new {
        search.entry(old.as_ref(), &new)?;
    }
    while let Some((old, new)) = search.directories.pop() {
        search.directory(old.as_ref(), &new)?;
    }
    Ok(search.missing)
}

struct Search<'a> {
    repository: &'a Repository,
    hasher: &'a Hasher,
    missing: u64,
    /// Array nodes and directories that were looked at.
    seen: HashSet<[u8; 32]>,
    directories: Vec<(Option<MapRoot>, MapRoot)>,
}

impl Search<'_> {
    /// What a file or directory needs beyond its entry.
    fn entry(&mut self, old: Option<&Inode>, new: &Inode) -> Result<(), PublishError> {
        let array_of = |inode: &Inode| match &inode.content {
            Content::Regular(FileContent::Array(root)) => Some(*root),
            _ => None,
        };
        let xattrs_of = |inode: &Inode| match &inode.xattrs {
            Xattrs::Stored(root) => Some(*root),
            Xattrs::None | Xattrs::Inline(_) => None,
        };
        for of in [array_of, xattrs_of] {
            if let Some(root) = of(new)
                && old.and_then(of) != Some(root)
            {
                self.array(&root)?;
            }
        }
        let map_of = |inode: &Inode| match &inode.content {
            Content::Directory { map, .. } => *map,
            _ => None,
        };
        let (old, new) = (old.and_then(map_of), map_of(new));
        if let Some(new) = new
            && old != Some(new)
            && self.seen.insert(*new.handle.as_bytes())
        {
            self.directories.push((old, new));
        }
        Ok(())
    }

    fn directory(&mut self, old: Option<&MapRoot>, new: &MapRoot) -> Result<(), PublishError> {
        let mut diff = Diff::new(old, Some(new));
        while !diff.is_done() {
            for handle in diff.wants() {
                let Some(block) = self.block(&handle)? else {
                    // Without a node the rest of this directory cannot be compared.
                    return Ok(());
                };
                diff.supply(&handle, &block)?;
            }
            while let Some(change) = diff.next_change() {
                let old = match &change.old {
                    Some(value) => self.decoded(value)?,
                    None => None,
                };
                if let Some(value) = &change.new
                    && let Some(new) = self.decoded(value)?
                {
                    self.entry(old.as_ref(), &new)?;
                }
            }
        }
        Ok(())
    }

    fn decoded(&mut self, value: &[u8]) -> Result<Option<Inode>, PublishError> {
        match Entry::decode(value)? {
            Entry::Inode(inode) => Ok(Some(inode)),
            Entry::Block(handle) => self.inode(&handle),
        }
    }

    fn array(&mut self, root: &ArrayRoot) -> Result<(), PublishError> {
        let mut stack = vec![root.top()];
        while let Some(child) = stack.pop() {
            let (handle, len, level) = match child {
                Child::Extent(Extent::Hole { .. }) => continue,
                Child::Extent(Extent::Data { handle, .. }) => {
                    if !self.repository.contains(&handle.any())? {
                        self.missing = self.missing.saturating_add(1);
                    }
                    continue;
                }
                Child::Node { handle, len, level } => (handle, len, level),
            };
            if !self.seen.insert(*handle.as_bytes()) {
                continue;
            }
            let Some(block) = self.block(&handle)? else {
                continue;
            };
            let node = array::Node::decode(&block)?;
            node.check(level, len)?;
            stack.extend((0..).map_while(|i| node.child(i)));
        }
        Ok(())
    }

    fn inode(&mut self, handle: &Handle<InodeBlock>) -> Result<Option<Inode>, PublishError> {
        match self.block(handle)? {
            Some(block) => Ok(Some(Inode::from_block(&block)?)),
            None => Ok(None),
        }
    }

    /// A block of the repository, checked; `None` (and counted) where it is not there.
    fn block<K: BlockKind>(
        &mut self,
        handle: &Handle<K>,
    ) -> Result<Option<Block<K>>, PublishError> {
        let mut answer = Vec::new();
        let mut sink = |region: Region| {
            answer.push(region.bytes);
            ControlFlow::Continue(())
        };
        self.repository
            .read_blocking(&[handle.any()], 0, &mut sink)?;
        for mut bytes in answer {
            while let Some(record) = Record::take(&mut bytes)? {
                if record.handle == handle.any() {
                    let plaintext = record.frame.plaintext::<K>()?;
                    return Ok(Some(self.hasher.check(handle, plaintext)?));
                }
            }
        }
        self.missing = self.missing.saturating_add(1);
        Ok(None)
    }
}
