//! A fold gets further in each round, whatever its device drops between two rounds: so it ends after a number of rounds
//! that follows from its changes alone.

use std::sync::Arc;

use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Missing, Replay, Stop};
use trust_shared::fold::{Changes, Unfolded, fold};
use trust_shared::outcome::Outcome;

use crate::world::{Cache, EVERYBODY, World, directory, file, name, regular, root, target, volume};
use trust::inode::FileKind;

const FILES: u64 = 300;

/// A log of new files, and what a device keeps of it that has no bodies.
fn new_files() -> (World, Replay) {
    let mut world = World::new();
    for number in 1..=FILES {
        let new = file(EVERYBODY, 1, number);
        let op = world.create(&root(), &format!("f{number}"), new, regular("text"));
        assert_eq!(world.put(1, op), Outcome::Effect);
    }
    let mut replay = Replay::new(volume());
    for entry in &world.log {
        let outline = entry.body.outline();
        replay
            .push(&entry.written, &outline, &world.members)
            .unwrap();
    }
    (world, replay)
}

#[test]
fn changes_are_gathered_though_what_came_before_is_dropped() {
    let (world, mut replay) = new_files();
    let mut here = Cache::new(&world.store);
    let mut rounds = 0;
    let changes = loop {
        let from = Sources {
            members: &world.members,
            stored: &here,
        };
        match replay.changes(world.end(), EVERYBODY, from) {
            Ok(changes) => break changes,
            Err(Stop::Missing(missing)) => {
                // Only what this round misses is here in the next one.
                here = Cache::new(&world.store);
                here.fetch(&missing);
            }
            Err(stop) => panic!("{stop}"),
        }
        rounds += 1;
        // 256 things at a time, for the inode and for the name of each file.
        assert!(rounds <= 8, "it begins again");
    };
    let made = fold(
        &volume().hasher,
        None,
        &changes,
        world.end(),
        &world.store,
        |_, _, _| {},
    );
    assert_eq!(made, Ok(world.folded(EVERYBODY)));
}

#[test]
fn gathered_changes_stay_until_an_entry_folds_them() {
    let (mut world, mut replay) = new_files();
    let end = world.end();
    let changes = replay.changes(end, EVERYBODY, world.sources()).unwrap();
    assert_eq!(replay.gathers(EVERYBODY), Some(end));
    // The log grows, and nothing is here any more.
    let op = world.create(&root(), "later", file(EVERYBODY, 1, FILES + 1), regular(""));
    let made = world.folded(EVERYBODY);
    world.put(1, op);
    let push = |world: &World, replay: &mut Replay| {
        let entry = world.log.last().unwrap();
        replay
            .push(&entry.written, &entry.body.outline(), &world.members)
            .unwrap();
    };
    push(&world, &mut replay);
    let nothing = Cache::new(&world.store);
    let from = Sources {
        members: &world.members,
        stored: &nothing,
    };
    let again = replay.changes(end, EVERYBODY, from).unwrap();
    assert!(Arc::ptr_eq(&changes, &again));
    // They are not those of a later position.
    let later = replay.changes(world.end(), EVERYBODY, world.sources());
    assert_eq!(later.unwrap().inodes.len(), changes.inodes.len() + 1);
    world.put(1, trust_shared::calls::fold(EVERYBODY, None, made));
    push(&world, &mut replay);
    assert_eq!(replay.gathers(EVERYBODY), None);
    // A position that is forgotten is gathered for nobody.
    replay.changes(end, EVERYBODY, world.sources()).unwrap();
    replay.forget_before(world.end(), world.sources()).unwrap();
    assert_eq!(replay.gathers(EVERYBODY), None);
}

/// New inodes of these files, and their names in the first one.
fn changes(numbers: impl Iterator<Item = u64>, text: &str) -> Changes {
    let mut changes = Changes::default();
    let top = file(EVERYBODY, 0, 0).number;
    changes.inodes.insert(top, Some(Arc::new(directory())));
    let names = changes.entries.entry(top).or_default();
    for number in numbers {
        let new = file(EVERYBODY, 1, number);
        changes
            .inodes
            .insert(new.number, Some(Arc::new(regular(text))));
        let to = target(new, FileKind::Regular);
        names.insert(name(&format!("name of file {number:06}")), Some(to));
    }
    changes
}

#[test]
fn fold_names_the_nodes_that_it_misses_together() {
    let world = World::new();
    let hasher = &volume().hasher;
    let keep = |kind, handle, bytes: &_| world.store.keep(kind, handle, bytes);
    let first = changes(0..3000, "text");
    let mut made = Vec::new();
    let before = fold(
        hasher,
        None,
        &first,
        1,
        &world.store,
        |kind, handle, bytes| {
            made.push((kind, handle, bytes.clone()));
        },
    );
    made.iter()
        .for_each(|(kind, handle, bytes)| keep(*kind, *handle, bytes));
    let before = before.unwrap().root;
    let cases = [
        ((3..3000).step_by(7), 6),
        ((3..3000).step_by(900), 24),
        ((1000..2000).step_by(1), 6),
    ];
    for (numbers, most) in cases {
        let second = changes(numbers.clone(), "other");
        let wanted = fold(
            hasher,
            before.as_ref(),
            &second,
            2,
            &world.store,
            |_, _, _| {},
        );
        let here = Cache::new(&world.store);
        let mut fetched = 0;
        let made = loop {
            match fold(hasher, before.as_ref(), &second, 2, &here, |_, _, _| {}) {
                Err(Unfolded::Missing(blocks)) => {
                    fetched += blocks.len();
                    here.fetch(&Missing {
                        blocks,
                        bodies: Vec::new(),
                    });
                }
                made => break made,
            }
        };
        assert_eq!(made, wanted);
        let rounds = *here.rounds.borrow();
        assert!(
            rounds <= most,
            "{rounds} rounds for {fetched} blocks, {numbers:?}"
        );
        assert!(fetched > rounds, "one block a round, {numbers:?}");
    }
}
