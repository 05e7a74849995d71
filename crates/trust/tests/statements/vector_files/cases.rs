//! The cases of judgements.txt: time, signatures, floors, forks of records, pins. Those about policies and about what
//! policies demand are in modules of their own.

use bytes::Bytes;
use trust::handle::Handle;
use trust::head::Head;
use trust::judge::{Freshness, Terms};
use trust::policy::{NO_END, Roles, Successor, Threshold};
use trust::root::RootRecord;
use trust::statement::algorithm::UnknownKey;

use super::judgements::Case;
use super::policy_cases::with_lower;
use super::{demand_cases, policy_cases};
use crate::world::*;

pub fn all() -> Vec<Case> {
    let groups = [
        time(),
        limits(),
        signatures(),
        versions(),
        policy_cases::all(),
        demand_cases::all(),
        pins(),
        several(),
    ];
    groups.into_iter().flatten().collect()
}

fn record_with(world: &World, change: impl FnOnce(&mut RootRecord)) -> Head {
    let mut record = world.record(1);
    change(&mut record);
    world.head_of(&record, &[2])
}

pub fn with_roles(roles: Roles) -> World {
    World::with_genesis(roles, NO_END, &[1])
}

fn time() -> Vec<Case> {
    let mut world = World::new();
    let floor = world.floor();
    let starts = |start| record_with(&world, |record| record.start = start);
    let (edge, ahead) = (starts(NOW + 600), starts(NOW + 601));
    let endless = record_with(&world, |record| record.start = u64::MAX - 1);
    let beyond = starts(NOW + 1200);
    let head = world.publish(1);
    let mut ended = World::with_genesis(roles(), NOW + 10, &[1]);
    let under_ended = ended.publish(1);
    let seen = floor
        .observe(&judge_at(&floor, &edge, NOW).unwrap())
        .unwrap();
    let short = {
        let world = World::new();
        record_with(&world, |record| {
            (record.start, record.duration) = (NOW - 100, 300)
        })
    };
    vec![
        Case::new("new-reader", &floor, &[(&head, "good")]),
        Case::new("last-second", &floor, &[(&head, "good")]).at(NOW + WEEK - 1),
        Case::new("expired", &floor, &[(&head, "expired")]).at(NOW + WEEK),
        Case::new("600-seconds-ahead", &floor, &[(&edge, "good")]),
        Case::new("601-seconds-ahead", &floor, &[(&ahead, "not-yet-valid")]),
        Case::new(
            "start-near-the-end-of-numbers",
            &floor,
            &[(&endless, "good")],
        )
        .at(u64::MAX - 1),
        Case::new(
            "policy-before-its-end",
            &ended.floor(),
            &[(&under_ended, "good")],
        )
        .at(NOW + 9),
        Case::new("policy-ended", &ended.floor(), &[(&under_ended, "expired")]).at(NOW + 10),
        Case::new("clock-set-back", &seen, &[(&short, "expired")]).at(NOW - 50),
        Case::new(
            "clock-set-back-for-a-new-reader",
            &floor,
            &[(&short, "good")],
        )
        .at(NOW - 50),
        Case::new(
            "start-recorded-by-the-wall-clock",
            &floor,
            &[(&beyond, "good")],
        )
        .on(Terms {
            now: NOW + 600,
            ..Terms::strict(NOW)
        }),
        Case::new("grace", &floor, &[(&head, "good")]).on(grace(NOW + WEEK + 9, 10)),
        Case::new("grace-over", &floor, &[(&head, "expired")]).on(grace(NOW + WEEK + 10, 10)),
        Case::new(
            "no-grace-for-policies",
            &ended.floor(),
            &[(&under_ended, "expired")],
        )
        .on(grace(NOW + 10, 10)),
    ]
}

fn grace(now: u64, seconds: u64) -> Terms {
    Terms {
        freshness: Freshness::Grace(seconds),
        ..Terms::strict(now)
    }
}

/// How long records may be valid.
fn limits() -> Vec<Case> {
    let world = with_roles(Roles {
        record_max: WEEK - 1,
        ..roles()
    });
    let long = record_with(&world, |_| ());
    let mut shorter = World::new();
    let head = shorter.publish(1);
    let policy = Successor {
        roles: Roles {
            record_max: 100,
            ..roles()
        },
        ..shorter.successor(Some(&head))
    };
    shorter.rotate(&policy, &[1]);
    let head = with_policies(&shorter, &head);
    vec![
        Case::new(
            "longer-than-the-policy-allows",
            &world.floor(),
            &[(&long, "not-signed")],
        ),
        Case::new(
            "newest-policy-shortens",
            &shorter.floor(),
            &[(&head, "good")],
        )
        .at(NOW + 99),
        Case::new(
            "newest-policy-shortened",
            &shorter.floor(),
            &[(&head, "expired")],
        )
        .at(NOW + 100),
    ]
}

fn signatures() -> Vec<Case> {
    let two_of_three = Roles {
        publishers: threshold(2, &[2, 3, 4]),
        ..roles()
    };
    let world = with_roles(two_of_three);
    let floor = world.floor();
    let by = |signers: &[u8]| world.head_of(&world.record(1), signers);
    let case = |name, signers: &[u8], verdict| Case::new(name, &floor, &[(&by(signers), verdict)]);
    // Keys 2 and 3 signed; in the name of 4 there is a signature of another record.
    let mut bad = by(&[2, 3]);
    let other = sign(&world.record(2).statement(world.volume), &[4]);
    bad.record = with_foreign_signature(&bad.record, &other);
    let mut elsewhere = World::with_genesis(roles(), NO_END - 1, &[1]);
    let elsewhere = elsewhere.publish(1);
    let unsigned = World::with_genesis(roles(), NO_END, &[2]);
    let under_unsigned = unsigned.head_of(&unsigned.record(1), &[2]);
    let policy_of = |change: fn(&mut RootRecord)| {
        let mut record = world.record(1);
        change(&mut record);
        world.head_of(&record, &[2, 3])
    };
    let mut frontier = by(&[2, 3]);
    frontier.frontier = trust::history::Frontier::new();
    let strange = UnknownKey::new(2, Bytes::from_static(b"key")).unwrap();
    let keys = vec![key(2).public()];
    let publishers = Threshold::with_unknown(2, keys, vec![strange]).unwrap();
    let later = with_roles(Roles {
        publishers,
        ..roles()
    });
    let under_later = later.head_of(&later.record(1), &[2]);
    vec![
        case("2-of-3", &[2, 4], "good"),
        case("3-of-3-and-a-stranger", &[2, 3, 4, 99], "good"),
        case("1-of-3", &[3], "not-signed"),
        case("unsigned", &[], "not-signed"),
        case("by-the-owner", &[1, 2], "not-signed"),
        Case::new(
            "bad-signature-beside-enough",
            &floor,
            &[(&bad, "not-signed")],
        ),
        Case::new("of-another-volume", &floor, &[(&elsewhere, "wrong-volume")]),
        Case::new(
            "genesis-not-signed",
            &unsigned.floor(),
            &[(&under_unsigned, "not-signed")],
        ),
        Case::new(
            "under-an-unknown-policy",
            &floor,
            &[(&policy_of(|r| r.policy_number = 1), "not-signed")],
        ),
        Case::new(
            "under-another-policy",
            &floor,
            &[(&policy_of(|r| r.policy_hash = [1; 32]), "not-signed")],
        ),
        Case::new(
            "in-another-epoch",
            &floor,
            &[(&policy_of(|r| r.log.epoch = 1), "not-signed")],
        ),
        Case::new(
            "frontier-of-another-log",
            &floor,
            &[(&frontier, "malformed")],
        ),
        Case::new(
            "needs-a-key-of-a-later-algorithm",
            &later.floor(),
            &[(&under_later, "unsupported")],
        ),
    ]
}

/// `signed` with the signature under `other` added, which is over other bytes.
fn with_foreign_signature(
    signed: &trust::statement::Signed,
    other: &trust::statement::Signed,
) -> trust::statement::Signed {
    const ENTRY: usize = 1 + 1 + 32 + 1 + 64;
    let (bytes, other) = (signed.to_bytes(), other.to_bytes());
    let count = signed.signatures().len();
    let start = bytes.len() - count * ENTRY;
    let mut entries: Vec<&[u8]> = bytes[start..].chunks(ENTRY).collect();
    entries.push(&other[other.len() - ENTRY..]);
    entries.sort();
    let (body, count) = (&bytes[..start - 1], [count as u8 + 1]);
    let joined = [body, &count, &entries.concat()].concat();
    trust::statement::Signed::from_bytes(&joined).unwrap()
}

/// Rollback, forks of records, growth of the log.
fn versions() -> Vec<Case> {
    let mut world = World::new();
    let one = world.publish(1);
    let twin = RootRecord {
        root: Handle::from_bytes([99; 32]),
        ..world.record(2)
    };
    let twin = world.head_of(&twin, &[2]);
    let two = world.publish(2);
    let (three, four) = (world.publish(3), world.publish(4));
    let floor = world.floor();
    let (knows_1, knows_2) = (adopted(&floor, &[&one]), adopted(&floor, &[&one, &two]));
    let both = [two.clone(), twin.clone()];
    let forked = knows_1
        .judge_all(&both, &Terms::strict(NOW), &mut Default::default())
        .floor;
    let mut settled = world.clone();
    let settles = with_lower(&mut settled, &two, false);
    let refuses_twin = forked.settle(&two.record.hash()).unwrap();
    let mut rewritten = World::new();
    let first = record_with(&rewritten, |record| record.start += 1);
    rewritten.advance(&first);
    let rewritten = rewritten.publish(2);
    let mut empty = three.clone();
    empty.record = sign(
        &RootRecord {
            log: trust::history::Frontier::new().point(0),
            ..World::new().record(3)
        }
        .statement(world.volume),
        &[2],
    );
    empty.frontier = trust::history::Frontier::new();
    vec![
        Case::new("same-version", &knows_2, &[(&two, "good")]),
        Case::new("next-version", &knows_2, &[(&three, "good")]),
        Case::new(
            "skipped-version-needs-a-proof",
            &knows_2,
            &[(&four, "good")],
        ),
        Case::new("rollback", &knows_2, &[(&one, "rollback")]),
        Case::new(
            "rollback-beside-an-honest-mirror",
            &knows_2,
            &[(&one, "rollback"), (&two, "good")],
        ),
        Case::new(
            "old-and-expired-is-rollback",
            &knows_2,
            &[(&one, "rollback")],
        )
        .at(NOW + 2 * WEEK),
        Case::new(
            "another-record-of-the-adopted-version",
            &knows_2,
            &[(&twin, "fork")],
        ),
        Case::new(
            "two-records-of-one-version",
            &knows_1,
            &[(&two, "fork"), (&twin, "fork")],
        ),
        Case::new(
            "two-records-for-a-new-reader",
            &floor,
            &[(&twin, "fork"), (&two, "fork"), (&three, "fork")],
        ),
        Case::new(
            "remembered-fork-of-records",
            &forked,
            &[(&two, "fork"), (&one, "good")],
        ),
        Case::new(
            "remembered-fork-stops-later-versions",
            &forked,
            &[(&three, "fork")],
        ),
        Case::new(
            "last-settles-a-fork-of-records",
            &forked,
            &[(&settles, "good")],
        ),
        Case::new(
            "the-users-choice",
            &refuses_twin,
            &[(&two, "good"), (&twin, "refused")],
        ),
        Case::new(
            "log-without-the-adopted-record",
            &knows_1,
            &[(&rewritten, "fork")],
        ),
        Case::new(
            "log-shorter-than-the-adopted-one",
            &knows_2,
            &[(&empty, "fork")],
        ),
    ]
}

fn pins() -> Vec<Case> {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let floor = adopted(&world.floor(), &[&one, &two]);
    let late = pin(&one, 1);
    let other = pin(&one, 2);
    let policy = |hash| Terms {
        policy_pin: Some(hash),
        ..Terms::strict(NOW)
    };
    let unsigned = world.head_of(&world.record(3), &[1]);
    vec![
        Case::new("pinned", &floor, &[(&one, "good"), (&two, "not-pinned")]).on(late),
        Case::new("pinned-to-another-version", &floor, &[(&one, "not-pinned")]).on(other),
        Case::new(
            "pinned-and-not-signed",
            &floor,
            &[(&unsigned, "not-signed")],
        )
        .on(pin(&unsigned, 3)),
        Case::new("policy-pinned", &floor, &[(&two, "good")]).on(policy(world.newest().1)),
        Case::new("another-policy-pinned", &floor, &[(&two, "not-pinned")]).on(policy([1; 32])),
    ]
}

/// Several honest mirrors.
fn several() -> Vec<Case> {
    let mut world = World::new();
    let one = world.publish(1);
    let two = world.publish(2);
    let floor = world.floor();
    let short = RootRecord {
        start: NOW - 100,
        duration: 200,
        ..World::new().record(1)
    };
    let mut renewing = World::new();
    let short = renewing.head_of(&short, &[2]);
    renewing.advance(&short);
    let renewed = RootRecord {
        start: NOW + 500,
        ..renewing.record(2)
    };
    let renewed = renewing.head_of(&renewed, &[2]);
    vec![
        Case::new(
            "honest-mirrors-of-different-age",
            &floor,
            &[(&one, "good"), (&two, "good")],
        ),
        Case::new(
            "newer-start-at-another-mirror",
            &floor,
            &[(&short, "expired"), (&renewed, "good")],
        ),
        Case::new("no-head", &floor, &[]),
    ]
}
