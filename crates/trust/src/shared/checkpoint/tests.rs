//! Tests of checkpoints: their signers, rows and proofs.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::samples::{VOLUME, device, key, refuses_cuts};
use super::*;
use crate::handle::Block;
use crate::tree::map::{Nodes, prove};

struct Tree(HashMap<Handle<MapNode>, Bytes>);

impl Nodes for Tree {
    type Error = Reject;

    fn node(&self, handle: &Handle<MapNode>) -> Result<Block<MapNode>, Reject> {
        hasher().check(handle, self.0[handle].clone())
    }
}

fn hasher() -> Hasher {
    Hasher::new(&[2; 32])
}

fn author(n: u64) -> Author {
    Author {
        incarnation: Incarnation::from_bytes([n as u8; 16]),
        n,
        last: [n as u8; 32],
        last_at: 900 + n,
        resume_at: 5,
        attested: 800,
    }
}

/// A state of some devices and many names.
fn state() -> (MapRoot, Tree) {
    let mut nodes = HashMap::new();
    let mut builder = Builder::new(&hasher(), |handle, bytes: &Bytes| {
        nodes.insert(handle, bytes.clone());
    });
    builder.policy(3, &[4; 32]).unwrap();
    let mut devices: Vec<_> = (1..20).map(|n| (device(n), author(n.into()))).collect();
    devices.sort_by_key(|(device, _)| *device);
    for (device, author) in &devices {
        builder.author(device, author).unwrap();
    }
    for counter in 0..2000 {
        let file = File {
            principal: [6; 32],
            device: 1,
            counter,
        };
        builder.push(&Row::Inode(file), &[7; 40]).unwrap();
    }
    let early = builder.policy(3, &[4; 32]);
    assert!(early.is_err(), "rows out of order");
    (builder.finish().unwrap(), Tree(nodes))
}

fn made(state: MapRoot) -> Checkpoint {
    let log = LogPoint {
        epoch: 1,
        size: 1000,
        root: [8; 32],
    };
    Checkpoint { log, state }
}

fn checkpointers(needed: u8) -> Threshold {
    let keys = (4..7).map(|number| key(number).public()).collect();
    Threshold::new(needed, keys).unwrap()
}

fn verify(signed: &Signed, needed: u8, own: Option<u8>) -> Result<VerifiedCheckpoint, Reject> {
    let own = own.map(|number| key(number).public());
    let signatures = &mut Signatures::default();
    VerifiedCheckpoint::verify(
        signed,
        VOLUME,
        &checkpointers(needed),
        own.as_ref(),
        signatures,
    )
}

#[test]
fn rows_of_a_checkpoint_are_proved_one_by_one() {
    let (root, tree) = state();
    let signed = made(root).statement(VOLUME).sign(&[&key(4), &key(5)]);
    let checkpoint = verify(&signed, 2, None).unwrap();
    assert_eq!(checkpoint.checkpoint(), &made(root));
    let row = Row::Author(device(7));
    let proof = prove(&root, &row.encode(), &tree).unwrap();
    let found = checkpoint.author(&hasher(), &device(7), &proof).unwrap();
    assert_eq!(found, Some(author(7)));
    // The same node may show another row, but never this one under another key.
    let other = checkpoint.author(&hasher(), &device(8), &proof);
    assert_ne!(other, Ok(Some(author(7))));
    let far = File {
        principal: [6; 32],
        device: 1,
        counter: 1999,
    };
    let far = checkpoint.row(&hasher(), &Row::Inode(far), &proof);
    assert!(far.is_err(), "{far:?}");
    let absent = prove(&root, &Row::Author(device(30)).encode(), &tree).unwrap();
    let found = checkpoint.author(&hasher(), &device(30), &absent).unwrap();
    assert_eq!(found, None);
    let policy = prove(&root, &Row::Policy.encode(), &tree).unwrap();
    let found = checkpoint.row(&hasher(), &Row::Policy, &policy).unwrap();
    assert_eq!(found.unwrap()[..8], 3u64.to_le_bytes());
    let mut other = made(root);
    other.state.entries += 1;
    let signed = other.statement(VOLUME).sign(&[&key(4), &key(5)]);
    let other = verify(&signed, 2, None).unwrap();
    assert!(other.author(&hasher(), &device(7), &proof).is_err());
}

#[test]
fn checkpoint_needs_its_checkpointers() {
    let (root, _) = state();
    let statement = made(root).statement(VOLUME);
    let by = |numbers: &[u8]| {
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        statement.sign(&keys.iter().collect::<Vec<_>>())
    };
    assert!(verify(&by(&[4, 6]), 2, None).is_ok());
    assert!(verify(&by(&[4]), 2, None).is_err());
    assert!(verify(&by(&[4, 9]), 2, None).is_err());
    let elsewhere = made(root).statement(VolumeId::from_bytes([9; 32]));
    assert!(verify(&elsewhere.sign(&[&key(4), &key(5)]), 2, None).is_err());
}

#[test]
fn single_checkpointer_counts_for_itself_alone() {
    let (root, _) = state();
    let signed = made(root).statement(VOLUME).sign(&[&key(4)]);
    assert_eq!(
        verify(&signed, 1, None).err(),
        Some(Reject::NotSigned("one checkpointer alone"))
    );
    assert!(verify(&signed, 1, Some(4)).is_ok());
    assert!(verify(&signed, 1, Some(5)).is_err());
    let none = VerifiedCheckpoint::verify(
        &signed,
        VOLUME,
        &Threshold::none(),
        None,
        &mut Signatures::default(),
    );
    assert!(none.is_err());
    // A bad signature in the own name is refused.
    let other = made(state().0);
    let mut forged = Checkpoint {
        log: LogPoint {
            size: 7,
            ..other.log
        },
        ..other
    }
    .statement(VOLUME)
    .sign(&[&key(4)])
    .to_bytes();
    let at = forged.len() - 1;
    forged[at] ^= 1;
    let forged = Signed::from_bytes_of(crate::statement::Job::Shared, &forged).unwrap();
    assert!(verify(&forged, 1, Some(4)).is_err());
}

#[test]
fn checkpoint_is_no_statement_of_a_published_volume() {
    let (root, _) = state();
    let signed = made(root).statement(VOLUME).sign(&[&key(4)]);
    let published = Signed::from_bytes(&signed.to_bytes());
    assert!(matches!(published, Err(Reject::Unsupported { .. })));
}

#[test]
fn state_without_rows_is_refused() {
    assert!(Builder::new(&hasher(), |_, _: &Bytes| ()).finish().is_err());
}

#[test]
fn rows_have_one_encoding() {
    let file = File {
        principal: [6; 32],
        device: 1,
        counter: 2,
    };
    let rows = [
        Row::Policy,
        Row::Author(device(1)),
        Row::Device(1),
        Row::Principal([1; 32]),
        Row::Role([1; 32], [2; 32]),
        Row::Accepted(1),
        Row::Lock(file),
        Row::Fold([1; 32]),
        Row::Inode(file),
        Row::Added(file, 300),
        Row::Late(300, 2),
        Row::Before,
        Row::Leaves(640),
    ];
    for row in &rows {
        refuses_cuts(&row.encode(), |bytes| Row::decode(bytes).map(drop));
        assert_eq!(Row::decode(&row.encode()).as_ref(), Ok(row));
    }
    let name = |len: usize| Row::Entry(file, vec![b'a'; len].into()).encode();
    assert!(Row::decode(&name(0)).is_err() && Row::decode(&name(256)).is_err());
    assert!(Row::decode(&name(1)).is_ok() && Row::decode(&name(255)).is_ok());
    assert!(Row::decode(&[15]).is_err());
}

#[test]
fn row_of_an_author_has_one_encoding() {
    let bytes = author(300).encode();
    refuses_cuts(&bytes, |bytes| Author::decode(bytes).map(drop));
    assert_eq!(Author::decode(&bytes), Ok(author(300)));
    let impossible = [
        Author {
            resume_at: 1201,
            ..author(300)
        },
        Author {
            attested: 1201,
            ..author(300)
        },
    ];
    for author in impossible {
        assert!(Author::decode(&author.encode()).is_err());
    }
}

fn any_row() -> impl Strategy<Value = Row> {
    let file = (any::<[u8; 32]>(), any::<u32>(), any::<u64>());
    let file = file.prop_map(|(principal, device, counter)| File {
        principal,
        device,
        counter,
    });
    let name = prop::collection::vec(any::<u8>(), 1..10).prop_map(Bytes::from);
    (0..14, any::<u32>(), file, any::<[u8; 32]>(), name).prop_map(
        |(kind, number, file, other, name)| match kind {
            0 => Row::Policy,
            1 => Row::Author(DeviceKey::from_bytes(other)),
            2 => Row::Device(number),
            3 => Row::Principal(other),
            4 => Row::Role(file.principal, other),
            5 => Row::Accepted(number),
            6 => Row::Lock(file),
            7 => Row::Fold(other),
            8 => Row::Inode(file),
            9 => Row::Entry(file, name),
            10 => Row::Added(file, number.into()),
            11 => Row::Late(file.counter, number),
            12 => Row::Before,
            _ => Row::Leaves(file.counter),
        },
    )
}

proptest! {
    #[test]
    fn rows_are_ordered_as_their_keys(a in any_row(), b in any_row()) {
        prop_assert_eq!(a.cmp(&b), a.encode().cmp(&b.encode()));
        prop_assert_eq!(Row::decode(&a.encode()), Ok(a));
    }

    #[test]
    fn arbitrary_keys_are_refused_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0u8..16) {
        let bytes = [vec![kind], bytes].concat();
        if let Ok(row) = Row::decode(&bytes) {
            prop_assert_eq!(row.encode(), bytes);
        }
    }
}
