//! A message of records that is coming in: cuts it into records, each with memory of its own. A state machine
//! without I/O, which says where to read next.
//!
//! A long record is read straight into its memory, so its bytes are not copied on the way, and a record that is
//! kept keeps no other alive. Memory is taken for one record at a time, after its stated length was compared with
//! the longest frame and with the rest of the message.

use bytes::buf::Limit;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use trust::record::{RECORD_HEADER_BYTES, RecordHeader};
use trust::{Handle, Reject};

/// A record with at least this much to come is read straight into its memory, bytes. What is read otherwise is
/// copied once.
const DIRECT_BYTES: usize = 4 << 10;
/// After a frame of this length the next read is a short one, bytes: mostly another long record follows, and what is
/// read of it with its header is copied.
const LONG_FRAME_BYTES: usize = 16 << 10;

/// A message that is coming in.
pub(super) struct IncomingRecords {
    /// Bytes of the message behind the record that is coming.
    left_bytes: usize,
    coming: Option<Coming>,
    after_long: bool,
}

/// A record of which the header has come.
struct Coming {
    handle: Handle,
    frame: BytesMut,
    frame_bytes: usize,
}

impl Coming {
    fn missing_bytes(&self) -> usize {
        self.frame_bytes.saturating_sub(self.frame.len())
    }
}

impl IncomingRecords {
    /// A message with a body of `body_bytes`.
    pub(super) fn new(body_bytes: usize) -> IncomingRecords {
        IncomingRecords {
            left_bytes: body_bytes,
            coming: None,
            after_long: false,
        }
    }

    /// Whether all records were given.
    pub(super) fn is_complete(&self) -> bool {
        self.left_bytes == 0 && self.coming.is_none()
    }

    /// Moves what belongs to the message from `buffer` to the record that is coming. Gives the record, its claimed
    /// handle and its frame, when it is complete; `None` when more bytes are needed, or the message is complete.
    ///
    /// # Errors
    /// [`Reject::BadFrame`] when no frame has the stated length, [`Reject::Malformed`] when the record would be
    /// longer than the rest of the message.
    pub(super) fn next(
        &mut self,
        buffer: &mut impl Buf,
    ) -> Result<Option<(Handle, Bytes)>, Reject> {
        if self.coming.is_none() && !self.begin(buffer)? {
            return Ok(None);
        }
        let Some(mut coming) = self.coming.take() else {
            return Ok(None);
        };
        let here = coming.missing_bytes().min(buffer.remaining());
        coming.frame.put(buffer.take(here));
        if coming.missing_bytes() > 0 {
            self.coming = Some(coming);
            return Ok(None);
        }
        self.after_long = coming.frame_bytes >= LONG_FRAME_BYTES;
        Ok(Some((coming.handle, coming.frame.freeze())))
    }

    /// Takes the header of the next record; false when it is not there yet, or there is none.
    fn begin(&mut self, buffer: &mut impl Buf) -> Result<bool, Reject> {
        let cut_off = Reject::Malformed {
            what: "answer",
            why: "a record is cut off",
        };
        if self.left_bytes == 0 {
            return Ok(false);
        }
        if self.left_bytes < RECORD_HEADER_BYTES {
            return Err(cut_off);
        }
        let Some(header) = RecordHeader::peek(buffer.chunk())? else {
            return Ok(false);
        };
        let record_bytes = RECORD_HEADER_BYTES.saturating_add(header.frame_bytes);
        self.left_bytes = self.left_bytes.checked_sub(record_bytes).ok_or(cut_off)?;
        buffer.advance(RECORD_HEADER_BYTES);
        self.coming = Some(Coming {
            handle: header.handle,
            frame: BytesMut::with_capacity(header.frame_bytes),
            frame_bytes: header.frame_bytes,
        });
        Ok(true)
    }

    /// Where to read next if not into the common buffer: the rest of a long record.
    pub(super) fn room(&mut self) -> Option<Limit<&mut BytesMut>> {
        let coming = self.coming.as_mut()?;
        let missing = coming.missing_bytes();
        (missing >= DIRECT_BYTES).then(|| (&mut coming.frame).limit(missing))
    }

    /// Bytes to read into the common buffer at most.
    pub(super) fn read_bytes(&self, most: usize) -> usize {
        if self.after_long {
            DIRECT_BYTES.min(most)
        } else {
            most
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(n: u8, frame: &[u8]) -> Vec<u8> {
        let len = frame.len() as u32;
        [&[n; 32][..], &len.to_le_bytes(), frame].concat()
    }

    /// What was received: the records, and the bytes behind the message.
    struct Received {
        records: Vec<(Handle, Bytes)>,
        behind: Vec<u8>,
    }

    /// Feeds `sent`, as a socket does that gives at most `step` bytes a read.
    fn received(body_bytes: usize, sent: &[u8], step: usize) -> Result<Received, Reject> {
        let (mut incoming, mut buffer) = (IncomingRecords::new(body_bytes), BytesMut::new());
        let (mut rest, mut got) = (sent, Vec::new());
        loop {
            while let Some(record) = incoming.next(&mut buffer)? {
                got.push(record);
            }
            if incoming.is_complete() || rest.is_empty() {
                return Ok(Received {
                    records: got,
                    behind: [&buffer, rest].concat(),
                });
            }
            let most = incoming.read_bytes(1 << 20).min(step).min(rest.len());
            match incoming.room() {
                Some(mut room) => {
                    assert!(buffer.is_empty(), "bytes would overtake others");
                    let (now, later) =
                        rest.split_at(room.remaining_mut().min(step).min(rest.len()));
                    room.put(now);
                    rest = later;
                }
                None => {
                    let (now, later) = rest.split_at(most);
                    buffer.put(now);
                    rest = later;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn records_come_whole_whatever_is_read_at_once(
            lens in prop::collection::vec(prop_oneof![6usize..100, 4000usize..5000, 20_000usize..70_000], 1..12),
            step in prop_oneof![1usize..50, 1000usize..200_000],
        ) {
            let records: Vec<(u8, Vec<u8>)> = (1..).zip(lens).map(|(n, len)| (n, vec![n; len])).collect();
            let body: Vec<u8> = records.iter().flat_map(|(n, frame)| record(*n, frame)).collect();
            let sent = [&body[..], b"the next message"].concat();
            let Received { records: got, behind } = received(body.len(), &sent, step).unwrap();
            let got: Vec<(u8, Vec<u8>)> = got.iter().map(|(h, f)| (h.as_bytes()[0], f.to_vec())).collect();
            prop_assert_eq!(got, records);
            prop_assert_eq!(behind, b"the next message");
        }

        #[test]
        fn garbage_never_panics_and_takes_no_more_than_the_message(
            bytes in prop::collection::vec(any::<u8>(), 0..300), body_bytes in 0usize..400, step in 1usize..100,
        ) {
            if let Ok(Received { records, .. }) = received(body_bytes, &bytes, step) {
                let taken: usize = records.iter().map(|(_, f)| f.len() + RECORD_HEADER_BYTES).sum();
                prop_assert!(taken <= body_bytes);
            }
        }
    }

    #[test]
    fn record_beyond_the_message_is_refused_before_memory_is_taken() {
        let header = record(1, &[7; 50_000])[..RECORD_HEADER_BYTES].to_vec();
        let whole = RECORD_HEADER_BYTES + 50_000;
        for (body_bytes, is_possible) in [(whole, true), (whole - 1, false), (whole + 35, true)] {
            let mut incoming = IncomingRecords::new(body_bytes);
            let next = incoming.next(&mut &header[..]);
            assert_eq!(next.is_ok(), is_possible, "{body_bytes}: {next:?}");
            assert_eq!(incoming.coming.is_some(), is_possible);
        }
        // The message ends inside the header of its second record.
        let sent = record(1, &[7; 10]);
        let cut = received(sent.len() + 35, &[&sent[..], &sent].concat(), 1000);
        assert!(matches!(cut, Err(Reject::Malformed { .. })));
    }

    #[test]
    fn impossible_length_is_refused_before_memory_is_taken() {
        let mut header = record(1, &[])[..32].to_vec();
        header.extend_from_slice(&(2u32 << 20).to_le_bytes());
        let mut incoming = IncomingRecords::new(4 << 20);
        let next = incoming.next(&mut &header[..]);
        assert!(matches!(next, Err(Reject::BadFrame(_))), "{next:?}");
        assert!(incoming.coming.is_none());
    }

    #[test]
    fn record_has_exactly_its_own_memory() {
        let sent = [record(1, &[7; 300]), record(2, &[8; 60_000])].concat();
        let mut buffer = BytesMut::from(&sent[..]);
        let span = buffer.as_ptr_range();
        let mut incoming = IncomingRecords::new(sent.len());
        for len in [300, 60_000] {
            let (_, frame) = incoming.next(&mut buffer).unwrap().unwrap();
            assert!(!span.contains(&frame.as_ptr()));
            assert_eq!(frame.try_into_mut().unwrap().capacity(), len);
        }
    }
}
