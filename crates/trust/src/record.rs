//! Records: the unit of segments and answers. Both use the same bytes, so that a server sends what is on its
//! disk unchanged.
//!
//! ```text
//! handle [32] | frame length u32 LE | frame
//! ```
//!
//! The handle is a claim. A reader that asked for it checks it. A reader that did not (read-around) hashes
//! the plaintext under the frame's kind and keeps it only when the two agree.

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Reject;
use crate::frame::{Frame, HEADER_BYTES, MAX_FRAME_BYTES};
use crate::handle::{Any, Handle};

/// Bytes of a record before its frame.
pub const RECORD_HEADER_BYTES: usize = 36;
/// Largest record, bytes.
pub const MAX_RECORD_BYTES: usize = RECORD_HEADER_BYTES + MAX_FRAME_BYTES;

/// A frame and the handle that an untrusted source claims for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The claimed name.
    pub handle: Handle<Any>,
    /// The untrusted frame.
    pub frame: Frame,
}

/// What comes before a frame. Nothing of it is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The claimed name of the block.
    pub handle: Handle<Any>,
    /// Length of the frame that follows, bytes: a possible length of a frame.
    pub frame_bytes: usize,
}

impl RecordHeader {
    /// Decodes the header at the front of `bytes`; `None` until it is complete.
    ///
    /// # Errors
    /// [`Reject::BadFrame`] when no frame has the stated length.
    pub fn peek(bytes: &[u8]) -> Result<Option<RecordHeader>, Reject> {
        let Some(header) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else {
            return Ok(None);
        };
        let Some((handle, len)) = header.split_first_chunk::<32>() else {
            return Ok(None);
        };
        let len = <[u8; 4]>::try_from(len).map_or(0, u32::from_le_bytes) as usize;
        if !(HEADER_BYTES..=MAX_FRAME_BYTES).contains(&len) {
            return Err(Reject::BadFrame("impossible record length"));
        }
        Ok(Some(RecordHeader {
            handle: Handle::from_bytes(*handle),
            frame_bytes: len,
        }))
    }
}

impl Record {
    /// Length of the whole record in a segment, bytes.
    pub fn len(&self) -> usize {
        RECORD_HEADER_BYTES + self.frame.as_bytes().len()
    }

    /// Always false: a record has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Appends the record's bytes.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_slice(self.handle.as_bytes());
        out.put_u32_le(self.frame.as_bytes().len() as u32);
        out.put_slice(self.frame.as_bytes());
    }

    /// Splits the record at the front off `bytes`, sharing memory.
    ///
    /// Returns `None`, leaving `bytes` unchanged, when they end before the record does.
    ///
    /// # Errors
    /// [`Reject::BadFrame`] when no record begins with these bytes; [`Reject::UnknownFrame`] when one does
    /// whose frame is of a later bulla. That one is split off, so the caller can go on with the next.
    pub fn take(bytes: &mut Bytes) -> Result<Option<Record>, Reject> {
        let Some(RecordHeader {
            handle,
            frame_bytes,
        }) = RecordHeader::peek(bytes)?
        else {
            return Ok(None);
        };
        if bytes.len() < RECORD_HEADER_BYTES + frame_bytes {
            return Ok(None);
        }
        let mut record = bytes.split_to(RECORD_HEADER_BYTES + frame_bytes);
        let frame = Frame::parse(record.split_off(RECORD_HEADER_BYTES))?;
        Ok(Some(Record { handle, frame }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Packer;
    use crate::handle::{Hasher, Kind};

    /// Frozen bytes: docs/formats/blocks.md gives the same. The payload of a packed frame is the
    /// compressor's choice and is not frozen.
    #[test]
    fn vectors() {
        let hasher = Hasher::new(&std::array::from_fn(|i| i as u8));
        let frame = Packer::new().pack(Kind::Data, b"bulla").unwrap();
        let handle = hasher.name(Kind::Data, b"bulla");
        let mut out = BytesMut::new();
        Record { handle, frame }.put(&mut out);
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "e63b7c8e56163e62ee730951dbc7f7dc9f54a515dd109e86e911948438abf24b0b00000001000500000062756c6c61"
        );
        let mut bytes = out.freeze();
        for cut in 0..bytes.len() {
            assert_eq!(Record::take(&mut bytes.slice(..cut)), Ok(None));
        }
        assert!(Record::take(&mut bytes).unwrap().is_some());
        assert!(bytes.is_empty());
    }

    #[test]
    fn impossible_length_is_refused_before_the_rest_arrives() {
        for (len, possible) in [
            (HEADER_BYTES - 1, false),
            (HEADER_BYTES, true),
            (MAX_FRAME_BYTES, true),
            (MAX_FRAME_BYTES + 1, false),
        ] {
            let header = [&[7; 32][..], &(len as u32).to_le_bytes()].concat();
            let taken = Record::take(&mut Bytes::from(header));
            assert_eq!(taken.is_ok(), possible, "{len}: {taken:?}");
        }
    }

    #[test]
    fn record_of_a_later_bulla_is_split_off() {
        let frame = Packer::new().pack(Kind::Data, b"known").unwrap();
        let handle = Handle::from_bytes([1; 32]);
        let mut known = BytesMut::new();
        Record { handle, frame }.put(&mut known);
        for at in [RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + 1] {
            let mut bytes = known.to_vec();
            bytes[at] = 0xee;
            bytes.extend_from_slice(&known);
            let mut bytes = Bytes::from(bytes);
            let unknown = Record::take(&mut bytes);
            assert!(
                matches!(unknown, Err(Reject::UnknownFrame(_))),
                "{unknown:?}"
            );
            assert!(Record::take(&mut bytes).unwrap().is_some());
            assert!(bytes.is_empty());
        }
    }
}
