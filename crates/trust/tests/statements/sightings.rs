//! What readers have seen, and evidence that two were shown two logs: what it shows, and attempts to show something else.

use bytes::Bytes;
use trust::Reject;
use trust::head::Head;
use trust::policy::{Roles, Successor};
use trust::sighting::{Seen, Sighting};
use trust::split_view::{Relation, Split, SplitView, conclude, ordered, relation};
use trust::statement::Signed;

use crate::world::*;

/// What the reader of a head without older policies has seen.
fn sighting(world: &World, head: &Head) -> Sighting {
    Sighting::new(head, &[], world.volume).unwrap()
}

fn seen(world: &World, head: &Head) -> Seen {
    sighting(world, head).verify(world.volume).unwrap()
}

fn tile(world: &World) -> Bytes {
    world.leaves[&0].concat().into()
}

/// A log of `versions`, and another one that differs from it after version 2 and has `more` versions than that.
fn split(versions: u64, more: u64) -> ((World, Head), (World, Head)) {
    let mut world = World::new();
    world.publish(1);
    world.publish(2);
    let mut other = world.clone();
    let mut last = None;
    for version in 3..=versions {
        last = Some(world.publish(version));
    }
    let mut record = other.record(3);
    record.start += 1;
    let mut head = other.head_of(&record, &[2]);
    other.advance(&head);
    for version in 4..3 + more {
        head = other.publish(version);
    }
    ((world, last.unwrap()), (other, head))
}

fn evidence(first: &(World, Head), second: &(World, Head), tiles: Vec<Bytes>) -> SplitView {
    SplitView {
        first: sighting(&first.0, &first.1),
        second: sighting(&second.0, &second.1),
        tiles,
    }
}

#[test]
fn one_log_is_never_a_split_and_two_always_are() {
    for versions in 3..10u64 {
        for more in (versions - 2).max(2)..12 {
            let (first, second) = split(versions, more);
            let pair = (seen(&first.0, &first.1), seen(&second.0, &second.1));
            if !ordered(&pair.0, &pair.1) {
                continue;
            }
            let split = match relation(&pair.0, &pair.1).unwrap() {
                Relation::Split(split) => split,
                Relation::Wanted(mut prefix) => {
                    prefix.supply(&tile(&second.0)).unwrap();
                    conclude(*prefix, &pair.1).unwrap().expect("two logs")
                }
                other => panic!("{versions}, {more}: {other:?}"),
            };
            assert_eq!(split, Split::Logs);
        }
    }
    let mut world = World::new();
    let heads: Vec<Head> = (1..=12).map(|version| world.publish(version)).collect();
    for (at, later) in heads.iter().enumerate() {
        for earlier in &heads[..=at] {
            let pair = (seen(&world, earlier), seen(&world, later));
            assert!(ordered(&pair.0, &pair.1));
            match relation(&pair.0, &pair.1).unwrap() {
                Relation::Same => {}
                Relation::Wanted(mut prefix) => {
                    assert_eq!(
                        conclude(*prefix.clone(), &pair.1),
                        Err(Reject::Unproved),
                        "without tiles"
                    );
                    prefix.supply(&tile(&world)).unwrap();
                    assert_eq!(conclude(*prefix, &pair.1), Ok(None));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn publishers_whose_history_does_not_count_any_more_are_named() {
    let old = key(2).public();
    // The owners of the honest log change the publishers. The other log goes on with the old key.
    for (needed, numbers, removed) in [
        (1, &[5, 6][..], Some((1, vec![old]))),
        (2, &[2, 5], Some((1, Vec::new()))),
        (1, &[2, 5], None),
    ] {
        let ((mut world, _), thief) = split(3, 4);
        let last = world.publish(4);
        let policy = Successor {
            roles: Roles {
                publishers: threshold(needed, numbers),
                ..roles()
            },
            ..world.successor(Some(&last))
        };
        world.rotate(&policy, &[1]);
        let honest = (world.clone(), with_policies(&world, &last));
        let pair = (seen(&honest.0, &honest.1), seen(&thief.0, &thief.1));
        let (first, second) = match ordered(&pair.0, &pair.1) {
            true => (&honest, &thief),
            false => (&thief, &honest),
        };
        let tiles = [Vec::new(), vec![tile(&second.0)]].into_iter();
        let mut judged = tiles.map(|tiles| evidence(first, second, tiles).verify());
        let verdict = judged.find_map(Result::ok).unwrap();
        assert_eq!(verdict.split, Split::Logs);
        assert_eq!(verdict.removed(), removed);
    }
}

#[test]
fn two_policies_with_one_number_are_a_split() {
    let mut world = World::new();
    let head = world.publish(1);
    let mut other = world.clone();
    let one = world.successor(Some(&head));
    let two = Successor {
        not_after: NOW + WEEK,
        ..one.clone()
    };
    world.rotate(&one, &[1]);
    other.rotate(&two, &[1]);
    let first = (world.clone(), with_policies(&world, &head));
    let second = (other.clone(), with_policies(&other, &head));
    let pair = (seen(&first.0, &first.1), seen(&second.0, &second.1));
    let (first, second) = match ordered(&pair.0, &pair.1) {
        true => (first, second),
        false => (second, first),
    };
    let verdict = evidence(&first, &second, Vec::new()).verify().unwrap();
    assert_eq!(verdict.split, Split::Policies(1));
    // A policy more is none.
    let without = (first.0.clone(), head.clone());
    let pair = (seen(&without.0, &without.1), seen(&first.0, &first.1));
    assert!(matches!(relation(&pair.0, &pair.1), Ok(Relation::Same)));
}

#[test]
fn logs_of_two_epochs_are_not_compared() {
    let mut world = World::new();
    let head = world.publish(1);
    let policy = Successor {
        log_epoch: 1,
        ..world.successor(Some(&head))
    };
    world.rotate(&policy, &[1]);
    let later = world.publish(2);
    let pair = (seen(&world, &head), seen(&world, &later));
    assert!(matches!(relation(&pair.0, &pair.1), Ok(Relation::Epochs)));
}

#[test]
fn sighting_without_good_signatures_is_refused() {
    let mut world = World::new();
    let head = world.publish(1);
    let volume = world.volume;
    let refused = |head: &Head| Sighting::new(head, &[], volume).map(drop).unwrap_err();
    let record = world.record(2);
    refused_as(
        Err::<(), _>(refused(&world.head_of(&record, &[3]))),
        "root record",
    );
    let mut moved = head.clone();
    moved.frontier.push(b"leaf").unwrap();
    refused(&moved);
    let other = World::with_genesis(roles(), NOW + WEEK, &[1]);
    assert_eq!(
        Sighting::new(&head, &[], other.volume).err(),
        Some(Reject::WrongVolume)
    );
    // Signatures by strangers, timestamps and checkpoints do not travel on.
    let mut loud = head.clone();
    loud.record.add(&key(30));
    loud.policies[0].add(&key(31));
    loud.timestamp = Some(sign(&world.timestamp(&head).statement(volume), &[9]));
    loud.checkpoint = Some(world.checkpoint(&head, &[9]));
    assert_eq!(sighting(&world, &loud), sighting(&world, &head));
}

/// The head in a sighting's text, changed, as another text.
fn with_head(of: &Sighting, change: impl Fn(&mut Head)) -> Sighting {
    let mut e = trust::encode::Encoder::new();
    of.encode(&mut e).unwrap();
    let bytes = e.finish();
    let mut d = trust::encode::Decoder::new(&bytes, "test");
    let mut head = Head::decode(d.bytes(1 << 20).unwrap()).unwrap();
    change(&mut head);
    let mut e = trust::encode::Encoder::new();
    e.bytes(&head.encode().unwrap()).varint(0);
    let bytes = e.finish();
    Sighting::decode(&mut trust::encode::Decoder::new(&bytes, "test")).unwrap()
}

#[test]
fn bytes_that_no_check_covers_are_refused() {
    let mut world = World::new();
    let head = world.publish(1);
    let good = sighting(&world, &head);
    let volume = world.volume;
    assert!(with_head(&good, |_| {}).verify(volume).is_ok());
    let timestamp = sign(&world.timestamp(&head).statement(volume), &[9]);
    let checkpoint = world.checkpoint(&head, &[9]);
    let changes: [&dyn Fn(&mut Head); 5] = [
        &|head| head.record.add(&key(30)),
        &|head| head.policies[0].add(&key(30)),
        &|head| head.timestamp = Some(timestamp.clone()),
        &|head| head.checkpoint = Some(checkpoint.clone()),
        &|head| head.later_log = Some(head.frontier.clone()),
    ];
    for (at, change) in changes.iter().enumerate() {
        assert!(
            with_head(&good, change).verify(volume).is_err(),
            "change {at}"
        );
    }
}

#[test]
fn every_flipped_byte_of_a_sighting_is_refused() {
    let mut world = World::new();
    world.publish(1);
    let good = sighting(&world, &world.clone().publish(2));
    let mut e = trust::encode::Encoder::new();
    good.encode(&mut e).unwrap();
    let bytes = e.finish();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let mut d = trust::encode::Decoder::new(&changed, "test");
        let verified = Sighting::decode(&mut d).and_then(|it| {
            d.finish()?;
            it.verify(world.volume)
        });
        assert!(verified.is_err(), "byte {at}");
    }
}

#[test]
fn sighting_after_many_rotations_carries_the_older_policies() {
    let mut world = World::new();
    let mut head = world.publish(1);
    for _ in 0..20 {
        let policy = world.successor(Some(&head));
        world.rotate(&policy, &[1]);
        head = head
            .rotated(world.policies.last().unwrap().clone())
            .unwrap();
    }
    let older: Vec<Signed> = world.policies[1..14].to_vec();
    let good = Sighting::new(&head, &older, world.volume).unwrap();
    assert_eq!(good.verify(world.volume).unwrap().record.version, 1);
    let text = good.to_text().unwrap();
    assert_eq!(Sighting::from_text(&text).unwrap(), good);
    for change in [
        |older: &mut Vec<Signed>| drop(older.remove(12)),
        |older: &mut Vec<Signed>| drop(older.remove(0)),
        |older: &mut Vec<Signed>| older.swap(3, 4),
        |older: &mut Vec<Signed>| older.clear(),
    ] {
        let mut changed = older.clone();
        change(&mut changed);
        assert!(Sighting::new(&head, &changed, world.volume).is_err());
    }
}

#[test]
fn evidence_with_surplus_or_in_another_order_is_refused() {
    let (first, second) = split(4, 9);
    let tiles = vec![tile(&second.0)];
    let good = evidence(&first, &second, tiles.clone());
    assert_eq!(good.verify().unwrap().split, Split::Logs);
    let bytes = good.encode().unwrap();
    assert_eq!(SplitView::decode(&bytes).unwrap(), good);
    let verify = |evidence: &SplitView| evidence.verify().map(drop);
    refused_as(verify(&evidence(&second, &first, tiles.clone())), "order");
    refused_as(verify(&evidence(&first, &second, vec![])), "too few tiles");
    let more = [tiles.clone(), tiles.clone()].concat();
    refused_as(verify(&evidence(&first, &second, more)), "more tiles");
    let wrong = vec![tile(&first.0)];
    refused_as(verify(&evidence(&first, &second, wrong)), "tile");
    refused_as(
        verify(&evidence(&first, &first, vec![])),
        "do not contradict",
    );
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let judged = SplitView::decode(&changed).and_then(|it| it.verify());
        assert!(judged.is_err(), "byte {at}");
    }
}

#[test]
fn two_records_of_two_volumes_are_no_split() {
    let (first, _) = split(4, 2);
    let mut world = World::with_genesis(roles(), NOW + 9 * WEEK, &[1]);
    let foreign = world.publish(1);
    let mixed = evidence(&first, &(world, foreign), Vec::new());
    assert_eq!(mixed.verify().map(drop), Err(Reject::WrongVolume));
}
