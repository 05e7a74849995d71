//! Members at positions: what waits, what counts from when on, and what an administrator cannot do.

use super::*;
use crate::change::Change;
use crate::guard::Guard;
use crate::principal::{FileId, INumber};
use trust::key::SecretKey;

const VOLUME: Principal = Principal::from_bytes([1; 32]);
const ANNA: Principal = Principal::from_bytes([2; 32]);
const BEN: Principal = Principal::from_bytes([3; 32]);
const TEAM: Principal = Principal::from_bytes([4; 32]);

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(number: u8) -> PublicKey {
    SecretKey::from_seed(&[number; 32]).public()
}

fn members() -> Members {
    Members::new(FirstMembers {
        volume: VOLUME,
        volume_label: label("everybody"),
        user: ANNA,
        user_label: label("anna"),
        device: key(1),
    })
}

fn written(device: u32, position: u64, covers: u64) -> Written {
    Written {
        position,
        device: Device(device),
        seen: covers,
        kept: covers,
    }
}

/// Puts an entry with these decisions into the log; what became of those that it attests.
fn log(members: &mut Members, at: Written, decisions: Vec<Decision>) -> Vec<Decided> {
    let op = |decision| Op::new(Vec::new(), vec![Change::Decide(decision)]);
    let body = Body::new(decisions.into_iter().map(op).collect()).unwrap();
    let decided = members.take_effect(&at);
    members.propose(&at, &body.outline(), &body);
    decided
}

fn results(decided: &[Decided]) -> Vec<Result<(), NoEffect>> {
    decided.iter().map(|decided| decided.result).collect()
}

/// Decisions of device 0 at `position`, and an entry after it that attests them.
fn decide(members: &mut Members, position: u64, list: Vec<Decision>) -> Vec<Result<(), NoEffect>> {
    log(members, written(0, position, position), list);
    let next = written(0, position + 1, position + 1);
    results(&log(members, next, Vec::new()))
}

fn ben_with_device() -> Vec<Decision> {
    vec![
        Decision::AddUser {
            user: BEN,
            label: label("ben"),
        },
        Decision::AdmitDevice {
            device: Device(1),
            key: key(2),
            user: BEN,
        },
        Decision::Grant {
            group: VOLUME,
            user: BEN,
            role: Role::Writer,
        },
    ]
}

#[test]
fn decision_counts_after_its_authors_next_entry_that_attests_it() {
    let mut members = members();
    log(&mut members, written(0, 4, 4), ben_with_device());
    let seen_only = Written {
        kept: 4,
        ..written(0, 5, 5)
    };
    assert!(log(&mut members, seen_only, Vec::new()).is_empty());
    assert!(log(&mut members, written(7, 6, 6), Vec::new()).is_empty());
    assert!(!members.active(Device(1), 100));
    let decided = log(&mut members, written(0, 9, 5), Vec::new());
    assert_eq!(results(&decided), [Ok(()); 3]);
    assert_eq!((decided[1].position, decided[1].op), (4, 1));
    assert!(!members.active(Device(1), 9));
    assert!(members.active(Device(1), 10));
    assert_eq!(members.admitted(Device(1)), Some(10));
    assert!(!members.may_write(Device(1), VOLUME, 9));
    assert!(members.may_write(Device(1), VOLUME, 10));
    assert!(!members.is_admin(Device(1), 10));
}

#[test]
fn change_of_a_role_is_found_between_the_positions_where_it_counts_and_not_before() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let team = Decision::AddGroup {
        group: TEAM,
        label: label("team"),
    };
    let grant = |user| Decision::Grant {
        group: TEAM,
        user,
        role: Role::Reader,
    };
    let remove_team = Decision::RemovePrincipal { principal: TEAM };
    let remove_device = Decision::RemoveDevice { device: Device(1) };
    // Each counts from two positions later on. These are those that change something for Ben, and for Anna.
    let steps = [
        (10, team, false, false),
        (20, grant(ANNA), false, true),
        (30, grant(BEN), true, false),
        (40, remove_team, true, true),
        (50, remove_device, true, false),
    ];
    for (at, decision, of_ben, of_anna) in steps {
        assert_eq!(decide(&mut members, at, vec![decision]), [Ok(())]);
        let changes = [1, 0].map(|device| {
            let counts = members.role_changes(Device(device), at + 1, at + 2);
            let around = members.role_changes(Device(device), at + 2, at + 9);
            assert!(!members.role_changes(Device(device), at, at + 1) && !around);
            counts
        });
        assert_eq!(changes, [of_ben, of_anna], "{at}");
    }
    assert!(members.role_changes(Device(1), 0, 60));
    assert!(!members.role_changes(Device(9), 0, 60));
}

#[test]
fn removed_device_is_no_member_from_then_on_and_comes_back_never() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let remove = vec![Decision::RemoveDevice { device: Device(1) }];
    assert_eq!(decide(&mut members, 10, remove.clone()), [Ok(())]);
    assert!(members.active(Device(1), 11) && !members.active(Device(1), 12));
    assert!(!members.may_read(Device(1), BEN, 12));
    let again = |device, number| Decision::AdmitDevice {
        device: Device(device),
        key: key(number),
        user: BEN,
    };
    let found = decide(
        &mut members,
        20,
        vec![again(1, 9), again(2, 2), again(2, 3)],
    );
    assert_eq!(
        found,
        [Err(NoEffect::Exists), Err(NoEffect::Exists), Ok(())]
    );
    assert_eq!(decide(&mut members, 30, remove), [Err(NoEffect::NotFound)]);
    assert_eq!(members.next_device(), Some(Device(3)));
    let found = [2, 3, 9].map(|number| members.number(&key(number)));
    assert_eq!(found, [Some(Device(1)), Some(Device(2)), None]);
}

#[test]
fn device_has_the_last_name_that_an_administrator_gave_it() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    assert_eq!(members.device_label(Device(1)), None);
    let name = |device, text: &str| Decision::NameDevice {
        device: Device(device),
        label: label(text),
    };
    // Two devices may have one name. One that nobody has admitted has none.
    let named = vec![name(0, "laptop"), name(1, "laptop"), name(7, "x")];
    let found = decide(&mut members, 10, named);
    assert_eq!(found, [Ok(()), Ok(()), Err(NoEffect::NotFound)]);
    assert_eq!(members.device_label(Device(1)), Some(&label("laptop")));
    assert_eq!(decide(&mut members, 20, vec![name(1, "desk")]), [Ok(())]);
    assert_eq!(members.device_label(Device(1)), Some(&label("desk")));
    assert_eq!(members.device_label(Device(0)), Some(&label("laptop")));
    // A user cannot name its own device.
    let op = Op::new(Vec::new(), vec![Change::Decide(name(1, "y"))]);
    let judged = members.judge(&written(1, 25, 25), &op, &|_| true);
    assert_eq!(judged, Some(Outcome::None(NoEffect::NotPermitted)));
    // A removed device keeps its name in the log, and gets no other.
    let remove = vec![Decision::RemoveDevice { device: Device(1) }];
    decide(&mut members, 30, remove);
    let late = decide(&mut members, 40, vec![name(1, "z")]);
    assert_eq!(late, [Err(NoEffect::NotFound)]);
    assert_eq!(members.device_label(Device(1)), Some(&label("desk")));
    // Another process of the same user, and a device that begins with a checkpoint, know the names too.
    let mut e = trust::encode::Encoder::new();
    members.encode_page(50, &mut e);
    let page = e.finish();
    let mut d = trust::encode::Decoder::new(&page, "page");
    let read = Members::decode_page(&mut d).unwrap();
    let mut rows = MemberRows::new(VOLUME, 50);
    for (row, value) in members.rows() {
        assert!(rows.take(&row, &value).unwrap());
    }
    for other in [read, rows.finish().unwrap()] {
        assert_eq!(other.device_label(Device(1)), Some(&label("desk")));
        assert_eq!(other.device_label(Device(0)), Some(&label("laptop")));
    }
}

#[test]
fn name_of_a_device_in_a_row_is_one_that_a_decision_can_give() {
    let mut members = members();
    let name = Decision::NameDevice {
        device: Device(0),
        label: label("laptop"),
    };
    decide(&mut members, 0, vec![name]);
    let (row, value) = members.rows().into_iter().next().unwrap();
    let take = |value: &[u8]| MemberRows::new(VOLUME, 9).take(&row, value);
    assert_eq!(take(&value), Ok(true));
    let bare = value.strip_suffix(b"\x06laptop").unwrap();
    assert_eq!(take(bare), Ok(true));
    for wrong in [
        &b"\0"[..],
        b"\x06lap\ntop",
        b"\x01\xff",
        b"\x41",
        b"\x06laptop\0",
        b"\x06lapto",
    ] {
        assert!(take(&[bare, wrong].concat()).is_err(), "{wrong:?}");
    }
    let long = [&[65][..], &[b'x'; 65]].concat();
    assert!(take(&[bare, &long].concat()).is_err());
}

#[test]
fn decisions_of_others_are_not_permitted() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let accept = Decision::Accept { device: Device(0) };
    let op = Op::new(Vec::new(), vec![Change::Decide(accept)]);
    let judged = |device| members.judge(&written(device, 5, 5), &op, &|_| true);
    assert_eq!(judged(0), Some(Outcome::Late));
    assert_eq!(judged(1), Some(Outcome::None(NoEffect::NotPermitted)));
    assert_eq!(judged(8), Some(Outcome::None(NoEffect::NotPermitted)));
    let unlisted = members.judge(&written(0, 5, 5), &op, &|_| false);
    assert_eq!(unlisted, Some(Outcome::None(NoEffect::Misformed)));
}

#[test]
fn decision_of_an_administrator_who_is_none_any_more_does_not_count() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let grant = |user, role| Decision::Grant {
        group: VOLUME,
        user,
        role,
    };
    decide(&mut members, 10, vec![grant(BEN, Role::Admin)]);
    log(
        &mut members,
        written(1, 20, 20),
        vec![Decision::Accept { device: Device(0) }],
    );
    decide(&mut members, 21, vec![grant(BEN, Role::Reader)]);
    let decided = log(&mut members, written(1, 30, 30), Vec::new());
    assert_eq!(results(&decided), [Err(NoEffect::NotPermitted)]);
    assert_eq!(members.accepted(Device(0), 40), 0);
}

#[test]
fn administrator_of_a_group_changes_its_roles_and_nothing_else() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let group = Decision::AddGroup {
        group: TEAM,
        label: label("team"),
    };
    let grant = |group, user, role| Decision::Grant { group, user, role };
    let list = vec![group, grant(TEAM, BEN, Role::Admin)];
    assert_eq!(decide(&mut members, 10, list), [Ok(()), Ok(())]);
    assert!(members.may_decide(Device(1), &grant(TEAM, ANNA, Role::Reader), 12));
    assert!(!members.may_decide(Device(1), &grant(VOLUME, BEN, Role::Admin), 12));
    assert!(!members.may_decide(Device(1), &Decision::RemoveDevice { device: Device(0) }, 12));
    assert!(!members.may_read(Device(0), TEAM, 12));
    let revoke = Decision::Revoke {
        group: TEAM,
        user: BEN,
    };
    let remove = Decision::RemovePrincipal { principal: TEAM };
    assert_eq!(decide(&mut members, 20, vec![revoke]), [Ok(())]);
    assert!(members.may_write(Device(1), TEAM, 21) && !members.may_read(Device(1), TEAM, 22));
    assert_eq!(decide(&mut members, 30, vec![remove]), [Ok(())]);
    assert_eq!(
        decide(&mut members, 40, vec![grant(TEAM, BEN, Role::Writer)]),
        [Err(NoEffect::NotFound)]
    );
}

#[test]
fn last_administrator_and_the_volumes_group_stay() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let list = vec![
        Decision::RemoveDevice { device: Device(0) },
        Decision::Revoke {
            group: VOLUME,
            user: ANNA,
        },
        Decision::Grant {
            group: VOLUME,
            user: ANNA,
            role: Role::Writer,
        },
        Decision::RemovePrincipal { principal: VOLUME },
        Decision::RemovePrincipal { principal: BEN },
    ];
    let needed = Err(NoEffect::Needed);
    let expected = [needed, needed, needed, needed, Err(NoEffect::NotEmpty)];
    assert_eq!(decide(&mut members, 10, list), expected);
}

#[test]
fn names_of_principals_are_used_once() {
    let mut members = members();
    let add = |user, text| Decision::AddUser {
        user,
        label: label(text),
    };
    let list = vec![add(BEN, "anna"), add(ANNA, "other"), add(BEN, "ben")];
    let found = decide(&mut members, 0, list);
    assert_eq!(
        found,
        [Err(NoEffect::Exists), Err(NoEffect::Exists), Ok(())]
    );
    assert!(Label::new("a\u{7}").is_err() && Label::new("").is_err());
    assert!(Label::new(&"x".repeat(65)).is_err());
}

#[test]
fn accept_counts_what_its_author_had_seen_and_never_less_than_before() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let accept = || vec![Decision::Accept { device: Device(1) }];
    log(&mut members, written(0, 30, 20), accept());
    log(&mut members, written(0, 31, 31), Vec::new());
    assert_eq!(members.accepted(Device(1), 31), 0);
    assert_eq!(members.accepted(Device(1), 32), 20);
    log(&mut members, written(0, 40, 10), accept());
    log(&mut members, written(0, 41, 41), Vec::new());
    assert_eq!(members.accepted(Device(1), 42), 20);
    members.forget_before(42);
    assert_eq!(members.accepted(Device(1), 42), 20);
    assert!(members.may_write(Device(1), VOLUME, 42));
}

#[test]
fn op_that_decides_has_one_change_and_no_guards() {
    let members = members();
    let file = FileId {
        principal: VOLUME,
        number: INumber {
            device: Device(0),
            counter: 1,
        },
    };
    let accept = Change::Decide(Decision::Accept { device: Device(0) });
    let other = Change::Decide(Decision::Accept { device: Device(1) });
    let ops = [
        Op::new(vec![Guard::Unlocked { file }], vec![accept.clone()]),
        Op::new(Vec::new(), vec![accept.clone(), Change::Lock { file }]),
        Op::new(Vec::new(), vec![accept, other]),
    ];
    for op in ops {
        let judged = members.judge(&written(0, 5, 5), &op, &|_| true);
        assert_eq!(judged, Some(Outcome::None(NoEffect::Misformed)));
    }
}

#[test]
fn decisions_that_wait_are_bounded() {
    let mut members = members();
    for round in 0..3u64 {
        let accept = |_| Decision::Accept { device: Device(0) };
        let list: Vec<Decision> = (0..200).map(accept).collect();
        log(&mut members, written(0, 10 + round, 0), list);
    }
    assert_eq!(members.late.len(), MAX_LATE);
    assert_eq!(members.late[0].written.position, 11);
    let decided = log(&mut members, written(0, 20, 20), Vec::new());
    assert_eq!(decided.len(), MAX_LATE);
}

#[test]
fn members_are_listed_as_they_are_at_a_position() {
    let mut members = members();
    decide(&mut members, 10, ben_with_device());
    let add = Decision::AddGroup {
        group: TEAM,
        label: label("team"),
    };
    decide(&mut members, 20, vec![add]);
    let names = |position| {
        let listed = members.principals(position);
        let names = listed.map(|(_, label)| label.as_str().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["everybody", "anna"]);
    assert_eq!(names(12), ["everybody", "anna", "ben"]);
    assert_eq!(names(22), ["everybody", "anna", "ben", "team"]);
    assert!(members.is_group(VOLUME) && members.is_group(TEAM));
    assert!(!members.is_group(BEN) && !members.is_group(Principal::from_bytes([9; 32])));
    let roles = |group, position| members.roles(group, position).collect::<Vec<_>>();
    assert_eq!(roles(VOLUME, 0), [(ANNA, Role::Admin)]);
    let both = [(ANNA, Role::Admin), (BEN, Role::Writer)];
    assert_eq!(roles(VOLUME, 12), both);
    let revoke = Decision::Revoke {
        group: VOLUME,
        user: BEN,
    };
    decide(&mut members, 30, vec![revoke]);
    let roles = |group, position| members.roles(group, position).collect::<Vec<_>>();
    assert_eq!(roles(VOLUME, 32), [(ANNA, Role::Admin)]);
    assert_eq!(roles(VOLUME, 12), both, "at a position before");
}

#[test]
fn page_says_what_the_members_say_and_has_one_encoding() {
    let mut members = members();
    let admit = Decision::AdmitDevice {
        device: Device(1),
        key: key(2),
        user: BEN,
    };
    let ben = Decision::AddUser {
        user: BEN,
        label: label("ben"),
    };
    let team = Decision::AddGroup {
        group: TEAM,
        label: label("team"),
    };
    let grant = Decision::Grant {
        group: VOLUME,
        user: BEN,
        role: Role::Writer,
    };
    for (at, decision) in [(1, ben), (3, admit), (5, grant), (7, team)] {
        assert_eq!(decide(&mut members, at, vec![decision]), [Ok(())]);
    }
    let gone = Decision::RemoveDevice { device: Device(1) };
    assert_eq!(decide(&mut members, 9, vec![gone]), [Ok(())]);
    let mut e = trust::encode::Encoder::new();
    members.encode_page(20, &mut e);
    let bytes = e.finish();
    let mut d = trust::encode::Decoder::new(&bytes, "members");
    let read = Members::decode_page(&mut d).unwrap();
    d.finish().unwrap();
    assert!(!read.active(Device(1), 20) && read.active(Device(1), 8));
    assert_eq!(read.user(Device(1)), Some(BEN));
    assert_eq!(read.role(Device(0), VOLUME, 20), Some(Role::Admin));
    let roles = |members: &Members| members.roles(VOLUME, 20).collect::<Vec<_>>();
    assert_eq!(roles(&read), roles(&members));
    assert_eq!(read.label(TEAM), members.label(TEAM));
    let mut e = trust::encode::Encoder::new();
    read.encode_page(20, &mut e);
    assert_eq!(e.finish(), bytes);
    for cut in 0..bytes.len() {
        let mut d = trust::encode::Decoder::new(&bytes[..cut], "members");
        assert!(Members::decode_page(&mut d).is_err());
    }
}

#[test]
fn page_with_rows_out_of_order_is_refused() {
    let mut e = trust::encode::Encoder::new();
    members().encode_page(0, &mut e);
    let bytes = e.finish();
    let (head, rest) = bytes.split_at(33);
    assert_eq!(head[32], 1);
    // A device without an end and without a name: number, key, user, since, two flags.
    let (device, rest) = rest.split_at(1 + 32 + 32 + 1 + 1 + 1);
    let twice = [&head[..32], &[2], device, device, rest].concat();
    let mut d = trust::encode::Decoder::new(&twice, "members");
    assert!(Members::decode_page(&mut d).is_err());
}

#[test]
fn snapshot_has_a_name_of_its_own_and_is_of_the_past() {
    let mut members = members();
    decide(&mut members, 0, ben_with_device());
    let pin = |text: &str, size| Decision::Pin {
        label: label(text),
        size,
    };
    let unpin = |text: &str| Decision::Unpin { label: label(text) };
    let list = vec![
        pin("v1", 7),
        pin("v1", 8),
        pin("v2", 11),
        pin("v3", 10),
        unpin("v9"),
    ];
    let results = decide(&mut members, 10, list);
    let (exists, absent) = (Err(NoEffect::Exists), Err(NoEffect::NotFound));
    assert_eq!(results, [Ok(()), exists, absent, Ok(()), absent]);
    let pins: Vec<(&str, u64)> = members
        .pins()
        .iter()
        .map(|(label, size)| (label.as_str(), *size))
        .collect();
    assert_eq!(pins, [("v1", 7), ("v3", 10)]);
    assert_eq!(
        decide(&mut members, 20, vec![unpin("v1"), pin("v1", 9)]),
        [Ok(()); 2]
    );
    assert_eq!(members.pins().get(&label("v1")), Some(&9));
    // Nobody but an administrator decides what a server keeps.
    let retain = Decision::Retain { seconds: 86_400 };
    for decision in [pin("v5", 1), unpin("v1"), retain.clone()] {
        assert!(
            !members.may_decide(Device(1), &decision, 30),
            "{decision:?}"
        );
    }
    assert_eq!(members.retention_s(), None);
    assert_eq!(decide(&mut members, 30, vec![retain]), [Ok(())]);
    assert_eq!(members.retention_s(), Some(86_400));
    let mut e = trust::encode::Encoder::new();
    members.encode_page(40, &mut e);
    let bytes = e.finish();
    let page = Members::decode_page(&mut trust::encode::Decoder::new(&bytes, "page")).unwrap();
    assert_eq!(
        (page.pins(), page.retention_s()),
        (members.pins(), Some(86_400))
    );
}

#[test]
fn volume_has_so_many_snapshots_and_no_more() {
    let mut members = members();
    members.pins = (0..MAX_PINS)
        .map(|number| (label(&format!("v{number}")), 1))
        .collect();
    let pin = |text: &str| Decision::Pin {
        label: label(text),
        size: 1,
    };
    assert_eq!(
        decide(&mut members, 10, vec![pin("one more")]),
        [Err(NoEffect::TooMany)]
    );
    let unpin = Decision::Unpin { label: label("v0") };
    assert_eq!(
        decide(&mut members, 20, vec![unpin, pin("one more")]),
        [Ok(()); 2]
    );
}
