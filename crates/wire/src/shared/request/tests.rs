//! Every message comes back as it was sent, has one encoding, and is refused beyond its limits.

use proptest::prelude::*;
use trust::device::Incarnation;
use trust::frame::Packer;
use trust::handle::{Hasher, Kind};
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust_shared::attest::Attest;
use trust_shared::entry::{Content, Entry, Ops, Prefix, body_hash};
use trust_shared::note::Note;

use super::*;
use crate::frame::{HEADER_BYTES, take};

const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

fn key() -> SecretKey {
    SecretKey::from_seed(&[3; 32])
}

fn prefix(size: u64) -> Prefix {
    Prefix {
        size,
        root: [9; 32],
    }
}

fn entry(outline: usize, body: &[u8], resume: bool) -> Request {
    let ops = Ops {
        n: 300,
        previous: [4; 32],
        outline: vec![1; outline].into(),
        body_hash: body_hash(body),
    };
    let entry = Entry {
        epoch: 0,
        device: DeviceKey::from(&key().public()),
        incarnation: Incarnation::from_bytes([5; 16]),
        seen: prefix(300),
        kept: 290,
        content: match resume {
            true => Content::Resume,
            false => Content::Ops(ops),
        },
    };
    Request::Entry {
        entry: Box::new(entry.sign(VOLUME, &key()).unwrap()),
        body: (!resume).then(|| Bytes::copy_from_slice(body)),
    }
}

fn record(bytes: &[u8]) -> Record {
    let hasher = Hasher::new(&[0; 32]);
    Record {
        handle: hasher.name(Kind::Data, bytes),
        frame: Packer::new().pack(Kind::Data, bytes).unwrap(),
    }
}

pub fn every() -> Vec<Request> {
    let note = Note {
        log: prefix(300).in_epoch(0),
        time_ms: 1,
    };
    let attest = Attest {
        epoch: u64::MAX,
        device: DeviceKey::from(&key().public()),
        seen: prefix(u64::MAX),
    };
    let slot = Slot {
        invitation: [6; 16],
        step: Step::Challenge,
    };
    let handles = vec![Handle::from_bytes([1; 32]), Handle::from_bytes([2; 32])];
    let records = vec![record(b"one"), record(&[0; 5000])];
    vec![
        Request::Open {
            heartbeat_ms: 250,
            note: None,
        },
        Request::Open {
            heartbeat_ms: u32::MAX,
            note: Some(note.sign(VOLUME, &key())),
        },
        entry(20, b"body", false),
        entry(0, b"", true),
        entry(MAX_OPS_BYTES - 1, b"1", false),
        Request::Mark(Nonce::from_bytes([8; 32])),
        Request::Attest(attest.sign(VOLUME, &key()).unwrap()),
        Request::Ask(DeviceKey::from_bytes([9; 32])),
        Request::Next,
        Request::Leaves {
            from: 7,
            count: MAX_LEAVES as u32,
        },
        Request::Bodies((0..MAX_NAMES as u64).collect()),
        Request::Store(records.clone()),
        Request::Pstore(records),
        Request::Retrieve(handles.clone()),
        Request::Cstore(handles.clone()),
        Request::Decref(handles),
        Request::Policies(u64::MAX),
        Request::Post {
            slot,
            letter: vec![1; MAX_LETTER_BYTES].into(),
        },
        Request::Take {
            slot,
            wait_ms: MAX_TAKE_MS,
        },
        Request::Ping,
        Request::Checkpoint(Bytes::from_static(b"posted")),
        Request::Checkpoints,
        Request::Usage,
    ]
}

fn body_of(request: &Request) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    request.put(7, &mut bytes);
    bytes[HEADER_BYTES..].to_vec()
}

#[test]
fn every_message_comes_back_within_its_limit() {
    for request in every() {
        let kind = request.kind();
        let mut bytes = BytesMut::new();
        request.put(9, &mut bytes);
        let most = max_body_bytes(kind).unwrap();
        let (header, body) = take(&mut bytes, most).unwrap().unwrap();
        assert_eq!((header.kind, header.id), (kind, 9));
        assert!(bytes.is_empty());
        assert_eq!(Request::decode(kind, &body), Ok(request));
    }
}

#[test]
fn shortened_and_prolonged_messages_are_refused_or_are_others() {
    for request in every() {
        let body = body_of(&request);
        let kind = request.kind();
        for cut in (0..body.len()).step_by(1 + body.len() / 300) {
            assert_ne!(Request::decode(kind, &body[..cut]), Ok(request.clone()));
        }
        let longer = [&body[..], &[0]].concat();
        assert_ne!(Request::decode(kind, &longer), Ok(request.clone()));
    }
}

#[test]
fn messages_over_a_limit_are_refused() {
    let refused =
        |kind: u8, body: &[u8]| assert!(Request::decode(kind, body).is_err(), "{kind:#x}");
    refused(kind::RETRIEVE, &[]);
    refused(kind::RETRIEVE, &[1; 33]);
    refused(kind::RETRIEVE, &vec![1; 32 * (MAX_NAMES + 1)]);
    refused(kind::STORE, &[]);
    refused(kind::STORE, &vec![1; MAX_STORE_BYTES + 1]);
    let small = body_of(&Request::Store(vec![record(b"1"); MAX_NAMES + 1]));
    refused(kind::STORE, &small);
    refused(kind::LEAVES, &[&[0; 8][..], &[0; 4]].concat());
    refused(kind::LEAVES, &[&[0; 8][..], &257u32.to_le_bytes()].concat());
    refused(kind::LEAVES, &[&[0xff; 8][..], &[1, 0, 0, 0]].concat());
    refused(kind::BODIES, &[]);
    refused(kind::BODIES, &[0; 16]);
    refused(kind::BODIES, &body_of(&Request::Bodies(vec![2, 1])));
    refused(kind::POST, &[1; 17]);
    refused(kind::POST, &[1; 17 + MAX_LETTER_BYTES + 1]);
    refused(
        kind::TAKE,
        &[&[1; 17][..], &(MAX_TAKE_MS + 1).to_le_bytes()].concat(),
    );
    refused(kind::TAKE, &[&[4; 17][..], &[0; 4]].concat());
    refused(kind::ATTEST, &[1; 200]);
    refused(kind::ENTER, &[]);
    refused(kind::DONE, &[]);
}

#[test]
fn entry_comes_with_its_body_and_resume_without() {
    let bytes = |request: &Request| match request {
        Request::Entry { entry, .. } => entry.bytes().clone(),
        _ => unreachable!(),
    };
    let encode = |entry: &[u8], body: &[u8]| {
        let mut e = Encoder::new();
        e.bytes(entry).raw(body);
        Request::decode(kind::ENTRY, &e.finish())
    };
    let (ops, resume) = (entry(20, b"body", false), entry(0, b"", true));
    assert!(encode(&bytes(&ops), b"").is_err());
    assert!(encode(&bytes(&resume), b"x").is_err());
    assert!(encode(&bytes(&ops), &[1; MAX_OPS_BYTES - 20]).is_ok());
    assert!(encode(&bytes(&ops), &[1; MAX_OPS_BYTES - 19]).is_err());
}

#[test]
fn every_type_has_a_limit_within_that_of_unknown_requests() {
    for kind in 0..=255 {
        if let Some(most) = max_body_bytes(kind) {
            assert!(most <= crate::frame::unknown_request_bytes(kind).unwrap());
        }
    }
}

proptest! {
    #[test]
    fn message_has_one_encoding(kind in 0x10u8..0x28, body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(kind, &body) {
            prop_assert_eq!(body_of(&request), body);
        }
    }
}
