//! What a publication would change. Compares the tree with the version in the repository, directory by
//! directory in the order of the walk, by the entries that would be stored: a file counts as changed
//! when anything that is published of it has changed.
//!
//! Reads the old version from the repository, a few verified nodes at a time. Keeps the changes, so
//! memory grows with the difference and not with the tree.

use std::cmp::Ordering;

use bytes::Bytes;
use store::StoreError;
use store::repository::Repository;
use trust::change::{Change, Difference, alike};
use trust::handle::{BlockKind, InodeBlock};
use trust::inode::{Content, Entry, Inode};
use trust::map::{ChildRef, Find, Interval, Item, MapRoot, Node};
use trust::{Block, Handle, Hasher};

use crate::publish_error::PublishError;

/// Compares with the version before, in step with the assembler.
pub(crate) struct Comparison<'a> {
    repository: Option<Repository>,
    hasher: &'a Hasher,
    /// The directories from the top to the present one, as far as the old version has them.
    chain: Vec<(Box<[u8]>, Inode)>,
    path: Box<[u8]>,
    old: Option<Scan>,
    /// The old entry that has not been compared yet.
    next: Option<(Bytes, Bytes)>,
    pub found: Vec<Change>,
}

impl<'a> Comparison<'a> {
    /// Compares with the tree under `root`, or with nothing.
    pub(crate) fn new(
        repository: Option<&Repository>,
        hasher: &'a Hasher,
        root: Option<&Handle<InodeBlock>>,
    ) -> Result<Self, PublishError> {
        let mut comparison = Comparison {
            repository: repository.cloned(),
            hasher,
            chain: Vec::new(),
            path: Box::default(),
            old: None,
            next: None,
            found: Vec::new(),
        };
        if let Some(root) = root {
            let root = Inode::from_block(&comparison.block(root)?)?;
            comparison.chain.push((Box::default(), root));
        }
        Ok(comparison)
    }

    /// The entries that follow are those of `path`.
    pub(crate) fn enter(&mut self, path: &[u8]) -> Result<(), PublishError> {
        self.path = path.into();
        let map = match self.resolve(path)? {
            Some(Content::Directory { map, .. }) => map,
            _ => None,
        };
        self.old = map.map(|map| Scan::new(&map));
        self.advance()
    }

    /// Compares an entry of the present directory. Entries come in order.
    pub(crate) fn entry(&mut self, name: &[u8], value: &[u8]) -> Result<(), PublishError> {
        loop {
            let order = self.next.as_ref().map(|(old, _)| old.as_ref().cmp(name));
            match order {
                Some(Ordering::Less) => self.gone()?,
                Some(Ordering::Equal) => {
                    let old = self.next.take();
                    self.advance()?;
                    return match old {
                        Some((_, old)) if old != value => self.compare(name, &old, value),
                        _ => Ok(()),
                    };
                }
                Some(Ordering::Greater) | None => {
                    let is_directory = self.is_directory(value)?;
                    self.tell(name, Difference::Added, is_directory);
                    return Ok(());
                }
            }
        }
    }

    /// The present directory has no more entries.
    pub(crate) fn leave(&mut self) -> Result<(), PublishError> {
        while self.next.is_some() {
            self.gone()?;
        }
        Ok(())
    }

    /// Compares the attributes of the top directory.
    pub(crate) fn top(&mut self, new: &Inode) {
        let same = match self.chain.first() {
            Some((_, old)) => alike(old, new),
            None => return,
        };
        if !same {
            self.path = Box::default();
            self.tell(b"", Difference::Changed, true);
        }
    }

    fn gone(&mut self) -> Result<(), PublishError> {
        if let Some((name, value)) = self.next.take() {
            let is_directory = self.is_directory(&value)?;
            self.tell(&name, Difference::Removed, is_directory);
        }
        self.advance()
    }

    fn compare(&mut self, name: &[u8], old: &[u8], new: &[u8]) -> Result<(), PublishError> {
        // An entry too large to lie in its directory differs by its handle, which the new tree need not
        // have stored yet: it is a file or directory with long attributes, and something of it changed.
        let (Entry::Inode(old), Entry::Inode(new)) = (Entry::decode(old)?, Entry::decode(new)?)
        else {
            self.tell(name, Difference::Changed, false);
            return Ok(());
        };
        let is_directory = matches!(new.content, Content::Directory { .. });
        if !(is_directory && alike(&old, &new)) {
            self.tell(name, Difference::Changed, is_directory);
        }
        Ok(())
    }

    fn tell(&mut self, name: &[u8], difference: Difference, is_directory: bool) {
        let path = match (&*self.path, name) {
            (b"", name) => trust::change::path(name),
            (path, name) => trust::change::path(&[path, b"/", name].concat()),
        };
        self.found.push(Change {
            path,
            difference,
            is_directory,
        });
    }

    fn is_directory(&self, value: &[u8]) -> Result<bool, PublishError> {
        Ok(match Entry::decode(value)? {
            Entry::Inode(inode) => matches!(inode.content, Content::Directory { .. }),
            Entry::Block(_) => false,
        })
    }

    fn advance(&mut self) -> Result<(), PublishError> {
        self.next = match self.old.take() {
            None => None,
            Some(mut scan) => {
                let next = scan.next(self)?;
                self.old = Some(scan);
                next
            }
        };
        Ok(())
    }

    /// What the old version has at `path`. Steps from the top are kept for the next path.
    fn resolve(&mut self, path: &[u8]) -> Result<Option<Content>, PublishError> {
        let names: Vec<&[u8]> = path
            .split(|b| *b == b'/')
            .filter(|n| !n.is_empty())
            .collect();
        let known = self.chain.iter().skip(1).zip(&names);
        let same = known
            .take_while(|((have, _), want)| **have == ***want)
            .count();
        self.chain.truncate(1 + same);
        for name in names.get(same..).unwrap_or_default() {
            let Some((_, inode)) = self.chain.last() else {
                return Ok(None);
            };
            let Content::Directory { map: Some(map), .. } = &inode.content else {
                return Ok(None);
            };
            let Some(inode) = self.look_up(map.child_ref(), name)? else {
                return Ok(None);
            };
            self.chain.push(((*name).into(), inode));
        }
        let last = self.chain.last().map(|(_, inode)| inode.content.clone());
        Ok(last.filter(|_| self.chain.len() == names.len() + 1))
    }

    fn look_up(&self, mut at: ChildRef, name: &[u8]) -> Result<Option<Inode>, PublishError> {
        loop {
            match self.node(&at)?.find(name, &at.interval) {
                Find::Absent => return Ok(None),
                Find::Child(child) => at = child,
                Find::Value(value) => {
                    return Ok(Some(match Entry::decode(&value)? {
                        Entry::Inode(inode) => inode,
                        Entry::Block(handle) => Inode::from_block(&self.block(&handle)?)?,
                    }));
                }
            }
        }
    }

    fn node(&self, child: &ChildRef) -> Result<Node, PublishError> {
        let node = Node::decode(&self.block(&child.handle)?)?;
        node.check(child)?;
        Ok(node)
    }

    fn block<K: BlockKind>(&self, handle: &Handle<K>) -> Result<Block<K>, PublishError> {
        let missing = || StoreError::Unavailable {
            place: "the repository".to_owned(),
            cause: format!("it lacks the block {handle} of its own newest version"),
        };
        let repository = self.repository.as_ref().ok_or_else(missing)?;
        match repository.read_verified(handle, self.hasher) {
            Err(StoreError::NoBlock { .. }) => Err(missing().into()),
            block => Ok(block?),
        }
    }
}

/// Goes through the entries of a map in order.
struct Scan {
    first: Option<ChildRef>,
    stack: Vec<(Node, Interval, usize)>,
}

impl Scan {
    fn new(map: &MapRoot) -> Scan {
        Scan {
            first: Some(map.child_ref()),
            stack: Vec::new(),
        }
    }

    fn next(&mut self, of: &Comparison<'_>) -> Result<Option<(Bytes, Bytes)>, PublishError> {
        if let Some(first) = self.first.take() {
            self.stack.push((of.node(&first)?, first.interval, 0));
        }
        while let Some((node, interval, index)) = self.stack.last_mut() {
            let item = node.item(*index, interval);
            *index += 1;
            match item {
                Some(Item::Entry(key, value)) => return Ok(Some((key, value))),
                Some(Item::Child(child)) => {
                    self.stack.push((of.node(&child)?, child.interval, 0));
                }
                None => drop(self.stack.pop()),
            }
        }
        Ok(None)
    }
}
