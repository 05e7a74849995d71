//! A device that begins with the log's first leaf after collections: with the real evaluator, and nothing but what the
//! collections have left. Devices make, rename, exchange and remove files and whole directories, lock them, and fold what
//! each of them has seen, so entries come between a fold's position and its own. Calls and their reference are those of the
//! tests of evaluation (`trust-shared/tests/effect`).
// The lint's exception for tests does not reach functions that several tests share.
#![allow(clippy::unwrap_used)]
#![expect(dead_code, reason = "the tests of evaluation use more")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use share_server::collect::marking::{Marking, Seen, Source};
use share_server::collect::needed::{Folds, Positions, Spans};
use sim::random::Random;
use trust::array::{Builder, Extent};
use trust::inode::Xattrs;
use trust::reach::{Found, Wanted};
use trust::{Handle, Kind, Reject};
use trust_shared::change::Change;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, State};
use trust_shared::fold;
use trust_shared::key::Key;
use trust_shared::outcome::Outcome;
use trust_shared::principal::{FileId, Name};

#[path = "../../../trust-shared/tests/effect/devices.rs"]
mod devices;
#[path = "../../../trust-shared/tests/effect/posix.rs"]
mod posix;
#[path = "../../../trust-shared/tests/effect/world.rs"]
mod world;

use devices::{Client, NAMES, Step};
use posix::writes;
use world::*;

/// What a collection leaves out, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Names and attributes of folds before the window.
    OldFolds,
}

/// A log, and the state before each of its entries.
struct History {
    world: World,
    states: Vec<State>,
    files: BTreeSet<FileId>,
    /// How often each kind of change had effect.
    done: BTreeMap<&'static str, usize>,
    removed: usize,
}

fn step(random: &mut Random) -> Step {
    let mut byte = |below: u64| random.below(below) as u8;
    (byte(4), byte(21), byte(256), byte(256), byte(256))
}

fn kind(change: &Change) -> &'static str {
    match change {
        Change::Remove { .. } => "remove",
        Change::Fold { .. } => "fold",
        Change::Lock { .. } => "lock",
        _ => "other",
    }
}

/// Extended attributes that no other version of a file has: two blocks below a node.
fn attributes(store: &Store, number: u64) -> Xattrs {
    let hasher = volume().hasher;
    let mut builder = Builder::new(&hasher, |handle, bytes| {
        store.keep(Kind::Array, handle.any(), bytes);
    });
    for half in 0..2 {
        let bytes = Bytes::from((2 * number + half).to_le_bytes().repeat(500));
        let handle = hasher.name(Kind::Data, &bytes);
        store.keep(Kind::Data, handle, &bytes);
        let handle = Handle::from_bytes(*handle.as_bytes());
        builder.push(Extent::Data { handle, len: 4000 }).unwrap();
    }
    Xattrs::Stored(builder.finish().unwrap().unwrap())
}

impl History {
    fn new() -> History {
        let world = World::new();
        History {
            states: vec![world.state.clone()],
            files: BTreeSet::from([world.volume.root]),
            done: BTreeMap::new(),
            removed: 0,
            world,
        }
    }

    /// Some calls of the devices.
    fn goes_on(&mut self, clients: &mut [Client], calls: usize, random: &mut Random) {
        for _ in 0..calls {
            let step = step(random);
            let client = &mut clients[usize::from(step.0)];
            if step.4 >= 128 {
                client.catch_up(&self.world);
            }
            let Some((_, Ok(Some(mut op)))) = client.call(&self.world.store, step) else {
                continue;
            };
            for change in &mut op.changes {
                if let Change::Set { inode, .. } = change {
                    let number = self.states.len() as u64;
                    Arc::make_mut(inode).xattrs = attributes(&self.world.store, number);
                }
            }
            let changes = op.changes.clone();
            let moves = |change: &Change| {
                matches!(change, Change::Link { target, .. }
                    if target.kind == trust::inode::FileKind::Directory
                    && changes.iter().any(|other| matches!(other, Change::Unlink { .. })))
            };
            let outcome = self.world.put_seen(client.device, client.seen(), op);
            if outcome == Outcome::Effect {
                let moved = changes.iter().filter(|change| moves(change));
                *self.done.entry("directory is renamed").or_default() += moved.count();
                for change in &changes {
                    *self.done.entry(kind(change)).or_default() += 1;
                }
            }
            for change in &changes {
                if let Key::Inode(file) = change.key() {
                    self.files.insert(file);
                }
            }
            self.states.push(self.world.state.clone());
        }
    }

    /// Everybody's files are folded, by a device that may.
    fn fold(&mut self, client: &mut Client, random: &mut Random) {
        client.catch_up(&self.world);
        let owners = owners();
        let owner = owners[random.below(owners.len() as u64) as usize];
        let Some(device) = (0..DEVICES).find(|device| writes(*device, owner)) else {
            return;
        };
        let before = self.world.state.last_fold(owner);
        let folded = self.world.folded(owner);
        let op = trust_shared::calls::fold(owner, before, folded);
        self.world.put(device, op);
        self.states.push(self.world.state.clone());
    }

    /// A collection whose window begins here. All blocks are old.
    fn collect(&mut self, begin: u64, without: Without) {
        let (world, end) = (&self.world, self.world.end());
        let positions = Positions {
            begin,
            end,
            pins: BTreeSet::new(),
        };
        let mut folds = Folds::new(world.volume.clone());
        for entry in &world.log {
            let taken = folds.entry(&entry.written, &entry.body, &world.members);
            taken.unwrap();
        }
        let spans = Spans::new(&folds, &positions);
        let mut marking = Marking::new(Stored {
            store: &world.store,
            marked: HashSet::new(),
        });
        for (_, root) in spans.roots() {
            marking.table(root).unwrap();
        }
        for entry in &world.log {
            if entry.written.position >= spans.reads_from() {
                for inode in spans.inodes(&entry.written, &entry.body, &world.members) {
                    marking.inode(inode).unwrap();
                }
            }
        }
        if without != Without::OldFolds {
            for (_, root) in folds.roots() {
                marking.names(&root).unwrap();
            }
            assert_eq!(marking.lost().0, 0);
        }
        let marked = marking.into_source().marked;
        let mut blocks = world.store.blocks.borrow_mut();
        let before = blocks.len();
        blocks.retain(|handle, _| marked.contains(handle));
        self.removed += before - blocks.len();
    }

    /// A new device takes the log from its first leaf, forgets in steps, and knows all that each position of the window
    /// shows, or says what it lacks.
    fn newcomer(&self, begin: u64, random: &mut Random) -> Result<u64, String> {
        let world = &self.world;
        let from = world.sources();
        let mut replay = trust_shared::effect::Replay::new(world.volume.clone());
        replay.grow(BEGIN);
        let mut forgotten = 0;
        for entry in &world.log {
            let pushed = replay.push(&entry.written, &entry.body.outline(), &world.members);
            pushed.unwrap();
            // Nothing is forgotten that is asked about below.
            let most = replay.size().min(begin);
            let least = replay.begins().max(BEGIN);
            if random.below(5) == 0 && least < most {
                let position = least + random.below(most - least + 1);
                let after = replay.after_fold(position, from);
                after.map_err(|why| format!("the last fold before {position}: {why:?}"))?;
                let done = replay.forget_before(position, from);
                done.map_err(|why| format!("to forget before {position}: {why:?}"))?;
                forgotten += position - least;
            }
        }
        for at in begin..=world.end() {
            let state = &self.states[(at - BEGIN) as usize];
            self.compare(&mut replay, at, state, from)?;
        }
        Ok(forgotten)
    }

    fn compare(
        &self,
        replay: &mut trust_shared::effect::Replay,
        at: u64,
        state: &State,
        from: Sources<'_, Store>,
    ) -> Result<(), String> {
        let (world, store) = (&self.world, &self.world.store);
        for file in &self.files {
            let lacks = |what, why| format!("{what} of {file:?} at {at}: {why:?}");
            let shown = replay.shown(at, file, from);
            let shown = shown.map_err(|why| lacks("the inode", why))?;
            assert_eq!(shown, state.shown(file, store).unwrap(), "{at}");
            let count = replay.entries(at, file, from);
            let count = count.map_err(|why| lacks("the number of names", why))?;
            assert_eq!(Ok(count), state.entries(file, store), "{at}");
            let lock = replay.lock(at, file, from);
            let lock = lock.map_err(|why| lacks("the lock", why))?;
            assert_eq!(lock, state.lock(file), "{at}");
            let listed = replay.list(at, file, None, 9, from);
            let listed = listed.map_err(|why| lacks("the names", why))?;
            let mut names: Vec<Name> = Vec::new();
            for text in NAMES {
                let found = replay.entry(at, file, &name(text), from);
                let found = found.map_err(|why| lacks("a name", why))?;
                assert_eq!(
                    found,
                    state.entry(file, &name(text), store).unwrap(),
                    "{at}"
                );
                names.extend(found.map(|_| name(text)));
            }
            let listed: Vec<Name> = listed.names.into_iter().map(|(name, _)| name).collect();
            assert_eq!(listed, names, "{at}");
        }
        for owner in owners() {
            let before = replay.last_fold(at, owner, from);
            let before = before.map_err(|why| format!("the last fold at {at}: {why:?}"))?;
            assert_eq!(before, state.last_fold(owner));
            let changes = replay.changes(at, owner, from);
            let changes = changes.map_err(|why| format!("a fold at {at}: {why:?}"))?;
            let (hasher, root) = (&world.volume.hasher, before.and_then(|fold| fold.root));
            let folded = fold::fold(hasher, root.as_ref(), &changes, at, store, |_, _, _| {});
            folded.map_err(|why| format!("a fold at {at}: {why:?}"))?;
        }
        Ok(())
    }
}

/// All blocks, as a walk sees them.
struct Stored<'a> {
    store: &'a Store,
    marked: HashSet<Handle>,
}

impl Source for Stored<'_> {
    type Error = String;

    fn mark(&mut self, block: &Handle) -> Result<Seen, String> {
        if !self.store.blocks.borrow().contains_key(block) {
            return Ok(Seen::Absent);
        }
        Ok(match self.marked.insert(*block) {
            true => Seen::New,
            false => Seen::Known,
        })
    }

    fn read(&mut self, wanted: &Wanted) -> Result<Result<Found, Reject>, String> {
        match self.store.block(wanted) {
            Ok(found) => found.map(Ok).ok_or_else(|| "never made".to_owned()),
            Err(why) => Ok(Err(why)),
        }
    }
}

/// What many histories came to.
#[derive(Debug, Default)]
struct Told {
    done: BTreeMap<&'static str, usize>,
    forgotten: u64,
    removed: usize,
}

/// Histories with collections between the calls, and a newcomer after each of them.
fn explore(seeds: u64, without: Without) -> Result<Told, String> {
    let mut told = Told::default();
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut history = History::new();
        let mut clients: Vec<Client> = (0..DEVICES).map(Client::new).collect();
        let mut begin = BEGIN;
        for _ in 0..4 {
            history.goes_on(&mut clients, 25, &mut random);
            let folder = random.below(DEVICES.into()) as usize;
            history.fold(&mut clients[folder], &mut random);
            // Devices that are there have read what they need.
            for client in &mut clients {
                client.catch_up(&history.world);
            }
            begin += random.below(history.world.end() - begin + 1);
            history.collect(begin, without);
            let forgotten = history.newcomer(begin, &mut random);
            told.forgotten += forgotten.map_err(|why| format!("seed {seed}: {why}"))?;
        }
        for (kind, count) in history.done {
            *told.done.entry(kind).or_default() += count;
        }
        told.removed += history.removed;
    }
    Ok(told)
}

#[test]
fn device_that_begins_with_the_first_leaf_knows_each_position_of_the_window_and_forgets_in_steps() {
    let seeds = match std::env::var_os("BULLA_LONG") {
        Some(_) => 1000,
        None => 120,
    };
    let told = explore(seeds, Without::Nothing).unwrap_or_else(|why| panic!("{why}"));
    println!("{told:?}");
    for what in ["remove", "fold", "lock", "directory is renamed"] {
        let count = told.done.get(what).copied().unwrap_or(0);
        assert!(count >= 20, "{what}: {told:?}");
    }
    assert!(told.forgotten > 500 && told.removed > 50, "{told:?}");
}

#[test]
fn newcomer_without_the_names_in_old_folds_lacks_blocks() {
    let why = explore(60, Without::OldFolds).expect_err("they are needed");
    assert!(why.contains("Missing"), "{why}");
}
