//! Turns plaintext into blocks to store: cuts it, hashes the blocks, drops those that the store has, and
//! compresses the others. Each thread has a [`Cutter`]; threads share the store's index and a small filter.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use store::repository::Repository;
use trust::array::{ArrayRoot, Builder, Extent};
use trust::handle::{ArrayNode, Data};
use trust::{BlockKind, Frame, Handle, Hasher, Kind, Record};

use crate::destination::Destination;
use crate::publish_error::PublishError;
use content::blocks::Blocks;
use content::chunk::{self, Piece};

/// Slots of the filter, 8 bytes each.
const SEEN_SLOTS: usize = 1 << 19;

/// A block on its way to the store.
pub(crate) struct Outgoing {
    /// Its name.
    pub handle: Handle,
    /// Its kind.
    pub kind: Kind,
    /// The block itself, as far as it has been processed.
    pub body: Body,
}

/// How far a block has come.
pub(crate) enum Body {
    /// The repository had it when this publication began.
    Stored,
    /// Packed.
    Packed(Frame),
    /// It was met before in this publication. It is packed only in the unlikely case that it did not
    /// reach the store.
    SeenBefore(Bytes),
}

/// Remembers blocks met lately, so that a block that occurs a thousand times is packed a few times.
/// A block that it forgets is packed once more; a wrong hit is harmless, see [`Body::SeenBefore`].
pub(crate) struct Seen {
    slots: Box<[AtomicU64]>,
}

impl Seen {
    pub(crate) fn new() -> Seen {
        Seen {
            slots: (0..SEEN_SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn meet(&self, handle: &Handle) -> bool {
        let [a, b, ..] = handle.as_bytes().as_chunks::<8>().0 else {
            return false;
        };
        let slot = u64::from_le_bytes(*a) as usize % SEEN_SLOTS;
        let mark = u64::from_le_bytes(*b) | 1;
        self.slots
            .get(slot)
            .is_some_and(|s| s.swap(mark, Ordering::Relaxed) == mark)
    }
}

/// Names and packs blocks for one thread.
pub(crate) struct Cutter<'a> {
    repository: Option<Repository>,
    seen: &'a Seen,
    blocks: Blocks<'a>,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(hasher: &'a Hasher, repository: Option<&Repository>, seen: &'a Seen) -> Self {
        Cutter {
            repository: repository.cloned(),
            seen,
            blocks: Blocks::new(hasher),
        }
    }

    /// The volume's hash function.
    pub(crate) fn hasher(&self) -> &'a Hasher {
        self.blocks.hasher()
    }

    /// Prepares one block.
    pub(crate) fn block<K: BlockKind>(
        &mut self,
        plaintext: &[u8],
    ) -> Result<(Handle<K>, Outgoing), PublishError> {
        let handle = self.blocks.name::<K>(plaintext);
        let stored = match &self.repository {
            Some(repository) => repository.contains(&handle.any())?,
            None => false,
        };
        let body = if stored {
            Body::Stored
        } else if self.seen.meet(&handle.any()) {
            Body::SeenBefore(Bytes::copy_from_slice(plaintext))
        } else {
            Body::Packed(self.blocks.pack(K::KIND, plaintext)?)
        };
        let outgoing = Outgoing {
            handle: handle.any(),
            kind: K::KIND,
            body,
        };
        Ok((handle, outgoing))
    }

    /// Stores a block unless the destination has it.
    pub(crate) fn store(
        &mut self,
        block: Outgoing,
        destination: &mut impl Destination,
    ) -> Result<(), PublishError> {
        let frame = match block.body {
            Body::Stored => return Ok(()),
            Body::Packed(frame) => frame,
            Body::SeenBefore(plaintext) => {
                if destination.contains(&block.handle)? {
                    return Ok(());
                }
                self.pack(block.kind, &plaintext)?
            }
        };
        let handle = block.handle;
        destination.append(&Record { handle, frame })
    }

    /// Prepares content that is completely in memory: its data blocks, then its array nodes.
    pub(crate) fn content(
        &mut self,
        content: &[u8],
        out: &mut Vec<Outgoing>,
    ) -> Result<Option<ArrayRoot>, PublishError> {
        let mut extents = Vec::new();
        let mut failed = None;
        chunk::split(content, |piece| {
            let extent = match piece {
                Piece::Hole(len) => Ok(Extent::Hole { len }),
                Piece::Data(bytes) => self.data(bytes, out),
            };
            match extent {
                Ok(extent) => extents.push(extent),
                Err(e) => failed = failed.take().or(Some(e)),
            }
        });
        if let Some(e) = failed {
            return Err(e);
        }
        let mut nodes = Vec::new();
        let mut builder = Builder::new(self.blocks.hasher(), |_, node: &Bytes| {
            nodes.push(node.clone())
        });
        for extent in extents {
            builder.push(extent)?;
        }
        let root = builder.finish()?;
        for node in nodes {
            out.push(self.block::<ArrayNode>(&node)?.1);
        }
        Ok(root)
    }

    /// Prepares a data block.
    pub(crate) fn data(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<Outgoing>,
    ) -> Result<Extent, PublishError> {
        let (handle, outgoing) = self.block::<Data>(bytes)?;
        out.push(outgoing);
        Ok(Extent::Data {
            handle,
            len: bytes.len() as u32,
        })
    }

    /// Packs a block that turned out to be needed after all.
    pub(crate) fn pack(&mut self, kind: Kind, plaintext: &[u8]) -> Result<Frame, PublishError> {
        Ok(self.blocks.pack(kind, plaintext)?)
    }
}
