//! Tests of checkpoints: their signers, rows and proofs.

use crate::principal::{Device, Principal};
use std::collections::HashMap;

use proptest::prelude::*;

use super::super::samples::{VOLUME, device, key, refuses_cuts};
use super::*;
use trust::handle::Block;
use trust::tree::map::{Nodes, prove};

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
    let forged = Signed::from_bytes_of(trust::statement::Job::Shared, &forged).unwrap();
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
        Row::Times(file),
        Row::Hold(file, 1, 7),
        Row::Retention,
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
    let pin = Row::Pin(b"v1".as_slice().into());
    assert_eq!(Row::decode(&pin.encode()), Ok(pin));
    assert!(Row::decode(&[14]).is_err() && Row::decode(&[19]).is_err());
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

/// The key and the value of a row.
type Pair = (Vec<u8>, Vec<u8>);

/// The rows of a log of so many leaves with one device, in the order of their keys.
fn rows(size: u64) -> (LogPoint, Vec<Pair>) {
    use crate::members::{FirstMembers, Members};
    let label = |text: &str| crate::decision::Label::new(text).unwrap();
    let members = Members::new(FirstMembers {
        volume: Principal::from_bytes(*VOLUME.as_bytes()),
        volume_label: label("everybody"),
        user: Principal::from_bytes([9; 32]),
        user_label: label("anna"),
        device: key(1).public(),
    });
    let leaf = |at: u64| trust::history::leaf_hash(&at.to_le_bytes());
    let mut before = trust::history::Frontier::new();
    let begins = Window::begins(size);
    (0..begins).for_each(|at| before.push_hash(leaf(at)).unwrap());
    let window = Window {
        before: before.clone(),
        leaves: (begins..size).map(leaf).collect(),
    };
    let mut whole = before;
    for leaf in &window.leaves {
        whole.push_hash(*leaf).unwrap();
    }
    let author = Author {
        last_at: 2,
        resume_at: 1,
        attested: 0,
        ..author(1)
    };
    let policy = [&3u64.to_le_bytes()[..], &[4; 32]].concat();
    let mut all = vec![
        (Row::Policy, policy),
        (Row::Author(device(1)), author.encode()),
    ];
    all.extend(members.rows());
    all.extend(window.rows());
    let all = all.into_iter().map(|(row, value)| (row.encode(), value));
    (whole.point(1), all.collect())
}

fn read(log: LogPoint, rows: &[(Vec<u8>, Vec<u8>)]) -> Result<Parts, Reject> {
    let mut reader = Reader::new(Principal::from_bytes(*VOLUME.as_bytes()), log);
    for (key, value) in rows {
        reader.take(key, value)?;
    }
    reader.finish()
}

#[test]
fn rows_of_a_log_are_read_whole() {
    for size in [3, 63, 64, 65, 700, WINDOW + 1, WINDOW + PAGE] {
        let (log, rows) = rows(size);
        let parts = read(log, &rows).unwrap();
        assert_eq!(parts.policy.number, 3);
        assert_eq!(parts.authors.len(), 1);
        assert_eq!(parts.window.before.size(), Window::begins(size));
        assert_eq!(parts.members.keys().count(), 1);
    }
}

#[test]
fn rows_that_are_missing_changed_or_out_of_order_are_refused() {
    let (log, all) = rows(700);
    for at in 0..all.len() {
        let mut fewer = all.clone();
        let (key, _) = fewer.remove(at);
        let read = read(log, &fewer).map(drop);
        // A device that has not written has no row, and a role that nobody has.
        let may_lack = matches!(
            Row::decode(&key),
            Ok(Row::Author(_) | Row::Role(..) | Row::Device(_))
        );
        assert_eq!(read.is_ok(), may_lack, "without row {at}");
        let mut twice = all.clone();
        twice.insert(at, all[at].clone());
        assert!(self::read(log, &twice).is_err(), "row {at} twice");
        let mut long = all.clone();
        long[at].1.push(0);
        assert!(self::read(log, &long).is_err(), "row {at} with a byte more");
        let mut short = all.clone();
        short[at].1.pop();
        assert!(
            self::read(log, &short).is_err(),
            "row {at} with a byte less"
        );
    }
    let mut swapped = all.clone();
    swapped.swap(0, 1);
    assert!(read(log, &swapped).is_err());
    let mut strange = all.clone();
    strange.push((vec![15], Vec::new()));
    assert!(read(log, &strange).is_err());
}

#[test]
fn hashes_of_leaves_lead_to_the_root_of_the_log() {
    let (log, all) = rows(700);
    for (at, (key, value)) in all.iter().enumerate() {
        if !matches!(Row::decode(key), Ok(Row::Before | Row::Leaves(_))) {
            continue;
        }
        let mut changed = all.clone();
        let last = value.len() - 1;
        changed[at].1[last] ^= 1;
        assert!(read(log, &changed).is_err(), "row {at}");
    }
    let other = LogPoint {
        root: [9; 32],
        ..log
    };
    assert!(matches!(read(other, &all), Err(Reject::BadHistory(_))));
    // Fewer hashes than everybody needs.
    let (longer, _) = rows(701);
    assert!(read(longer, &all).is_err());
}

#[test]
fn author_of_a_position_beyond_the_log_is_refused() {
    let (_, all) = rows(700);
    let (short, few) = rows(2);
    let mut rows: Vec<_> = few.clone();
    assert!(read(short, &rows).is_err());
    rows[1] = all[1].clone();
    assert!(read(short, &rows).is_err());
}

#[test]
fn members_that_do_not_fit_together_are_refused() {
    let (log, all) = rows(10);
    let with = |row: Row, value: Vec<u8>| {
        let mut rows = all.clone();
        let key = row.encode();
        let place = rows.partition_point(|(known, _)| *known < key);
        rows.insert(place, (key, value));
        read(log, &rows).map(drop)
    };
    let device =
        |key: &[u8; 32], user: [u8; 32], since: u8| [&key[..], &user, &[since, 0]].concat();
    let [one, two] = [1, 2].map(|number| *key(number).public().as_bytes());
    let anna = [9; 32];
    assert_eq!(with(Row::Device(1), device(&two, anna, 3)), Ok(()));
    assert!(
        with(Row::Device(1), device(&one, anna, 3)).is_err(),
        "one key twice"
    );
    assert!(
        with(Row::Device(1), device(&two, [8; 32], 3)).is_err(),
        "nobody's"
    );
    assert!(
        with(Row::Device(1), device(&two, *VOLUME.as_bytes(), 3)).is_err(),
        "a group's"
    );
    assert!(
        with(Row::Device(1), device(&two, anna, 11)).is_err(),
        "later"
    );
    let principal =
        |group: u8, label: &str| [&[group, 3, 0, label.len() as u8][..], label.as_bytes()].concat();
    assert_eq!(with(Row::Principal([5; 32]), principal(0, "ben")), Ok(()));
    assert!(
        with(Row::Principal([5; 32]), principal(0, "anna")).is_err(),
        "a label twice"
    );
    assert!(with(Row::Principal([5; 32]), principal(2, "ben")).is_err());
    let role = |group: [u8; 32], user: [u8; 32], role: u8| with(Row::Role(group, user), vec![role]);
    assert_eq!(role(*VOLUME.as_bytes(), [1; 32], 0), Ok(()));
    assert!(
        role(*VOLUME.as_bytes(), [1; 32], 2).is_err(),
        "a role of nobody"
    );
    assert!(role(anna, anna, 0).is_err(), "a role in no group");
    assert!(role(*VOLUME.as_bytes(), [1; 32], 4).is_err());
    assert_eq!(with(Row::Accepted(0), vec![10]), Ok(()));
    assert!(with(Row::Accepted(0), vec![11]).is_err());
    assert!(with(Row::Accepted(1), vec![1]).is_err(), "nobody's");
    let decision = crate::decision::Decision::RemoveDevice { device: Device(0) };
    let op = crate::calls::decide(decision);
    let body = |ops| crate::ops::Body::new(ops).unwrap().encode();
    let late = |device: u8, seen: u8, body: &[u8]| {
        with(Row::Late(7, 0), [&[device, seen, 0][..], body].concat())
    };
    assert_eq!(late(0, 7, &body(vec![op.clone()])), Ok(()));
    assert!(
        late(0, 8, &body(vec![op.clone()])).is_err(),
        "has seen itself"
    );
    assert!(late(1, 7, &body(vec![op.clone()])).is_err(), "nobody's");
    assert!(late(0, 7, &body(vec![op.clone(), op])).is_err(), "two ops");
}
