//! Decoders read arbitrary and damaged bytes: they never panic, and bytes that they accept are the canonical
//! encoding of the result.

use proptest::collection::vec;
use proptest::prelude::*;
use trust::checkpoint;
use trust::encode::{Decoder, Encoder};
use trust::floor::Floor;
use trust::head::Head;
use trust::policy::{Last, Policy, Revocation, Successor, VolumeId};
use trust::root::{RootRecord, Totals};
use trust::statement::{Body, Signed, Statement};
use trust::timestamp::Timestamp;

use crate::world::*;

fn body_is_canonical<B: Body>(bytes: &[u8]) {
    let mut d = Decoder::new(bytes, "body");
    let Ok(body) = B::decode(&mut d) else {
        return;
    };
    let taken = bytes.len() - d.remaining();
    let mut e = Encoder::new();
    body.encode(&mut e);
    assert_eq!(e.finish(), bytes[..taken]);
}

fn all_are_canonical(bytes: &[u8]) {
    body_is_canonical::<Policy>(bytes);
    body_is_canonical::<RootRecord>(bytes);
    body_is_canonical::<Timestamp>(bytes);
    if let Ok(head) = Head::decode(bytes) {
        assert_eq!(head.encode().unwrap(), bytes);
    }
    let body = &bytes[..bytes.len().saturating_sub(32)];
    for bytes in [bytes.to_vec(), with_checksum(body.to_vec())] {
        if let Ok(floor) = Floor::decode(&bytes) {
            assert_eq!(floor.encode(), bytes);
        }
    }
    if let Ok(signed) = Signed::from_bytes(bytes) {
        assert_eq!(signed.to_bytes(), bytes);
    }
    if let Ok(statement) = Statement::decode(bytes.to_vec().into()) {
        assert_eq!(statement.bytes(), bytes);
    }
}

/// One value of each type, with all its optional parts.
fn specimens() -> Vec<Vec<u8>> {
    let mut world = World::new();
    let mut head = world.publish(1);
    head.timestamp = Some(sign(
        &world.timestamp(&head).statement(world.volume),
        &[8, 9],
    ));
    head.checkpoint = Some(world.checkpoint(&head, &[20]));
    let successor = Policy::Successor(Successor {
        last: Some(Last {
            version: 1,
            record_hash: [1; 32],
            log: world.log,
        }),
        lower: true,
        revoked: Some(Revocation {
            successor: Some(VolumeId::from_bytes([2; 32])),
        }),
        refused: vec![[3; 32], [4; 32]],
        ..world.successor(None)
    });
    let mut record = world.record(1);
    record.mirrors = vec!["bulla://a.example".into(), "/srv/b".into()];
    let genesis = read_policy_body(&world);
    vec![
        head.encode().unwrap(),
        adopted(&world.floor(), &[&head]).encode(),
        head.record.to_bytes(),
        head.record.statement().bytes().to_vec(),
        bytes_of(&successor),
        bytes_of(&record),
        bytes_of(&genesis),
        bytes_of(&world.timestamp(&head)),
    ]
}

fn read_policy_body(world: &World) -> Policy {
    let signed = world.policies.first().unwrap();
    signed.statement().read(VolumeId::UNBORN).unwrap()
}

fn bytes_of<B: Body>(body: &B) -> Vec<u8> {
    let mut e = Encoder::new();
    body.encode(&mut e);
    e.finish()
}

#[test]
fn changed_byte_is_refused_or_decodes_canonically() {
    for specimen in specimens() {
        all_are_canonical(&specimen);
        for at in 0..specimen.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = specimen.clone();
                bytes[at] ^= change;
                all_are_canonical(&bytes);
            }
            all_are_canonical(&specimen[..at]);
        }
    }
}

#[test]
fn head_with_a_changed_bit_is_refused() {
    let mut world = World::new();
    let head = world.publish(1);
    let honest = judge(&world.floor(), &head).unwrap();
    let bytes = head.encode().unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let Ok(head) = Head::decode(&changed) else {
                continue;
            };
            if let Ok(offer) = judge(&world.floor(), &head) {
                panic!("byte {at}, bit {bit}: {offer:?} instead of {honest:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        all_are_canonical(&bytes);
    }

    #[test]
    fn spliced_specimens_never_panic(
        one in 0usize..8, two in 0usize..8, cut in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
    ) {
        let all = specimens();
        let (one, two) = (&all[one], &all[two]);
        let bytes = [&one[..cut.index(one.len())], &two[from.index(two.len())..]].concat();
        all_are_canonical(&bytes);
    }

    #[test]
    fn arbitrary_checkpoints_never_panic(lines in vec("[ -~—]{0,120}", 0..8)) {
        let world = World::new();
        let text = checkpoint::text(world.volume, &world.log);
        let note = format!("{text}\n{}", lines.join("\n"));
        let witnesses = threshold(1, &[20]);
        prop_assert!(
            checkpoint::verify(note.as_bytes(), world.volume, &world.log, &witnesses).is_err()
        );
    }

    #[test]
    fn records_survive_a_round_trip(
        version in 1u64.., start: u64, duration: u64, mirrors in vec("[!-~]{1,40}", 0..16),
        files: u64, directories: u64, other: u64, bytes: u64,
    ) {
        let world = World::new();
        let totals = Totals { files, directories, other, bytes };
        let record = RootRecord { start, duration, totals, mirrors, ..world.record(version) };
        let statement = record.statement(world.volume);
        let read = Statement::decode(statement.bytes().clone()).unwrap();
        prop_assert_eq!(read.read::<RootRecord>(world.volume).unwrap(), record);
        prop_assert_eq!(read.hash(), statement.hash());
    }
}
