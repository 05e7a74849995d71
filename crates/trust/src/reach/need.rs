//! A block that a walk wants, its place in the tree, and the proof that bytes are this block. Relies on
//! [`crate::handle`] for the hash and on the decoders of the three kinds of nodes.

use std::sync::Arc;

use bytes::Bytes;

use crate::encode::Encoder;
use crate::error::Reject;
use crate::frame::Frame;
use crate::handle::{ArrayNode, Data, Handle, Hasher, InodeBlock, Kind, MapNode};
use crate::tree::array;
use crate::tree::inode::Inode;
use crate::tree::map::{self, ChildRef, MapRoot};

/// A block, by the handle and kind that its parent gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Content of a file, or of a list of extended attributes.
    Data {
        /// The block.
        handle: Handle<Data>,
        /// Its length, bytes, as its parent says.
        len: u32,
    },
    /// An interior node of an array tree.
    Array {
        /// The node.
        handle: Handle<ArrayNode>,
        /// Content below it, bytes, as its parent says.
        len: u64,
        /// Its level, as its parent says.
        level: u8,
    },
    /// A node of a directory.
    Map(Handle<MapNode>),
    /// An inode in a block of its own.
    Inode(Handle<InodeBlock>),
}

impl Wanted {
    /// The handle by which stores look the block up.
    pub fn handle(&self) -> Handle {
        match self {
            Wanted::Data { handle, .. } => handle.any(),
            Wanted::Array { handle, .. } => handle.any(),
            Wanted::Map(handle) => handle.any(),
            Wanted::Inode(handle) => handle.any(),
        }
    }

    /// The kind that the block must have.
    pub fn kind(&self) -> Kind {
        match self {
            Wanted::Data { .. } => Kind::Data,
            Wanted::Array { .. } => Kind::Array,
            Wanted::Map(_) => Kind::Map,
            Wanted::Inode(_) => Kind::Inode,
        }
    }

    /// Length of its plaintext, bytes, at most. A publisher may lie about that of a data block.
    pub fn most_bytes(&self) -> usize {
        match self {
            Wanted::Data { len, .. } => *len as usize,
            Wanted::Array { .. } => crate::array::MAX_NODE_BYTES,
            Wanted::Map(_) => crate::map::MAX_NODE_BYTES,
            Wanted::Inode(_) => crate::inode::MAX_INODE_BYTES,
        }
    }

    /// Proves that `plaintext` is this block and decodes it.
    ///
    /// # Errors
    /// [`Reject::WrongBlock`] when it has another handle: the source of the bytes is at fault.
    /// [`Reject::BadTree`] when the handle is right and the node breaks a rule: the publisher is at fault.
    pub fn prove(&self, hasher: &Hasher, plaintext: Bytes) -> Result<Found, Reject> {
        Ok(match self {
            Wanted::Data { handle, .. } => Found::Data {
                len: hasher.check(handle, plaintext)?.bytes().len() as u64,
            },
            Wanted::Array { handle, .. } => {
                Found::Array(array::Node::decode(&hasher.check(handle, plaintext)?)?)
            }
            Wanted::Map(handle) => {
                Found::Map(map::Node::decode(&hasher.check(handle, plaintext)?)?)
            }
            Wanted::Inode(handle) => {
                Found::Inode(Inode::from_block(&hasher.check(handle, plaintext)?)?)
            }
        })
    }

    /// Unpacks a frame and proves that it holds this block.
    ///
    /// # Errors
    /// [`Reject::WrongKind`] or [`Reject::BadFrame`] when the frame cannot hold it; otherwise as
    /// [`Wanted::prove`]. [`Reject::is_publishers_fault`] says who is at fault.
    pub fn unpack(&self, hasher: &Hasher, frame: &Frame) -> Result<Found, Reject> {
        let plaintext = match self {
            Wanted::Data { .. } => frame.plaintext::<Data>(),
            Wanted::Array { .. } => frame.plaintext::<ArrayNode>(),
            Wanted::Map(_) => frame.plaintext::<MapNode>(),
            Wanted::Inode(_) => frame.plaintext::<InodeBlock>(),
        }?;
        self.prove(hasher, plaintext)
    }
}

/// A block that was proved to match the wanted handle. Comes from [`Wanted::prove`], or from a cache of
/// blocks that were proved before.
#[derive(Debug, Clone)]
pub enum Found {
    /// A data block.
    Data {
        /// Its length, bytes.
        len: u64,
    },
    /// An array node.
    Array(array::Node),
    /// A map node.
    Map(map::Node),
    /// An inode.
    Inode(Inode),
}

/// A path from the root of the walk. Paths share the directories above them.
#[derive(Debug, Clone, Default)]
pub struct Path(Option<Arc<Component>>);

#[derive(Debug)]
struct Component {
    parent: Path,
    name: Box<[u8]>,
    depth: usize,
}

impl Path {
    /// The entry `name` of the directory at this path.
    pub fn join(&self, name: &[u8]) -> Path {
        Path(Some(Arc::new(Component {
            parent: self.clone(),
            name: name.into(),
            depth: self.depth().saturating_add(1),
        })))
    }

    /// Number of names; 0 for the root.
    pub fn depth(&self) -> usize {
        self.0.as_ref().map_or(0, |component| component.depth)
    }

    /// The names joined by slashes; empty for the root.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(component) = &at.0 {
            names.push(component.name.as_ref());
            at = &component.parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// A wanted block of a walk. The caller gives it back by [`Reach::supply`](super::Reach::supply),
/// [`Reach::skip`](super::Reach::skip) or [`Reach::lack`](super::Reach::lack); a walk that does not get it
/// back is never done.
#[derive(Debug)]
pub struct Need {
    /// The caller's count of requests that led here. Blocks named by a supplied block inherit it, so a caller
    /// adds 1 to the need of each block that it fetches.
    pub round: u32,
    pub(super) wanted: Wanted,
    pub(super) path: Path,
    pub(super) task: Task,
}

/// What the walk does with the block.
#[derive(Debug)]
pub(super) enum Task {
    /// Content: nothing lies below it.
    Data,
    /// A node of content.
    Array,
    /// An inode, and the inode at the same path in the base; `parent` is the open directory that holds it.
    Inode {
        base: Option<Box<Inode>>,
        parent: Option<u64>,
    },
    /// The top node of an open directory, and the same directory in the base.
    Top {
        map: Box<MapRoot>,
        base: Option<Box<MapRoot>>,
        directory: u64,
    },
    /// Another node of an open directory.
    Node {
        child: Box<ChildRef>,
        directory: u64,
    },
    /// A node that a comparison asks for.
    Compared { comparison: u64 },
}

impl Need {
    /// The block.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// The handle by which stores look the block up.
    pub fn handle(&self) -> Handle {
        self.wanted.handle()
    }

    /// A path that needs the block. For a node of a directory, the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the block is the top node of a directory: the whole directory is below it.
    pub fn is_directory(&self) -> bool {
        matches!(self.task, Task::Top { .. })
    }

    /// Identifies the block together with everything that the tree claims about it. Two needs with the same
    /// key have the same blocks below them and pass or fail the same checks. So a caller that skips by key
    /// checks as much as one that walks everything. `None` for a node of a comparison, which depends on the
    /// base too.
    ///
    /// A caller may skip by [`Need::handle`] instead. It still visits every block, but it does not notice
    /// when the publisher claims two different things about one block.
    pub fn key(&self) -> Option<[u8; 32]> {
        let mut e = Encoder::new();
        e.u8(self.wanted.kind() as u8).raw(self.handle().as_bytes());
        match (&self.wanted, &self.task) {
            (Wanted::Data { len, .. }, _) => {
                e.u32(*len);
            }
            (Wanted::Array { len, level, .. }, _) => {
                e.u64(*len).u8(*level);
            }
            (_, Task::Top { map, .. }) => {
                e.u8(map.height).u64(map.entries).u8(0).u8(0);
            }
            (_, Task::Node { child, .. }) => {
                e.u8(child.level).u64(child.entries);
                for bound in [&child.interval.lower, &child.interval.upper] {
                    e.u8(u8::from(bound.is_some()));
                    e.bytes(bound.as_deref().unwrap_or_default());
                }
            }
            (_, Task::Compared { .. }) => return None,
            (_, Task::Inode { .. } | Task::Data | Task::Array) => {}
        }
        Some(*blake3::hash(&e.finish()).as_bytes())
    }
}
