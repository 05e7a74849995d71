//! Marks what trees reach: i-tables with the files in them, inodes of entries, and the rows of checkpoints. A walk is depth
//! first, and each node is checked against its parent, so the walk is as deep as the levels of its nodes at most, whoever
//! made the tree. Without input or output: a [`Source`] marks and reads.
//!
//! That a block is marked says nothing of what is below it: a member may name a node of somebody else's tree as content,
//! or the names of a directory as files. So nodes that were *entered* are remembered apart from the marks, each with what
//! it was entered as. Each is entered once as the same, and that takes 19 to 39 bytes.
//!
//! Of folds before the window, which only a device needs that begins with the first leaf, the names and attributes are
//! marked ([`Marking::names`]). What of them is not here, or breaks a rule, is passed over: such a device is refused there,
//! too, and goes no further down.

use std::collections::HashSet;

use trust::array::{self, ArrayRoot, Child, Extent};
use trust::encode::Decoder;
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs};
use trust::map::{self, Interval, Item, MapRoot};
use trust::reach::{Found, Wanted};
use trust::{Handle, Reject};
use trust_shared::itable::MAX_TABLE_INLINE_BYTES;
use trust_shared::row::Row;

/// Most blocks that are counted as not here.
pub const MAX_LOST: usize = 1 << 16;

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

    /// Reads and verifies a block that is here. The inner error: it is what its name says, and cannot be what is wanted.
    ///
    /// # Errors
    /// The source's, also for a damaged block.
    fn read(&mut self, wanted: &Wanted) -> Result<Result<Found, Reject>, Self::Error>;
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

/// What a node is entered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// An i-table: files, with all of their content.
    Files,
    /// The inode of a file, with all of its content.
    File,
    /// Names of a directory: nothing is below.
    Names,
    /// Content.
    Array,
    /// Rows of a checkpoint.
    Rows,
    /// As the first three, without content, in a fold before the window.
    OldFiles,
    OldFile,
    OldNames,
}

impl Role {
    /// Whether what is not here or breaks a rule is passed over.
    fn is_old(self) -> bool {
        matches!(self, Role::OldFiles | Role::OldFile | Role::OldNames)
    }

    /// Whether what breaks this rule is passed over. What a later bulla wrote, a later bulla can read.
    fn passes_over(self, why: &Reject) -> bool {
        let is_later = matches!(why, Reject::Unsupported { .. });
        self.is_old() && !is_later
    }

    /// The role that needs all that this one needs, and more.
    fn whole(self) -> Role {
        match self {
            Role::OldFiles => Role::Files,
            Role::OldFile => Role::File,
            Role::OldNames => Role::Names,
            whole => whole,
        }
    }
}

enum Frame {
    Map {
        node: map::Node,
        interval: Interval,
        next: usize,
        role: Role,
    },
    Array {
        node: array::Node,
        next: usize,
    },
}

/// Most of the name of an entered node, and its role. It is as hard to find two such names as two blocks of one handle of
/// 15 bytes, and who finds them loses files of his own only.
type Entered = [u8; 16];

fn entered(handle: &Handle, role: Role) -> Entered {
    let mut name = [role as u8; 16];
    let (most, _) = name.split_at_mut(15);
    let bytes = most.iter_mut().zip(handle.as_bytes());
    bytes.for_each(|(to, from)| *to = *from);
    name
}

/// A walk, and what it has found.
pub struct Marking<S> {
    source: S,
    stack: Vec<Frame>,
    entered: HashSet<Entered>,
    /// Bounded: whoever writes entries may name as many blocks that are not here as he likes.
    lost: HashSet<Handle>,
    last_lost: Option<Handle>,
}

impl<S: Source> Marking<S> {
    /// Nothing is marked.
    pub fn new(source: S) -> Marking<S> {
        Marking {
            source,
            stack: Vec::new(),
            entered: HashSet::new(),
            lost: HashSet::new(),
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

    /// Blocks that are needed and not here, and that stand in nobody's way: of content, and of old folds. Each counts
    /// once, [`MAX_LOST`] at most.
    pub fn lost(&self) -> (u64, Option<Handle>) {
        (self.lost.len() as u64, self.last_lost)
    }

    /// Nodes that were entered.
    pub fn entered(&self) -> usize {
        self.entered.len()
    }

    /// Marks an i-table, its files, and their content.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn table(&mut self, root: &MapRoot) -> Result<(), Unmarked<S::Error>> {
        self.map(root, Role::Files)
    }

    /// Marks an i-table of before the window, with the inodes and names in it, and no content.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn names(&mut self, root: &MapRoot) -> Result<(), Unmarked<S::Error>> {
        self.map(root, Role::OldFiles)
    }

    /// Marks the tree of a checkpoint's rows, and the files that rows name.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn rows(&mut self, root: &MapRoot) -> Result<(), Unmarked<S::Error>> {
        self.map(root, Role::Rows)
    }

    /// Marks the content of a file.
    ///
    /// # Errors
    /// [`Unmarked`].
    pub fn inode(&mut self, inode: &Inode) -> Result<(), Unmarked<S::Error>> {
        self.content(inode, Role::File)?;
        self.walk()
    }

    fn map(&mut self, root: &MapRoot, role: Role) -> Result<(), Unmarked<S::Error>> {
        self.map_node(&root.child_ref(), role)?;
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
                    role,
                } => {
                    let Some(item) = node.item(next, &interval) else {
                        continue;
                    };
                    let next = next + 1;
                    self.stack.push(Frame::Map {
                        node,
                        interval,
                        next,
                        role,
                    });
                    match item {
                        Item::Child(child) => self.map_node(&child, role)?,
                        Item::Entry(key, value) => self.value(&key, &value, role)?,
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

    /// A node that was not entered as this is read.
    fn node(&mut self, wanted: &Wanted, role: Role) -> Result<Option<Found>, Unmarked<S::Error>> {
        let handle = wanted.handle();
        let known = [role, role.whole()].map(|role| entered(&handle, role));
        if known.iter().any(|known| self.entered.contains(known)) {
            return Ok(None);
        }
        if self.source.mark(&handle)? == Seen::Absent {
            if !role.is_old() {
                return Err(Unmarked::Missing(handle));
            }
            self.lose(handle);
            return Ok(None);
        }
        match self.source.read(wanted)? {
            Ok(found) => Ok(Some(found)),
            Err(why) => self.refused(handle, why, role).map(|()| None),
        }
    }

    /// A node breaks a rule. It is not entered: with another parent it may be right.
    fn refused(&self, handle: Handle, why: Reject, role: Role) -> Result<(), Unmarked<S::Error>> {
        match role.passes_over(&why) {
            true => Ok(()),
            false => Err(Unmarked::Malformed(handle, why)),
        }
    }

    fn lose(&mut self, handle: Handle) {
        if self.lost.len() < MAX_LOST {
            self.lost.insert(handle);
        }
        self.last_lost = Some(handle);
    }

    fn map_node(&mut self, child: &map::ChildRef, role: Role) -> Result<(), Unmarked<S::Error>> {
        let Some(Found::Map(node)) = self.node(&Wanted::Map(child.handle), role)? else {
            return Ok(());
        };
        let mut child = child.clone();
        if role.is_old() {
            // Where the next node begins depends on the path. Who was here on one path is not here again on another.
            child.interval.upper = None;
        }
        let handle = child.handle.any();
        if let Err(why) = node.check(&child) {
            return self.refused(handle, why, role);
        }
        self.entered.insert(entered(&handle, role));
        self.stack.push(Frame::Map {
            node,
            interval: child.interval,
            next: 0,
            role,
        });
        Ok(())
    }

    /// The value of a map.
    fn value(&mut self, key: &[u8], value: &[u8], role: Role) -> Result<(), Unmarked<S::Error>> {
        match role {
            Role::Files => self.entry(value, Role::File),
            Role::OldFiles => self.entry(value, Role::OldFile),
            Role::Rows => match inode_of_row(key, value) {
                Ok(Some(value)) => self.entry(value, Role::File),
                Ok(None) => Ok(()),
                Err(why) => Err(Unmarked::Entry(why)),
            },
            _ => Ok(()),
        }
    }

    /// The value of an i-table.
    fn entry(&mut self, value: &[u8], role: Role) -> Result<(), Unmarked<S::Error>> {
        let handle = match Entry::decode_within(value, MAX_TABLE_INLINE_BYTES) {
            Ok(Entry::Inode(inode)) => return self.content(&inode, role),
            Ok(Entry::Block(handle)) => handle,
            Err(why) if role.passes_over(&why) => return Ok(()),
            Err(why) => return Err(Unmarked::Entry(why)),
        };
        let Some(Found::Inode(inode)) = self.node(&Wanted::Inode(handle), role)? else {
            return Ok(());
        };
        self.entered.insert(entered(&handle.any(), role));
        self.content(&inode, role)
    }

    fn content(&mut self, inode: &Inode, role: Role) -> Result<(), Unmarked<S::Error>> {
        let names = match role.is_old() {
            true => Role::OldNames,
            false => Role::Names,
        };
        if let Content::Directory {
            map: Some(root), ..
        } = &inode.content
        {
            self.map_node(&root.child_ref(), names)?;
        }
        if role.is_old() {
            return Ok(());
        }
        if let Xattrs::Stored(root) = &inode.xattrs {
            self.array(root)?;
        }
        match &inode.content {
            Content::Regular(FileContent::Array(root)) => self.array(root),
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
                    self.lose(handle);
                }
                Ok(())
            }
            Child::Node { handle, len, level } => {
                let wanted = Wanted::Array { handle, len, level };
                if let Some(Found::Array(node)) = self.node(&wanted, Role::Array)? {
                    let checked = node.check(level, len);
                    checked.map_err(|why| Unmarked::Malformed(handle.any(), why))?;
                    self.entered.insert(entered(&handle.any(), Role::Array));
                    self.stack.push(Frame::Array { node, next: 0 });
                }
                Ok(())
            }
        }
    }
}

/// What a row of a checkpoint names: the inode of a file that has changed since the last fold.
fn inode_of_row<'a>(key: &[u8], value: &'a [u8]) -> Result<Option<&'a [u8]>, Reject> {
    let Row::Inode(_) = Row::decode(key)? else {
        return Ok(None);
    };
    let mut d = Decoder::new(value, "row of a checkpoint");
    d.varint()?;
    match d.flag()? {
        true => Ok(Some(d.raw(d.remaining())?)),
        false => Ok(None),
    }
}
