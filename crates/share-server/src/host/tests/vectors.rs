//! The bytes of docs/formats/shared-server.md, and other bytes in their places.

use bytes::Bytes;
use trust::device::{DeviceKey, Incarnation};
use trust::encode::Encoder;
use trust::history::Frontier;
use trust_shared::entry::Author;

use super::super::leaves::FileHead;
use super::super::leaves::file::Content;
use super::super::record::{Records, StoredLeaf, read_record};
use super::super::trail::{Snapshot, Trail};
use super::world::genesis_policy;
use ordering::roster::Roster;

/// Vectors of the page, in their order, in hexadecimal.
fn vectors() -> Vec<String> {
    let page = include_str!("../../../../../docs/formats/shared-server.md");
    let blocks = page.split("```vector\n").skip(1);
    let inner = blocks.filter_map(|block| block.split("```").next());
    inner
        .map(|block| block.split_whitespace().collect())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn leaves() -> [StoredLeaf; 2] {
    let marks = [&[3][..], &[0x0b; 32]].concat();
    let marks = StoredLeaf {
        leaf: marks.into(),
        body: None,
        decides: false,
    };
    let entry = StoredLeaf {
        leaf: Bytes::from_static(b"entry"),
        body: Some(Bytes::from_static(b"body")),
        decides: true,
    };
    [marks, entry]
}

/// A log of one leaf.
fn one() -> Frontier {
    let mut log = Frontier::new();
    log.push(b"before").unwrap();
    log
}

fn trail() -> Trail {
    let (volume, _) = genesis_policy();
    let founder = trust_shared::genesis::Founder {
        user: [6; 32],
        name: "ada".to_owned(),
        device: super::world::key(1).public(),
    };
    let mut trail = Trail::new(Roster::new(volume, &founder).unwrap());
    trail.frontier = one();
    trail.frontier.push(b"other").unwrap();
    let author = Author {
        incarnation: Incarnation::from_bytes([0x1c; 16]),
        n: 5,
        last: [0x1a; 32],
        last_at: 1,
        resume_at: 0,
        attested: 1,
    };
    let device = DeviceKey::from_bytes([0xde; 32]);
    trail.authors.insert(device, author);
    trail.deciding = vec![0, 1];
    trail
}

fn volume() -> trust::volume_id::VolumeId {
    trust::volume_id::VolumeId::from_bytes([0x70; 32])
}

#[test]
fn record_of_the_page_is_written_and_read() {
    let mut records = Records::from(0);
    leaves().iter().for_each(|leaf| records.add(leaf));
    let batch = records.batches(1 << 20).remove(0);
    assert_eq!(hex(&batch[0].body), vectors()[0]);
    let (first, read) = read_record(&batch[0].body).unwrap();
    assert_eq!((first, &read[..]), (0, &leaves()[..]));
}

#[test]
fn file_of_the_page_is_written_and_its_head_read() {
    let mut content = Content::after(one());
    assert!(content.extend(&leaves(), &[]));
    let (row, bytes) = content.encode();
    assert_eq!(hex(&bytes), vectors()[1]);
    assert_eq!(row.name(), "leaves/0000000000000001-0000000000000003");
    let head = &bytes[..36 + 1 + 32 + 32];
    let read = FileHead::decode(head, &(1..3)).unwrap();
    assert_eq!((read.row, read.frontier), (row, one()));
    refuses_others(head, |bytes| FileHead::decode(bytes, &(1..3)).is_err());
    assert!(FileHead::decode(head, &(1..4)).is_err());
    assert!(FileHead::decode(head, &(0..2)).is_err());
}

#[test]
fn snapshot_of_the_page_is_written_and_read() {
    let bytes = trail().encode(volume(), 0);
    assert_eq!(hex(&bytes), vectors()[2]);
    let read = Snapshot::decode(&bytes, volume(), 0).unwrap();
    let trail = trail();
    let expected = Snapshot {
        frontier: trail.frontier,
        authors: trail.authors,
        deciding: trail.deciding,
    };
    assert_eq!(read, expected);
    refuses_others(&bytes, |bytes| {
        Snapshot::decode(bytes, volume(), 0).is_err()
    });
    assert!(Snapshot::decode(&bytes, volume(), 1).is_err());
}

fn refuses_others(bytes: &[u8], refuses: impl Fn(&[u8]) -> bool) {
    for at in 0..bytes.len() {
        assert!(refuses(&bytes[..at]), "cut at {at}");
        let mut bad = bytes.to_vec();
        bad[at] ^= 1 << (at % 8);
        assert!(refuses(&bad), "bit of byte {at}");
    }
    assert!(refuses(&[bytes, &[0]].concat()));
}

#[test]
fn record_that_is_cut_or_changed_is_refused_or_reads_otherwise() {
    let mut records = Records::from(300);
    leaves().iter().for_each(|leaf| records.add(leaf));
    let body = records.batches(1 << 20).remove(0).remove(0).body;
    let whole = read_record(&body).unwrap();
    for at in 0..body.len() {
        let cut = read_record(&body.slice(..at));
        assert!(cut.is_err() || cut.is_ok_and(|(_, leaves)| leaves.len() < whole.1.len()));
        for bit in 0..8 {
            let mut bad = body.to_vec();
            bad[at] ^= 1 << bit;
            assert!(read_record(&bad.into()).ok() != Some(whole.clone()));
        }
    }
    let mut none = Encoder::new();
    none.varint(u64::MAX);
    assert!(read_record(&none.finish().into()).is_err());
}

#[test]
fn batches_hold_all_records_within_their_bounds() {
    let mut records = Records::from(7);
    let leaf = StoredLeaf {
        leaf: vec![1; 40_000].into(),
        body: Some(vec![2; 5000].into()),
        decides: false,
    };
    (0..10).for_each(|_| records.add(&leaf));
    let small = StoredLeaf {
        leaf: vec![1; 40].into(),
        ..leaf.clone()
    };
    (0..100).for_each(|_| records.add(&small));
    let batches = records.batches(130 << 10);
    let mut next = 7;
    for batch in &batches {
        let bytes: usize = batch.iter().map(|record| record.body.len() + 8).sum();
        assert!(bytes <= 130 << 10);
        for record in batch {
            let (first, leaves) = read_record(&record.body).unwrap();
            assert_eq!(first, next);
            next += leaves.len() as u64;
        }
    }
    assert_eq!(next, 117);
}
