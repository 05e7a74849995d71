//! Cases of judgements.txt about what a policy demands beside the publishers: timestamps and witnesses.

use bytes::Bytes;
use trust::head::Head;
use trust::policy::{Roles, Successor, Threshold};
use trust::statement::algorithm::UnknownKey;

use super::cases::with_roles;
use super::judgements::Case;
use crate::world::*;

pub fn all() -> Vec<Case> {
    let groups = [timestamps(), witnesses()];
    groups.into_iter().flatten().collect()
}

fn timestamps() -> Vec<Case> {
    let stamped = Roles {
        timestamps: threshold(1, &[8]),
        timestamp_max: 3600,
        ..roles()
    };
    let mut world = with_roles(stamped.clone());
    let head = world.publish(1);
    let with = |world: &World, issued: u64, until: u64, by: &[u8]| {
        let mut timestamp = world.timestamp(&head);
        (timestamp.issued, timestamp.until) = (issued, until);
        Head {
            timestamp: Some(sign(&timestamp.statement(world.volume), by)),
            ..head.clone()
        }
    };
    let good = with(&world, NOW, NOW + 3600, &[8]);
    let floor = world.floor();
    let case = |name, head: &Head, verdict| Case::new(name, &floor, &[(head, verdict)]);
    let mut of_another = good.clone();
    of_another.record = sign(&world.record(1).statement(world.volume), &[2]);
    let mut other_record = world.timestamp(&head);
    other_record.record_hash = [1; 32];
    of_another.record = head.record.clone();
    of_another.timestamp = Some(sign(&other_record.statement(world.volume), &[8]));
    let mut a_record = head.clone();
    a_record.timestamp = Some(sign(&world.record(2).statement(world.volume), &[8]));
    let renewed = with(&world, NOW + 7200, NOW + 10_800, &[8]);
    let seen = floor
        .observe(&judge_at(&floor, &renewed, NOW + 7200).unwrap())
        .unwrap();
    let mut rotated = world.clone();
    let policy = Successor {
        roles: stamped,
        ..rotated.successor(Some(&head))
    };
    rotated.rotate(&policy, &[1]);
    let shows = with_policies(&rotated, &good);
    let knows = learned(&floor, &shows);
    let mut plain = World::new();
    let mut needless = plain.publish(1);
    needless.timestamp = Some(sign(
        &plain.timestamp(&needless).statement(plain.volume),
        &[99],
    ));
    vec![
        case("timestamp", &good, "good"),
        case("timestamp-expired", &good, "expired").at(NOW + 3600),
        case("timestamp-missing", &head, "not-signed"),
        case(
            "timestamp-by-another-key",
            &with(&world, NOW, NOW + 3600, &[2]),
            "not-signed",
        ),
        case(
            "timestamp-too-long",
            &with(&world, NOW, NOW + 3601, &[8]),
            "not-signed",
        ),
        case(
            "timestamp-backwards",
            &with(&world, NOW, NOW - 1, &[8]),
            "not-signed",
        ),
        case(
            "timestamp-from-the-future",
            &with(&world, NOW + 601, NOW + 602, &[8]),
            "not-yet-valid",
        ),
        case("timestamp-of-another-record", &of_another, "not-signed"),
        case("record-as-timestamp", &a_record, "malformed"),
        Case::new(
            "timestamp-after-the-clock-was-set-back",
            &seen,
            &[(&good, "expired")],
        ),
        Case::new(
            "timestamp-under-the-policy-before",
            &knows,
            &[(&shows, "not-signed")],
        ),
        Case::new(
            "timestamp-of-a-mirror-that-lags",
            &knows,
            &[(&good, "superseded")],
        ),
        Case::new(
            "timestamp-that-nobody-demands",
            &plain.floor(),
            &[(&needless, "good")],
        ),
    ]
}

fn witnesses() -> Vec<Case> {
    let mut world = with_roles(Roles {
        witnesses: threshold(2, &[20, 21, 22]),
        ..roles()
    });
    let head = world.publish(1);
    let floor = world.floor();
    let case = |name, by: &[u8], verdict| {
        let mut head = head.clone();
        head.checkpoint = Some(world.checkpoint(&head, by));
        Case::new(name, &floor, &[(&head, verdict)])
    };
    let mut second = world.clone().publish(2);
    second.checkpoint = Some(world.checkpoint(&head, &[20, 21]));
    let mut plain = World::new();
    let mut needless = plain.publish(1);
    needless.checkpoint = Some(Bytes::from_static(&[0xff]));
    let strange = UnknownKey::new(2, Bytes::from_static(b"key")).unwrap();
    let keys = vec![key(20).public()];
    let later = Threshold::with_unknown(2, keys, vec![strange]).unwrap();
    let mut later = with_roles(Roles {
        witnesses: later,
        ..roles()
    });
    let mut under_later = later.publish(1);
    under_later.checkpoint = Some(later.checkpoint(&under_later, &[20]));
    vec![
        case("quorum", &[20, 22], "good"),
        case("quorum-and-strangers", &[99, 20, 21, 22], "good"),
        case("one-witness-of-two", &[20], "not-signed"),
        case("one-witness-twice", &[20, 20], "not-signed"),
        Case::new("quorum-missing", &floor, &[(&head, "not-signed")]),
        Case::new(
            "checkpoint-of-another-log",
            &floor,
            &[(&second, "not-signed")],
        ),
        Case::new(
            "checkpoint-that-nobody-demands",
            &plain.floor(),
            &[(&needless, "good")],
        ),
        Case::new(
            "witness-of-a-later-algorithm",
            &later.floor(),
            &[(&under_later, "unsupported")],
        ),
    ]
}
