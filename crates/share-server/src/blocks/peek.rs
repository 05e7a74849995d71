//! What a temporary log holds, read without changing it: for the check and the repair of a server's directory, and for a copy
//! that a repair takes from. A log with a destroyed frame is read as far as frames are left.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use trust::{Handle, Hasher, Record};
use wal::{
    Device as LogDevice, Digest, Key, LogError, Lsn, OpenOptions, PAGE_BYTES, Recovery, Salvage,
};

use super::calls::record_of;
use super::error::Error;
use super::record::{BLOCKS, Body, ENTRIES, STORED};

/// See the head of this file.
pub(crate) struct Peeked {
    /// The orderer's records, in order.
    pub entries: Vec<wal::Entry>,
    /// What the orderer left with its last release.
    pub cookie: Vec<u8>,
    /// Why the log cannot be opened. None: it can.
    pub broken: Option<LogError>,
    /// Whether the end of a broken log is destroyed.
    pub lacks_its_end: bool,
    /// Destroyed parts of a broken log that have frames after them.
    pub holes: Vec<Range<Lsn>>,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    blocks: HashMap<Handle, Place>,
    source: Source,
}

/// Where a block lies.
struct Place {
    /// The first page of its record, and the digests of the record's pages.
    payload: Lsn,
    digests: Arc<[Digest]>,
    offset: u32,
    length: u32,
}

enum Source {
    Whole(Box<Recovery>),
    Broken(Box<Salvage>),
}

impl Peeked {
    /// Reads the log on a device.
    ///
    /// # Errors
    /// [`Error::Log`]: nothing of it can be read, or it holds what this build does not know.
    pub fn read(device: &Arc<dyn LogDevice>, key: &Key) -> Result<Peeked, Error> {
        let source = match wal::open(Arc::clone(device), key, None, OpenOptions::default()) {
            Ok(recovery) => (Source::Whole(Box::new(recovery)), None),
            Err(error @ (LogError::Integrity { .. } | LogError::Rollback { .. })) => {
                let salvage = wal::salvage(Arc::clone(device), key)?;
                (Source::Broken(Box::new(salvage)), Some(error))
            }
            Err(error) => return Err(error.into()),
        };
        let (source, broken) = source;
        let mut blocks = HashMap::new();
        let mut entries = Vec::new();
        let mut holes = Vec::new();
        let (cookie, lacks_its_end, ring_bytes) = match &source {
            Source::Whole(recovery) => {
                for entry in recovery.cursor(BLOCKS) {
                    add(&mut blocks, &entry?)?;
                }
                for entry in recovery.cursor(ENTRIES) {
                    entries.push(entry?);
                }
                let cookie = recovery.cookie(ENTRIES).to_vec();
                (cookie, false, recovery.ring_bytes())
            }
            Source::Broken(salvage) => {
                for entry in salvage.entries(BLOCKS) {
                    add(&mut blocks, entry)?;
                }
                for entry in salvage.entries(ENTRIES) {
                    entries.push(entry.clone());
                }
                holes.extend_from_slice(salvage.holes());
                let cookie = salvage.cookie(ENTRIES).to_vec();
                (cookie, salvage.lacks_its_end(), salvage.ring_bytes())
            }
        };
        Ok(Peeked {
            entries,
            cookie,
            broken,
            lacks_its_end,
            holes,
            ring_bytes,
            blocks,
            source,
        })
    }

    /// The blocks that it holds.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.blocks.keys()
    }

    /// A block that it holds, if it is what its name says.
    pub fn block(&self, handle: &Handle, hasher: &Hasher) -> Option<Record> {
        let place = self.blocks.get(handle)?;
        let (from, length) = (place.offset as usize, place.length as usize);
        let first = from / PAGE_BYTES;
        let last = (from + length).div_ceil(PAGE_BYTES);
        let mut bytes = Vec::with_capacity((last - first) * PAGE_BYTES);
        for page in first..last {
            let digest = *place.digests.get(page)?;
            let lsn = Lsn(place.payload.0 + (page * PAGE_BYTES) as u64);
            let page = match &self.source {
                Source::Whole(recovery) => recovery.read(lsn, digest),
                Source::Broken(salvage) => salvage.page(lsn, digest),
            };
            bytes.extend_from_slice(&page.ok()?);
        }
        let skip = from % PAGE_BYTES;
        let frame = Bytes::from(bytes).slice(skip..skip + length);
        record_of(*handle, frame, hasher)
    }
}

fn add(blocks: &mut HashMap<Handle, Place>, entry: &wal::Entry) -> Result<(), Error> {
    let lsn = entry.frame;
    let refused = |why| Error::Log(LogError::Integrity { lsn, why });
    if entry.kind != STORED {
        return Err(refused("a record of blocks is of a later kind"));
    }
    let body = Body::decode(&entry.body, entry.digests.len() * PAGE_BYTES);
    let body = body.map_err(|_| refused("a record of blocks is malformed"))?;
    let digests: Arc<[Digest]> = entry.digests.as_slice().into();
    for block in body.blocks {
        let place = Place {
            payload: entry.payload,
            digests: Arc::clone(&digests),
            offset: block.offset,
            length: block.length,
        };
        blocks.insert(block.handle, place);
    }
    Ok(())
}
