//! Random calls of several devices in random interleavings: evaluation gives the answers of a file system of one
//! machine, and evaluation of one key gives the same as evaluation of everything.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use trust::inode::{Content, Inode, Time};
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{About, Blocks, Bodies, Replay, State, Times};
use trust_shared::fold;
use trust_shared::hold::{Family, Ranges};
use trust_shared::key::Key;
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::{Device, FileId, Principal};

use crate::devices::{Client, NAMES, Step, text_of, time_of};
use crate::posix::{Call, Node, Posix, writes};
use crate::world::*;

/// A log that devices have made, with the state and the file system before each entry.
pub struct Run {
    pub world: World,
    pub states: Vec<State>,
    models: Vec<Posix>,
    pub files: BTreeSet<FileId>,
    pub outcomes: Vec<(Call, Outcome)>,
}

impl Run {
    pub fn of(steps: &[Step]) -> Run {
        let world = World::new();
        let mut run = Run {
            states: vec![world.state.clone()],
            models: vec![Posix::new(world.volume.root)],
            files: BTreeSet::from([world.volume.root]),
            outcomes: Vec::new(),
            world,
        };
        let mut clients: Vec<Client> = (0..DEVICES).map(Client::new).collect();
        for step in steps {
            let client = &mut clients[usize::from(step.0) % DEVICES as usize];
            run.step(client, *step);
        }
        run
    }

    fn step(&mut self, client: &mut Client, step: Step) {
        if step.4 >= 128 {
            client.catch_up(&self.world);
        }
        let Some((call, built)) = client.call(&self.world.store, step) else {
            return;
        };
        let seen = client.seen();
        let mut then = self.models[(seen - BEGIN) as usize].clone();
        let now = time_of(step);
        let at_once = then.run(client.device, &call, now);
        match built {
            Err(why) => {
                let denied = at_once == Err(NoEffect::NotPermitted);
                assert!(
                    denied || at_once == Err(why),
                    "{call:?}: {why:?}, {at_once:?}"
                );
            }
            Ok(None) => assert!(matches!(at_once, Ok(()) | Err(NoEffect::NotPermitted))),
            Ok(Some(op)) => {
                let is_fresh = seen == self.world.end();
                let outcome = self.world.put_seen(client.device, seen, op);
                assert!(
                    !is_fresh || outcome != Outcome::None(NoEffect::Stale),
                    "nobody was first: {call:?}"
                );
                self.judge((client.device, now), &call, outcome, at_once);
            }
        }
    }

    /// Compares what became of an op with what the file system says to the call at its position.
    fn judge(
        &mut self,
        (device, now): (u32, Time),
        call: &Call,
        outcome: Outcome,
        at_once: Result<(), NoEffect>,
    ) {
        let mut model = self.models.last().unwrap().clone();
        let before = model.clone();
        let said = model.run(device, call, now);
        if let (Call::Hold { .. }, Outcome::None(NoEffect::Locked)) = (call, outcome) {
            assert_eq!(said, Err(NoEffect::Locked), "{call:?}");
        }
        match outcome {
            Outcome::Effect => assert_eq!(said, Ok(()), "{call:?}"),
            Outcome::None(why) if why.is_no_answer() => model = before,
            // What the new name led to has changed: the call is built again.
            Outcome::None(NoEffect::Exists | NoEffect::NotFound) if replaces(call) => {
                model = before
            }
            // The device has given its lock away since it last looked: the call is built again without it.
            Outcome::None(NoEffect::LockLost)
                if !matches!(
                    call,
                    Call::Unlock { .. } | Call::Pass { .. } | Call::Release { .. }
                ) =>
            {
                model = before
            }
            Outcome::None(NoEffect::NotPermitted) => {
                let denied = Err(NoEffect::NotPermitted);
                assert!(said == denied || at_once == denied, "{call:?}: {said:?}");
                model = before;
            }
            Outcome::None(why) => {
                assert_eq!(said, Err(why), "{call:?}");
                model = before;
            }
            Outcome::Late => panic!("{call:?} is no decision"),
        }
        if let Call::Create { new, .. } = call {
            self.files.insert(*new);
        }
        assert!(model.is_a_tree());
        self.states.push(self.world.state.clone());
        self.models.push(model);
        self.outcomes.push((call.clone(), outcome));
        let answers = eager(self.states.last().unwrap(), &self.world.store, &self.files);
        assert_eq!(
            answers,
            expected(self.models.last().unwrap(), &self.files),
            "after {call:?}"
        );
    }
}

fn replaces(call: &Call) -> bool {
    matches!(call, Call::Rename { replaces: true, .. })
}

/// Everything that a program can see of a file.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    node: Option<Node>,
    lock: Option<u32>,
    /// What each device holds.
    holds: Vec<Option<Ranges>>,
}

fn times_of(inode: &Inode) -> Times {
    Times {
        mtime: inode.mtime,
        ctime: inode.ctime,
    }
}

type Answers = BTreeMap<FileId, Seen>;

fn expected(model: &Posix, files: &BTreeSet<FileId>) -> Answers {
    let seen = |file: &FileId| Seen {
        node: model.nodes.get(file).cloned(),
        lock: model.locks.get(file).copied(),
        holds: (0..DEVICES)
            .map(|device| model.holds.get(&(*file, device)).cloned())
            .collect(),
    };
    files.iter().map(|file| (*file, seen(file))).collect()
}

fn eager(state: &State, store: &Store, files: &BTreeSet<FileId>) -> Answers {
    let seen = |file: &FileId| {
        let inode = state.shown(file, store).unwrap();
        let entries = || {
            let found = NAMES.iter().filter_map(|text| {
                let to = state.entry(file, &name(text), store).unwrap()?;
                Some(((*text).to_owned(), to.file))
            });
            let entries: BTreeMap<String, FileId> = found.collect();
            assert_eq!(state.entries(file, store), Ok(entries.len() as u64));
            entries
        };
        Seen {
            node: inode.map(|inode| match &inode.content {
                Content::Directory { .. } => Node::Directory {
                    entries: entries(),
                    mode: inode.mode,
                    times: times_of(&inode),
                },
                content => Node::File {
                    text: text_of(content),
                    mode: inode.mode,
                    links: inode.links,
                    times: times_of(&inode),
                },
            }),
            lock: state.lock(file).map(|lock| lock.holder.0),
            holds: (0..DEVICES)
                .map(|device| {
                    let hold = state.hold(file, Family::Fcntl, Device(device));
                    hold.map(|hold| hold.ranges)
                })
                .collect(),
        }
    };
    files.iter().map(|file| (*file, seen(file))).collect()
}

fn lazy<S: Blocks + Bodies>(
    replay: &mut Replay,
    at: u64,
    file: &FileId,
    from: Sources<'_, S>,
    ask: &Cache<'_>,
) -> Seen {
    let inode = ask.ask(|| replay.shown(at, file, from));
    let mut entries = BTreeMap::new();
    for text in NAMES {
        if let Some(to) = ask.ask(|| replay.entry(at, file, &name(text), from)) {
            entries.insert(text.to_owned(), to.file);
        }
    }
    let count = ask.ask(|| replay.entries(at, file, from));
    let node = inode.map(|inode| match &inode.content {
        Content::Directory { .. } => Node::Directory {
            entries: entries.clone(),
            mode: inode.mode,
            times: times_of(&inode),
        },
        content => Node::File {
            text: text_of(content),
            mode: inode.mode,
            links: inode.links,
            times: times_of(&inode),
        },
    });
    assert_eq!(count, entries.len() as u64);
    assert_eq!(listed(replay, at, file, from, ask), entries);
    let lock = ask.ask(|| replay.lock(at, file, from));
    Seen {
        node,
        lock: lock.map(|lock| lock.holder.0),
        holds: (0..DEVICES)
            .map(|device| {
                let of = (file, Family::Fcntl, Device(device));
                let hold = ask.ask(|| replay.hold(at, of, from));
                hold.map(|hold| hold.ranges)
            })
            .collect(),
    }
}

/// The names of a directory in pages of two.
fn listed<S: Blocks + Bodies>(
    replay: &mut Replay,
    at: u64,
    file: &FileId,
    from: Sources<'_, S>,
    ask: &Cache<'_>,
) -> BTreeMap<String, FileId> {
    let (mut all, mut after) = (BTreeMap::new(), None);
    loop {
        let page = ask.ask(|| replay.list(at, file, after.as_ref(), 2, from));
        assert!(page.names.is_sorted_by(|a, b| a.0 < b.0));
        assert!(page.names.len() == 2 || page.next.is_none());
        for (name, to) in &page.names {
            let text = String::from_utf8(name.as_bytes().to_vec()).unwrap();
            assert_eq!(all.insert(text, to.file), None);
        }
        match page.next {
            None => return all,
            next => after = next,
        }
    }
}

fn replay(world: &World) -> Replay {
    let mut replay = Replay::new(world.volume.clone());
    for entry in &world.log {
        replay
            .push(&entry.written, &entry.body.outline(), &world.members)
            .unwrap();
    }
    replay.grow(BEGIN);
    replay
}

/// Asks about some positions, each file in a replay that knows nothing yet, and about all in one that learns.
fn compare(run: &Run, choice: usize) {
    let cache = Cache::new(&run.world.store);
    let from = Sources {
        members: &run.world.members,
        stored: &cache,
    };
    let mut learning = replay(&run.world);
    for (index, state) in run.states.iter().enumerate().rev() {
        let at = BEGIN + index as u64;
        let answers = eager(state, &run.world.store, &run.files);
        for (number, (file, seen)) in answers.iter().enumerate() {
            assert_eq!(lazy(&mut learning, at, file, from, &cache), *seen);
            if (number + index) % 7 == choice % 7 {
                let cache = Cache::new(&run.world.store);
                let from = Sources {
                    members: &run.world.members,
                    stored: &cache,
                };
                let mut fresh = replay(&run.world);
                assert_eq!(lazy(&mut fresh, at, file, from, &cache), *seen);
            }
        }
    }
    for (entry, (call, outcome)) in run.world.log.iter().zip(&run.outcomes) {
        let found = cache.ask(|| learning.outcome(entry.written.position, 0, from));
        assert_eq!(found, *outcome, "{call:?}");
    }
    for principal in owners() {
        let at = run.world.end();
        let before = cache.ask(|| learning.last_fold(at, principal, from));
        assert_eq!(before, run.world.state.last_fold(principal));
        let changes = cache.ask(|| learning.changes(at, principal, from));
        let (hasher, store) = (&run.world.volume.hasher, &run.world.store);
        let root = before.and_then(|fold| fold.root);
        let fold = fold::fold(hasher, root.as_ref(), &changes, at, store, |_, _, _| {});
        assert_eq!(fold.unwrap(), run.world.folded(principal));
    }
}

/// Each value is the same when all entries are left out that it does not rest on. Gives how many there were, and
/// how many were left out.
fn leave_out(run: &Run) -> (usize, usize) {
    let world = &run.world;
    let (from, at) = (world.sources(), world.end());
    let mut learning = replay(world);
    let (mut entries, mut left_out) = (0, 0);
    for file in &run.files {
        let names = NAMES.iter().map(|text| Key::Entry(*file, name(text)));
        let keys = names.chain([Key::Inode(*file), Key::Lock(*file), Key::Times(*file)]);
        let about = keys.map(About::Key);
        let about = about.chain([About::Entries(*file), About::Holds(*file, Family::Fcntl)]);
        for about in about {
            let value = value_of(&mut learning, at, &about, from);
            let mut asked = vec![about.clone()];
            if let About::Key(Key::Times(file)) = about {
                asked.push(About::Key(Key::Inode(file)));
            }
            let rests = learning.rests_on(at, asked, 0, &world.store);
            let rests: BTreeSet<u64> = rests.unwrap().into_iter().map(|(at, _)| at).collect();
            let mut less = Replay::new(world.volume.clone());
            for entry in &world.log {
                if rests.contains(&entry.written.position) {
                    let outline = entry.body.outline();
                    less.push(&entry.written, &outline, &world.members).unwrap();
                }
            }
            less.grow(at);
            assert_eq!(value_of(&mut less, at, &about, from), value, "{about:?}");
            entries += world.log.len();
            left_out += world.log.len() - rests.len();
        }
    }
    (entries, left_out)
}

fn value_of(replay: &mut Replay, at: u64, about: &About, from: Sources<'_, Store>) -> String {
    match about {
        About::Key(Key::Inode(file)) => format!("{:?}", replay.inode(at, file, from)),
        // As programs see them: with the inode.
        About::Key(Key::Times(file)) => format!("{:?}", replay.shown(at, file, from)),
        About::Key(Key::Lock(file)) => format!("{:?}", replay.lock(at, file, from)),
        About::Key(Key::Entry(file, name)) => {
            format!("{:?}", replay.entry(at, file, name, from))
        }
        About::Entries(file) => {
            let names = replay.list(at, file, None, 100, from);
            format!("{names:?}, {:?}", replay.entries(at, file, from))
        }
        About::Holds(file, family) => {
            let all =
                (0..DEVICES).map(|device| replay.hold(at, (file, *family, Device(device)), from));
            format!("{:?}", all.collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    }
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0u8..4, 0u8..21, any::<u8>(), any::<u8>(), any::<u8>());
    prop::collection::vec(step, 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn evaluation_gives_the_answers_of_one_machine(steps in steps(60)) {
        Run::of(&steps);
    }

    #[test]
    fn evaluation_of_one_key_gives_the_same_as_of_everything(steps in steps(40), choice: usize) {
        compare(&Run::of(&steps), choice);
    }
}

#[test]
fn entries_that_a_value_does_not_rest_on_may_be_left_out() {
    let (mut entries, mut left_out) = (0, 0);
    for seed in 0..40 {
        let (all, out) = leave_out(&Run::of(&fixed_steps(seed, 50)));
        entries += all;
        left_out += out;
    }
    // Most values rest on few entries.
    assert!(left_out * 10 > entries * 6, "{left_out} of {entries}");
}

/// Pseudo-random numbers below a limit, the same each time.
pub fn fixed_numbers(seed: u64) -> impl FnMut(u64) -> u8 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ((x >> 24) % below) as u8
    }
}

/// Pseudo-random steps, the same each time.
pub fn fixed_steps(seed: u64, count: usize) -> Vec<Step> {
    let mut next = fixed_numbers(seed);
    (0..count)
        .map(|_| (next(4), next(21), next(256), next(256), next(256)))
        .collect()
}

#[test]
fn random_calls_have_every_kind_of_outcome() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..400 {
        for (call, outcome) in Run::of(&fixed_steps(seed, 60)).outcomes {
            let call = format!("{call:?}");
            let call = call.split([' ', '(']).next().unwrap().to_owned();
            *counts.entry(format!("{outcome:?}")).or_default() += 1;
            if outcome == Outcome::Effect {
                *counts.entry(call).or_default() += 1;
            }
        }
    }
    let outcomes = [
        "Effect",
        "None(Stale)",
        "None(Exists)",
        "None(NotFound)",
        "None(NotEmpty)",
        "None(NotPermitted)",
        "None(Locked)",
        "None(LockLost)",
    ];
    let calls = [
        "Create", "Link", "Unlink", "Rmdir", "Rename", "Exchange", "Write", "Chmod", "Utimes",
        "Lock", "Claim", "Pass", "Unlock", "Hold", "Release", "Fold",
    ];
    for kind in outcomes.into_iter().chain(calls) {
        let count = counts.get(kind).copied().unwrap_or(0);
        assert!(count >= 4, "{kind}: {counts:?}");
    }
}

#[test]
fn forgotten_entries_are_taken_from_folds() {
    for seed in 100..110 {
        let mut run = Run::of(&fixed_steps(seed, 50));
        let end = run.world.end();
        let owners: Vec<Principal> = owners();
        for owner in &owners {
            let device = (0..DEVICES).find(|device| writes(*device, *owner));
            let before = run.world.state.last_fold(*owner);
            let fold = run.world.folded(*owner);
            let op = trust_shared::calls::fold(*owner, before, fold);
            assert_eq!(run.world.put(device.unwrap(), op), Outcome::Effect);
        }
        let mut client = Client::new(1);
        // Its numbers are new.
        client.counter = 1000;
        client.catch_up(&run.world);
        let mut kept = replay(&run.world);
        let from = run.world.sources();
        let last = run.world.end();
        assert_eq!(kept.after_fold(last, from), Ok(last));
        assert!(kept.forget_before(last + 1, from).is_err());
        kept.forget_before(last, from).unwrap();
        assert_eq!(kept.kept_ops(), 0);
        assert!(kept.inode(end, &run.world.volume.root, from).is_err());
        for step in fixed_steps(seed + 1000, 30) {
            client.catch_up(&run.world);
            let Some((_, Ok(Some(op)))) = client.call(&run.world.store, step) else {
                continue;
            };
            let outcome = run.world.put(1, op);
            let entry = run.world.log.last().unwrap();
            let outline = entry.body.outline();
            kept.push(&entry.written, &outline, &run.world.members)
                .unwrap();
            let from = run.world.sources();
            let found = kept.outcome(entry.written.position, 0, from);
            assert_eq!(found, Ok(outcome));
        }
        // The bodies before the folds are gone.
        run.world
            .store
            .entries
            .borrow_mut()
            .retain(|position, _| *position >= end);
        let (at, from) = (run.world.end(), run.world.sources());
        let cache = Cache::new(&run.world.store);
        for (file, seen) in eager(&run.world.state, &run.world.store, &run.files) {
            assert_eq!(lazy(&mut kept, at, &file, from, &cache), seen);
        }
    }
}

#[test]
fn device_numbers_are_those_of_the_members() {
    let members = members();
    for device in 0..DEVICES {
        for owner in owners() {
            let may = members.may_write(Device(device), owner, BEGIN);
            assert_eq!(may, writes(device, owner), "{device} {owner:?}");
        }
    }
}
