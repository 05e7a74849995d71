//! Forgetting: every later answer is the same as with all entries, and what is left is bounded by what has changed
//! and is not folded, whoever folds or does not.

use std::collections::BTreeSet;
use std::sync::Arc;

use trust_shared::calls;
use trust_shared::decision::Decision;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Replay, State};
use trust_shared::fold;
use trust_shared::itable::Fold;
use trust_shared::ops::Body;
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::{FileId, Principal};

use crate::agree::{Run, fixed_steps};
use crate::devices::{Client, NAMES};
use crate::stored::stored;
use crate::world::*;

/// Numbers that look random, the same each time.
struct Choices(u64);

impl Choices {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % end.max(1)
    }
}

fn push(replay: &mut Replay, entry: &Entry, world: &World) {
    let outline = entry.body.outline();
    let pushed = replay.push(&entry.written, &outline, &world.members);
    pushed.unwrap();
}

fn fresh(world: &World) -> Replay {
    let mut replay = Replay::new(world.volume.clone());
    replay.grow(BEGIN);
    replay
}

/// Compares all values before a position with those of a state that has evaluated everything.
fn compare(replay: &mut Replay, at: u64, state: &State, world: &World, files: &BTreeSet<FileId>) {
    let (from, store) = (world.sources(), &world.store);
    for file in files {
        assert_eq!(replay.inode(at, file, from), state.inode(file, store));
        assert_eq!(replay.shown(at, file, from), state.shown(file, store));
        assert_eq!(replay.entries(at, file, from), state.entries(file, store));
        assert_eq!(replay.lock(at, file, from), Ok(state.lock(file)));
        for text in NAMES {
            let name = name(text);
            let found = replay.entry(at, file, &name, from);
            assert_eq!(found, state.entry(file, &name, store), "{text} at {at}");
        }
    }
    for owner in owners() {
        let before = replay.last_fold(at, owner, from).unwrap();
        assert_eq!(before, state.last_fold(owner));
        let root = before.and_then(|fold| fold.root);
        let changes = replay.changes(at, owner, from).unwrap();
        let folds = [
            Arc::unwrap_or_clone(changes),
            state.changes(owner, &world.store).unwrap(),
        ]
        .map(|changes| {
            let hasher = &world.volume.hasher;
            fold::fold(hasher, root.as_ref(), &changes, at, store, |_, _, _| {})
        });
        assert_eq!(folds[0], folds[1], "{owner:?} at {at}");
    }
}

#[test]
fn what_is_forgotten_changes_no_later_answer() {
    let (mut forgotten, mut asked) = (0, 0);
    for seed in 0..80 {
        let run = Run::of(&fixed_steps(seed, 60));
        let (world, mut choices) = (&run.world, Choices(seed));
        let mut stores = Choices(seed + 1000);
        let mut kept = fresh(world);
        for (index, entry) in world.log.iter().enumerate() {
            push(&mut kept, entry, world);
            if choices.below(4) == 0 {
                let outcome = kept.outcome(entry.written.position, 0, world.sources());
                assert_eq!(outcome, Ok(run.outcomes[index].1));
            }
            if stores.below(7) == 0 {
                kept = stored(&kept, world);
            }
            if choices.below(6) > 0 {
                continue;
            }
            let kept_from = kept.begins().max(BEGIN);
            let position = kept_from + choices.below(kept.size() - kept_from + 1);
            kept.forget_before(position, world.sources()).unwrap();
            assert_eq!(kept.begins(), position);
            forgotten += position - kept_from;
            let before = kept.inode(position - 1, &world.volume.root, world.sources());
            assert!(before.is_err());
            for at in position..=kept.size() {
                let state = &run.states[(at - BEGIN) as usize];
                compare(&mut kept, at, state, world, &run.files);
                asked += 1;
            }
        }
        let last = run.states.last().unwrap();
        compare(&mut kept, world.end(), last, world, &run.files);
    }
    assert!(forgotten > 900 && asked > 900, "{forgotten}, {asked}");
}

#[test]
fn wrong_fold_means_the_same_after_what_it_leaves_out_was_forgotten() {
    let mut wrong_folds = 0;
    for seed in 200..240 {
        let mut run = Run::of(&fixed_steps(seed, 40));
        let mut choices = Choices(seed);
        let (mut all, mut kept) = (fresh(&run.world), fresh(&run.world));
        let log = &run.world.log;
        log.iter()
            .for_each(|entry| push(&mut all, entry, &run.world));
        log.iter()
            .for_each(|entry| push(&mut kept, entry, &run.world));
        let cut = BEGIN + choices.below(run.world.log.len() as u64 + 1);
        kept.forget_before(cut, run.world.sources()).unwrap();
        kept = stored(&kept, &run.world);
        let mut client = Client::new(1);
        for step in fixed_steps(seed + 1000, 30) {
            client.catch_up(&run.world);
            let owner = owners()[choices.below(2) as usize];
            let before = run.world.state.last_fold(owner);
            let since = before.map_or(0, |fold| fold.upto);
            // Before or after what was forgotten, and without all that was there.
            let upto = since + 1 + choices.below(run.world.end() - since);
            let fold = Fold { upto, root: None };
            let (outcome, judged) = match choices.below(6) {
                0 => (
                    run.world.put(0, calls::fold(owner, before, fold)),
                    Outcome::Effect,
                ),
                _ => {
                    let Some((_, Ok(Some(op)))) = client.call(&run.world.store, step) else {
                        continue;
                    };
                    let outcome = run.world.put(1, op);
                    (outcome, outcome)
                }
            };
            assert_eq!(outcome, judged);
            let entry = run.world.log.last().unwrap();
            wrong_folds += usize::from(entry.body.outline().folds());
            let position = entry.written.position;
            for replay in [&mut all, &mut kept] {
                push(replay, entry, &run.world);
                let found = replay.outcome(position, 0, run.world.sources());
                assert_eq!(found, Ok(outcome));
                let end = run.world.end();
                compare(replay, end, &run.world.state, &run.world, &run.files);
            }
            if choices.below(8) == 0 {
                let begins = kept.begins();
                let position = begins + choices.below(run.world.end() - begins + 1);
                kept.forget_before(position, run.world.sources()).unwrap();
            }
        }
    }
    assert!(wrong_folds > 100, "{wrong_folds}");
}

/// Writes the file of a user, whom nobody else can fold, and one of everybody, again and again. Everybody's files are folded.
fn busy(world: &mut World, owner: Principal, device: u32, rounds: u64) {
    let shared = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "shared", shared, regular(""));
    assert_eq!(world.put(0, op), Outcome::Effect);
    let own = file(owner, device, 2);
    let op = world.create(&root(), "own", own, regular(""));
    assert_eq!(world.put(device, op), Outcome::Effect);
    for round in 0..rounds {
        for (device, file) in [(0, shared), (device, own)] {
            let held = world.held(file);
            let text = content(&round.to_string());
            let op = world.calls().write(&held, text, Default::default());
            assert_eq!(world.put(device, op), Outcome::Effect);
        }
        if round % 50 == 49 {
            let before = world.state.last_fold(EVERYBODY);
            let fold = world.folded(EVERYBODY);
            let op = calls::fold(EVERYBODY, before, fold);
            assert_eq!(world.put(0, op), Outcome::Effect);
        }
    }
}

#[test]
fn member_who_never_folds_holds_up_nobodys_forgetting() {
    let mut world = World::new();
    busy(&mut world, user(2), 2, 500);
    let mut replay = fresh(&world);
    for entry in &world.log {
        push(&mut replay, entry, &world);
    }
    let end = world.end();
    let after = replay.after_fold(end, world.sources()).unwrap();
    assert_eq!(after, end, "the last entry folds");
    replay.forget_before(after, world.sources()).unwrap();
    assert!(
        replay.kept_ops() <= 2,
        "{} of 1000 ops are kept",
        replay.kept_ops()
    );
    let files = BTreeSet::from([
        world.volume.root,
        file(EVERYBODY, 0, 1),
        file(user(2), 2, 2),
    ]);
    compare(&mut replay, end, &world.state, &world, &files);
}

#[test]
fn group_that_was_removed_holds_up_nobodys_forgetting() {
    let mut world = World::new();
    busy(&mut world, TEAM, 1, 100);
    let gone = calls::decide(Decision::RemovePrincipal { principal: TEAM });
    let (at, body) = (world.end(), Body::new(vec![gone]).unwrap());
    assert_eq!(world.put(0, body.ops()[0].clone()), Outcome::Late);
    let decided = written(0, at, at);
    world.members.propose(&decided, &body.outline(), &body);
    let counts = world.members.take_effect(&written(0, at + 1, at + 1));
    assert!(counts.iter().all(|decided| decided.result.is_ok()));
    let held = world.held(file(EVERYBODY, 0, 1));
    let op = world
        .calls()
        .write(&held, content("last"), Default::default());
    assert_eq!(world.put(0, op), Outcome::Effect);
    let op = calls::fold(TEAM, None, world.folded(TEAM));
    assert_eq!(world.put(1, op), Outcome::None(NoEffect::NotPermitted));
    let mut replay = fresh(&world);
    for entry in &world.log {
        push(&mut replay, entry, &world);
    }
    let end = world.end();
    replay.forget_before(end, world.sources()).unwrap();
    assert!(replay.kept_ops() <= 4, "{} ops", replay.kept_ops());
    let files = BTreeSet::from([world.volume.root, file(EVERYBODY, 0, 1), file(TEAM, 1, 2)]);
    compare(&mut replay, end, &world.state, &world, &files);
}

#[test]
fn forgetting_goes_on_when_what_was_missing_is_here() {
    let run = Run::of(&fixed_steps(7, 200));
    let world = &run.world;
    let mut replay = fresh(world);
    for entry in &world.log {
        push(&mut replay, entry, world);
    }
    let cache = Cache::new(&world.store);
    let from = Sources {
        members: &world.members,
        stored: &cache,
    };
    let end = world.end();
    cache.ask(|| replay.forget_before(end, from));
    let rounds = *cache.rounds.borrow();
    assert!(rounds > 1 && rounds < 60, "{rounds} rounds");
    let last = run.states.last().unwrap();
    compare(&mut replay, end, last, world, &run.files);
}

#[test]
fn op_without_effect_is_forgotten_and_so_is_what_is_folded() {
    let mut world = World::new();
    let late = world.create(&root(), "x", file(EVERYBODY, 0, 9), regular(""));
    world.mkdir(0, &root(), "x", 1);
    for _ in 0..20 {
        let outcome = world.put(0, late.clone());
        assert_eq!(outcome, Outcome::None(NoEffect::Exists));
    }
    let mut replay = fresh(&world);
    for entry in &world.log {
        push(&mut replay, entry, &world);
    }
    let position = world.end();
    let from = world.sources();
    replay.forget_before(position, from).unwrap();
    assert_eq!(replay.kept_ops(), 1, "the one that made the directory");
    assert_eq!(replay.ops_since_begin(), 0);
    assert!(replay.forget_before(position - 1, from).is_err());
    assert!(replay.outcome(BEGIN, 0, from).is_err());
    let op = calls::fold(EVERYBODY, None, world.folded(EVERYBODY));
    assert_eq!(world.put(0, op), Outcome::Effect);
    push(&mut replay, world.log.last().unwrap(), &world);
    let end = world.end();
    replay.forget_before(end, world.sources()).unwrap();
    assert_eq!(replay.kept_ops(), 0);
}
