//! The overlay: blocks that this machine made and that no store has yet.
//!
//! A writer of a shared volume reads what it wrote before the server has it. Its blocks are put
//! here, named by the volume's hash function, so that nothing unverified can enter. They are pinned
//! in memory until a store has them: the cache never evicts them, and neither the disk cache nor a
//! mirror is asked for them. Relies on [`super::decoded`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use trust::frame::{MAX_BLOCK_BYTES, Packer};
use trust::{Handle, Hasher, Kind, Record, Reject};

use super::decoded::{Decode, DecodedBlock};
use crate::error::ReadError;

/// Memory of an entry besides its block, bytes.
const ENTRY_BYTES: u64 = 256;

/// Why a block was not put into the overlay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    /// The overlay is full. The caller waits until blocks are stored, then tries again.
    #[error(
        "no room for {needed_bytes} bytes of new data: {used_bytes} of {limit_bytes} bytes wait to be stored"
    )]
    Full {
        /// What the block would take, bytes.
        needed_bytes: u64,
        /// What the blocks of the overlay take, bytes.
        used_bytes: u64,
        /// What they may take, bytes.
        limit_bytes: u64,
    },
    /// The block is longer than any block may be.
    #[error("a block of {len_bytes} bytes is longer than {MAX_BLOCK_BYTES} bytes")]
    TooLong {
        /// Its length, bytes.
        len_bytes: usize,
    },
    /// The bytes are not a block of the stated kind.
    #[error("the new block is malformed: {0}")]
    Malformed(Reject),
}

/// A position in the order in which blocks were put. The default one lies before all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

/// Blocks to be stored, in the order in which they were put.
#[derive(Debug, Clone)]
pub struct Upload {
    /// The blocks as frames; empty when there are none after the position asked for.
    pub records: Vec<Record>,
    /// Where the next upload begins.
    pub next: Position,
}

/// The blocks of a volume that this machine made and that no store has yet.
pub struct Overlay {
    hasher: Hasher,
    limit_bytes: u64,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    blocks: HashMap<Handle, Entry>,
    /// The handles of `blocks`, in the order in which they were put.
    order: BTreeMap<Position, Handle>,
    last: Position,
    bytes: u64,
}

struct Entry {
    kind: Kind,
    plaintext: Bytes,
    decoded: DecodedBlock,
    position: Position,
    bytes: u64,
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, limit_bytes) = self.memory_bytes();
        f.debug_struct("Overlay")
            .field("blocks", &self.len())
            .field("bytes", &bytes)
            .field("limit_bytes", &limit_bytes)
            .finish_non_exhaustive()
    }
}

impl Overlay {
    /// An empty overlay of at most `limit_bytes` of memory.
    pub(super) fn new(hasher: Hasher, limit_bytes: u64) -> Overlay {
        Overlay {
            hasher,
            limit_bytes,
            state: RwLock::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a block and gives its handle; readers see it when this returns. A block that is there
    /// already keeps its position.
    ///
    /// The bytes are copied, so that the overlay does not keep a larger buffer alive.
    ///
    /// # Errors
    /// [`OverlayError`]; nothing has changed then.
    pub fn put<K: Decode>(&self, plaintext: &[u8]) -> Result<Handle<K>, OverlayError> {
        if plaintext.len() > MAX_BLOCK_BYTES {
            let len_bytes = plaintext.len();
            return Err(OverlayError::TooLong { len_bytes });
        }
        let (handle, block) = self.hasher.seal::<K>(Bytes::copy_from_slice(plaintext));
        let name = handle.any();
        if self.contains(&name) {
            return Ok(handle);
        }
        let plaintext = block.bytes().clone();
        let decoded = K::decode(block).map_err(OverlayError::Malformed)?;
        let own_bytes = match decoded {
            // It shares the memory of the plaintext.
            DecodedBlock::Data(_) => 0,
            _ => decoded.payload_bytes(),
        };
        let bytes = ENTRY_BYTES + plaintext.len() as u64 + own_bytes;
        let mut state = self.write();
        if state.blocks.contains_key(&name) {
            return Ok(handle);
        }
        let used_bytes = state.bytes;
        if used_bytes.saturating_add(bytes) > self.limit_bytes {
            return Err(OverlayError::Full {
                needed_bytes: bytes,
                used_bytes,
                limit_bytes: self.limit_bytes,
            });
        }
        let position = Position(state.last.0 + 1);
        let entry = Entry {
            kind: K::KIND,
            plaintext,
            decoded,
            position,
            bytes,
        };
        state.last = position;
        state.bytes += bytes;
        state.order.insert(position, name);
        state.blocks.insert(name, entry);
        Ok(handle)
    }

    /// Whether a block is in the overlay.
    pub fn contains(&self, handle: &Handle) -> bool {
        self.read().blocks.contains_key(handle)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.read().blocks.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that the blocks take, and its limit, bytes.
    pub fn memory_bytes(&self) -> (u64, u64) {
        (self.read().bytes, self.limit_bytes)
    }

    /// Blocks that were put after `after`, in this order, of about `max_bytes` of plaintext: at least
    /// one if there is one. A writer that puts children before parents also stores them so.
    ///
    /// The blocks stay in the overlay until [`crate::Blocks::stored`] removes them.
    ///
    /// # Errors
    /// [`OverlayError::Malformed`] when a block does not fit into a frame.
    pub fn upload(&self, after: Position, max_bytes: usize) -> Result<Upload, OverlayError> {
        use std::ops::Bound::{Excluded, Unbounded};
        let mut chosen: Vec<(Handle, Kind, Bytes)> = Vec::new();
        let (mut bytes, mut next) = (0usize, after);
        let state = self.read();
        for (position, handle) in state.order.range((Excluded(after), Unbounded)) {
            let Some(entry) = state.blocks.get(handle) else {
                continue;
            };
            bytes = bytes.saturating_add(entry.plaintext.len());
            if bytes > max_bytes && !chosen.is_empty() {
                break;
            }
            chosen.push((*handle, entry.kind, entry.plaintext.clone()));
            next = *position;
        }
        drop(state);
        // Compression takes long, so it runs without the lock.
        let mut packer = Packer::new();
        let records = chosen.into_iter().map(|(handle, kind, plaintext)| {
            let frame = packer.pack(kind, &plaintext);
            let frame = frame.map_err(OverlayError::Malformed)?;
            Ok(Record { handle, frame })
        });
        let records = records.collect::<Result<_, OverlayError>>()?;
        Ok(Upload { records, next })
    }

    /// A block, if it is here.
    ///
    /// # Errors
    /// [`ReadError::Malformed`] when it is of another kind than `K`.
    pub(super) fn get<K: Decode>(
        &self,
        handle: &Handle<K>,
    ) -> Result<Option<K::Decoded>, ReadError> {
        let state = self.read();
        let Some(entry) = state.blocks.get(&handle.any()) else {
            return Ok(None);
        };
        match K::take(&entry.decoded) {
            Some(block) => Ok(Some(block)),
            None => Err(ReadError::other_kind()),
        }
    }

    /// A block as the cache keeps it.
    pub(super) fn decoded(&self, handle: &Handle) -> Option<DecodedBlock> {
        let state = self.read();
        state.blocks.get(handle).map(|entry| entry.decoded.clone())
    }

    /// Removes a block.
    pub(super) fn remove(&self, handle: &Handle) {
        let mut state = self.write();
        if let Some(entry) = state.blocks.remove(handle) {
            state.order.remove(&entry.position);
            state.bytes = state.bytes.saturating_sub(entry.bytes);
        }
    }
}
