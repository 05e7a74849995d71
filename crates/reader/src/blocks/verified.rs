//! The cache of verified blocks: in memory, one LRU by weight, and behind it the reader's own disk.
//! It joins the inode, indirect-block, directory and file-block caches of SFSRO 4.2. A block enters
//! only after its hash was checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use store::BlockStore;
use store::cache::DiskCache;
use trust::{
    ArrayNode, BlockKind, Data, Frame, Handle, Hasher, InodeBlock, Kind, MapNode, Record, Reject,
};

use super::decoded::{Decode, DecodedBlock};
use crate::error::ReadError;
use crate::read_around::{ReadAroundPolicy, Usage};

/// A block in memory, and the record of use of the answer that brought it unasked.
#[derive(Debug, Clone)]
struct Kept {
    verified: DecodedBlock,
    unasked: Option<Arc<Usage>>,
}

impl From<DecodedBlock> for Kept {
    fn from(verified: DecodedBlock) -> Kept {
        Kept {
            verified,
            unasked: None,
        }
    }
}

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<Handle, Kept> for ByBytes {
    fn weight(&self, _: &Handle, kept: &Kept) -> u64 {
        const ENTRY_BYTES: u64 = 128;
        ENTRY_BYTES + kept.verified.payload_bytes()
    }
}

/// Counts of blocks that were fetched, for metrics and tests.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent to replicas, without hedges.
    pub requests: AtomicU64,
    /// Blocks wanted and received.
    pub fetched: AtomicU64,
    /// Blocks received unasked and kept.
    pub around: AtomicU64,
    /// Blocks that the reader's own disk had.
    pub from_disk: AtomicU64,
    /// Blocks in answers that failed a check.
    pub wrong: AtomicU64,
}

/// The verified blocks of a volume, in memory and on disk.
pub(super) struct VerifiedCache {
    pub(super) hasher: Hasher,
    cache: Cache<Handle, Kept, ByBytes>,
    disk: Option<Arc<DiskCache>>,
    behind_nodes: ReadAroundPolicy,
    beside_files: ReadAroundPolicy,
    pub(super) counters: Counters,
}

impl VerifiedCache {
    pub(super) fn new(
        hasher: Hasher,
        cache_bytes: u64,
        disk: Option<Arc<DiskCache>>,
    ) -> VerifiedCache {
        // The largest item must fit into a shard, or it would never be kept.
        let shards = (cache_bytes >> 23).clamp(1, 16) as usize;
        let options = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity((cache_bytes >> 13).max(64) as usize)
            .weight_capacity(cache_bytes)
            .shards(shards)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByBytes,
                Default::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter((cache_bytes >> 13) as usize, cache_bytes, ByBytes),
        };
        VerifiedCache {
            hasher,
            cache,
            disk,
            behind_nodes: ReadAroundPolicy::default(),
            beside_files: ReadAroundPolicy::default(),
            counters: Counters::default(),
        }
    }

    /// The read-around policy of requests for blocks of this kind. File content has a policy of its
    /// own: a reader of one file in many still wants the nodes in which the others begin.
    pub(super) fn around(&self, kind: Kind) -> &ReadAroundPolicy {
        match kind {
            Kind::Data => &self.beside_files,
            Kind::Array | Kind::Map | Kind::Inode => &self.behind_nodes,
        }
    }

    /// Memory in use, and its bound.
    pub(super) fn memory_bytes(&self) -> (u64, u64) {
        (self.cache.weight(), self.cache.capacity())
    }

    pub(super) fn disk(&self) -> Option<&Arc<DiskCache>> {
        self.disk.as_ref()
    }

    /// From memory.
    pub(super) fn get<K: Decode>(&self, handle: &Handle<K>) -> Option<K::Decoded> {
        let name = handle.any();
        let Kept { verified, unasked } = self.cache.get(&name)?;
        let decoded = K::take(&verified)?;
        if let Some(usage) = unasked {
            usage.wanted(verified.payload_bytes());
            self.cache.insert(name, verified.into());
        }
        Some(decoded)
    }

    /// Whether it is in memory. Does not count as use.
    pub(super) fn holds(&self, handle: &Handle) -> bool {
        self.cache.peek(handle).is_some()
    }

    /// Drops a block from memory.
    pub(super) fn let_go(&self, handle: &Handle) {
        self.cache.remove(handle);
    }

    /// Verifies a frame against the requested handle, and keeps the block in memory. The outer error
    /// is the publisher's fault, the inner one the fault of the place that gave the frame.
    pub(super) fn admit<K: Decode>(
        &self,
        handle: &Handle<K>,
        frame: &Frame,
    ) -> Result<Result<Option<K::Decoded>, Reject>, ReadError> {
        let checked = frame
            .plaintext::<K>()
            .and_then(|plain| self.hasher.check(handle, own_memory(frame, plain)));
        let verified = match checked {
            Ok(block) => K::decode(block).map_err(ReadError::of_signed)?,
            Err(Reject::WrongKind { .. }) if self.bears(frame, &handle.any()) => {
                return Err(ReadError::other_kind());
            }
            Err(why) => return Ok(Err(why)),
        };
        let decoded = K::take(&verified);
        self.cache.insert(handle.any(), verified.into());
        Ok(Ok(decoded))
    }

    /// The same for a block of the disk cache, which removes the block when it is wrong.
    pub(super) fn admit_from_disk<K: Decode>(
        &self,
        handle: &Handle<K>,
        frame: &Frame,
    ) -> Result<Option<K::Decoded>, ReadError> {
        match self.admit(handle, frame)? {
            Ok(decoded) => {
                self.counters.from_disk.fetch_add(1, Ordering::Relaxed);
                if let Some(disk) = &self.disk {
                    disk.used(handle.any(), frame);
                }
                Ok(decoded)
            }
            Err(why) => {
                if let Some(disk) = &self.disk {
                    tracing::warn!(%handle, %why, "a block in the disk cache is damaged and is removed");
                    disk.remove_damaged(&handle.any());
                }
                Ok(None)
            }
        }
    }

    /// Reads these blocks from the disk cache, and verifies each before it reads the next one. Waits for the disk.
    pub(super) fn read_from_disk<K: Decode>(
        &self,
        disk: &DiskCache,
        want: &[Handle],
    ) -> Result<Vec<(Handle, K::Decoded)>, ReadError> {
        let (mut found, mut malformed) = (Vec::with_capacity(want.len()), None);
        disk.read_each(want, |name, frame| {
            match self.admit_from_disk(&Handle::<K>::from_bytes(*name.as_bytes()), &frame) {
                Ok(block) => found.extend(block.map(|block| (name, block))),
                Err(error) => drop(malformed.get_or_insert(error)),
            }
        });
        malformed.map_or(Ok(found), Err)
    }

    /// Whether a frame matches this handle, under the kind that the frame states.
    fn bears(&self, frame: &Frame, name: &Handle) -> bool {
        let plain = frame.unpack();
        plain.is_ok_and(|plain| self.hasher.name(frame.kind(), &plain) == *name)
    }

    /// Keeps a verified frame in the disk cache, unless the replica that gave it is local.
    pub(super) fn keep_on_disk(&self, replica: &dyn BlockStore, handle: Handle, frame: &Frame) {
        if let Some(disk) = &self.disk
            && !replica.is_local()
        {
            disk.put(handle, frame);
        }
    }

    /// Verifies a block that came unasked, and keeps it if it is what the record claims.
    pub(super) fn keep_unasked(
        &self,
        replica: &dyn BlockStore,
        Record { handle, frame }: &Record,
        usage: &Arc<Usage>,
    ) {
        if self.cache.peek(handle).is_some() {
            return;
        }
        let Ok(plain) = frame.unpack() else {
            return;
        };
        let plain = own_memory(frame, plain);
        let bytes = *handle.as_bytes();
        fn check<K: Decode>(
            hasher: &Hasher,
            bytes: [u8; 32],
            plain: Bytes,
        ) -> Option<DecodedBlock> {
            hasher
                .check(&Handle::<K>::from_bytes(bytes), plain)
                .and_then(K::decode)
                .ok()
        }
        let verified = match frame.kind() {
            Kind::Data => check::<Data>(&self.hasher, bytes, plain),
            Kind::Array => check::<ArrayNode>(&self.hasher, bytes, plain),
            Kind::Map => check::<MapNode>(&self.hasher, bytes, plain),
            Kind::Inode => check::<InodeBlock>(&self.hasher, bytes, plain),
        };
        if let Some(verified) = verified {
            self.counters.around.fetch_add(1, Ordering::Relaxed);
            usage.brought(verified.payload_bytes());
            let unasked = Some(usage.clone());
            self.cache.insert(*handle, Kept { verified, unasked });
            self.keep_on_disk(replica, *handle, frame);
        }
    }
}

/// Copies a small block, because a slice would keep the whole answer in memory.
fn own_memory(frame: &Frame, plain: Bytes) -> Bytes {
    const SMALL_BYTES: usize = 32 << 10;
    if frame.is_raw() && plain.len() < SMALL_BYTES {
        Bytes::copy_from_slice(&plain)
    } else {
        plain
    }
}

/// Names the wanted blocks in an error message.
pub(super) fn describe<K: BlockKind>(handles: &[Handle<K>]) -> String {
    match handles {
        [one] => format!("{:?} block {one}", K::KIND).to_lowercase(),
        [first, ..] => {
            format!("{:?} block {first} and {} more", K::KIND, handles.len() - 1).to_lowercase()
        }
        [] => "nothing".to_owned(),
    }
}
