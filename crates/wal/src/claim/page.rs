//! A claim as bytes, and the area of claims on the device.

use std::io;

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use zeroize::Zeroizing;

use super::{Host, Process};
use crate::buffer::{Buffer, PAGE, PAGE_BYTES};
use crate::device::Device;
use crate::error::Owner;
use crate::key::{Key, VolumeId};
use crate::superblock::only_zeros;

/// Behind the last superblock, up to the key slots.
const AREA_AT: u64 = 196 << 10;
/// Claims that the area has room for.
pub(super) const SLOTS: usize = 15;
const MAGIC: [u8; 8] = *b"bullaclm";
const TAG_AT: usize = PAGE_BYTES - 32;
const MAX_NAME_BYTES: usize = 64;
const FORMAT: u32 = 0;

/// Names an attachment.
pub(super) type Session = [u8; 16];

/// What a host says of itself on a log that it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub session: Session,
    /// 0, or if the log was taken from other hosts one more than theirs: then they have to stop.
    pub term: u64,
    /// One more with each answer.
    pub counter: u64,
    /// Keyed hash of the system. Zeros: not known.
    pub system: [u8; 16],
    /// The process.
    pub process: Process,
    /// When it made the claim, in seconds since 1970.
    pub since: u64,
    /// The name of the host. At most 64 bytes.
    pub host: String,
}

impl Claim {
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        Owner {
            host: self.host.clone(),
            pid: self.process.pid,
            since: self.since,
        }
    }
}

/// Authenticates the claims of one volume.
#[derive(Clone)]
pub(super) struct ClaimKey {
    key: Zeroizing<[u8; 32]>,
    systems: Zeroizing<[u8; 32]>,
    volume: VolumeId,
}

impl ClaimKey {
    pub fn new(key: &Key, volume: VolumeId) -> ClaimKey {
        ClaimKey {
            key: key.derive("log claim", volume),
            systems: key.derive("log claim system", volume),
            volume,
        }
    }

    /// The name of a host's system in claims of this volume.
    pub fn system(&self, host: &dyn Host) -> [u8; 16] {
        let system = host.system();
        let mut short = [0; 16];
        if !system.is_empty() {
            short.copy_from_slice(&blake3::keyed_hash(&self.systems, &system).as_bytes()[..16]);
        }
        short
    }
}

impl Claim {
    pub fn new(session: Session, key: &ClaimKey, host: &dyn Host) -> Claim {
        let mut name = host.name();
        let end = (0..=MAX_NAME_BYTES.min(name.len())).rfind(|at| name.is_char_boundary(*at));
        name.truncate(end.unwrap_or(0));
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Claim {
            session,
            term: 0,
            counter: 0,
            system: key.system(host),
            process: host.process(),
            since: since.map_or(0, |since| since.as_secs()),
            host: name,
        }
    }

    /// What stays in a slot of another host from which this claim has taken the log, until the log is open. It is of no
    /// process, so that the next host watches it.
    pub fn mark(&self, slot: usize) -> Claim {
        let mut session = self.session;
        session[15] ^= slot as u8 + 1;
        Claim {
            session,
            system: [0; 16],
            process: Process {
                namespace: 0,
                pid: 0,
                started: 0,
            },
            ..self.clone()
        }
    }

    fn encode(&self, key: &ClaimKey) -> Buffer {
        let mut out = Encoder::new();
        out.raw(&MAGIC).u32(FORMAT).u32(0).raw(&key.volume.0);
        out.raw(&self.session).u64(self.term);
        out.u64(self.counter).raw(&self.system);
        out.u64(self.process.namespace).u64(self.process.pid);
        out.u64(self.process.started).u64(self.since);
        out.bytes(self.host.as_bytes());
        let mut out = out.finish();
        out.resize(TAG_AT, 0);
        let tag = blake3::keyed_hash(&key.key, &out);
        out.extend_from_slice(tag.as_bytes());
        Buffer::copy(&out)
    }

    fn decode(page: &[u8], key: &ClaimKey) -> Option<Claim> {
        let (body, tag) = page.split_last_chunk::<32>()?;
        if blake3::keyed_hash(&key.key, body) != *tag {
            return None;
        }
        Claim::take(body, key.volume).ok()
    }

    fn take(body: &[u8], volume: VolumeId) -> Result<Claim, Reject> {
        let mut fields = Decoder::new(body, "claim");
        if fields.array()? != MAGIC || fields.u32()? != FORMAT || fields.u32()? != 0 {
            return Err(fields.bad("not a claim"));
        }
        if VolumeId(fields.array()?) != volume {
            return Err(fields.bad("of another volume"));
        }
        let claim = Claim {
            session: fields.array()?,
            term: fields.u64()?,
            counter: fields.u64()?,
            system: fields.array()?,
            process: Process {
                namespace: fields.u64()?,
                pid: fields.u64()?,
                started: fields.u64()?,
            },
            since: fields.u64()?,
            host: String::from_utf8_lossy(fields.bytes(MAX_NAME_BYTES)?).into_owned(),
        };
        only_zeros(fields)?;
        Ok(claim)
    }
}

/// What a slot of the area holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    Claim(Claim),
    /// Anything that is not authentic, by its hash. `None`: it cannot be read.
    Unknown(Option<[u8; 32]>),
}

impl Slot {
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Slot::Claim(claim) => Some(claim),
            Slot::Free | Slot::Unknown(_) => None,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Slot::Unknown(_))
    }

    pub fn is_of(&self, session: &Session) -> bool {
        self.claim().is_some_and(|claim| claim.session == *session)
    }
}

fn offset(slot: usize) -> u64 {
    AREA_AT + slot as u64 * PAGE
}

/// Reads the pages of all slots, whatever they are.
pub(super) fn read_raw(device: &dyn Device) -> io::Result<Buffer> {
    let mut area = Buffer::zeroed(SLOTS * PAGE_BYTES);
    device.read(AREA_AT, &mut area)?;
    Ok(area)
}

/// Writes a page, whatever it is.
pub(super) fn write_raw(device: &dyn Device, slot: usize, page: &[u8]) -> io::Result<()> {
    device.write(offset(slot), &Buffer::copy(page))
}

/// Reads one slot.
pub(super) fn read_one(device: &dyn Device, key: &ClaimKey, slot: usize) -> io::Result<Slot> {
    let mut page = Buffer::zeroed(PAGE_BYTES);
    device.read(offset(slot), &mut page)?;
    Ok(judge(&page, key))
}

/// Reads all slots.
pub(super) fn read(device: &dyn Device, key: &ClaimKey) -> io::Result<Vec<Slot>> {
    let mut area = Buffer::zeroed(SLOTS * PAGE_BYTES);
    if device.read(AREA_AT, &mut area).is_ok() {
        return Ok(area
            .chunks(PAGE_BYTES)
            .map(|page| judge(page, key))
            .collect());
    }
    // A page that cannot be read must not hide the others.
    let mut slots = Vec::new();
    let mut failed = None;
    for slot in 0..SLOTS {
        match read_one(device, key, slot) {
            Ok(found) => slots.push(found),
            Err(error) => {
                slots.push(Slot::Unknown(None));
                failed = Some(error);
            }
        }
    }
    match failed {
        Some(error) if slots.iter().all(Slot::is_unknown) => Err(error),
        _ => Ok(slots),
    }
}

/// Whether a page is zeros.
pub(super) fn is_free(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

fn judge(page: &[u8], key: &ClaimKey) -> Slot {
    if is_free(page) {
        return Slot::Free;
    }
    match Claim::decode(page, key) {
        Some(claim) => Slot::Claim(claim),
        None => Slot::Unknown(Some(*blake3::hash(page).as_bytes())),
    }
}

/// Writes a claim.
pub(super) fn write(
    device: &dyn Device,
    key: &ClaimKey,
    slot: usize,
    claim: &Claim,
) -> io::Result<()> {
    device.write(offset(slot), &claim.encode(key))
}

/// Makes a slot free.
pub(super) fn free(device: &dyn Device, slot: usize) -> io::Result<()> {
    device.write(offset(slot), &Buffer::zeroed(PAGE_BYTES))
}
