//! A head that skips versions is adopted only with a proof that its log contains the floor's record.

use trust::Reject;
use trust::chain::Link;
use trust::earlier::Placed;
use trust::error::Class;
use trust::head::Head;
use trust::judge::{Offer, Terms};
use trust::policy::Successor;
use trust::prefix::Prefix;
use trust::signatures::Signatures;

use crate::world::*;

/// A world with this many versions.
fn published(versions: u64) -> (World, Vec<Head>) {
    let mut world = World::new();
    let heads = (1..=versions).map(|v| world.publish(v)).collect();
    (world, heads)
}

/// The only tile of a short log: the hashes of all its leaves.
fn tile(world: &World) -> Vec<u8> {
    world.leaves[&0].concat()
}

fn wanted(prefix: &Prefix) -> Vec<String> {
    prefix.wants().iter().map(|tile| tile.to_string()).collect()
}

fn prove(offer: &mut Offer, mut prefix: Prefix, tile: &[u8]) -> Result<(), Reject> {
    prefix.supply(tile).unwrap();
    offer.prove(prefix)
}

#[test]
fn offer_is_adopted_only_with_a_proof_against_the_current_floor() {
    let (world, heads) = published(6);
    let floor = adopted(&world.floor(), &[&heads[0], &heads[1]]);
    let mut offer = judge(&floor, &heads[5]).unwrap();
    assert_eq!(floor.adopt(&offer), Err(Reject::Unproved));
    assert_eq!(Reject::Unproved.class(), Class::Unavailable);
    assert!(floor.observe(&offer).is_ok(), "to see is not to adopt");

    let prefix = floor.unproved(&offer).unwrap().unwrap();
    assert_eq!(wanted(&prefix), ["0.0.7"]);
    assert_eq!(offer.clone().prove(prefix.clone()), Err(Reject::Unproved));
    let tile = tile(&world);
    let mut another = judge(&floor, &heads[3]).unwrap();
    let mut whole = prefix.clone();
    whole.supply(&tile).unwrap();
    assert_eq!(
        another.prove(whole),
        Err(Reject::Unproved),
        "of another offer"
    );

    prove(&mut offer, prefix, &tile).unwrap();
    assert!(floor.unproved(&offer).unwrap().is_none());
    assert_eq!(floor.adopt(&offer).unwrap().adopted().unwrap().version, 6);

    // Another process has moved the floor between the proof and the adoption.
    let moved = adopted(&floor, &[&heads[2], &heads[3]]);
    assert_eq!(moved.adopt(&offer), Err(Reject::Unproved));
    let prefix = moved.unproved(&offer).unwrap().unwrap();
    prove(&mut offer, prefix, &tile).unwrap();
    assert_eq!(moved.adopt(&offer).unwrap().adopted().unwrap().version, 6);
}

#[test]
fn reader_of_every_version_needs_no_tile() {
    let (world, heads) = published(300);
    let all: Vec<&Head> = heads.iter().collect();
    let floor = adopted(&world.floor(), &all);
    assert_eq!(floor.adopted().unwrap().version, 300);
}

#[test]
fn history_rewritten_in_skipped_versions_is_a_fork() {
    let (world, heads) = published(2);
    let floor = adopted(&world.floor(), &[&heads[0], &heads[1]]);
    let (mut other, mut rewritten) = published(1);
    let mut record = other.record(2);
    record.start += 1;
    let second = other.head_of(&record, &[2]);
    other.advance(&second);
    rewritten.push(second);
    rewritten.extend((3..=4).map(|version| other.publish(version)));
    let mut offer = judge(&floor, &rewritten[3]).unwrap();
    let prefix = floor.unproved(&offer).unwrap().unwrap();
    let fork = prove(&mut offer, prefix, &tile(&other)).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
    assert_eq!(floor.adopt(&offer), Err(Reject::Unproved));

    // When the head's own frontier shows the fork, no tile is needed.
    let floor = adopted(&world.floor(), &[&heads[0]]);
    let (mut other, _) = published(0);
    let mut record = other.record(1);
    record.start += 1;
    let first = other.head_of(&record, &[2]);
    other.advance(&first);
    other.publish(2);
    let fork = judge(&floor, &other.publish(3)).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
}

/// A policy begins log 1. Its publisher, who was one before too, goes on in log 0 under the policy before.
#[test]
fn newer_record_in_an_earlier_log_is_a_fork() {
    let (mut world, heads) = published(1);
    let before = world.clone();
    let policy = Successor {
        log_epoch: 1,
        ..world.successor(Some(&heads[0]))
    };
    world.rotate(&policy, &[1]);
    let first = with_policies(&world, &heads[0]);
    let second = world.publish(2);
    let back = before.head_of(&before.record(3), &[2]);
    let back = with_policies(&world, &back);
    let floor = adopted(&world.floor(), &[&first, &second]);
    let fork = judge(&floor, &back).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
    let heads = [second, back];
    let judged = learned(&world.floor(), &first).judge_all(
        &heads,
        &Terms::strict(NOW),
        &mut Signatures::default(),
    );
    for offer in judged.offers {
        assert_eq!(offer.unwrap_err().class(), Class::Fork);
    }
}

#[test]
fn a_pinned_version_needs_no_proof() {
    let (world, heads) = published(6);
    let floor = adopted(&world.floor(), &[&heads[0], &heads[1]]);
    let offer = judge_with(&floor, &heads[5], pin(&heads[5], 6)).unwrap();
    assert!(floor.unproved(&offer).unwrap().is_none());
    assert_eq!(floor.adopt(&offer).unwrap(), floor);
}

/// Shows that the record of `earlier` is in the log of `newest`, with the one tile that a short log has.
fn place(world: &World, newest: &Head, earlier: &Head, tile: &[u8]) -> Result<(), Reject> {
    let genesis = Link::read(world.volume, &world.policies[0]).unwrap();
    let signatures = &mut Signatures::default();
    let terms = Terms::strict(NOW);
    let offer = world
        .floor()
        .judge_earlier(newest, &earlier.record, &genesis, &terms, signatures)
        .unwrap();
    let log = judge(&world.floor(), newest).unwrap().record.log;
    let stored = log.size + 1;
    let mut placed = Placed::begin(&offer, log.epoch, &newest.frontier, stored)?;
    loop {
        let mut prefix = placed.wants().clone();
        for _ in prefix.wants() {
            prefix.supply(tile)?;
        }
        match placed.proved(prefix)? {
            Some(next) => placed = next,
            None => return Ok(()),
        }
    }
}

#[test]
fn every_earlier_record_is_proved_to_be_in_the_log() {
    let (world, heads) = published(17);
    for (at, newest) in heads.iter().enumerate() {
        for earlier in &heads[..at] {
            assert_eq!(place(&world, newest, earlier, &tile(&world)), Ok(()));
        }
    }
}

#[test]
fn signed_record_outside_of_the_log_is_a_fork() {
    for versions in 3..12u64 {
        let (mut world, mut heads) = published(versions);
        let mut record = world.record(versions + 1);
        record.start += 1;
        let outside = world.head_of(&record, &[2]);
        let mut beside = world.clone();
        beside.advance(&outside);
        let after = beside.publish(versions + 2);
        heads.extend((1..=5).map(|more| world.publish(versions + more)));
        for false_one in [&outside, &after] {
            let newest = heads.last().unwrap();
            let placed = place(&world, newest, false_one, &tile(&world));
            assert_eq!(placed.unwrap_err().class(), Class::Fork);
        }
        // A record that names a log as long as the newest one, or longer.
        let newest = &heads[versions as usize - 1];
        let mut late = world.record(1);
        late.start += 2;
        let late = world.head_of(&late, &[2]);
        let placed = place(&world, newest, &late, &tile(&world));
        assert_eq!(placed.unwrap_err().class(), Class::Fork);
    }
}

#[test]
fn wrong_or_missing_tile_places_nothing_and_accuses_its_sender() {
    let (world, heads) = published(9);
    let mut bent = tile(&world);
    bent[0] ^= 1;
    let placed = place(&world, &heads[8], &heads[2], &bent);
    assert!(matches!(placed, Err(Reject::BadHistory(_))), "{placed:?}");
    let genesis = Link::read(world.volume, &world.policies[0]).unwrap();
    let (terms, signatures) = (Terms::strict(NOW), &mut Signatures::default());
    let judged = |head: &Head, signatures: &mut Signatures| {
        let floor = world.floor();
        floor.judge_earlier(&heads[8], &head.record, &genesis, &terms, signatures)
    };
    let (one, other) = (judged(&heads[2], signatures), judged(&heads[4], signatures));
    let begin = |offer: &Offer| Placed::begin(offer, 0, &heads[8].frontier, 10).unwrap();
    let (one, other) = (begin(&one.unwrap()), begin(&other.unwrap()));
    assert_eq!(
        one.clone().proved(one.wants().clone()).err(),
        Some(Reject::Unproved)
    );
    let mut whole = other.wants().clone();
    whole.supply(&tile(&world)).unwrap();
    assert_eq!(
        one.proved(whole).err(),
        Some(Reject::Unproved),
        "of another record"
    );
}
