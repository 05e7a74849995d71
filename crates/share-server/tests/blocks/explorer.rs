//! Every order of calls, time steps, syncs, moves and crashes of a small scope, with the real rules of
//! [`share_server::blocks::window`] and a log and segments that are lists: two sessions with some calls each (three and two; four each if BULLA_LONG is set) on one block,
//! which lies behind another one. Every reached state is compared with [`super::spec`].
//!
//! Each rule that is left out is found: rows `blocks-*` of `mutations.toml`.

use std::collections::{BTreeSet, HashSet};

use share_server::blocks::window::{Most, Offer, Window};
use share_server::blocks::{Device, Quota, Session};
use trust::Handle;
use wal::Lsn;

use super::spec::{Call, Spec, WINDOW};

const BLOCKS: usize = 2;
const PAGE: u64 = 4096;

/// What is explored.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// How many calls each session makes.
    calls: [u8; 2],
    /// How often time passes.
    times: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Call(usize, Call, usize),
    Time,
    Sync,
    Take {
        pressed: bool,
    },
    Write,
    /// The segments are full.
    Fail,
    Free,
    Crash {
        is_written: bool,
    },
}

/// A record of the log: one block.
#[derive(Debug, Clone, Hash, PartialEq, Eq)]
struct Logged {
    block: usize,
    end: u64,
    durable: bool,
}

/// What the mover has taken.
#[derive(Debug, Clone, Hash, PartialEq, Eq)]
struct Moving {
    blocks: Vec<usize>,
    until: u64,
    written: bool,
}

#[derive(Clone)]
struct World {
    window: Window,
    scope: Scope,
    now: u32,
    /// Numbers of the sessions in the spec, and the sessions.
    sessions: [(usize, Session); 2],
    calls_left: [u8; 2],
    crashed: bool,
    log: Vec<Logged>,
    frames: u64,
    segments: BTreeSet<usize>,
    moving: Option<Moving>,
    specs: [Spec; BLOCKS],
    /// In which order the blocks came.
    arrivals: Vec<usize>,
}

fn handle(block: usize) -> Handle {
    Handle::from_bytes([block as u8 + 1; 32])
}

fn offer(block: usize) -> Offer {
    Offer {
        handle: handle(block),
        length: 10,
    }
}

fn sessions(window: &mut Window, first: usize) -> [(usize, Session); 2] {
    [0, 1].map(|n| (first + n, window.open(Device([n as u8; 32])).unwrap()))
}

impl World {
    fn new(scope: Scope) -> World {
        let mut window = Window::new(WINDOW, Quota::NONE);
        let sessions = sessions(&mut window, 0);
        World {
            now: window.start(),
            window,
            sessions,
            calls_left: scope.calls,
            scope,
            crashed: false,
            log: Vec::new(),
            frames: 0,
            segments: BTreeSet::new(),
            moving: None,
            specs: Default::default(),
            arrivals: Vec::new(),
        }
    }

    /// What the future depends on. Numbers of frames and of blocks do not matter, only their order, which the window
    /// tells.
    fn key(&self) -> String {
        let log: Vec<_> = self.log.iter().map(|l| (l.block, l.durable)).collect();
        let moving = self.moving.as_ref().map(|m| (&m.blocks, m.written));
        format!(
            "{:?} {} {:?} {} {} {log:?} {:?} {moving:?} {:?} {:?}",
            self.window,
            self.now,
            self.calls_left,
            self.crashed,
            self.frames > 0,
            self.segments,
            self.specs,
            self.arrivals
        )
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for session in 0..2 {
            if self.calls_left[session] > 0 {
                for call in [Call::Store, Call::Cstore, Call::Retrieve, Call::Decref] {
                    actions.push(Action::Call(session, call, 1));
                }
            }
        }
        // The block in front is only stored, by the first session, and perhaps given up.
        if self.calls_left == self.scope.calls && self.frames == 0 {
            actions.push(Action::Call(0, Call::Store, 0));
        } else if self.specs[0].refers.contains(&0) && self.calls_left[0] > 0 && !self.crashed {
            actions.push(Action::Call(0, Call::Decref, 0));
        }
        if self.now < self.window.start() + self.scope.times {
            actions.push(Action::Time);
        }
        if self.log.iter().any(|logged| !logged.durable) {
            actions.push(Action::Sync);
        }
        match &self.moving {
            None => actions.extend([false, true].map(|pressed| Action::Take { pressed })),
            Some(moving) if !moving.written => actions.extend([Action::Write, Action::Fail]),
            Some(_) => actions.push(Action::Free),
        }
        if !self.crashed {
            actions.extend([false, true].map(|is_written| Action::Crash { is_written }));
        }
        actions
    }

    fn apply(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Call(session, call, block) => self.call(session, call, block)?,
            Action::Time => self.now += 1,
            Action::Sync => self.sync(),
            Action::Take { pressed } => self.take(pressed)?,
            Action::Write => self.write(),
            Action::Fail => self.moving = None,
            Action::Free => self.free(),
            Action::Crash { is_written } => self.crash(is_written)?,
        }
        self.check()
    }

    fn sync(&mut self) {
        self.log.iter_mut().for_each(|logged| logged.durable = true);
        self.specs.iter_mut().for_each(Spec::acknowledged);
    }

    fn is_durable(&self, block: usize) -> bool {
        let mut newest = self.log.iter().rev();
        newest.find(|l| l.block == block).is_none_or(|l| l.durable)
    }

    fn call(&mut self, session: usize, call: Call, block: usize) -> Result<(), String> {
        let (number, name) = self.sessions[session];
        self.calls_left[session] -= 1;
        let was_in_log = self.window.contains(&handle(block));
        let found = match call {
            Call::Decref => {
                let expected = self.specs[block].decref(number, self.now);
                let accepted = self.window.decref(self.now, name, &handle(block)).unwrap();
                // What has been moved meanwhile is not in the log, whoever gave it up.
                if accepted != (expected && was_in_log) {
                    return Err(format!("DECREF was answered {accepted}, not {expected}"));
                }
                return Ok(());
            }
            Call::Store => {
                self.store(name, block);
                self.specs[block].touched(number, call, self.now, false, true);
                if self.is_durable(block) {
                    self.specs[block].acknowledged();
                }
                return Ok(());
            }
            Call::Cstore => self.window.cstore(self.now, name, &handle(block)).unwrap(),
            Call::Retrieve => self
                .window
                .retrieve(self.now, name, &handle(block))
                .unwrap(),
        };
        if found.is_some() || self.segments.contains(&block) {
            self.sync();
            self.specs[block].touched(number, call, self.now, true, found.is_some());
        } else if !self.specs[block].must_be_absent() {
            return Err(format!(
                "{call:?} does not find a block that is referred to"
            ));
        }
        Ok(())
    }

    fn store(&mut self, session: Session, block: usize) {
        let before = self.window.before();
        let fresh = self.window.admit(session, &[offer(block)], 0).unwrap();
        if fresh == [true] {
            self.window.begin_group(self.now);
        }
        let stored = self
            .window
            .store(self.now, session, offer(block), 0)
            .unwrap();
        assert_eq!(fresh, [stored]);
        if stored {
            self.frames += 1;
            let end = Lsn(2 * PAGE * (self.frames + 1));
            self.window.appended(before, &[Lsn(end.0 - PAGE)], end);
            self.log.push(Logged {
                block,
                end: end.0,
                durable: false,
            });
            self.arrivals.retain(|other| *other != block);
            self.arrivals.push(block);
        }
    }

    fn take(&mut self, pressed: bool) -> Result<(), String> {
        let most = Most {
            bytes: 1000,
            blocks: 100,
        };
        let before: Vec<bool> = (0..BLOCKS)
            .map(|b| self.window.contains(&handle(b)))
            .collect();
        let ripe = self.window.is_ripe(self.now, pressed);
        let leaving = self.window.leaving(self.now, pressed, most);
        let blocks: Vec<usize> = leaving
            .moves
            .iter()
            .map(|moving| (0..BLOCKS).find(|b| handle(*b) == moving.handle).unwrap())
            .collect();
        if !ripe && (!blocks.is_empty() || leaving.dropped > 0) {
            return Err("the mover does not see that something is due".to_owned());
        }
        let place = |block: &usize| self.arrivals.iter().position(|other| other == block);
        if !blocks.is_sorted_by_key(place) {
            return Err("blocks move in another order than they came".to_owned());
        }
        for (block, was_there) in before.into_iter().enumerate() {
            let spec = &self.specs[block];
            let moves = blocks.contains(&block);
            if moves && spec.is_garbage() && !pressed {
                return Err("a block that was given up reaches the segments".to_owned());
            }
            if was_there && !moves && self.window.contains(&handle(block)) {
                if pressed {
                    return Err("a block stays in the log although space is needed".to_owned());
                }
                if spec.is_overdue(self.now) && self.arrivals.first() == Some(&block) {
                    return Err("a block stays in the log for more than two windows".to_owned());
                }
            }
            if was_there && !self.window.contains(&handle(block)) {
                let is_permanent = self.segments.contains(&block);
                if !moves && !is_permanent && !spec.may_be_dropped(self.now) {
                    return Err("a block is dropped that may still come back".to_owned());
                }
                self.specs[block].left();
                self.arrivals.retain(|other| *other != block);
            }
        }
        // What moves must be durable in the log, as the log is read back.
        self.sync();
        self.moving = Some(Moving {
            blocks,
            until: leaving.until,
            written: false,
        });
        Ok(())
    }

    fn write(&mut self) {
        if let Some(moving) = &mut self.moving {
            moving.written = true;
            self.segments.extend(moving.blocks.iter().copied());
        }
    }

    fn free(&mut self) {
        let Some(moving) = self.moving.take() else {
            return;
        };
        let released = self.window.left(moving.until);
        self.log
            .retain(|logged| released.is_none_or(|oldest| logged.end > oldest.0));
        for block in moving.blocks {
            self.specs[block].left();
            self.arrivals.retain(|other| *other != block);
        }
    }

    /// The server stops and starts again. `is_written`: what was not synced survives, in log and segments.
    fn crash(&mut self, is_written: bool) -> Result<(), String> {
        self.crashed = true;
        if is_written && self.moving.as_ref().is_some_and(|moving| !moving.written) {
            self.write();
        }
        self.moving = None;
        self.log.retain(|logged| logged.durable || is_written);
        let mut window = Window::new(WINDOW, Quota::NONE);
        self.arrivals.clear();
        for logged in &mut self.log {
            logged.durable = true;
            let before = window.before();
            window.begin_group(0);
            let recovered = window.recovered(Device([0; 32]), offer(logged.block), 0);
            recovered.map_err(|error| error.to_string())?;
            window.appended(before, &[Lsn(logged.end - PAGE)], Lsn(logged.end));
            if !self.arrivals.contains(&logged.block) {
                self.arrivals.push(logged.block);
            }
        }
        self.sessions = sessions(&mut window, 2);
        self.window = window;
        for (block, spec) in self.specs.iter_mut().enumerate() {
            spec.crashed(self.window.contains(&handle(block)));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        for (block, spec) in self.specs.iter().enumerate() {
            let there = self.window.contains(&handle(block)) || self.segments.contains(&block);
            if !there && !spec.refers.is_empty() {
                return Err(format!(
                    "block {block} is lost, and {:?} refer to it",
                    spec.refers
                ));
            }
            let logged = self.log.iter().any(|logged| logged.block == block);
            if self.window.contains(&handle(block)) && !logged {
                return Err(format!("block {block} can be found and is not in the log"));
            }
        }
        Ok(())
    }
}

/// Explores all states; returns how many there are.
fn explore(scope: Scope) -> usize {
    let mut seen = HashSet::new();
    // How each state was reached first: the state before it, and the action.
    let mut reached: Vec<(usize, Action)> = Vec::new();
    let mut worlds = vec![(World::new(scope), usize::MAX)];
    while let Some((world, from)) = worlds.pop() {
        for action in world.actions() {
            let mut next = world.clone();
            if let Err(why) = next.apply(action) {
                let mut path = vec![action];
                let mut at = from;
                while let Some((before, action)) = reached.get(at) {
                    path.insert(0, *action);
                    at = *before;
                }
                panic!("{why}, after {path:?}: {}", next.key());
            }
            if seen.insert(hash(&next.key())) {
                reached.push((from, action));
                worlds.push((next, reached.len() - 1));
            }
        }
    }
    seen.len()
}

/// 128 bits of a state: two states are never taken for one.
fn hash(key: &str) -> [u8; 16] {
    let name = trust::Hasher::new(&[0; 32]).name(trust::Kind::Data, key.as_bytes());
    name.as_bytes()[..16].try_into().unwrap()
}

#[test]
fn every_order_of_calls_times_and_crashes_keeps_the_promises() {
    let (calls, times) = match std::env::var_os("BULLA_LONG") {
        Some(_) => ([4, 4], 4),
        None => ([3, 2], 3),
    };
    let states = explore(Scope { calls, times });
    println!("{states} states");
    assert!(states > 10_000, "{states} states are too few");
}
