//! Records of blocks in the temporary log. Bytes: `docs/formats/shared-blocks.md`.
//!
//! The body names devices and blocks, the payload holds the blocks' frames back to back. A block never crosses from
//! one record into the next.

use bytes::Bytes;
use trust::encode::{Decoder, Encoder, varint_len};
use trust::{Handle, Reject};
use wal::{Client, DigestKey, MAX_BODY_BYTES, MAX_PIECES, PAGE_BYTES, Piece};

use super::Device;

/// The blocks' client of the log.
pub const BLOCKS: Client = Client(2);
/// The orderer's client of the same log. Its records are opaque here.
pub const ENTRIES: Client = Client(3);
/// The kind of a record of blocks.
pub const STORED: u8 = 1;
/// The longest frame of a block in the temporary log, bytes: it must fit into one record. A longer one goes straight into a
/// segment.
pub const MAX_TEMPORARY_BYTES: usize = 1 << 20;

const PAYLOAD_BYTES: usize = MAX_PIECES * PAGE_BYTES;
const WHAT: &str = "record of blocks";

/// A block as a record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// Which of the record's devices stored it.
    pub device: usize,
    /// Its name.
    pub handle: Handle,
    /// Where its frame begins in the payload.
    pub offset: u32,
    /// Bytes of its frame.
    pub length: u32,
}

/// The body of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Body {
    /// The devices that stored blocks.
    pub devices: Vec<Device>,
    /// The blocks, in the order of their frames.
    pub blocks: Vec<Described>,
}

impl Body {
    /// Reads a body. `payload_bytes`: bytes of the record's pages.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn decode(body: &[u8], payload_bytes: usize) -> Result<Body, Reject> {
        let mut fields = Decoder::new(body, WHAT);
        let most = MAX_BODY_BYTES as u64;
        let mut decoded = Body::default();
        for _ in 0..fields.bounded(most, "too many devices")? {
            decoded.devices.push(Device(fields.array()?));
        }
        let mut offset: u32 = 0;
        for _ in 0..fields.bounded(most, "too many blocks")? {
            let device = fields.bounded(most, "no such device")? as usize;
            if device >= decoded.devices.len() {
                return Err(fields.bad("no such device"));
            }
            let handle = Handle::from_bytes(fields.array()?);
            let length = fields.bounded(MAX_TEMPORARY_BYTES as u64, "a block is too long")? as u32;
            decoded.blocks.push(Described {
                device,
                handle,
                offset,
                length,
            });
            offset = offset.saturating_add(length);
        }
        let pages = (offset as usize).div_ceil(PAGE_BYTES);
        if decoded.blocks.is_empty() || pages * PAGE_BYTES != payload_bytes {
            return Err(fields.bad("its blocks do not fill its pages"));
        }
        fields.finish()?;
        Ok(decoded)
    }
}

/// A record that is being filled.
#[derive(Debug, Default)]
pub(super) struct Builder {
    devices: Vec<Device>,
    blocks: Encoder,
    count: u64,
    payload: Vec<u8>,
}

impl Builder {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether one more block fits, whoever stores it.
    pub fn has_room(&self, frame_bytes: usize) -> bool {
        self.body_bytes() + description_bytes() <= MAX_BODY_BYTES
            && self.payload.len() + frame_bytes <= PAYLOAD_BYTES
    }

    fn body_bytes(&self) -> usize {
        let counts = varint_len(self.devices.len() as u64) + varint_len(self.count);
        counts + self.devices.len() * 32 + self.blocks.len()
    }

    /// Appends a block, and returns where its frame begins.
    pub fn add(&mut self, device: Device, handle: &Handle, frame: &[u8]) -> u32 {
        let known = self.devices.iter().position(|known| *known == device);
        let index = known.unwrap_or_else(|| {
            self.devices.push(device);
            self.devices.len() - 1
        });
        let offset = self.payload.len() as u32;
        self.blocks.varint(index as u64).raw(handle.as_bytes());
        self.blocks.varint(frame.len() as u64);
        self.count += 1;
        self.payload.extend_from_slice(frame);
        offset
    }

    /// The record with its pages.
    pub fn finish(self, digests: &DigestKey) -> wal::Record {
        let mut body = Encoder::new();
        body.varint(self.devices.len() as u64);
        for device in &self.devices {
            body.raw(&device.0);
        }
        body.varint(self.count).raw(&self.blocks.finish());
        let mut payload = self.payload;
        payload.resize(payload.len().next_multiple_of(PAGE_BYTES), 0);
        let payload = Bytes::from(payload);
        let page = |at: usize| payload.slice(at..at + PAGE_BYTES);
        let pages = (0..payload.len()).step_by(PAGE_BYTES).map(page);
        let piece = |page: Bytes| Piece {
            digest: digests.digest(&page),
            page,
        };
        wal::Record {
            kind: STORED,
            body: body.finish().into(),
            payload: pages.map(piece).collect(),
        }
    }
}

/// Bytes of the body that one block needs at most: its description, a device, and longer counts.
pub(super) const fn description_bytes() -> usize {
    32 + 3 + 3 + 32 + 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use wal::{Key, VolumeId};

    fn digests() -> DigestKey {
        DigestKey::new(&Key::new([1; 32]), VolumeId([2; 16]))
    }

    fn two_blocks() -> wal::Record {
        let mut builder = Builder::default();
        let (one, other) = (Device([0xd1; 32]), Device([0xd2; 32]));
        builder.add(one, &Handle::from_bytes([0xa1; 32]), &[0x11; 3]);
        builder.add(other, &Handle::from_bytes([0xa2; 32]), &[0x22; 200]);
        builder.finish(&digests())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// A vector of the page that says what the bytes are, by its number.
    fn vector(number: usize) -> String {
        let page = include_str!("../../../../docs/formats/shared-blocks.md");
        let vector = page.split("```vector").nth(number + 1).unwrap();
        let vector = vector.split("```").next().unwrap();
        vector.split_whitespace().collect()
    }

    #[test]
    fn block_of_64_kib_has_the_bytes_of_the_page_and_a_longer_one_than_any_is_refused() {
        let mut builder = Builder::default();
        let frame = vec![7; 65_542];
        builder.add(Device([0xd1; 32]), &Handle::from_bytes([0xa1; 32]), &frame);
        let record = builder.finish(&digests());
        assert_eq!(hex(&record.body), vector(1));
        let body = Body::decode(&record.body, 17 * PAGE_BYTES).unwrap();
        assert_eq!((body.blocks[0].offset, body.blocks[0].length), (0, 65_542));
        for pages in [16, 18] {
            assert!(Body::decode(&record.body, pages * PAGE_BYTES).is_err());
        }
        let long = vector(2);
        let bytes = (0..long.len() / 2).map(|at| u8::from_str_radix(&long[2 * at..][..2], 16));
        let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().unwrap();
        let refused = Body::decode(&bytes, 257 * PAGE_BYTES).unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
    }

    /// Frozen bytes: docs/formats/shared-blocks.md gives the same.
    #[test]
    fn body_of_the_page_is_written_and_read() {
        let record = two_blocks();
        assert_eq!(hex(&record.body), vector(0));
        assert_eq!((record.kind, record.payload.len()), (STORED, 1));
        assert_eq!(record.payload[0].page[..4], [0x11, 0x11, 0x11, 0x22]);
        let body = Body::decode(&record.body, PAGE_BYTES).unwrap();
        assert_eq!(body.devices.len(), 2);
        let places: Vec<_> = body.blocks.iter().map(|b| (b.offset, b.length)).collect();
        assert_eq!(places, [(0, 3), (3, 200)]);
    }

    #[test]
    fn changed_body_is_refused_or_names_bytes_inside_its_pages() {
        let body = two_blocks().body;
        for at in 0..body.len() {
            assert!(
                Body::decode(&body[..at], PAGE_BYTES).is_err(),
                "cut at {at}"
            );
            for bit in 0..8 {
                let mut bad = body.to_vec();
                bad[at] ^= 1 << bit;
                for block in Body::decode(&bad, PAGE_BYTES)
                    .iter()
                    .flat_map(|b| &b.blocks)
                {
                    assert!(block.offset as usize + block.length as usize <= PAGE_BYTES);
                }
            }
        }
        assert!(Body::decode(&body, 2 * PAGE_BYTES).is_err());
        assert!(Body::decode(&[&body[..], &[0]].concat(), PAGE_BYTES).is_err());
        assert!(Body::decode(&[0, 0], 0).is_err());
    }

    #[test]
    fn full_builder_makes_a_record_that_the_log_takes() {
        for (length, at_least) in [(6, 400), (64 << 10, 16), (MAX_TEMPORARY_BYTES, 1)] {
            let frame = vec![1; length];
            let mut builder = Builder::default();
            let mut count = 0u32;
            while builder.has_room(frame.len()) {
                let device = Device(*blake(count).as_bytes());
                builder.add(device, &blake(count), &frame);
                count += 1;
            }
            let record = builder.finish(&digests());
            assert!(count >= at_least);
            assert!(record.body.len() <= MAX_BODY_BYTES && record.payload.len() <= MAX_PIECES);
            let bytes = record.payload.len() * PAGE_BYTES;
            let body = Body::decode(&record.body, bytes).unwrap();
            assert_eq!(body.blocks.len(), count as usize);
        }
    }

    fn blake(count: u32) -> Handle {
        trust::Hasher::new(&[0; 32]).name(trust::Kind::Data, &count.to_le_bytes())
    }
}
