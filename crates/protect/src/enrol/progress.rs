//! How far an enrolment is: a record behind the map in the client's area of the log's device, in two copies that
//! are written in turn. Bytes: `docs/formats/protect.md`, *Unfinished enrolment*.

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use wal::{Buffer, Device, Key, Layout, MAX_SLOTS_BYTES, VolumeId};
use zeroize::Zeroizing;

use super::error::EnrolError;
use crate::core::BLOCK_BYTES;
use crate::engine::CLIENT;
use crate::map::Root;
use crate::volume::Shape;

const MAGIC: [u8; 8] = *b"bullaenr";
const FORM: u8 = 0;
const MAC_BYTES: usize = 32;
const COPY_BYTES: usize = 72 << 10;
/// Bytes behind the map that the copies take.
pub(super) const REGION_BYTES: u64 = 2 * COPY_BYTES as u64;

/// How far an enrolment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub volume: VolumeId,
    pub shape: Shape,
    pub ring_bytes: u64,
    /// One more with each write; the lowest bit says which copy this is.
    pub generation: u64,
    /// Blocks that are done.
    pub done: u64,
    /// The map of the blocks that are done; all others are zero in it.
    pub root: Root,
    /// [`Source::changed`](super::Source::changed) at the beginning.
    pub changed: Option<i128>,
    pub slots: Vec<u8>,
}

impl Record {
    pub(super) fn done_bytes(&self) -> u64 {
        let bytes = self.done.saturating_mul(BLOCK_BYTES as u64);
        bytes.min(self.shape.bytes)
    }

    fn encode(&self, key: &[u8; 32]) -> Buffer {
        let mut out = Encoder::new();
        out.raw(&MAGIC).u8(FORM).raw(&self.volume.0);
        out.u64(self.shape.bytes).u32(self.shape.sector_bytes);
        out.u64(self.ring_bytes).u64(self.generation).u64(self.done);
        out.raw(&self.root.to_bytes());
        out.u8(self.changed.is_some().into());
        out.raw(&self.changed.unwrap_or_default().to_le_bytes());
        out.bytes(&self.slots);
        let fields = out.finish();
        let mut copy = Buffer::zeroed(COPY_BYTES);
        let (body, mac) = copy.split_at_mut(COPY_BYTES - MAC_BYTES);
        for (into, byte) in body.iter_mut().zip(fields) {
            *into = byte;
        }
        mac.copy_from_slice(blake3::keyed_hash(key, body).as_bytes());
        copy
    }

    /// The record, without a look at its MAC.
    fn decode(copy: &[u8]) -> Result<Record, Reject> {
        let (body, _) = copy
            .split_last_chunk::<MAC_BYTES>()
            .unwrap_or((&[], &[0; 32]));
        let mut from = Decoder::new(body, "record of an unfinished enrolment");
        if from.array()? != MAGIC || from.u8()? != FORM {
            return Err(from.bad("another form"));
        }
        let volume = VolumeId(from.array()?);
        let shape = Shape {
            bytes: from.u64()?,
            sector_bytes: from.u32()?,
        };
        let (ring_bytes, generation, done) = (from.u64()?, from.u64()?, from.u64()?);
        if done > shape.blocks() {
            return Err(from.bad("more blocks than the device has"));
        }
        let root = Root::from_bytes(from.array()?);
        let (is_known, changed) = (from.u8()?, i128::from_le_bytes(from.array()?));
        let slots = from.bytes(MAX_SLOTS_BYTES)?.to_vec();
        let rest = from.raw(from.remaining())?;
        if is_known > 1 || rest.iter().any(|byte| *byte != 0) {
            return Err(from.bad("not canonical"));
        }
        Ok(Record {
            volume,
            shape,
            ring_bytes,
            generation,
            done,
            root,
            changed: (is_known == 1).then_some(changed),
            slots,
        })
    }
}

/// Where the copies lie.
pub(super) struct Place {
    start: u64,
    /// Bytes of the log's device that the log uses.
    pub(super) layout_bytes: u64,
}

impl Place {
    pub(super) fn new(layout: &Layout) -> Place {
        Place {
            start: layout.area(CLIENT).end.saturating_sub(REGION_BYTES),
            layout_bytes: layout.device_bytes(),
        }
    }

    fn offset(&self, copy: u64) -> u64 {
        self.start + copy * COPY_BYTES as u64
    }

    /// The newest record; if a key is given, only one that this key authenticates. Nothing if there is none, or if
    /// the device is too short for one.
    pub(super) fn newest(
        &self,
        device: &dyn Device,
        key: Option<(&Key, VolumeId)>,
    ) -> Result<Option<Record>, EnrolError> {
        if device.bytes() < self.start + REGION_BYTES {
            return Ok(None);
        }
        let mut newest: Option<Record> = None;
        for copy in 0..2 {
            let mut bytes = Buffer::zeroed(COPY_BYTES);
            let read = device.read(self.offset(copy), &mut bytes);
            read.map_err(EnrolError::log_read)?;
            let Ok(record) = Record::decode(&bytes) else {
                continue;
            };
            let is_newer = newest
                .as_ref()
                .is_none_or(|newest| newest.generation < record.generation);
            if is_newer && key.is_none_or(|key| is_authentic(&bytes, &record, key)) {
                newest = Some(record);
            }
        }
        Ok(newest)
    }

    /// Writes the record over the older copy, durably.
    pub(super) fn store(
        &self,
        device: &dyn Device,
        key: &Key,
        record: &mut Record,
    ) -> Result<(), EnrolError> {
        record.generation += 1;
        let key = mac_key(key, record.volume);
        let written = device.write(self.offset(record.generation % 2), &record.encode(&key));
        written
            .and_then(|()| device.sync())
            .map_err(EnrolError::log_write)
    }

    /// Removes the record, durably.
    pub(super) fn clear(&self, device: &dyn Device) -> Result<(), EnrolError> {
        let zeros = Buffer::zeroed(REGION_BYTES as usize);
        let written = device.write(self.start, &zeros);
        written
            .and_then(|()| device.sync())
            .map_err(EnrolError::log_write)
    }
}

fn mac_key(key: &Key, volume: VolumeId) -> Zeroizing<[u8; 32]> {
    key.derive("protect enrolment", volume)
}

fn is_authentic(copy: &[u8], record: &Record, (key, volume): (&Key, VolumeId)) -> bool {
    let Some((body, mac)) = copy.split_last_chunk::<MAC_BYTES>() else {
        return false;
    };
    record.volume == volume && blake3::keyed_hash(&mac_key(key, volume), body) == *mac
}
