//! Proofs beside the floor of a reader that has read the volume before.

use trust::floor::Floor;
use trust::judge::Terms;
use trust::signatures::Signatures;

use super::*;

/// A reader, and a thief of the owner's key that policy 1 replaced: he makes a policy 1 of his own.
fn thief_of_a_retired_owner() -> (Floor, Volume) {
    let mut world = World::new();
    let first = world.publish(1);
    let mut thief = world.clone();
    let later = |owner| Successor {
        roles: Roles {
            owners: threshold(1, &[owner]),
            ..roles()
        },
        ..world.successor(Some(&first))
    };
    let (honest, forged) = (later(6), later(7));
    world.rotate(&honest, &[1, 6]);
    let floor = adopted(&world.floor(), &[&with_policies(&world, &first)]);
    thief.rotate(&forged, &[1, 7]);
    (floor, Volume::of(thief, 2, &[2]))
}

#[test]
fn proof_by_replaced_keys_is_refused_by_a_reader_of_their_successors() {
    let (floor, thief) = thief_of_a_retired_owner();
    let proof = thief.prove("docs");
    // Nobody else can tell.
    assert!(
        proof
            .verify(thief.world.volume, b"docs", &demands())
            .is_ok()
    );
    let refused = proof.verify_after(&floor, b"docs", &demands());
    let other = Reject::Fork("another policy than the known one");
    assert_eq!(refused.unwrap_err(), other);
    // One more policy changes nothing.
    let mut world = thief.world.clone();
    world.rotate(&world.successor(Some(&thief.head)), &[1, 7]);
    let longer = Volume::of(world, 3, &[2]).prove("docs");
    let refused = longer.verify_after(&floor, b"docs", &demands());
    assert_eq!(refused.unwrap_err(), other);
    let older = Volume::new().prove("docs");
    let refused = older.verify_after(&floor, b"docs", &demands());
    assert!(matches!(refused, Err(Reject::Rollback { .. })));
}

#[test]
fn proof_of_another_record_than_the_adopted_one_is_refused() {
    let honest = Volume::new();
    let mut world = World::new();
    let other = world.publish(1);
    let floor = adopted(&world.floor(), &[&other]);
    let refused = honest
        .prove("docs")
        .verify_after(&floor, b"docs", &demands());
    assert_eq!(
        refused.unwrap_err(),
        Reject::Fork("two records of one version")
    );
    // An earlier version that has not expired is no contradiction.
    let later = honest.world.clone().publish(2);
    let floor = adopted(&honest.world.floor(), &[&honest.head, &later]);
    let shown = honest
        .prove("docs")
        .verify_after(&floor, b"docs", &demands());
    assert_eq!(shown.unwrap().record.version, 1);
}

#[test]
fn proof_of_what_the_user_refused_or_has_not_settled_is_refused() {
    let mut world = World::new();
    let honest = Volume::of(world.clone(), 1, &[2]);
    let other = world.publish(1);
    let floor = adopted(&world.floor(), &[&honest.head]);
    let heads = [honest.head.clone(), other.clone()];
    let verdict = floor.judge_all(&heads, &Terms::strict(NOW), &mut Signatures::default());
    let floor = verdict.floor;
    assert!(floor.forks().stand());
    let hashes = [honest.head.record.hash(), other.record.hash()];
    let settled = floor.settle(&hashes[1]).unwrap();
    let refused = honest
        .prove("docs")
        .verify_after(&settled, b"docs", &demands());
    assert!(matches!(refused, Err(Reject::Refused(_))), "{refused:?}");
    let settled = floor.settle(&hashes[0]).unwrap();
    let shown = honest
        .prove("docs")
        .verify_after(&settled, b"docs", &demands());
    assert!(shown.is_ok());
}
