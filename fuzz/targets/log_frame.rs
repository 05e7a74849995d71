//! Arbitrary bytes as the header part of a log's frame, with the right tag so that the decoder is reached. They are
//! refused, or are exactly what an encoder makes of what was decoded.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use trust::encode::Encoder;
use wal::inspect::{self, Frame};
use wal::{Key, VolumeId};

const VOLUME: VolumeId = VolumeId([7; 16]);
const FIXED_BYTES: usize = 104;

fn key() -> Key {
    Key::new([9; 32])
}

/// The header part that the length field asks for, with its tag.
fn with_tag(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(data.len().next_multiple_of(4096).max(4096), 0);
    bytes[12..28].copy_from_slice(&VOLUME.0);
    let used = bytes[92..96].try_into().map_or(0, u32::from_le_bytes) as usize;
    let header = used.saturating_add(32).next_multiple_of(4096);
    if header <= bytes.len() {
        let tag = blake3::keyed_hash(&key().derive("log frame", VOLUME), &bytes[..header - 32]);
        bytes[header - 32..header].copy_from_slice(tag.as_bytes());
    }
    bytes
}

fn encode(frame: &Frame) -> Vec<u8> {
    let mut records = Encoder::new();
    let mut pages = 0;
    for record in &frame.records {
        records
            .u8(record.client.0)
            .u8(record.kind)
            .bytes(&record.body);
        records.varint(record.digests.len() as u64);
        for digest in &record.digests {
            records.raw(&digest.0);
        }
        pages += record.digests.len();
    }
    let records = records.finish();
    let mut out = Encoder::new();
    out.raw(b"bullafrm")
        .u32(u32::from(frame.padding))
        .raw(&VOLUME.0);
    out.u64(frame.mark.epoch).u64(frame.lsn.0);
    out.u64(frame.mark.lsn.0 - frame.lsn.0).u64(frame.stable.0);
    out.raw(&frame.previous)
        .u32((FIXED_BYTES + records.len()) as u32);
    out.u32(frame.records.len() as u32)
        .u32(pages as u32)
        .raw(&records);
    with_tag(&out.finish())
}

/// A valid frame with this many records.
fn seed(records: u8) -> Vec<u8> {
    let record = |number: u8| inspect::FrameRecord {
        client: wal::Client(number),
        kind: number,
        body: vec![number; usize::from(number)].into(),
        digests: vec![wal::Digest([number; 16]); usize::from(number)],
    };
    let bytes = u64::from((0..records).map(u64::from).sum::<u64>() as u32 + 1) * 4096;
    encode(&Frame {
        padding: false,
        lsn: wal::Lsn(8192),
        mark: wal::Mark {
            epoch: 3,
            lsn: wal::Lsn(8192 + bytes),
            tag: [0; 32],
        },
        stable: wal::Lsn(4096),
        previous: [5; 32],
        payload: wal::Lsn(0),
        records: (0..records).map(record).collect(),
    })
}

fuzz_target!(init: plant((0..5).map(seed)), |data: &[u8]| {
    let bytes = with_tag(&data[..data.len().min(64 << 10)]);
    if let Some(frame) = inspect::frame(&bytes, &key(), VOLUME) {
        let header = (frame.payload.0 - frame.lsn.0) as usize;
        let pages: usize = frame.records.iter().map(|record| record.digests.len()).sum();
        assert!(frame.padding || frame.mark.lsn.0 == frame.payload.0 + pages as u64 * 4096);
        assert!(frame.lsn < frame.mark.lsn && pages <= 2048);
        assert_eq!(encode(&frame), bytes[..header]);
    }
});
