//! What an orderer takes, and what a device that cannot read a decision does.

use std::sync::Arc;

use trust::device::Incarnation;
use trust::key::SecretKey;
use trust_shared::calls::decide;
use trust_shared::entry::{self, Content, Ops, Prefix, body_hash};
use trust_shared::members::MAX_LATE;

use super::*;

const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

fn key() -> SecretKey {
    SecretKey::from_seed(&[3; 32])
}

fn roster() -> Roster {
    let founder = Founder {
        user: [6; 32],
        name: "ada".to_owned(),
        device: key().public(),
    };
    Roster::new(VOLUME, &founder).unwrap()
}

/// An entry with this outline; its body comes with it if `sent`.
fn entry(outline: Vec<u8>, body: Vec<u8>, sent: bool) -> Entry {
    let (outline, body) = (Bytes::from(outline), Bytes::from(body));
    let content = Content::Ops(Ops {
        n: 1,
        previous: [1; 32],
        outline,
        body_hash: body_hash(&body),
    });
    let entry = entry::Entry {
        epoch: 0,
        device: DeviceKey::from(&key().public()),
        incarnation: Incarnation::from_bytes([2; 16]),
        seen: Prefix {
            size: 9,
            root: [4; 32],
        },
        kept: 9,
        content,
    };
    let signed = entry.sign(VOLUME, &key()).unwrap();
    match sent {
        true => Entry::with_body(signed, body).unwrap(),
        false => Entry::new(signed),
    }
}

fn remove(device: u32) -> Body {
    let device = Device(device);
    Body::new(vec![decide(Decision::RemoveDevice { device })]).unwrap()
}

fn encoded(body: &Body) -> (Vec<u8>, Vec<u8>) {
    (body.outline().encode(), body.encode())
}

#[test]
fn orderer_refuses_entries_that_nobody_could_read() {
    let roster = roster();
    let (outline, body) = encoded(&remove(1));
    let (other, _) = encoded(&remove(2));
    let mut later = body.clone();
    later[0] = 1;
    let cases = [
        (entry(outline.clone(), body.clone(), true), None),
        (
            entry(outline.clone(), body.clone(), false),
            Some("the body is missing"),
        ),
        (
            entry(vec![0], body.clone(), true),
            Some("the outline is malformed"),
        ),
        (
            entry(other, body, true),
            Some("the outline is another body's"),
        ),
        (
            entry(outline.clone(), vec![0], true),
            Some("the body is malformed"),
        ),
        (entry(outline, later, true), Some("the body is malformed")),
    ];
    for (entry, why) in cases {
        assert_eq!(roster.malformed(&entry), why);
    }
}

#[test]
fn body_of_another_entry_does_not_become_a_part_of_it() {
    let (outline, body) = encoded(&remove(1));
    let (_, other) = encoded(&remove(2));
    let signed = entry(outline, body, false).signed().clone();
    assert_eq!(
        Entry::with_body(signed, other.into()).unwrap_err(),
        Reject::WrongBlock
    );
}

#[test]
fn roster_without_a_decision_knows_no_members() {
    let (outline, body) = encoded(&remove(1));
    let mut later = body.clone();
    later[0] = 1;
    for unread in [
        entry(outline.clone(), body, false),
        entry(outline.clone(), later, true),
    ] {
        let mut roster = roster();
        let device = DeviceKey::from(&key().public());
        assert!(roster.active(device));
        assert!(lacks_decision(&unread) || unread.body().is_some());
        roster.extend(5, &unread);
        assert_eq!(roster.lost(), Some(5));
        assert!(!roster.active(device));
    }
    // A malformed body decides nothing, and says so to everybody.
    let mut roster = roster();
    roster.extend(5, &entry(outline, vec![0], true));
    assert_eq!(roster.lost(), None);
}

#[test]
fn copies_share_the_members_until_one_changes() {
    let first = roster();
    let mut second = first.clone();
    let (outline, body) = encoded(&Body::new(Vec::new()).unwrap());
    second.extend(3, &entry(outline, body, true));
    assert!(Arc::ptr_eq(&first.members, &second.members));
    let (outline, body) = encoded(&remove(1));
    second.extend(4, &entry(outline, body, true));
    assert!(!Arc::ptr_eq(&first.members, &second.members));
}

#[test]
fn decision_that_lapses_because_of_later_ones_is_not_said_to_count() {
    let decisions = (0..300).map(|device| {
        let device = Device(device);
        decide(Decision::RemoveDevice { device })
    });
    let (outline, body) = encoded(&Body::new(decisions.collect()).unwrap());
    let mut roster = roster();
    roster.extend(9, &entry(outline, body, true));
    let lapsed: Vec<usize> = (0..300)
        .filter(|op| roster.lapsed(9, *op) == Some(NoEffect::TooMany))
        .collect();
    assert_eq!(lapsed, (0..300 - MAX_LATE).collect::<Vec<usize>>());
}
