//! What is left of a log that [`crate::open`] refuses because a frame that was durable is destroyed: the frames before it and
//! after it. It changes nothing. Whether something is missing between them, only the clients can tell.
//!
//! A frame after a destroyed one counts if it is authentic, lies where its number says, and was made when more than the
//! beginning of the destroyed part was durable: then its session had that part in its log.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::{Buffer, PAGE, PAGE_BYTES};
use crate::chain::{Chain, Evidence, Found};
use crate::cursor::Entry;
use crate::device::Device;
use crate::error::LogError;
use crate::frame::{Fixed, Header, records};
use crate::key::{Digest, Key, VolumeId};
use crate::layout::Layout;
use crate::position::{Lsn, Mark};
use crate::record::Client;
use crate::ring::{RingReader, read_payload};
use crate::shared::Keys;
use crate::superblock::{self, Superblock};

const AHEAD_BYTES: usize = 1 << 20;

/// See the head of this file.
pub struct Salvage {
    device: Arc<dyn Device>,
    layout: Layout,
    keys: Keys,
    superblock: Superblock,
    entries: Vec<(Client, Entry)>,
    holes: Vec<Range<Lsn>>,
    end: Lsn,
    wrong_pages: BTreeSet<Lsn>,
}

/// Reads what is left of the log on a device.
///
/// # Errors
/// [`LogError::Superblock`], [`LogError::NotALog`], [`LogError::WrongKey`], [`LogError::Unsupported`] without an authentic superblock;
/// [`LogError::Truncated`]; [`LogError::Io`].
pub fn salvage(device: Arc<dyn Device>, key: &Key) -> Result<Salvage, LogError> {
    let found = superblock::load(&*device, key)?;
    if let Some(error) = found.unreadable {
        return Err(error);
    }
    let superblock = found.newest;
    let layout = superblock.layout()?;
    layout.check(&*device)?;
    let mut salvage = Salvage {
        keys: Keys::new(key, superblock.volume),
        device,
        layout,
        entries: Vec::new(),
        holes: Vec::new(),
        end: superblock.tail.lsn,
        wrong_pages: BTreeSet::new(),
        superblock,
    };
    salvage.read()?;
    Ok(salvage)
}

impl Salvage {
    fn read(&mut self) -> Result<(), LogError> {
        let (device, layout) = (Arc::clone(&self.device), self.layout.clone());
        let gaps = self.superblock.gaps.clone();
        let (frame, digests) = (self.keys.frame.clone(), self.keys.digests.clone());
        let chain = Chain {
            key: &frame,
            digests: &digests,
            layout: &layout,
            gaps: &gaps,
        };
        let mut reader = RingReader::new(&*device, &layout, AHEAD_BYTES);
        let mut evidence = Evidence {
            device: &*device,
            known: self.superblock.mark.lsn,
            cut_epoch: self.superblock.cut_epoch,
            skip_errors: false,
        };
        let mut end = self.superblock.tail;
        loop {
            let found = match chain.next(&mut reader, &end)? {
                Some(found) => found,
                None => {
                    let limit = self.superblock.tail.lsn.0.saturating_add(layout.ring_bytes);
                    match after(&chain, &mut reader, &end, limit, self.superblock.cut_epoch)? {
                        Some(found) => {
                            self.holes.push(end.lsn..found.lsn);
                            found
                        }
                        None => break,
                    }
                }
            };
            let wrong = chain.wrong_pages(&mut reader, &found)?;
            if !wrong.is_empty() && !chain.was_durable(&found, &mut evidence)? {
                // A crash tore it.
                break;
            }
            self.wrong_pages.extend(wrong);
            self.take(&found);
            end = found.mark;
        }
        self.end = end.lsn;
        Ok(())
    }

    fn take(&mut self, found: &Found) {
        let all = records(&found.records, found.payload);
        self.entries.extend(all.map(|(payload, record)| {
            let entry = Entry {
                frame: found.lsn,
                frame_end: found.mark.lsn,
                payload,
                kind: record.kind,
                body: Bytes::copy_from_slice(record.body),
                digests: record.digests().collect(),
            };
            (record.client, entry)
        }));
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.superblock.volume
    }

    /// Bytes of the ring.
    pub fn ring_bytes(&self) -> u64 {
        self.layout.ring_bytes
    }

    /// What a client's last checkpoint left for it.
    pub fn cookie(&self, client: Client) -> &[u8] {
        let mut clients = self.superblock.clients.iter();
        let found = clients.find(|state| state.client == client);
        found.map_or(&[], |state| state.cookie.as_slice())
    }

    /// A client's records from its oldest position on, in order.
    pub fn entries(&self, client: Client) -> impl Iterator<Item = &Entry> {
        let mut clients = self.superblock.clients.iter();
        let oldest = clients.find(|state| state.client == client);
        let oldest = oldest.map_or(self.end, |state| state.oldest);
        let own = self.entries.iter().filter(move |(of, _)| *of == client);
        own.map(|(_, entry)| entry)
            .filter(move |entry| entry.frame >= oldest)
    }

    /// Parts that are destroyed, and that have frames after them.
    pub fn holes(&self) -> &[Range<Lsn>] {
        &self.holes
    }

    /// Whether the log was longer than what is left: its superblock names a later end.
    pub fn lacks_its_end(&self) -> bool {
        self.end < self.superblock.mark.lsn
    }

    /// Pages of payload that do not match their digests.
    pub fn wrong_pages(&self) -> &BTreeSet<Lsn> {
        &self.wrong_pages
    }

    /// A page of payload with this digest.
    ///
    /// # Errors
    /// [`LogError::Integrity`] if the page is another one, [`LogError::Io`].
    pub fn page(&self, lsn: Lsn, digest: Digest) -> Result<Buffer, LogError> {
        read_payload(&*self.device, &self.layout, &self.keys.digests, lsn, digest)
    }
}

/// The first frame after a destroyed part that begins at `end`: one that was made when more than `end` was durable, or one
/// from which such a frame goes on.
fn after(
    chain: &Chain<'_>,
    reader: &mut RingReader<'_>,
    end: &Mark,
    limit: u64,
    cut_epoch: u64,
) -> Result<Option<Found>, LogError> {
    // Frames that were passed, each with the tag of the frame before it.
    let mut passed: Vec<(Found, [u8; 32])> = Vec::new();
    let mut at = Lsn(end.lsn.0.saturating_add(PAGE));
    while at.0 < limit {
        if let Some(fixed) = Fixed::decode(reader.get(at, PAGE_BYTES)?, chain.key.volume())
            && fixed.lsn == at
            && fixed.epoch >= end.epoch
            && fixed.epoch > cut_epoch
            && fixed.bytes <= chain.layout.rest_of_lap(at)
            && fixed.header_bytes() as u64 <= fixed.bytes
        {
            let bytes = reader.get(at, fixed.header_bytes())?;
            if let Some(header) = Header::open(bytes, chain.key) {
                let found = Found {
                    lsn: fixed.lsn,
                    mark: header.mark(),
                    payload: fixed.payload(),
                    records: header.encoded().into(),
                };
                passed.push((found, fixed.previous));
                if fixed.stable > end.lsn {
                    return Ok(first(passed));
                }
            }
        }
        at.0 = at.0.saturating_add(PAGE);
    }
    Ok(None)
}

/// The first of the frames that lead to the last one.
fn first(mut passed: Vec<(Found, [u8; 32])>) -> Option<Found> {
    let (mut first, mut previous) = passed.pop()?;
    while let Some((found, before)) = passed.pop() {
        if found.mark.lsn == first.lsn && found.mark.tag == previous {
            (first, previous) = (found, before);
        }
    }
    Some(first)
}
