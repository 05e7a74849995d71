//! The vectors of docs/formats/shared.md, read from the page: bytes of bodies, outlines and rows, and what must be
//! refused.

use std::sync::Arc;

use trust::inode::{FileKind, Inode, Time};
use trust::key::SecretKey;
use trust::map::MapRoot;
use trust::{Handle, Reject};
use trust_shared::calls::{self, Held, Replaced, Turn};
use trust_shared::change::Change;
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::effect::Lock;
use trust_shared::guard::Guard;
use trust_shared::hold::{END, Family, Hold, Range, Ranges};
use trust_shared::itable::Fold;
use trust_shared::ops::{Body, MAX_GUARDS, MAX_OP_GUARDS, Op};
use trust_shared::outline::{MAX_OP_CHANGES, MAX_OPS, MAX_OPS_BYTES, Outline};
use trust_shared::principal::{Device, Name, Principal, Target};

use crate::unhex::unhex;
use crate::world::*;

const PAGE: &str = include_str!("../../../../docs/formats/shared.md");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn map_root() -> MapRoot {
    MapRoot {
        handle: Handle::from_bytes([0xbb; 32]),
        height: 1,
        entries: 3,
        salt: [0; 16],
    }
}

/// Named ops that have all kinds of guards and changes among them.
fn samples() -> Vec<(&'static str, Op)> {
    let volume = volume();
    let calls = calls::Calls {
        volume: &volume,
        time: crate::world::TIME,
    };
    let spot = |at: &calls::Directory, text: &str, found| calls::Spot {
        directory: at.clone(),
        name: name(text),
        found,
    };
    let (d, f, g) = (
        file(EVERYBODY, 0, 1),
        file(EVERYBODY, 1, 300),
        file(TEAM, 2, 7),
    );
    let at = below(&root(), "d", d);
    let plain = |file| Some(target(file, FileKind::Regular));
    let held = |file, turn| Held {
        file,
        inode: Arc::new(regular("bulla")),
        turn,
    };
    let last = Lock {
        holder: Device(1),
        last: 9,
    };
    let fold = |upto, root| Fold { upto, root };
    let moved = calls.rename(
        &spot(&root(), "f", plain(f)),
        &spot(&at, "f", plain(g)),
        Replaced::Dropped(&held(g, Turn::Mine)),
    );
    let label = Label::new("anna").unwrap();
    let decisions = [
        (
            "AdmitDevice",
            Decision::AdmitDevice {
                device: Device(300),
                key: SecretKey::from_seed(&[7; 32]).public(),
                user: user(0),
            },
        ),
        (
            "RemoveDevice",
            Decision::RemoveDevice {
                device: Device(300),
            },
        ),
        (
            "AddUser",
            Decision::AddUser {
                user: user(0),
                label: label.clone(),
            },
        ),
        ("AddGroup", Decision::AddGroup { group: TEAM, label }),
        (
            "RemovePrincipal",
            Decision::RemovePrincipal { principal: TEAM },
        ),
        (
            "Grant",
            Decision::Grant {
                group: TEAM,
                user: user(0),
                role: Role::Writer,
            },
        ),
        (
            "Revoke",
            Decision::Revoke {
                group: TEAM,
                user: user(0),
            },
        ),
        ("Accept", Decision::Accept { device: Device(2) }),
        (
            "Pin",
            Decision::Pin {
                label: Label::new("v1").unwrap(),
                size: 300,
            },
        ),
        (
            "Unpin",
            Decision::Unpin {
                label: Label::new("v1").unwrap(),
            },
        ),
        ("Retain", Decision::Retain { seconds: 2_592_000 }),
        (
            "NameDevice",
            Decision::NameDevice {
                device: Device(300),
                label: Label::new("laptop").unwrap(),
            },
        ),
    ];
    let mut all = vec![
        (
            "create",
            calls
                .create(&spot(&at, "f", None), f, regular("bulla"))
                .unwrap(),
        ),
        (
            "mkdir",
            calls
                .create(&spot(&root(), "d", None), d, directory())
                .unwrap(),
        ),
        (
            "utimes of a directory",
            calls.set_attributes(
                &Held {
                    inode: Arc::new(directory()),
                    ..held(d, Turn::Free)
                },
                directory(),
                Some(Time {
                    seconds: -1,
                    nanos: 999_999_999,
                }),
            ),
        ),
        (
            "write",
            calls.write(&held(f, Turn::Free), content("seal"), Default::default()),
        ),
        (
            "rmdir",
            calls
                .rmdir(
                    &spot(&root(), "d", Some(target(d, FileKind::Directory))),
                    true,
                )
                .unwrap(),
        ),
        ("rename over a file", moved.unwrap().unwrap()),
        ("take over a lock", calls::lock(f, Some(last), Device(2))),
        ("unlock", calls::unlock(f)),
        ("claim", calls::claim(f, None)),
        ("claim of a lock that lapsed", calls::claim(f, Some(last))),
        (
            "pass",
            Op::new(
                vec![Guard::Holds { file: f }],
                vec![calls::give_up(f, Some(Device(300)))],
            ),
        ),
        (
            "hold, and release of one that lapsed",
            calls::hold(
                (f, Family::Fcntl, Device(2)),
                Ranges::new(vec![
                    Range {
                        start: 0,
                        end: 300,
                        exclusive: false,
                    },
                    Range {
                        start: 300,
                        end: END,
                        exclusive: true,
                    },
                ])
                .unwrap(),
                None,
                &[(Device(1), 9)],
            ),
        ),
        (
            "renewed hold",
            calls::hold(
                (f, Family::Flock, Device(2)),
                Ranges::whole(true),
                Some(&Hold {
                    ranges: Ranges::whole(true),
                    since: 17,
                    last: 20,
                }),
                &[],
            ),
        ),
        (
            "write under a hold",
            Op::new(
                vec![Guard::HeldSince {
                    file: f,
                    family: Family::Flock,
                    device: Device(2),
                    position: 17,
                }],
                vec![Change::Remove { file: f }],
            ),
        ),
        ("release", calls::release(f, Family::Flock, Device(2))),
        ("first fold", calls::fold(TEAM, None, fold(12, None))),
        (
            "fold",
            calls::fold(TEAM, Some(fold(12, None)), fold(500, Some(map_root()))),
        ),
    ];
    let decisions = decisions.into_iter();
    all.extend(decisions.map(|(name, decision)| (name, calls::decide(decision))));
    all
}

#[test]
fn vectors_are_those_of_the_page() {
    let mut missing = Vec::new();
    for (what, op) in samples() {
        let body = Body::new(vec![op]).unwrap();
        let outline = body.outline();
        assert_eq!(Body::decode(&body.encode()), Ok(body.clone()));
        assert_eq!(Outline::decode(&outline.encode()), Ok(outline.clone()));
        let row = format!(
            "| {what} | `{}` | `{}` |",
            hex(&body.encode()),
            hex(&outline.encode())
        );
        if !PAGE.contains(&row) {
            missing.push(row);
        }
    }
    let to = target(file(EVERYBODY, 1, 300), FileKind::Directory);
    assert_eq!(Target::decode(&to.encode()), Ok(to));
    let row = format!("is `{}`.", hex(&to.encode()));
    if !PAGE.contains(&row) {
        missing.push(row);
    }
    assert!(
        missing.is_empty(),
        "not on the page:\n{}",
        missing.join("\n")
    );
}

#[test]
fn every_refused_vector_of_the_page_is_refused_with_its_verdict() {
    let rows = PAGE.lines().filter_map(|line| {
        let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let cells: Vec<&str> = line.split(" | ").collect();
        let [
            what @ ("body" | "outline" | "entry of a directory"),
            bytes,
            verdict,
            rule,
        ] = cells[..]
        else {
            return None;
        };
        let bytes = bytes.strip_prefix('`')?.strip_suffix('`')?;
        Some((what, unhex(bytes), verdict, rule))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 25, "{} rows", rows.len());
    for (what, bytes, verdict, rule) in rows {
        let refused = match what {
            "body" => Body::decode(&bytes).map(drop),
            "outline" => Outline::decode(&bytes).map(drop),
            _ => Target::decode(&bytes).map(drop),
        };
        let fits = match verdict {
            "malformed" => matches!(refused, Err(Reject::Malformed { .. })),
            "unsupported" => matches!(refused, Err(Reject::Unsupported { .. })),
            "accepted" => refused.is_ok(),
            other => panic!("{other} is no verdict"),
        };
        assert!(fits, "{what} {rule}: {refused:?}");
    }
}

fn lock(counter: u64) -> Change {
    Change::Lock {
        file: file(EVERYBODY, 0, counter),
    }
}

fn unlocked(counter: u64) -> Guard {
    Guard::Unlocked {
        file: file(EVERYBODY, 0, counter),
    }
}

fn link(number: u64) -> Guard {
    Guard::Linked {
        directory: file(EVERYBODY, 0, number),
        parent: file(EVERYBODY, 0, number + 1),
        name: name("d"),
    }
}

#[test]
fn body_over_its_bounds_is_refused() {
    let one = || Op::new(Vec::new(), vec![lock(1)]);
    assert!(Body::new((0..MAX_OPS).map(|_| one()).collect()).is_ok());
    assert!(Body::new((0..=MAX_OPS).map(|_| one()).collect()).is_err());
    let changes = |count: usize| (0..count as u64).map(lock).collect::<Vec<_>>();
    assert!(Body::new(vec![Op::new(Vec::new(), changes(MAX_OP_CHANGES))]).is_ok());
    assert!(Body::new(vec![Op::new(Vec::new(), changes(MAX_OP_CHANGES + 1))]).is_err());
    let guards = |count: usize| (0..count as u64).map(unlocked).collect::<Vec<_>>();
    assert!(Body::new(vec![Op::new(guards(MAX_OP_GUARDS), changes(1))]).is_ok());
    assert!(Body::new(vec![Op::new(guards(MAX_OP_GUARDS + 1), changes(1))]).is_err());
    let path = |count: usize| (0..count as u64).map(link).collect::<Vec<_>>();
    assert!(Body::new(vec![Op::new(path(MAX_GUARDS), changes(1))]).is_ok());
    assert!(Body::new(vec![Op::new(path(MAX_GUARDS + 1), changes(1))]).is_err());
    let halves = [path(MAX_GUARDS / 2), path(MAX_GUARDS / 2 + 1)];
    let halves = halves.map(|guards| Op::new(guards, changes(1)));
    assert!(Body::new(halves.into()).is_err());
    assert!(Body::new(vec![Op::new(Vec::new(), Vec::new())]).is_err());
    assert!(Body::new(vec![Op::new(Vec::new(), vec![lock(1), lock(1)])]).is_err());
}

#[test]
fn body_and_outline_of_48_kib_are_refused_together() {
    let long = "n".repeat(255);
    let change = |number: u64| Change::Unlink {
        directory: file(EVERYBODY, 0, number),
        name: Name::new(long.as_bytes()).unwrap(),
    };
    let ops = |count: u64| {
        (0..count)
            .map(|number| Op::new(Vec::new(), vec![change(number)]))
            .collect()
    };
    let body = Body::new(ops(90)).unwrap();
    let bytes = body.encode().len() + body.outline().encode().len();
    assert!(
        bytes <= MAX_OPS_BYTES && bytes > MAX_OPS_BYTES - 2000,
        "{bytes}"
    );
    assert!(Body::new(ops(95)).is_err());
}

#[test]
fn inode_of_a_set_has_no_entries_and_at_most_512_bytes_of_content() {
    let set = |inode: Inode| {
        let change = Change::Set {
            file: file(EVERYBODY, 0, 1),
            inode: Arc::new(inode),
        };
        Body::new(vec![Op::new(Vec::new(), vec![change])])
    };
    assert!(set(regular(&"x".repeat(512))).is_ok());
    assert!(set(regular(&"x".repeat(513))).is_err());
    assert!(set(directory()).is_ok());
    for (map, opaque) in [(Some(map_root()), false), (None, true)] {
        let content = trust::inode::Content::Directory { map, opaque };
        assert!(set(Inode::new(0o755, Default::default(), content)).is_err());
    }
}

#[test]
fn principals_are_named_once_in_order() {
    let high = Principal::from_bytes([9; 32]);
    let changes = vec![
        Change::Lock {
            file: file(high, 0, 1),
        },
        Change::Lock {
            file: file(EVERYBODY, 0, 1),
        },
    ];
    let body = Body::new(vec![Op::new(Vec::new(), changes)]).unwrap();
    let keys = body.outline();
    assert!(keys.ops()[0].is_sorted());
    assert_eq!(body.encode()[1], 2);
    assert_eq!(body.encode()[2..34], *EVERYBODY.as_bytes());
}
