//! Arbitrary bytes as a superblock and as key slots of a log, with the right tag or checksum so that the decoders are
//! reached. A superblock that is accepted is exactly what an encoder makes of what was decoded.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use sim::device::Machine;
use wal::inspect;
use wal::{Client, Key, Lsn, Mark, VolumeId};

fn key() -> Key {
    Key::new([9; 32])
}

fn with_tag(data: &[u8]) -> Vec<u8> {
    let mut page = data.to_vec();
    page.resize(4096, 0);
    let mut volume = VolumeId([0; 16]);
    volume.0.copy_from_slice(&page[16..32]);
    page[32..48].copy_from_slice(&key().derive("log key check", volume)[..16]);
    let tag = blake3::keyed_hash(&key().derive("log superblock", volume), &page[..4064]);
    page[4064..].copy_from_slice(tag.as_bytes());
    page
}

fn seed(clients: u8) -> Vec<u8> {
    let mark = |lsn| Mark {
        epoch: 2,
        lsn: Lsn(lsn),
        tag: [clients; 32],
    };
    let state = |number: u8| inspect::ClientState {
        client: Client(number),
        area_bytes: 5000,
        oldest: Lsn(8192),
        cookie: vec![number; usize::from(number)],
    };
    let superblock = inspect::Superblock {
        volume: VolumeId([7; 16]),
        generation: 5,
        session: [1; 16],
        ring_bytes: 1 << 20,
        epoch: 2,
        cut_epoch: 0,
        gaps: Vec::new(),
        tail: mark(4096),
        mark: mark(8192),
        clients: (0..clients).map(state).collect(),
    };
    inspect::encode_superblock(&superblock, &key()).to_vec()
}

/// The data as both copies of key slots.
fn key_slots(data: &[u8]) {
    let machine = Machine::new(&[("L", 1 << 20)]);
    let mut copy = data.to_vec();
    copy.resize((128 << 10) - 32, 0);
    let sum = blake3::hash(&copy);
    copy.extend_from_slice(sum.as_bytes());
    machine.device("L").plant(256 << 10, &copy);
    if let Ok((volume, slots)) = wal::key_slots(&*machine.device("L")) {
        assert!(slots.len() <= 64 << 10);
        wal::set_key_slots(&*machine.device("L"), &slots).expect("the same slots");
        assert_eq!(
            wal::key_slots(&*machine.device("L")).ok(),
            Some((volume, slots))
        );
    }
}

fuzz_target!(
    init: plant((1..4).map(seed).chain([b"bullakey0123456789abcdef\x01\0\0\0\0\0\0\0\x05slots".to_vec()])),
    |data: &[u8]| {
        let page = with_tag(&data[..data.len().min(4096)]);
        if let Ok(superblock) = inspect::superblock(&page, &key()) {
            assert!(superblock.clients.len() <= 6);
            assert_eq!(inspect::encode_superblock(&superblock, &key())[..], page[..]);
        }
        if data.starts_with(b"bullakey") {
            key_slots(&data[..data.len().min(100 << 10)]);
        }
    }
);
