//! Marks what trees reach: i-tables with the files in them, inodes of entries, and the rows of checkpoints. A walk is depth
//! first, each node is entered once, and each node is checked against its parent, so the walk is as deep as the levels
//! of its nodes at most, whoever made the tree. Without input or output: a [`Source`] marks and reads.

use bytes::Bytes;
use trust::array::{self, ArrayRoot, Child, Extent};
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs};
use trust::map::{self, Find, Interval, Item, MapRoot};
use trust::reach::{Found, Wanted};
use trust::{Handle, Reject};
use trust_shared::itable::MAX_TABLE_INLINE_BYTES;

use super::chain::Path;

/// What a source says of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It is here and was not marked before.
    New,
    /// It was marked before.
    Known,
    /// It is not here.
    Absent,
}

/// Where blocks lie.
pub trait Source {
    /// Why it failed.
    type Error;

    /// Marks a block.
    ///
    /// # Errors
    /// The source's.
    fn mark(&mut self, block: &Handle) -> Result<Seen, Self::Error>;

    /// Reads and verifies a block that is here.
    ///
    /// # Errors
    /// The source's, also for a damaged block.
    fn read(&mut self, wanted: &Wanted) -> Result<Found, Self::Error>;
}

/// Why a walk ended. What is below is not marked, so nothing may be collected.
#[derive(Debug, thiserror::Error)]
pub enum Unmarked<E> {
    /// A node is not here.
    #[error("block {0} is missing")]
    Missing(Handle),
    /// A node breaks a rule.
    #[error("block {0} is malformed: {1}")]
    Malformed(Handle, Reject),
    /// A value of an i-table breaks a rule.
    #[error("a file of an i-table is malformed: {0}")]
    Entry(Reject),
    /// The source failed.
    #[error(transparent)]
    Source(#[from] E),
}

/// What the values of a map are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Inodes of files.
    Inodes,
    /// Names, or rows: nothing is below.
    Leaves,
}

enum Frame {
    Map {
        node: map::Node,
        interval: Interval,
        next: usize,
        values: Values,
    },
    Array {
        node: array::Node,
        next: usize,
    },
}

/// A walk, and what it has found.
pub struct Marking<S> {
    source: S,
    stack: Vec<Frame>,
    lost: u64,
    last_lost: Option<Handle>,
}

impl<S: Source> Marking<S> {
    /// Nothing is marked.
    pub fn new(source: S) -> Marking<S> {
        Marking {
            source,
            stack: Vec::new(),
            lost: 0,
            last_lost: None,
        }
    }

    /// The source.
    pub fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// The source, when the walks are done.
    pub fn into_source(self) -> S {
        self.source
    }

    /// Blocks of content, and nodes on paths, that are not here. They stand in nobody's way.
    pub fn lost(&self) -> (u64, Option<Handle>) {
        (self.lost, self.last_lost)
    }

    /// Marks an i-table, its files, and their content.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn table(&mut self, root: &MapRoot) -> Result<(), Unmarked<S::Error>> {
        self.map(root, Values::Inodes)?;
        self.walk()
    }

    /// Marks the tree of a checkpoint's rows. What rows name is needed for the position of the checkpoint.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn rows(&mut self, root: &MapRoot) -> Result<(), Unmarked<S::Error>> {
        self.map(root, Values::Leaves)?;
        self.walk()
    }

    /// Marks what leads to a value of an i-table, and not its content. What is not here is counted: it is gone for good.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn path(&mut self, path: &Path) -> Result<(), Unmarked<S::Error>> {
        let Some(value) = self.find(&path.table, &path.number.to_key())? else {
            return Ok(());
        };
        let inode = match Entry::decode_within(&value, MAX_TABLE_INLINE_BYTES) {
            Ok(Entry::Inode(inode)) => inode,
            Ok(Entry::Block(handle)) => match self.here(&Wanted::Inode(handle))? {
                Some(Found::Inode(inode)) => inode,
                _ => return Ok(()),
            },
            Err(why) => return Err(Unmarked::Entry(why)),
        };
        if let (
            Some(name),
            Content::Directory {
                map: Some(root), ..
            },
        ) = (&path.name, &inode.content)
        {
            self.find(root, name.as_bytes())?;
        }
        Ok(())
    }

    /// The value of a key in a map, with the nodes on the way marked.
    fn find(&mut self, root: &MapRoot, key: &[u8]) -> Result<Option<Bytes>, Unmarked<S::Error>> {
        let mut child = root.child_ref();
        loop {
            let Some(Found::Map(node)) = self.here(&Wanted::Map(child.handle))? else {
                return Ok(None);
            };
            let checked = node.check(&child);
            checked.map_err(|why| Unmarked::Malformed(child.handle.any(), why))?;
            match node.find(key, &child.interval) {
                Find::Absent => return Ok(None),
                Find::Value(value) => return Ok(Some(value)),
                Find::Child(below) => child = below,
            }
        }
    }

    /// A node on a path, if it is here.
    fn here(&mut self, wanted: &Wanted) -> Result<Option<Found>, Unmarked<S::Error>> {
        let handle = wanted.handle();
        match self.source.mark(&handle)? {
            Seen::New | Seen::Known => Ok(Some(self.source.read(wanted)?)),
            Seen::Absent => {
                self.lost += 1;
                self.last_lost = Some(handle);
                Ok(None)
            }
        }
    }

    /// Marks the content of a file.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn inode(&mut self, inode: &Inode) -> Result<(), Unmarked<S::Error>> {
        self.content(inode)?;
        self.walk()
    }

    fn walk(&mut self) -> Result<(), Unmarked<S::Error>> {
        let walked = self.walk_stack();
        if walked.is_err() {
            self.stack.clear();
        }
        walked
    }

    fn walk_stack(&mut self) -> Result<(), Unmarked<S::Error>> {
        while let Some(frame) = self.stack.pop() {
            match frame {
                Frame::Map {
                    node,
                    interval,
                    next,
                    values,
                } => {
                    let Some(item) = node.item(next, &interval) else {
                        continue;
                    };
                    let next = next + 1;
                    self.stack.push(Frame::Map {
                        node,
                        interval,
                        next,
                        values,
                    });
                    match item {
                        Item::Child(child) => self.map_node(&child, values)?,
                        Item::Entry(_, value) if values == Values::Inodes => self.entry(&value)?,
                        Item::Entry(..) => {}
                    }
                }
                Frame::Array { node, next } => {
                    let Some(child) = node.child(next) else {
                        continue;
                    };
                    let next = next + 1;
                    self.stack.push(Frame::Array { node, next });
                    self.child(child)?;
                }
            }
        }
        Ok(())
    }

    /// A node that is here for the first time is read.
    fn node(&mut self, wanted: &Wanted) -> Result<Option<Found>, Unmarked<S::Error>> {
        let handle = wanted.handle();
        match self.source.mark(&handle)? {
            Seen::New => Ok(Some(self.source.read(wanted)?)),
            Seen::Known => Ok(None),
            Seen::Absent => Err(Unmarked::Missing(handle)),
        }
    }

    fn map(&mut self, root: &MapRoot, values: Values) -> Result<(), Unmarked<S::Error>> {
        self.map_node(&root.child_ref(), values)
    }

    fn map_node(
        &mut self,
        child: &map::ChildRef,
        values: Values,
    ) -> Result<(), Unmarked<S::Error>> {
        let Some(Found::Map(node)) = self.node(&Wanted::Map(child.handle))? else {
            return Ok(());
        };
        let checked = node.check(child);
        checked.map_err(|why| Unmarked::Malformed(child.handle.any(), why))?;
        self.stack.push(Frame::Map {
            node,
            interval: child.interval.clone(),
            next: 0,
            values,
        });
        Ok(())
    }

    /// The value of an i-table.
    fn entry(&mut self, value: &[u8]) -> Result<(), Unmarked<S::Error>> {
        match Entry::decode_within(value, MAX_TABLE_INLINE_BYTES) {
            Ok(Entry::Inode(inode)) => self.content(&inode),
            Ok(Entry::Block(handle)) => match self.node(&Wanted::Inode(handle))? {
                Some(Found::Inode(inode)) => self.content(&inode),
                _ => Ok(()),
            },
            Err(why) => Err(Unmarked::Entry(why)),
        }
    }

    fn content(&mut self, inode: &Inode) -> Result<(), Unmarked<S::Error>> {
        if let Xattrs::Stored(root) = &inode.xattrs {
            self.array(root)?;
        }
        match &inode.content {
            Content::Regular(FileContent::Array(root)) => self.array(root),
            Content::Directory {
                map: Some(root), ..
            } => self.map(root, Values::Leaves),
            _ => Ok(()),
        }
    }

    fn array(&mut self, root: &ArrayRoot) -> Result<(), Unmarked<S::Error>> {
        self.child(root.top())
    }

    fn child(&mut self, child: Child) -> Result<(), Unmarked<S::Error>> {
        match child {
            Child::Extent(Extent::Hole { .. }) => Ok(()),
            Child::Extent(Extent::Data { handle, .. }) => {
                let handle = handle.any();
                if self.source.mark(&handle)? == Seen::Absent {
                    self.lost += 1;
                    self.last_lost = Some(handle);
                }
                Ok(())
            }
            Child::Node { handle, len, level } => {
                let wanted = Wanted::Array { handle, len, level };
                if let Some(Found::Array(node)) = self.node(&wanted)? {
                    let checked = node.check(level, len);
                    checked.map_err(|why| Unmarked::Malformed(handle.any(), why))?;
                    self.stack.push(Frame::Array { node, next: 0 });
                }
                Ok(())
            }
        }
    }
}
