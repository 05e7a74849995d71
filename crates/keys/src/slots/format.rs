//! The bytes of key slots: `docs/formats/key-slots.md`. Decoding is strict: one encoding of a value, every length
//! bounded before memory is taken. Slots of unknown kinds are kept as they are.

use trust::encode::{Decoder, Encoder};

use super::{SlotError, SlotKind};
use crate::stretch::{Cost, SALT_BYTES};

/// The most bytes of all slots together.
pub const MAX_REGION_BYTES: usize = 64 << 10;
/// The most slots.
pub const MAX_SLOTS: usize = 32;

pub(super) const NONCE_BYTES: usize = 24;
/// The volume key and the authenticator of its seal.
pub(super) const SEALED_BYTES: usize = 32 + 16;

const MAGIC: &[u8; 16] = b"bulla key slots\n";
const FORMAT: u32 = 0;
const FLAGS: u32 = 0;
const CHECKSUM_BYTES: usize = 32;
/// The most bytes of one slot's body. With 32 slots the region stays below [`MAX_REGION_BYTES`].
const MAX_BODY_BYTES: usize = 1024;

const PASSPHRASE: u8 = 1;
const KEY_FILE: u8 = 2;
const RECOVERY: u8 = 3;
const COMMAND: u8 = 4;

/// A sealed volume key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seal {
    pub nonce: [u8; NONCE_BYTES],
    pub sealed: [u8; SEALED_BYTES],
}

/// What a slot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    /// How the passphrase is stretched, and the seal.
    Passphrase(Cost, [u8; SALT_BYTES], Seal),
    /// A seal under a key that needs no stretching.
    Strong(SlotKind, Seal),
    /// A slot of a later version, or one whose cost no program of ours asks for: kind and body.
    Foreign(u8, Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub number: u8,
    pub body: Body,
}

impl Slot {
    pub fn kind(&self) -> SlotKind {
        match &self.body {
            Body::Passphrase(..) => SlotKind::Passphrase,
            Body::Strong(kind, _) => *kind,
            Body::Foreign(code, _) => SlotKind::Unknown(*code),
        }
    }

    pub fn cost(&self) -> Option<&Cost> {
        match &self.body {
            Body::Passphrase(cost, ..) => Some(cost),
            _ => None,
        }
    }

    pub fn seal(&self) -> Option<&Seal> {
        match &self.body {
            Body::Passphrase(_, _, seal) | Body::Strong(_, seal) => Some(seal),
            Body::Foreign(..) => None,
        }
    }

    pub fn seal_mut(&mut self) -> Option<&mut Seal> {
        match &mut self.body {
            Body::Passphrase(_, _, seal) | Body::Strong(_, seal) => Some(seal),
            Body::Foreign(..) => None,
        }
    }

    fn code(&self) -> u8 {
        match self.kind() {
            SlotKind::Passphrase => PASSPHRASE,
            SlotKind::KeyFile => KEY_FILE,
            SlotKind::Recovery => RECOVERY,
            SlotKind::Command => COMMAND,
            SlotKind::Unknown(code) => code,
        }
    }

    /// The body up to the sealed key.
    fn plain_part(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        match &self.body {
            Body::Passphrase(cost, salt, seal) => {
                out.u32(cost.memory_kib).u32(cost.passes).u32(cost.lanes);
                out.raw(salt).raw(&seal.nonce);
            }
            Body::Strong(_, seal) => {
                out.raw(&seal.nonce);
            }
            Body::Foreign(_, body) => {
                out.raw(body);
            }
        }
        out.finish()
    }
}

fn begin(volume: &[u8; 16]) -> Encoder {
    let mut out = Encoder::new();
    out.raw(MAGIC).u32(FORMAT).u32(FLAGS).raw(volume);
    out
}

/// Number, kind and length of a slot, and its body up to the sealed key.
fn write_plain_part(out: &mut Encoder, slot: &Slot) {
    let plain = slot.plain_part();
    let sealed = slot.seal().map_or(0, |seal| seal.sealed.len());
    out.u8(slot.number).u8(slot.code());
    out.u16((plain.len() + sealed) as u16).raw(&plain);
}

/// What a slot's seal covers beside the key: the volume and everything that the slot says.
pub(super) fn covered(volume: &[u8; 16], slot: &Slot) -> Vec<u8> {
    let mut out = begin(volume);
    write_plain_part(&mut out, slot);
    out.finish()
}

pub(super) fn encode(volume: &[u8; 16], slots: &[Slot]) -> Vec<u8> {
    let mut out = begin(volume);
    out.u8(slots.len() as u8);
    for slot in slots {
        write_plain_part(&mut out, slot);
        if let Some(seal) = slot.seal() {
            out.raw(&seal.sealed);
        }
    }
    let mut bytes = out.finish();
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Result<([u8; 16], Vec<Slot>), SlotError> {
    if bytes.len() > MAX_REGION_BYTES {
        return Err(malformed("they are too long"));
    }
    let mut header = Decoder::new(bytes, "key slots");
    if header.raw(MAGIC.len()).ok() != Some(MAGIC) {
        return Err(malformed("they do not begin like key slots"));
    }
    let (Ok(format), Ok(flags)) = (header.u32(), header.u32()) else {
        return Err(malformed("they are cut off"));
    };
    if format != FORMAT || flags != FLAGS {
        return Err(SlotError::Unsupported { format, flags });
    }
    let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(malformed("they are cut off"));
    };
    if blake3::hash(body) != *checksum {
        return Err(malformed("the checksum does not match"));
    }
    let mut from = Decoder::new(body, "key slots");
    // Skips what is checked above.
    let skipped = from.raw(MAGIC.len() + 8).and_then(|_| from.array());
    let volume = skipped.map_err(|_| malformed("they are cut off"))?;
    let slots = slots(&mut from)?;
    match from.finish() {
        Ok(()) => Ok((volume, slots)),
        Err(_) => Err(malformed("bytes follow the last slot")),
    }
}

fn slots(from: &mut Decoder<'_>) -> Result<Vec<Slot>, SlotError> {
    let cut = |_| malformed("they are cut off");
    let count = usize::from(from.u8().map_err(cut)?);
    if !(1..=MAX_SLOTS).contains(&count) {
        return Err(malformed("the number of slots is not 1 to 32"));
    }
    let mut slots: Vec<Slot> = Vec::with_capacity(count);
    for _ in 0..count {
        let (number, code) = (from.u8().map_err(cut)?, from.u8().map_err(cut)?);
        let length = usize::from(from.u16().map_err(cut)?);
        if length > MAX_BODY_BYTES {
            return Err(malformed("a slot is too long"));
        }
        let in_order = slots.last().is_none_or(|last| last.number < number);
        if !in_order || usize::from(number) >= MAX_SLOTS {
            return Err(malformed("the slots are not in order"));
        }
        let body = body(code, from.raw(length).map_err(cut)?)?;
        slots.push(Slot { number, body });
    }
    Ok(slots)
}

fn body(code: u8, bytes: &[u8]) -> Result<Body, SlotError> {
    let mut from = Decoder::new(bytes, "a key slot");
    let wrong = |_| malformed("a slot has another length than its kind");
    let body = match code {
        PASSPHRASE => {
            let mut number = || from.u32().map_err(wrong);
            let cost = Cost {
                memory_kib: number()?,
                passes: number()?,
                lanes: number()?,
            };
            let salt = from.array().map_err(wrong)?;
            let seal = seal(&mut from).map_err(wrong)?;
            // Other slots may still open the volume.
            if !cost.is_bearable() {
                return match from.finish() {
                    Ok(()) => Ok(Body::Foreign(code, bytes.to_vec())),
                    Err(error) => Err(wrong(error)),
                };
            }
            Body::Passphrase(cost, salt, seal)
        }
        KEY_FILE => Body::Strong(SlotKind::KeyFile, seal(&mut from).map_err(wrong)?),
        RECOVERY => Body::Strong(SlotKind::Recovery, seal(&mut from).map_err(wrong)?),
        COMMAND => Body::Strong(SlotKind::Command, seal(&mut from).map_err(wrong)?),
        0 => return Err(malformed("a slot has no kind")),
        _ => return Ok(Body::Foreign(code, bytes.to_vec())),
    };
    from.finish().map_err(wrong)?;
    Ok(body)
}

fn seal(from: &mut Decoder<'_>) -> Result<Seal, trust::Reject> {
    Ok(Seal {
        nonce: from.array()?,
        sealed: from.array()?,
    })
}

fn malformed(why: &'static str) -> SlotError {
    SlotError::Malformed { why }
}
