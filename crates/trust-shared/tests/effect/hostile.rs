//! Members who break the rules of ops on purpose.

use std::sync::Arc;

use trust::inode::{FileKind, Inode, Time};
use trust_shared::calls::{self, Replaced};
use trust_shared::change::Change;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Replay, Stop};
use trust_shared::guard::Guard;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::outline::Outline;
use trust_shared::principal::FileId;

use crate::world::*;

const MISFORMED: Outcome = Outcome::None(NoEffect::Misformed);

/// Whether the root can be reached from a directory by the names that lead to it.
fn leads_to_root(world: &World, all: &[FileId], directory: FileId) -> bool {
    let mut here = directory;
    for _ in 0..=all.len() {
        if here == world.volume.root {
            return true;
        }
        let parent = all.iter().find(|parent| {
            ["x", "y"].iter().any(|text| {
                let found = world.state.entry(parent, &name(text), &world.store);
                found.unwrap().is_some_and(|to| to.file == here)
            })
        });
        match parent {
            Some(parent) => here = *parent,
            None => return false,
        }
    }
    false
}

#[test]
fn two_moves_into_each_other_make_no_circle() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let y = world.mkdir(0, &root(), "y", 2);
    let (at_x, at_y) = (world.spot(&root(), "x"), world.spot(&root(), "y"));
    let calls = world.calls();
    let one = calls.rename(&at_x, &world.spot(&y, "x"), Replaced::Refused);
    let other = calls.rename(&at_y, &world.spot(&x, "y"), Replaced::Refused);
    let (one, other) = (one.unwrap().unwrap(), other.unwrap().unwrap());
    assert_eq!(world.put(1, one), Outcome::Effect);
    assert_eq!(world.put(2, other), Outcome::None(NoEffect::Stale));
    let all = [world.volume.root, x.id, y.id];
    assert!(leads_to_root(&world, &all, x.id) && leads_to_root(&world, &all, y.id));
}

#[test]
fn moves_without_the_guards_of_their_path_make_no_circle() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let y = world.mkdir(0, &root(), "y", 2);
    for (moved, into) in [("x", &y), ("y", &x)] {
        let from = world.spot(&root(), moved);
        let to = world.spot(into, moved);
        let op = world.calls().rename(&from, &to, Replaced::Refused);
        let op = op.unwrap().unwrap();
        let without = |guard: &Guard| !matches!(guard, Guard::Linked { .. });
        let guards = op.guards.into_iter().filter(without).collect();
        assert_eq!(world.put(1, Op::new(guards, op.changes)), MISFORMED);
    }
    let all = [world.volume.root, x.id, y.id];
    assert!(leads_to_root(&world, &all, x.id) && leads_to_root(&world, &all, y.id));
}

#[test]
fn one_op_that_moves_two_directories_into_each_other_makes_no_circle() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let y = world.mkdir(0, &root(), "y", 2);
    let (at_x, at_y) = (world.spot(&root(), "x"), world.spot(&root(), "y"));
    let calls = world.calls();
    let one = calls.rename(&at_x, &world.spot(&y, "x"), Replaced::Refused);
    let other = calls.rename(&at_y, &world.spot(&x, "y"), Replaced::Refused);
    let (one, other) = (one.unwrap().unwrap(), other.unwrap().unwrap());
    let names = |changes: Vec<Change>| {
        let changes = changes.into_iter();
        changes.filter(|change| !matches!(change, Change::Touch { .. }))
    };
    let op = Op::new(
        [one.guards, other.guards].concat(),
        names(one.changes).chain(names(other.changes)).collect(),
    );
    assert_eq!(world.put(1, op), MISFORMED);
}

#[test]
fn directory_has_one_name() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let spot = world.spot(&root(), "y");
    let change = Change::Link {
        directory: root().id,
        name: name("y"),
        target: target(x.id, FileKind::Directory),
    };
    let absent = Guard::EntryIs {
        directory: root().id,
        name: name("y"),
        is: None,
    };
    assert_eq!(spot.found, None);
    let op = Op::new(vec![absent.clone()], vec![change.clone()]);
    assert_eq!(world.put(1, op), MISFORMED);
    // A new directory neither.
    let new = file(EVERYBODY, 1, 1);
    let op = world.create(&root(), "z", new, directory());
    let second = Change::Link {
        directory: root().id,
        name: name("y"),
        target: target(new, FileKind::Directory),
    };
    let guards = [op.guards, vec![absent.clone()]].concat();
    let changes = [op.changes, vec![second]].concat();
    assert_eq!(world.put(1, Op::new(guards, changes)), MISFORMED);
    // Nor with a guard on the old name that the op leaves as it is.
    let present = Guard::EntryIs {
        directory: root().id,
        name: name("x"),
        is: Some(target(x.id, FileKind::Directory)),
    };
    assert_eq!(
        world.put(1, Op::new(vec![absent, present], vec![change])),
        MISFORMED
    );
}

#[test]
fn name_that_lies_about_the_kind_of_its_file_is_no_path() {
    let mut world = World::new();
    let z = world.mkdir(0, &root(), "z", 1);
    let d = world.mkdir(0, &z, "d", 2);
    let entry = |at: FileId, text: &str, is| Guard::EntryIs {
        directory: at,
        name: name(text),
        is,
    };
    let link = |at: FileId, text: &str, target| Change::Link {
        directory: at,
        name: name(text),
        target,
    };
    let unlink = |text: &str| Change::Unlink {
        directory: root().id,
        name: name(text),
    };
    let lie = target(d.id, FileKind::Regular);
    let op = Op::new(
        vec![entry(root().id, "l", None)],
        vec![link(root().id, "l", lie)],
    );
    assert_eq!(world.put(1, op), Outcome::Effect);
    let of_z = target(z.id, FileKind::Directory);
    let guards = vec![
        entry(root().id, "z", Some(of_z)),
        entry(d.id, "z", None),
        Guard::Linked {
            directory: d.id,
            parent: root().id,
            name: name("l"),
        },
    ];
    let op = Op::new(guards, vec![unlink("z"), link(d.id, "z", of_z)]);
    assert_eq!(world.put(1, op), Outcome::None(NoEffect::Stale));
    // Nor does it become a second name.
    let guards = vec![
        entry(root().id, "l", Some(lie)),
        entry(root().id, "k", None),
    ];
    let honest = target(d.id, FileKind::Directory);
    let op = Op::new(guards, vec![unlink("l"), link(root().id, "k", honest)]);
    assert_eq!(world.put(1, op), MISFORMED);
}

#[test]
fn move_of_another_owners_directory_needs_write_permission_on_it() {
    let mut world = World::new();
    let y = world.mkdir(0, &root(), "y", 1);
    let team = file(TEAM, 0, 2);
    let op = world.create(&root(), "x", team, directory());
    assert_eq!(world.put(0, op), Outcome::Effect);
    let (from, to) = (world.spot(&root(), "x"), world.spot(&y, "x"));
    let op = world.calls().rename(&from, &to, Replaced::Refused);
    let op = op.unwrap().unwrap();
    assert_eq!(
        world.put(2, op.clone()),
        Outcome::None(NoEffect::NotPermitted)
    );
    let beside = world.spot(&root(), "z");
    let same = world.calls().rename(&from, &beside, Replaced::Refused);
    assert_eq!(world.put(2, same.unwrap().unwrap()), Outcome::Effect);
}

#[test]
fn creation_in_a_directory_that_its_owner_does_not_own_the_parent_of_fails_after_rmdir() {
    let mut world = World::new();
    let team = file(TEAM, 0, 1);
    let op = world.create(&root(), "x", team, directory());
    assert_eq!(world.put(0, op), Outcome::Effect);
    let inside = below(&root(), "x", team);
    let create = world.create(&inside, "f", file(TEAM, 1, 1), regular(""));
    // Device 2 cannot write the team's files: the directory loses its name, and its inode stays.
    let rmdir = world
        .calls()
        .rmdir(&world.spot(&root(), "x"), false)
        .unwrap();
    assert_eq!(world.put(2, rmdir), Outcome::Effect);
    assert!(world.state.inode(&team, &world.store).unwrap().is_some());
    assert_eq!(world.put(1, create), Outcome::None(NoEffect::Stale));
}

#[test]
fn change_that_the_outline_does_not_name_does_not_exist() {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "f", new, regular(""));
    let hidden = Change::Set {
        file: file(EVERYBODY, 0, 2),
        inode: Arc::new(regular("hidden")),
    };
    let listed = Body::new(vec![op.clone()]).unwrap().outline();
    let changes = [op.changes, vec![hidden]].concat();
    let body = Arc::new(Body::new(vec![Op::new(op.guards, changes)]).unwrap());
    assert!(!body.is_outlined_by(&listed) && body.is_outlined_by(&body.outline()));
    let written = written(0, BEGIN, BEGIN);
    world.store.entries.borrow_mut().insert(BEGIN, body.clone());
    let mut replay = Replay::new(world.volume.clone());
    replay.push(&written, &listed, &world.members).unwrap();
    let outcomes = world
        .state
        .apply(&written, &listed, &body, &world.members, &world.store)
        .unwrap();
    assert_eq!(outcomes, [Outcome::Effect]);
    let from = world.sources();
    for (number, exists) in [(1, true), (2, false)] {
        let file = file(EVERYBODY, 0, number);
        let eager = world.state.inode(&file, &world.store).unwrap();
        assert_eq!(eager.is_some(), exists);
        assert_eq!(replay.inode(BEGIN + 1, &file, from), Ok(eager));
    }
    // Nor does a change that only the outline names.
    let mut replay = Replay::new(world.volume.clone());
    let other = Op::new(Vec::new(), vec![Change::Lock { file: new }]);
    let bare = Arc::new(Body::new(vec![other]).unwrap());
    world.store.entries.borrow_mut().insert(BEGIN, bare);
    replay
        .push(&written, &body.outline(), &world.members)
        .unwrap();
    let from = world.sources();
    assert_eq!(replay.inode(BEGIN + 1, &new, from), Ok(None));
    assert_eq!(replay.outcome(BEGIN, 0, from), Ok(MISFORMED));
}

#[test]
fn entry_of_an_author_without_permission_is_judged_without_its_body() {
    let world = World::new();
    let lock = Change::Lock {
        file: file(EVERYBODY, 0, 1),
    };
    let outline = Body::new(vec![Op::new(Vec::new(), vec![lock])])
        .unwrap()
        .outline();
    for (device, waits) in [(3, false), (1, true)] {
        let mut replay = Replay::new(world.volume.clone());
        let at = written(device, BEGIN, BEGIN);
        replay.push(&at, &outline, &world.members).unwrap();
        let found = replay.lock(BEGIN + 1, &file(EVERYBODY, 0, 1), world.sources());
        assert_eq!(found.is_err(), waits, "{found:?}");
        let outcome = replay.outcome(BEGIN, 0, world.sources());
        let denied = Ok(Outcome::None(NoEffect::NotPermitted));
        assert_eq!(outcome == denied, !waits);
    }
}

#[test]
fn guard_about_something_else_is_refused() {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let other = file(EVERYBODY, 0, 2);
    let op = world.create(&root(), "f", new, regular(""));
    let stray = [
        Guard::HashIs {
            file: other,
            is: None,
        },
        Guard::Unlocked { file: other },
        Guard::Empty { directory: other },
        Guard::EntryIs {
            directory: root().id,
            name: name("g"),
            is: None,
        },
        Guard::Linked {
            directory: other,
            parent: root().id,
            name: name("g"),
        },
        Guard::FoldIs {
            principal: EVERYBODY,
            is: None,
        },
    ];
    for guard in stray {
        let guards = [op.guards.clone(), vec![guard.clone()]].concat();
        let outcome = world.put(0, Op::new(guards, op.changes.clone()));
        assert_eq!(outcome, MISFORMED, "{guard:?}");
    }
    assert_eq!(world.put(0, op), Outcome::Effect);
}

#[test]
fn entry_changes_only_with_a_guard_on_it() {
    let mut world = World::new();
    let change = Change::Unlink {
        directory: root().id,
        name: name("f"),
    };
    assert_eq!(world.put(0, Op::new(Vec::new(), vec![change])), MISFORMED);
}

#[test]
fn directory_with_entries_is_not_removed() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    world.mkdir(0, &x, "y", 2);
    let remove = |file| Op::new(Vec::new(), vec![Change::Remove { file }]);
    assert_eq!(
        world.put(1, remove(x.id)),
        Outcome::None(NoEffect::NotEmpty)
    );
    let absent = remove(file(EVERYBODY, 0, 9));
    assert_eq!(world.put(1, absent), Outcome::None(NoEffect::NotFound));
    let root = remove(world.volume.root);
    assert_eq!(world.put(1, root), Outcome::None(NoEffect::Needed));
}

/// An op that changes names and leaves the times of their directories.
fn untouched(op: Op) -> Op {
    let changes = op.changes.into_iter();
    let changes = changes.filter(|change| !matches!(change, Change::Touch { .. }));
    Op::new(op.guards, changes.collect())
}

#[test]
fn removed_directory_gets_no_entries() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let create = untouched(world.create(&x, "f", file(EVERYBODY, 1, 1), regular("")));
    let unlinked = |guard: &Guard| !matches!(guard, Guard::Linked { .. });
    let guards: Vec<Guard> = create
        .guards
        .iter()
        .filter(|g| unlinked(g))
        .cloned()
        .collect();
    let both = [create.changes.clone(), vec![Change::Remove { file: x.id }]].concat();
    assert_eq!(world.put(1, Op::new(guards.clone(), both)), MISFORMED);
    let rmdir = world
        .calls()
        .rmdir(&world.spot(&root(), "x"), true)
        .unwrap();
    assert_eq!(world.put(1, rmdir), Outcome::Effect);
    let late = world.put(1, Op::new(guards, create.changes));
    assert_eq!(late, Outcome::None(NoEffect::NotFound));
}

#[test]
fn file_gets_no_entries() {
    let mut world = World::new();
    let plain = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "f", plain, regular(""));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let inside = calls::Directory {
        id: plain,
        path: Vec::new(),
    };
    let op = untouched(world.create(&inside, "g", file(EVERYBODY, 0, 2), regular("")));
    assert_eq!(world.put(0, op), Outcome::None(NoEffect::NotADirectory));
}

#[test]
fn new_file_has_a_number_of_its_author_and_no_file_changes_its_type() {
    let mut world = World::new();
    let set = |number, inode| {
        let change = Change::Set {
            file: file(EVERYBODY, 0, number),
            inode: Arc::new(inode),
        };
        Op::new(Vec::new(), vec![change])
    };
    let foreign = world.put(1, set(1, regular("")));
    assert_eq!(foreign, Outcome::None(NoEffect::NotPermitted));
    assert_eq!(world.put(0, set(1, regular(""))), Outcome::Effect);
    assert_eq!(world.put(1, set(1, regular("x"))), Outcome::Effect);
    let other = world.put(0, set(1, directory()));
    assert_eq!(other, Outcome::None(NoEffect::Exists));
}

#[test]
fn second_of_two_writes_on_one_version_has_no_effect() {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "f", new, regular(""));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let held = world.held(new);
    let write = |text| world.calls().write(&held, content(text), Time::default());
    let (one, other) = (write("one"), write("other"));
    assert_eq!(world.put(1, one), Outcome::Effect);
    assert_eq!(world.put(2, other), Outcome::None(NoEffect::Stale));
    assert_eq!(world.held(new).inode.content, content("one"));
}

#[test]
fn name_that_two_devices_make_leads_to_the_first_file() {
    let mut world = World::new();
    let spot = world.spot(&root(), "f");
    let (one, other) = (file(EVERYBODY, 1, 1), file(EVERYBODY, 2, 1));
    for (device, new, outcome) in [
        (1, one, Outcome::Effect),
        (2, other, Outcome::None(NoEffect::Exists)),
    ] {
        let op = world.calls().create(&spot, new, regular("")).unwrap();
        assert_eq!(world.put(device, op), outcome);
    }
    let found = world.spot(&root(), "f").found;
    assert_eq!(found, Some(target(one, FileKind::Regular)));
}

#[test]
fn directory_with_entries_keeps_its_name() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let rmdir = world
        .calls()
        .rmdir(&world.spot(&root(), "x"), false)
        .unwrap();
    world.mkdir(0, &x, "y", 2);
    assert_eq!(world.put(2, rmdir), Outcome::None(NoEffect::NotEmpty));
}

#[test]
fn state_continues_with_the_op_for_which_something_was_missing() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let fold = calls::fold(EVERYBODY, None, world.folded(EVERYBODY));
    assert_eq!(world.put(0, fold), Outcome::Effect);
    let lock = |counter| {
        Op::new(
            Vec::new(),
            vec![Change::Lock {
                file: file(EVERYBODY, 0, counter),
            }],
        )
    };
    let create = world.create(&x, "f", file(EVERYBODY, 0, 2), regular(""));
    let body = Body::new(vec![lock(7), create, lock(8)]).unwrap();
    let written = written(0, world.end(), world.end());
    let cache = Cache::new(&world.store);
    let (outline, members) = (body.outline(), world.members.clone());
    let state = &mut world.state;
    let first = state.apply(&written, &outline, &body, &members, &cache);
    assert!(matches!(first, Err(Stop::Missing(_))));
    let other = crate::world::written(0, written.position + 1, written.position);
    let between = state.apply(&other, &outline, &body, &members, &cache);
    assert_eq!(between, Err(Stop::NoPosition));
    let outcomes = cache.ask(|| state.apply(&written, &outline, &body, &members, &cache));
    assert_eq!(outcomes, [Outcome::Effect; 3]);
    let again = state.apply(&written, &outline, &body, &members, &cache);
    assert_eq!(again, Err(Stop::NoPosition));
}

#[test]
fn outline_that_does_not_follow_is_refused() {
    let mut replay = Replay::new(volume());
    let outline = Outline::default();
    let (store, members) = (Store::default(), members());
    replay.push(&written(0, 5, 5), &outline, &members).unwrap();
    assert_eq!(
        replay.push(&written(0, 5, 5), &outline, &members),
        Err(Stop::NoPosition)
    );
    let from = Sources {
        members: &members,
        stored: &store,
    };
    assert_eq!(replay.inode(7, &root().id, from), Err(Stop::NoPosition));
    assert_eq!(replay.outcome(5, 0, from), Err(Stop::NoPosition));
    assert!(replay.inode(6, &root().id, from).unwrap().is_some());
}

fn touch(directory: FileId) -> Change {
    let (mtime, ctime) = (TIME, TIME);
    Change::Touch {
        directory,
        mtime,
        ctime,
    }
}

fn set(file: FileId, inode: Inode) -> Change {
    let inode = Arc::new(inode);
    Change::Set { file, inode }
}

#[test]
fn only_directories_that_are_there_are_touched_by_who_may_write_them() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let (f, gone) = (file(EVERYBODY, 0, 2), file(EVERYBODY, 0, 9));
    let made = world.create(&root(), "f", f, regular("f"));
    assert_eq!(world.put(0, made), Outcome::Effect);
    let alone = |directory| Op::new(Vec::new(), vec![touch(directory)]);
    let none = Outcome::None;
    assert_eq!(world.put(1, alone(x.id)), Outcome::Effect);
    assert_eq!(world.put(1, alone(f)), none(NoEffect::NotADirectory));
    assert_eq!(world.put(1, alone(gone)), none(NoEffect::NotFound));
    assert_eq!(world.put(3, alone(x.id)), none(NoEffect::NotPermitted));
    // A file that the op makes is no directory either.
    let file = Op::new(Vec::new(), vec![set(gone, regular("")), touch(gone)]);
    assert_eq!(world.put(0, file), none(NoEffect::NotADirectory));
}

#[test]
fn directory_that_is_made_again_has_no_times_of_the_one_that_was_there() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let removed = world.calls().rmdir(&world.spot(&root(), "x"), true);
    let removed = removed.unwrap();
    // No times stay behind.
    let changes = [removed.changes.clone(), vec![touch(x.id)]].concat();
    let stays = Op::new(removed.guards.clone(), changes);
    assert_eq!(world.put(0, stays), MISFORMED);
    assert_eq!(world.put(0, removed), Outcome::Effect);
    let again = Op::new(Vec::new(), vec![set(x.id, directory())]);
    assert_eq!(world.put(0, again), MISFORMED);
    let again = Op::new(Vec::new(), vec![set(x.id, directory()), touch(x.id)]);
    assert_eq!(world.put(0, again), Outcome::Effect);
}

#[test]
fn inode_of_a_directory_with_a_time_is_in_no_body() {
    let inode = Inode {
        mtime: TIME,
        ..directory()
    };
    let body = Body::new(vec![Op::new(Vec::new(), vec![set(root().id, inode)])]);
    assert!(body.is_err());
    let inode = Inode {
        ctime: Some(TIME),
        ..directory()
    };
    let body = Body::new(vec![Op::new(Vec::new(), vec![set(root().id, inode)])]);
    assert!(body.is_ok());
}
