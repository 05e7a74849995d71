//! Requirements of a policy beyond the publishers' signatures: timestamps and witnesses.

use trust::error::Class;
use trust::head::Head;
use trust::policy::{NO_END, Roles, Successor, VolumeId};
use trust::timestamp::Timestamp;
use trust::{Reject, checkpoint};

use crate::world::*;

/// Timestamp keys 8 and 9, both required, for at most an hour.
fn stamped() -> (World, Head) {
    let roles = Roles {
        timestamps: threshold(2, &[8, 9]),
        timestamp_max: 3600,
        ..roles()
    };
    let mut world = World::with_genesis(roles, NO_END, &[1]);
    let head = world.publish(1);
    (world, head)
}

fn with_timestamp(
    change: impl FnOnce(&mut Timestamp),
    signers: &[u8],
) -> Result<trust::judge::Offer, Reject> {
    with_timestamp_at(change, signers, NOW)
}

fn with_timestamp_at(
    change: impl FnOnce(&mut Timestamp),
    signers: &[u8],
    now: u64,
) -> Result<trust::judge::Offer, Reject> {
    let (world, mut head) = stamped();
    let mut timestamp = world.timestamp(&head);
    change(&mut timestamp);
    head.timestamp = Some(sign(&timestamp.statement(world.volume), signers));
    judge_at(&world.floor(), &head, now)
}

#[test]
fn a_timestamp_shortens_the_validity() {
    let offer = with_timestamp(|_| (), &[8, 9]).unwrap();
    assert_eq!(offer.valid_until, NOW + 3600);
    let late = with_timestamp_at(|_| (), &[8, 9], NOW + 3600).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
}

#[test]
fn a_timestamp_cannot_lengthen_the_validity() {
    let late = |t: &mut Timestamp| {
        t.issued = NOW + WEEK;
        t.until = NOW + WEEK + 3600;
    };
    let late = with_timestamp_at(late, &[8, 9], NOW + WEEK).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
}

#[test]
fn a_missing_timestamp_is_refused() {
    let (world, head) = stamped();
    refused_as(judge(&world.floor(), &head), "is missing");
}

#[test]
fn a_timestamp_of_another_record_is_refused() {
    let other = |t: &mut Timestamp| t.record_hash = [1; 32];
    refused_as(with_timestamp(other, &[8, 9]), "of another record");
}

#[test]
fn a_timestamp_under_another_policy_is_refused() {
    let number = |t: &mut Timestamp| t.policy_number = 1;
    refused_as(with_timestamp(number, &[8, 9]), "another policy number");
    let hash = |t: &mut Timestamp| t.policy_hash = [1; 32];
    refused_as(with_timestamp(hash, &[8, 9]), "under another policy");
}

#[test]
fn a_timestamp_for_longer_than_the_policy_allows_is_refused() {
    let long = |t: &mut Timestamp| t.until = NOW + 3601;
    refused_as(with_timestamp(long, &[8, 9]), "longer than the policy");
    let backwards = |t: &mut Timestamp| t.until = NOW - 1;
    refused_as(with_timestamp(backwards, &[8, 9]), "longer than the policy");
}

#[test]
fn a_timestamp_by_too_few_or_other_keys_is_refused() {
    refused_as(with_timestamp(|_| (), &[8]), "timestamp");
    refused_as(with_timestamp(|_| (), &[1, 2, 8]), "timestamp");
}

#[test]
fn a_timestamp_from_the_future_is_refused() {
    let future = |t: &mut Timestamp| {
        t.issued = NOW + 601;
        t.until = NOW + 602;
    };
    let refused = with_timestamp(future, &[8, 9]).unwrap_err();
    assert!(matches!(refused, Reject::NotYetValid { .. }));
}

/// The record is valid for a week, the timestamp for an hour: only the issue shows that the clock was set back.
#[test]
fn clock_set_back_does_not_revive_an_expired_timestamp() {
    let (world, head) = stamped();
    let stamped_at = |issued| {
        let mut timestamp = world.timestamp(&head);
        timestamp.issued = issued;
        timestamp.until = issued + 3600;
        Head {
            timestamp: Some(sign(&timestamp.statement(world.volume), &[8, 9])),
            ..head.clone()
        }
    };
    let (old, new) = (stamped_at(NOW), stamped_at(NOW + 7200));
    let offer = judge_at(&world.floor(), &new, NOW + 7200).unwrap();
    let floor = world.floor().observe(&offer).unwrap();
    assert_eq!(floor.newest_start(), NOW + 7200);
    let revived = judge_at(&floor, &old, NOW + 10).unwrap_err();
    assert_eq!(revived.class(), Class::Expired);
    // An issue ahead of the wall clock is recorded no further than a start would be.
    let offer = judge_at(&world.floor(), &stamped_at(NOW + 600), NOW).unwrap();
    assert_eq!(
        world.floor().observe(&offer).unwrap().newest_start(),
        NOW + 600
    );
    let terms = trust::judge::Terms {
        now: NOW + 600,
        ..trust::judge::Terms::strict(NOW)
    };
    let offer = judge_with(&world.floor(), &stamped_at(NOW + 1200), terms).unwrap();
    assert_eq!(
        world.floor().observe(&offer).unwrap().newest_start(),
        NOW + 600
    );
}

#[test]
fn timestamp_from_before_a_rotation_is_superseded_and_not_a_lie() {
    let (mut world, mut head) = stamped();
    let timestamp = world.timestamp(&head).statement(world.volume);
    head.timestamp = Some(sign(&timestamp, &[8, 9]));
    let roles = read_policy(&world.policies[0], VolumeId::UNBORN)
        .roles()
        .clone();
    let policy = Successor {
        roles,
        ..world.successor(Some(&head))
    };
    world.rotate(&policy, &[1]);
    let shows = Head {
        policies: world.policies.clone(),
        ..head.clone()
    };
    let floor = learned(&world.floor(), &shows);
    let lags = judge(&floor, &head).unwrap_err();
    assert!(matches!(lags, Reject::Superseded(_)), "{lags}");
    refused_as(judge(&floor, &shows), "another policy number");
    // Without enough signatures it never was good.
    head.timestamp = Some(sign(&timestamp, &[8]));
    refused_as(judge(&floor, &head), "another policy number");
}

#[test]
fn a_record_in_the_place_of_the_timestamp_is_refused() {
    let (world, mut head) = stamped();
    let record = world.record(2);
    head.timestamp = Some(sign(&record.statement(world.volume), &[8, 9]));
    refused_as(judge(&world.floor(), &head), "another purpose");
}

/// Two of the witnesses 20, 21, 22.
fn witnessed() -> (World, Head) {
    let roles = Roles {
        witnesses: threshold(2, &[20, 21, 22]),
        ..roles()
    };
    let mut world = World::with_genesis(roles, NO_END, &[1]);
    let head = world.publish(1);
    (world, head)
}

fn with_witnesses(numbers: &[u8]) -> Result<trust::judge::Offer, Reject> {
    let (world, mut head) = witnessed();
    head.checkpoint = Some(world.checkpoint(&head, numbers));
    let head = Head::decode(&head.encode().unwrap()).unwrap();
    judge(&world.floor(), &head)
}

#[test]
fn a_quorum_of_witnesses_is_enough() {
    with_witnesses(&[20, 22]).unwrap();
    with_witnesses(&[99, 20, 21, 22]).unwrap();
}

#[test]
fn a_root_without_its_quorum_is_refused() {
    let (world, head) = witnessed();
    refused_as(judge(&world.floor(), &head), "checkpoint is missing");
    refused_as(with_witnesses(&[]), "too few witnesses");
    refused_as(with_witnesses(&[20]), "too few witnesses");
    refused_as(with_witnesses(&[20, 99]), "too few witnesses");
}

#[test]
fn witness_that_signs_twice_counts_once() {
    refused_as(with_witnesses(&[20, 20]), "too few witnesses");
}

#[test]
fn a_checkpoint_of_another_log_is_refused() {
    let (mut world, first) = witnessed();
    let mut second = world.publish(2);
    second.checkpoint = Some(world.checkpoint(&first, &[20, 21]));
    refused_as(judge(&world.floor(), &second), "of another log");
}

#[test]
fn cosignature_with_another_name_or_changed_bytes_is_ignored() {
    let (world, mut head) = witnessed();
    let note = world.checkpoint(&head, &[20, 21]);
    let note = std::str::from_utf8(&note).unwrap();
    let mut refused = |note: String, why: &str| {
        head.checkpoint = Some(note.into());
        refused_as(judge(&world.floor(), &head), why);
    };
    let few = "too few witnesses";
    refused(
        note.replace("witness.example/20", "witness.example/30"),
        few,
    );
    refused(note.replace("\u{2014} ", "- "), few);
    // The witness's own line, but for another log, and for another time than it states.
    let text = note.split("\n\n").next().unwrap().to_owned() + "\n";
    for (signed, said) in [(text.replacen('1', "2", 1), NOW), (text.clone(), NOW + 1)] {
        let lines: String = [20, 21]
            .map(|n| {
                let signature = key(n).sign(checkpoint::cosigned_message(&signed, NOW).as_bytes());
                let name = format!("witness.example/{n}");
                checkpoint::cosignature_line(&name, &key(n).public(), said, &signature)
            })
            .concat();
        refused(format!("{text}\n{lines}"), few);
    }
    refused(note.replace("==\n", "\n"), few);
    refused(note.replace("==\n", "==\r\n"), few);
    refused(note.replace("\n\n", "\n"), "of another log");
    refused(note.replacen('1', "2", 1), "of another log");
    refused(note.repeat(60), "too long");
    refused(format!("{note}{}", "x".repeat(17 << 10)), "too long");
}

#[test]
fn checkpoint_that_is_not_utf8_is_refused() {
    let (world, mut head) = witnessed();
    head.checkpoint = Some(vec![0xff; 8].into());
    refused_as(judge(&world.floor(), &head), "not UTF-8");
}
