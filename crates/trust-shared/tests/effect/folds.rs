//! Folds: what they must name, and that a wrong one is wrong for every reader alike.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use trust::error::Reject;
use trust::reach::{Found, Wanted};
use trust_shared::calls;
use trust_shared::change::Change;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Replay, Stop};
use trust_shared::guard::Guard;
use trust_shared::itable::Fold;
use trust_shared::key::Key;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::Principal;

use crate::world::*;

const MISFORMED: Outcome = Outcome::None(NoEffect::Misformed);

#[test]
fn fold_names_the_one_before_it_and_grows_within_what_its_author_has_seen() {
    let mut world = World::new();
    world.mkdir(0, &root(), "x", 1);
    let first = world.folded(EVERYBODY);
    let bare = Change::Fold {
        principal: EVERYBODY,
        fold: first,
    };
    assert_eq!(world.put(0, Op::new(Vec::new(), vec![bare])), MISFORMED);
    let op = calls::fold(EVERYBODY, None, first);
    let early = world.put_seen(0, first.upto - 1, op.clone());
    assert_eq!(early, Outcome::None(NoEffect::Stale));
    assert_eq!(
        world.put(3, op.clone()),
        Outcome::None(NoEffect::NotPermitted)
    );
    assert_eq!(world.put(0, op.clone()), Outcome::Effect);
    assert_eq!(world.put(0, op), Outcome::None(NoEffect::Stale));
    let next = Fold {
        upto: first.upto + 1,
        ..first
    };
    let unaware = calls::fold(EVERYBODY, None, next);
    assert_eq!(world.put(0, unaware), Outcome::None(NoEffect::Stale));
    let empty = Change::Fold {
        principal: TEAM,
        fold: Fold {
            upto: first.upto,
            root: None,
        },
    };
    let first_of_team = Guard::FoldIs {
        principal: TEAM,
        is: None,
    };
    let again = Fold {
        upto: first.upto + 1,
        ..first
    };
    let op = calls::fold(EVERYBODY, Some(first), again);
    let guards = [op.guards.clone(), vec![first_of_team]].concat();
    let changes = [op.changes.clone(), vec![empty]].concat();
    assert_eq!(world.put(0, Op::new(guards, changes)), MISFORMED);
    let lock = Change::Lock {
        file: file(EVERYBODY, 0, 1),
    };
    let changes = [op.changes, vec![lock]].concat();
    assert_eq!(world.put(0, Op::new(op.guards, changes)), MISFORMED);
    let smaller = Fold {
        upto: first.upto - 1,
        root: None,
    };
    for fold in [smaller, first] {
        let again = calls::fold(EVERYBODY, Some(first), fold);
        assert_eq!(world.put(0, again), Outcome::None(NoEffect::Stale));
    }
}

#[test]
fn fold_with_a_circle_of_guards_about_names_is_misformed() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    let first = world.folded(EVERYBODY);
    let op = calls::fold(EVERYBODY, None, first);
    // It concerns itself. In a table that somebody has made up, it may hold.
    let circle = Guard::Linked {
        directory: x.id,
        parent: x.id,
        name: name("x"),
    };
    let guards = [op.guards.clone(), vec![circle]].concat();
    let with = Op::new(guards, op.changes.clone());
    assert_eq!(world.put(0, with), MISFORMED);
    assert_eq!(world.put(0, op), Outcome::Effect);
}

#[test]
fn op_between_a_folds_position_and_its_entry_is_judged_before_it_is_forgotten() {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "f", new, regular("one"));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let fold = world.folded(EVERYBODY);
    let held = world.held(new);
    let write = world
        .calls()
        .write(&held, content("two"), Default::default());
    assert_eq!(world.put(1, write), Outcome::Effect);
    let op = calls::fold(EVERYBODY, None, fold);
    assert_eq!(world.put(0, op), Outcome::Effect);
    let mut replay = replay_of(&world);
    replay.forget_before(fold.upto, world.sources()).unwrap();
    let found = replay.inode(world.end(), &new, world.sources()).unwrap();
    assert_eq!(
        found.map(|inode| inode.content.clone()),
        Some(content("two"))
    );
}

/// The bodies that were fetched last, and those that were used since.
struct Few<'a> {
    store: &'a Store,
    here: RefCell<HashSet<u64>>,
    used: RefCell<HashSet<u64>>,
}

impl<'a> Few<'a> {
    fn new(store: &'a Store) -> Few<'a> {
        Few {
            store,
            here: RefCell::default(),
            used: RefCell::default(),
        }
    }

    /// Bodies that were used in this round.
    fn read(&self) -> usize {
        self.used.borrow().len()
    }

    /// Keeps what was used in the last round, and these.
    fn only(&self, bodies: Vec<u64>) {
        let mut used = self.used.take();
        used.extend(bodies);
        self.here.replace(used);
    }
}

impl Blocks for Few<'_> {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        self.store.block(wanted)
    }
}

impl Bodies for Few<'_> {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        if !self.here.borrow().contains(&position) {
            return Ok(None);
        }
        self.used.borrow_mut().insert(position);
        self.store.body(position)
    }
}

fn replay_of(world: &World) -> Replay {
    let mut replay = Replay::new(world.volume.clone());
    for entry in &world.log {
        let outline = entry.body.outline();
        let pushed = replay.push(&entry.written, &outline, &world.members);
        pushed.unwrap();
    }
    replay
}

#[test]
fn value_is_looked_for_back_to_the_last_fold_and_no_further() {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "f", new, regular("new"));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let write = |world: &mut World, text: &str| {
        let held = world.held(new);
        let write = world
            .calls()
            .write(&held, content(text), Default::default());
        assert_eq!(world.put(0, write), Outcome::Effect);
    };
    (0..100).for_each(|number| write(&mut world, &number.to_string()));
    let op = calls::fold(EVERYBODY, None, world.folded(EVERYBODY));
    assert_eq!(world.put(0, op), Outcome::Effect);
    write(&mut world, "last");
    let mut replay = replay_of(&world);
    let found = replay.inode(world.end(), &new, world.sources()).unwrap();
    let found = found.map(|inode| inode.content.clone());
    assert_eq!(found, Some(content("last")));
    assert!(replay.steps() < 30, "{} steps", replay.steps());
}

#[test]
fn bodies_of_a_long_row_of_versions_are_fetched_together_and_few_at_a_time() {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "f", new, regular("new"));
    assert_eq!(world.put(0, op), Outcome::Effect);
    for number in 0..1000 {
        let held = world.held(new);
        let text = content(&number.to_string());
        let write = world.calls().write(&held, text, Default::default());
        assert_eq!(world.put(0, write), Outcome::Effect);
    }
    let mut replay = replay_of(&world);
    let (mut rounds, mut most) = (0, 0);
    let few = Few::new(&world.store);
    let found = loop {
        let from = Sources {
            members: &world.members,
            stored: &few,
        };
        match replay.inode(world.end(), &new, from) {
            Ok(found) => break found,
            Err(Stop::Missing(missing)) => {
                rounds += 1;
                most = most.max(few.read());
                few.only(missing.bodies);
            }
            Err(stop) => panic!("{stop}"),
        }
    };
    let found = found.map(|inode| inode.content.clone());
    assert_eq!(found, Some(content("999")));
    assert!(rounds < 60, "{rounds} rounds");
    assert!(most < 200, "{most} bodies at a time");
}

#[test]
fn bodies_of_a_long_row_of_steps_are_fetched_together_and_few_at_a_time() {
    const ENTRIES: u64 = 300;
    const OPS: u64 = 20;
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    for entry in 0..ENTRIES {
        let ops = (0..OPS).map(|op| {
            let number = 10 + entry * OPS + op;
            let new = file(EVERYBODY, 0, number);
            world.create(&x, &format!("f{number}"), new, regular(""))
        });
        let (ops, seen) = (ops.collect(), world.end());
        let outcomes = world.put_all(0, seen, ops);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Effect));
    }
    let mut replay = replay_of(&world);
    let (mut rounds, mut most) = (0, 0);
    let few = Few::new(&world.store);
    let found = loop {
        let from = Sources {
            members: &world.members,
            stored: &few,
        };
        match replay.entries(world.end(), &x.id, from) {
            Ok(found) => break found,
            Err(Stop::Missing(missing)) => {
                rounds += 1;
                most = most.max(few.read());
                few.only(missing.bodies);
            }
            Err(stop) => panic!("{stop}"),
        }
    };
    assert_eq!(found, ENTRIES * OPS);
    assert!(rounds < 12, "{rounds} rounds");
    assert!(most < 200, "{most} bodies at a time");
}

#[test]
fn listing_looks_once_in_each_round_for_what_all_its_names_wait_for() {
    const CHANGES: u64 = 1000;
    const NAMES: u64 = 200;
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    for number in 0..CHANGES {
        let held = world.held(x.id);
        let mut inode = (*held.inode).clone();
        inode.mode = 0o700 + (number % 8) as u16;
        let op = world.calls().set_attributes(&held, inode, None);
        assert_eq!(world.put(0, op), Outcome::Effect);
    }
    for number in 0..NAMES {
        let new = file(EVERYBODY, 0, 10 + number);
        let op = world.create(&x, &format!("f{number}"), new, regular(""));
        assert_eq!(world.put(0, op), Outcome::Effect);
    }
    let mut replay = replay_of(&world);
    let few = Few::new(&world.store);
    let found = loop {
        let from = Sources {
            members: &world.members,
            stored: &few,
        };
        match replay.list(world.end(), &x.id, None, 1000, from) {
            Ok(found) => break found,
            Err(Stop::Missing(missing)) => few.only(missing.bodies),
            Err(stop) => panic!("{stop}"),
        }
    };
    assert_eq!(found.names.len() as u64, NAMES);
    let steps = replay.steps();
    assert!(steps < 20 * (CHANGES + NAMES), "{steps} steps");
}

#[test]
fn op_without_permission_keeps_nothing_from_being_forgotten() {
    let mut world = World::new();
    let x = world.mkdir(0, &root(), "x", 1);
    // A principal that nobody can fold.
    let file = file(Principal::from_bytes([99; 32]), 3, 1);
    let op = Op::new(Vec::new(), vec![Change::Remove { file }]);
    assert_eq!(world.put(3, op), Outcome::None(NoEffect::NotPermitted));
    let fold = world.folded(EVERYBODY);
    let op = calls::fold(EVERYBODY, None, fold);
    assert_eq!(world.put(0, op), Outcome::Effect);
    let mut replay = replay_of(&world);
    let found = replay.positions(world.end(), &Key::Inode(file));
    assert!(found.is_empty(), "no question comes to it");
    replay.forget_before(fold.upto, world.sources()).unwrap();
    // The one that made the directory, which is not folded there yet, and the fold.
    assert_eq!(replay.kept_ops(), 2);
    let found = replay.inode(world.end(), &x.id, world.sources()).unwrap();
    assert!(found.is_some());
}

#[test]
fn wrong_fold_hides_the_same_from_every_reader() {
    let mut world = World::new();
    let new = file(TEAM, 0, 1);
    let op = world.create(&root(), "f", new, regular(""));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let upto = world.end();
    let wrong = calls::fold(TEAM, None, Fold { upto, root: None });
    assert_eq!(world.put(0, wrong), Outcome::Effect);
    let mut replay = replay_of(&world);
    let (end, from) = (world.end(), world.sources());
    assert!(replay.inode(end - 1, &new, from).unwrap().is_some());
    assert_eq!(replay.inode(end, &new, from), Ok(None));
    assert_eq!(world.state.inode(&new, &world.store), Ok(None));
}

/// The op before the fold is the last one with effect, and lies before what the fold has.
#[test]
fn op_without_effect_after_a_wrong_fold_does_not_bring_back_what_the_fold_hides() {
    let mut world = World::new();
    let new = file(TEAM, 0, 1);
    let op = world.create(&root(), "f", new, regular(""));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let upto = world.end();
    let wrong = calls::fold(TEAM, None, Fold { upto, root: None });
    assert_eq!(world.put(0, wrong), Outcome::Effect);
    let is = world.volume.inode_hash(&regular("another"));
    let guard = Guard::HashIs {
        file: new,
        is: Some(is),
    };
    let set = Change::Set {
        file: new,
        inode: Arc::new(regular("more")),
    };
    let stale = world.put(0, Op::new(vec![guard], vec![set]));
    assert!(matches!(stale, Outcome::None(_)), "{stale:?}");
    let (end, from) = (world.end(), world.sources());
    let mut replay = replay_of(&world);
    assert_eq!(replay.inode(end, &new, from), Ok(None));
    assert!(replay.inode(upto, &new, from).unwrap().is_some());
    assert_eq!(replay.inode(end, &new, from), Ok(None));
    assert_eq!(world.state.inode(&new, &world.store), Ok(None));
}

#[test]
fn op_on_a_malformed_fold_has_no_effect_and_is_damaged() {
    let mut world = World::new();
    world.mkdir(0, &root(), "x", 1);
    let mut fold = world.folded(EVERYBODY);
    if let Some(root) = &mut fold.root {
        root.entries += 1;
    }
    assert_eq!(
        world.put(0, calls::fold(EVERYBODY, None, fold)),
        Outcome::Effect
    );
    let found = world.state.inode(&world.volume.root, &world.store);
    assert!(matches!(found, Err(Stop::Refused(_))), "{found:?}");
    let root_directory = Change::Set {
        file: world.volume.root,
        inode: Arc::new(directory()),
    };
    let op = Op::new(Vec::new(), vec![root_directory]);
    assert_eq!(world.put(0, op), Outcome::None(NoEffect::Damaged));
    let mut replay = replay_of(&world);
    let last = world.end() - 1;
    let found = replay.outcome(last, 0, world.sources());
    assert_eq!(found, Ok(Outcome::None(NoEffect::Damaged)));
}
