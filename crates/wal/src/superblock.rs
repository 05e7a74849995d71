//! Superblocks: two, each with two copies, written in turn. The newest authentic one names the tail of the log, the
//! clients' oldest positions and cookies. Bytes: `docs/formats/log.md`, *Superblocks*.

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use zeroize::Zeroizing;

use crate::buffer::{Buffer, PAGE, PAGE_BYTES};
use crate::device::Device;
use crate::error::LogError;
use crate::key::{Key, VolumeId};
use crate::layout::{Geometry, Layout, MAX_CLIENTS};
use crate::position::{Lsn, Mark};
use crate::record::Client;

const MAGIC: [u8; 8] = *b"bullalog";
const FORMAT: u32 = 0;
const TAG_AT: usize = PAGE_BYTES - 32;
/// Longest cookie of a client in bytes.
pub const MAX_COOKIE_BYTES: usize = 512;
/// Gaps that the log may have between its tail and its end.
pub(crate) const MAX_GAPS: usize = 4;
/// Offsets of the copies, by superblock: the generation's lowest bit.
pub(crate) const COPIES: [[u64; 2]; 2] = [[0, 128 << 10], [64 << 10, 192 << 10]];

/// Authenticates superblocks of one volume, and tells a wrong key from damage.
#[derive(Clone)]
pub(crate) struct SuperblockKey {
    key: Zeroizing<[u8; 32]>,
    check: [u8; 16],
}

impl SuperblockKey {
    pub fn new(key: &Key, volume: VolumeId) -> SuperblockKey {
        let derived = key.derive("log key check", volume);
        let mut check = [0; 16];
        check.copy_from_slice(&derived[..16]);
        SuperblockKey {
            key: key.derive("log superblock", volume),
            check,
        }
    }
}

/// What a client has in a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientState {
    /// Which client.
    pub client: Client,
    /// Bytes of its own region.
    pub area_bytes: u64,
    /// The client needs nothing before this position.
    pub oldest: Lsn,
    /// What its last checkpoint left for its next recovery.
    pub cookie: Vec<u8>,
}

/// A part of the log that nobody wrote in order. A session that took the log from another host begins behind it: what
/// that host may still have on its way ends up in the gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The end of the last frame before it.
    pub at: Mark,
    /// Where the next frame begins.
    pub to: Lsn,
}

/// The content of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The volume.
    pub volume: VolumeId,
    /// One more with each write; the lowest bit says which of the two superblocks this is.
    pub generation: u64,
    /// Random for each opening of the log.
    pub session: [u8; 16],
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// How often the log was opened.
    pub epoch: u64,
    /// Destroyed frames of this and earlier epochs were accepted as lost. 0: none.
    pub cut_epoch: u64,
    /// The end of the last frame that is not needed any more.
    pub tail: Mark,
    /// The end of a durable frame: the log must pass through it.
    pub mark: Mark,
    /// The clients, in the order of their areas.
    pub clients: Vec<ClientState>,
    /// Gaps between the tail and the end, in order.
    pub gaps: Vec<Gap>,
}

/// What a page says that may be a superblock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Authentic(Box<Superblock>),
    /// Something else, or nothing.
    Other,
    Unsupported(String),
    /// A superblock of this volume whose key check value does not match.
    WrongKey(VolumeId),
    /// The key is right and the page is not.
    Damaged,
}

impl Superblock {
    pub(crate) fn layout(&self) -> Result<Layout, LogError> {
        let areas = self.clients.iter().map(|c| (c.client, c.area_bytes));
        Layout::new(&Geometry {
            ring_bytes: self.ring_bytes,
            areas: areas.collect(),
        })
    }

    pub(crate) fn encode(&self, key: &SuperblockKey) -> Buffer {
        let mut out = Encoder::new();
        out.raw(&MAGIC).u32(FORMAT).u32(0);
        out.raw(&self.volume.0).raw(&key.check);
        out.u64(self.generation).raw(&self.session);
        out.u64(self.ring_bytes).u64(self.epoch).u64(self.cut_epoch);
        self.tail.put(&mut out);
        self.mark.put(&mut out);
        out.varint(self.clients.len() as u64);
        for client in &self.clients {
            out.u8(client.client.0).u64(client.area_bytes);
            out.u64(client.oldest.0).bytes(&client.cookie);
        }
        out.varint(self.gaps.len() as u64);
        for gap in &self.gaps {
            gap.at.put(&mut out);
            out.u64(gap.to.0);
        }
        let mut out = out.finish();
        debug_assert!(out.len() <= TAG_AT);
        out.resize(TAG_AT, 0);
        let tag = blake3::keyed_hash(&key.key, &out);
        out.extend_from_slice(tag.as_bytes());
        Buffer::copy(&out)
    }

    /// Judges a page. `key_of` derives the key for the volume that the page names.
    pub(crate) fn judge(page: &[u8], key_of: impl Fn(VolumeId) -> SuperblockKey) -> Judged {
        let Some(volume) = volume_of(page) else {
            return Judged::Other;
        };
        let mut fields = Decoder::new(page.get(8..).unwrap_or_default(), "superblock");
        let (format, flags) = (fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
        if (format, flags) != (FORMAT, 0) {
            return Judged::Unsupported(format!("format {format}, flags {flags:#x}"));
        }
        let key = key_of(volume);
        if page.get(32..48) != Some(key.check.as_slice()) {
            return Judged::WrongKey(volume);
        }
        let Some((body, tag)) = page.split_last_chunk::<32>() else {
            return Judged::Damaged;
        };
        if blake3::keyed_hash(&key.key, body) != *tag {
            return Judged::Damaged;
        }
        match Superblock::decode(body, volume) {
            Ok(superblock) => Judged::Authentic(Box::new(superblock)),
            Err(_) => Judged::Damaged,
        }
    }

    fn decode(body: &[u8], volume: VolumeId) -> Result<Superblock, Reject> {
        let mut fields = Decoder::new(body.get(48..).unwrap_or_default(), "superblock");
        let mut superblock = Superblock {
            volume,
            generation: fields.u64()?,
            session: fields.array()?,
            ring_bytes: fields.u64()?,
            epoch: fields.u64()?,
            cut_epoch: fields.u64()?,
            tail: Mark::take(&mut fields)?,
            mark: Mark::take(&mut fields)?,
            clients: Vec::new(),
            gaps: Vec::new(),
        };
        for _ in 0..fields.bounded(MAX_CLIENTS as u64, "too many clients")? {
            superblock.clients.push(ClientState {
                client: Client(fields.u8()?),
                area_bytes: fields.u64()?,
                oldest: Lsn(fields.u64()?),
                cookie: fields.bytes(MAX_COOKIE_BYTES)?.to_vec(),
            });
        }
        let mut behind = superblock.tail.lsn;
        for _ in 0..fields.bounded(MAX_GAPS as u64, "too many gaps")? {
            let gap = Gap {
                at: Mark::take(&mut fields)?,
                to: Lsn(fields.u64()?),
            };
            if gap.at.lsn < behind || gap.to <= gap.at.lsn || !gap.to.0.is_multiple_of(PAGE) {
                return Err(fields.bad("a gap is not where it can be"));
            }
            behind = gap.to;
            superblock.gaps.push(gap);
        }
        let tail = superblock.tail.lsn;
        let ordered = tail <= superblock.mark.lsn
            && superblock.clients.iter().all(|c| tail <= c.oldest)
            && superblock.layout().is_ok();
        if !ordered {
            return Err(fields.bad("positions contradict each other"));
        }
        only_zeros(fields)?;
        Ok(superblock)
    }
}

/// Refuses anything but zeros after the last field.
pub(crate) fn only_zeros(mut fields: Decoder<'_>) -> Result<(), Reject> {
    let rest = fields.raw(fields.remaining())?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(fields.bad("trailing bytes"));
    }
    Ok(())
}

/// The volume that a superblock names. Not authentic. `None`: not a superblock.
pub(crate) fn volume_of(page: &[u8]) -> Option<VolumeId> {
    let mut fields = Decoder::new(page, "superblock");
    if fields.array() != Ok(MAGIC) {
        return None;
    }
    fields.u64().ok()?;
    fields.array().ok().map(VolumeId)
}

/// The superblocks of a device.
pub(crate) struct Found {
    /// The newest authentic one.
    pub newest: Superblock,
    /// A superblock of which no copy is authentic and one cannot be read: it may have been the newest.
    pub unreadable: Option<LogError>,
}

/// Reads all copies and returns the newest authentic superblock.
pub(crate) fn load(device: &dyn Device, key: &Key) -> Result<Found, LogError> {
    load_with(device, |volume| SuperblockKey::new(key, volume))
}

/// The same, with the key of one volume.
pub(crate) fn load_with(
    device: &dyn Device,
    key_of: impl Fn(VolumeId) -> SuperblockKey,
) -> Result<Found, LogError> {
    let mut newest: Option<Superblock> = None;
    let mut unreadable = None;
    let mut worst = Judged::Other;
    for copies in COPIES {
        let (mut authentic, mut error) = (false, None);
        for offset in copies {
            match read_page(device, offset) {
                Err(e) => error = Some(e),
                Ok(page) => match Superblock::judge(&page, &key_of) {
                    Judged::Authentic(found) => {
                        authentic = true;
                        if newest
                            .as_ref()
                            .is_none_or(|n| n.generation < found.generation)
                        {
                            newest = Some(*found);
                        }
                    }
                    other => worst = graver(worst, other),
                },
            }
        }
        if !authentic {
            unreadable = unreadable.or(error);
        }
    }
    match (newest, unreadable) {
        (Some(newest), unreadable) => Ok(Found { newest, unreadable }),
        (None, Some(error)) => Err(error),
        (None, None) => Err(refusal(worst)),
    }
}

/// Of two reasons why there is no superblock, the one to report.
fn graver(a: Judged, b: Judged) -> Judged {
    let rank = |judged: &Judged| match judged {
        Judged::Other => 0,
        Judged::WrongKey(_) => 1,
        Judged::Unsupported(_) => 2,
        Judged::Damaged => 3,
        Judged::Authentic(_) => 4,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

pub(crate) fn refusal(judged: Judged) -> LogError {
    match judged {
        Judged::WrongKey(volume) => LogError::WrongKey { volume },
        Judged::Unsupported(why) => LogError::Unsupported { why },
        Judged::Damaged => LogError::Superblock {
            why: "the key is right, but no copy is authentic",
        },
        Judged::Other | Judged::Authentic(_) => LogError::NotALog,
    }
}

pub(crate) fn read_page(device: &dyn Device, offset: u64) -> Result<Buffer, LogError> {
    let mut page = Buffer::zeroed(PAGE_BYTES);
    match device.read(offset, &mut page) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(page),
        Err(e) => Err(LogError::io("read", offset, e)),
        Ok(()) => Ok(page),
    }
}

/// Writes both copies. Durable after the next sync.
pub(crate) fn store(
    device: &dyn Device,
    key: &SuperblockKey,
    superblock: &Superblock,
) -> Result<(), LogError> {
    let page = superblock.encode(key);
    for offset in COPIES[(superblock.generation % 2) as usize] {
        device
            .write(offset, &page)
            .map_err(|e| LogError::io("write", offset, e))?;
    }
    Ok(())
}
