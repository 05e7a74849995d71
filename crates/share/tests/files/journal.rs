//! The bytes of calls.

use bytes::Bytes;
use share::files::{Attributes, Call, Cursor, FileRef, Over, Place, Replace, Seen};
use trust::inode::{Inode, Owner, Time};
use trust::{Handle, Reject};
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::hold::{Family, Ranges};
use trust_shared::principal::{Device, FileId, INumber, Principal};

use crate::asks::{directory, name, place, regular, symlink, text};
use crate::world::key;

fn file(counter: u64) -> FileId {
    FileId {
        principal: Principal::from_bytes([3; 32]),
        number: INumber {
            device: Device(70_000),
            counter,
        },
    }
}

fn create(inode: Inode, owner: Option<Principal>, replace: bool) -> Call {
    Call::Create {
        place: place(file(0), "a/b"),
        number: (1 << 48) - 1,
        inode: Box::new(inode),
        owner,
        replace: replace.into(),
    }
}

fn reading_calls() -> Vec<Call> {
    let root = place(file(0), "");
    let deep = place(file(1 << 40), "a/b/c");
    let list = |directory, after, inodes| Call::List {
        directory,
        after,
        most: 300,
        inodes,
    };
    vec![
        Call::Lookup {
            place: root.clone(),
            follow: false,
        },
        Call::Lookup {
            place: deep.clone(),
            follow: true,
        },
        list(FileRef::File(file(9)), None, false),
        list(FileRef::Place(deep), Some(name("x")), true),
        Call::Members,
        Call::Changed {
            place: place(file(0), "a/b"),
        },
        Call::Feed {
            since: None,
            wait: false,
            hold_ms: 0,
        },
        Call::Feed {
            since: Some(Cursor {
                epoch: 2,
                size: 300,
            }),
            wait: true,
            hold_ms: u32::MAX,
        },
    ]
}

fn setting_calls() -> Vec<Call> {
    let mtime = Time {
        seconds: -1,
        nanos: 999_999_999,
    };
    let all = Attributes {
        mode: Some(0o7777),
        mtime: Some(mtime),
        owner: Some(Owner { uid: 1, gid: 2 }),
        xattrs: vec![
            (
                Bytes::from_static(b"user.a"),
                Some(Bytes::from_static(b"1")),
            ),
            (Bytes::from_static(b"user.b"), None),
        ],
    };
    let set = |attributes, expect| Call::SetAttributes {
        file: FileRef::File(file(2)),
        attributes,
        expect,
    };
    let put = |seen| Call::Create {
        place: place(file(0), "f"),
        number: 5,
        inode: Box::new(regular("text")),
        owner: None,
        replace: Replace::Seen(seen),
    };
    let content = |expect| Call::SetContent {
        file: FileRef::Place(place(file(0), "f")),
        content: text("some text"),
        mtime,
        expect,
    };
    vec![
        create(regular("text"), None, false),
        create(directory(), Some(Principal::from_bytes([8; 32])), true),
        create(symlink("../x"), None, true),
        put(Seen(None)),
        put(Seen(Some((file(6), text("seen"))))),
        content(None),
        content(Some(text(""))),
        set(Attributes::default(), None),
        set(all, Some(Handle::from_bytes([5; 32]))),
    ]
}

fn naming_calls() -> Vec<Call> {
    let (from, to) = (place(file(0), "a"), place(file(0), "b/c"));
    let rename = |over| Call::Rename {
        from: from.clone(),
        to: to.clone(),
        over,
    };
    vec![
        Call::Unlink {
            place: from.clone(),
        },
        Call::Rmdir {
            place: from.clone(),
        },
        rename(Over::Replace),
        rename(Over::Refuse),
        rename(Over::Exchange),
        rename(Over::Seen(Seen(None))),
        rename(Over::Seen(Seen(Some((file(6), text("seen")))))),
        Call::Link {
            file: FileRef::File(file(2)),
            to: to.clone(),
        },
    ]
}

fn deciding_calls() -> Vec<Call> {
    let (user, group) = (
        Principal::from_bytes([1; 32]),
        Principal::from_bytes([2; 32]),
    );
    let label = || Label::new("somebody").unwrap();
    let device = Device(4);
    let role = Role::Admin;
    let key = key(1).public();
    let principal = user;
    let decisions = [
        Decision::AdmitDevice { device, key, user },
        Decision::RemoveDevice { device },
        Decision::AddUser {
            user,
            label: label(),
        },
        Decision::AddGroup {
            group,
            label: label(),
        },
        Decision::RemovePrincipal { principal },
        Decision::Grant { group, user, role },
        Decision::Revoke { group, user },
        Decision::Accept { device },
        Decision::NameDevice {
            device,
            label: label(),
        },
        Decision::Pin {
            label: label(),
            size: 1 << 40,
        },
        Decision::Unpin { label: label() },
        Decision::Retain { seconds: 1 << 30 },
    ];
    let file = FileRef::File(file(2));
    let lock = |wait| Call::Lock {
        file: file.clone(),
        wait,
    };
    let others = [
        Call::Fold(user),
        lock(true),
        lock(false),
        Call::Unlock { file: file.clone() },
        Call::Hold {
            file: file.clone(),
            family: Family::Fcntl,
            ranges: Ranges::whole(true),
            wait: true,
            lapsed: 1 << 40,
        },
        Call::Release {
            file: file.clone(),
            family: Family::Flock,
        },
        Call::Holders {
            file: file.clone(),
            family: Family::Fcntl,
        },
        Call::Under {
            locks: vec![(Family::Flock, 7), (Family::Fcntl, 1 << 40)],
            call: Box::new(Call::SetContent {
                file,
                content: text("x"),
                mtime: Time::default(),
                expect: Some(text("y")),
            }),
        },
    ];
    decisions
        .map(Call::Decide)
        .into_iter()
        .chain(others)
        .collect()
}

fn all_calls() -> Vec<Call> {
    [
        reading_calls(),
        setting_calls(),
        naming_calls(),
        deciding_calls(),
    ]
    .concat()
}

#[test]
fn calls_come_back_from_their_bytes() {
    for call in all_calls() {
        assert_eq!(Call::decode(&call.encode()), Ok(call));
    }
}

#[test]
fn cut_and_prolonged_calls_are_refused() {
    for call in all_calls() {
        let bytes = call.encode();
        for cut in 0..bytes.len() {
            assert!(
                Call::decode(&bytes[..cut]).is_err(),
                "{call:?} cut at {cut}"
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(Call::decode(&longer).is_err(), "{call:?} and a byte");
    }
}

#[test]
fn flipped_bits_of_calls_never_panic_and_never_give_two_encodings() {
    for call in all_calls() {
        let bytes = call.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Call::decode(&flipped) {
                assert_eq!(other.encode(), flipped, "{call:?}, bit {bit}");
            }
        }
    }
}

#[test]
fn counts_of_calls_are_bounded_before_anything_is_allocated() {
    let mut e = trust::encode::Encoder::new();
    e.u8(0).u8(7).raw(&[3; 32]).varint(0).varint(0);
    let mut long = e;
    long.varint(u64::MAX);
    let found = Call::decode(&long.finish());
    assert!(matches!(found, Err(Reject::Malformed { .. })));
    assert!(matches!(
        Call::decode(&[1, 1]),
        Err(Reject::Unsupported { .. })
    ));
    let deep = Place {
        start: file(0),
        path: vec![name("x"); share::files::MAX_PLACE_NAMES + 1],
    };
    let call = Call::Unlink { place: deep };
    assert!(Call::decode(&call.encode()).is_err());
}
