//! The region for key slots: bytes that the log does not interpret, readable without the key, in two copies with a
//! generation and a checksum. A change is written to one copy, synced, and then to the other. Bytes:
//! `docs/formats/log.md`, *Key slots*.

use trust::Reject;
use trust::encode::{Decoder, Encoder};

use crate::buffer::Buffer;
use crate::copies::{Copied, CopyDefect, rewrite};
use crate::device::Device;
use crate::error::LogError;
use crate::key::VolumeId;
use crate::superblock::{self, COPIES, only_zeros};

const MAGIC: [u8; 8] = *b"bullakey";
const FIXED_BYTES: usize = 8 + 16 + 8 + 3;
const SUM_BYTES: usize = 32;
/// Bytes of a copy on the device.
const COPY_BYTES: usize = 128 << 10;
/// Most bytes of key slots.
pub const MAX_SLOTS_BYTES: usize = 64 << 10;
const OFFSETS: [u64; 2] = [256 << 10, 512 << 10];

/// The key slots of a device, and the volume that it names. Nothing here is authentic: the key that comes out of a
/// slot is proved by opening the log.
///
/// # Errors
/// [`LogError::NotALog`], [`LogError::Io`], or [`LogError::Superblock`] if both copies are damaged.
pub fn key_slots(device: &dyn Device) -> Result<(VolumeId, Vec<u8>), LogError> {
    let (newest, error) = newest(device);
    match (newest, error) {
        (Some(slots), _) => Ok((slots.volume, slots.bytes)),
        (None, Some(error)) => Err(error),
        (None, None) if names_a_volume(device)? => Err(LogError::Superblock {
            why: "both copies of the key slots are damaged",
        }),
        (None, None) => Err(LogError::NotALog),
    }
}

/// Replaces the key slots. A crash leaves the old or the new ones; afterwards both copies hold the new ones.
///
/// # Errors
/// As [`key_slots`]; [`LogError::Invalid`] for more than [`MAX_SLOTS_BYTES`].
pub fn set_key_slots(device: &dyn Device, bytes: &[u8]) -> Result<(), LogError> {
    let (newest, error) = newest(device);
    let Some(newest) = newest else {
        return Err(error.unwrap_or(LogError::NotALog));
    };
    let slots = Slots {
        volume: newest.volume,
        generation: newest.generation.wrapping_add(1),
        copy: 1 - newest.copy,
        bytes: bytes.to_vec(),
    };
    slots.store(device)
}

/// Writes the first key slots of a volume.
pub(crate) fn format(device: &dyn Device, volume: VolumeId, bytes: &[u8]) -> Result<(), LogError> {
    let slots = Slots {
        volume,
        generation: 1,
        copy: 0,
        bytes: bytes.to_vec(),
    };
    slots.store(device)
}

struct Slots {
    volume: VolumeId,
    generation: u64,
    /// Which copy this was read from, or is written first.
    copy: usize,
    bytes: Vec<u8>,
}

impl Slots {
    fn store(&self, device: &dyn Device) -> Result<(), LogError> {
        let page = self.encode()?;
        for copy in [self.copy, 1 - self.copy] {
            let offset = OFFSETS[copy];
            device
                .write(offset, &page)
                .map_err(|e| LogError::io("write", offset, e))?;
            device.sync().map_err(|e| LogError::io("sync", offset, e))?;
        }
        Ok(())
    }

    fn encode(&self) -> Result<Buffer, LogError> {
        if self.bytes.len() > MAX_SLOTS_BYTES {
            let why = "key slots have more than 64 KiB";
            return Err(LogError::Invalid { why });
        }
        let mut out = Encoder::new();
        out.raw(&MAGIC).raw(&self.volume.0).u64(self.generation);
        out.bytes(&self.bytes);
        let mut out = out.finish();
        out.resize(COPY_BYTES - SUM_BYTES, 0);
        let sum = blake3::hash(&out);
        out.extend_from_slice(sum.as_bytes());
        Ok(Buffer::copy(&out))
    }

    fn decode(copy: usize, page: &[u8]) -> Result<Slots, Reject> {
        let mut fields = Decoder::new(page, "key slots");
        if fields.array()? != MAGIC {
            return Err(fields.bad("no key slots"));
        }
        match page.split_last_chunk::<SUM_BYTES>() {
            Some((body, sum)) if blake3::hash(body) == *sum => {}
            _ => return Err(fields.bad("the checksum does not match")),
        }
        let slots = Slots {
            volume: VolumeId(fields.array()?),
            generation: fields.u64()?,
            copy,
            bytes: fields.bytes(MAX_SLOTS_BYTES)?.to_vec(),
        };
        let padding = fields.remaining().saturating_sub(SUM_BYTES);
        only_zeros(Decoder::new(fields.raw(padding)?, "key slots"))?;
        Ok(slots)
    }
}

fn newest(device: &dyn Device) -> (Option<Slots>, Option<LogError>) {
    let (mut newest, mut error): (Option<Slots>, _) = (None, None);
    for (copy, offset) in OFFSETS.into_iter().enumerate() {
        let mut page = Buffer::zeroed(COPY_BYTES);
        match device.read(offset, &mut page) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {}
            Err(e) => error = Some(LogError::io("read", offset, e)),
            Ok(()) => {
                let found = Slots::decode(copy, &page).ok();
                if found
                    .as_ref()
                    .is_some_and(|f| newest.as_ref().is_none_or(|n| n.generation < f.generation))
                {
                    newest = found;
                }
            }
        }
    }
    (newest, error)
}

/// Bytes of both copies.
pub(crate) const ALL_COPIES_BYTES: u64 = 2 * COPY_BYTES as u64;

/// Writes copies again that are wrong, from the newest one of this volume. Durable after the next sync.
pub(crate) fn mend(device: &dyn Device, volume: VolumeId, tell: &mut dyn FnMut(CopyDefect)) {
    let mut found = OFFSETS.map(|_| None);
    for (copy, offset) in OFFSETS.into_iter().enumerate() {
        // What changed on the way is read once more.
        found[copy] = (0..2).find_map(|_| {
            let mut page = Buffer::zeroed(COPY_BYTES);
            device.read(offset, &mut page).ok()?;
            let slots = Slots::decode(copy, &page).ok()?;
            (slots.volume == volume).then_some((slots.generation, page))
        });
    }
    let newest = found.iter().flatten().max_by_key(|(number, _)| *number);
    for (offset, copy) in OFFSETS.into_iter().zip(&found) {
        let is_newest = |(_, newest): &&(u64, Buffer)| {
            let own = copy.as_ref().map(|(_, page)| &**page);
            own == Some(&**newest)
        };
        let right = newest.filter(|newest| !is_newest(newest));
        let is_mended = right.is_some_and(|(_, page)| rewrite(device, offset, page));
        if copy.is_none() {
            tell(CopyDefect {
                of: Copied::KeySlots,
                offset,
                is_mended,
            });
        }
    }
}

/// Whether any copy of a superblock names a volume: then there was a log.
fn names_a_volume(device: &dyn Device) -> Result<bool, LogError> {
    for offset in COPIES.into_iter().flatten() {
        if superblock::volume_of(&superblock::read_page(device, offset)?).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

const _: () = assert!(FIXED_BYTES + MAX_SLOTS_BYTES + SUM_BYTES <= COPY_BYTES);
