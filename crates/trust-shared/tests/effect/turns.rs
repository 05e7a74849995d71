//! Turns at a file: claims, passing a lock on, and who waits for it.

use trust::inode::Time;
use trust_shared::calls::{Turn, claim, give_up, lock, unlock};
use trust_shared::change::Change;
use trust_shared::effect::replay::{About, Queue, Sources};
use trust_shared::effect::{Lock, Stop};
use trust_shared::key::Key;
use trust_shared::ops::Op;
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::{Device, FileId};

use crate::agree::fixed_numbers;
use crate::devices::{Client, Step};
use crate::world::*;

const LOCKED: Outcome = Outcome::None(NoEffect::Locked);
const LOST: Outcome = Outcome::None(NoEffect::LockLost);
const DENIED: Outcome = Outcome::None(NoEffect::NotPermitted);

fn with_file() -> (World, FileId) {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world.create(&root(), "a", new, regular(""));
    assert_eq!(world.put(0, op), Outcome::Effect);
    (world, new)
}

fn pass(file: FileId, to: u32) -> Op {
    Op::new(Vec::new(), vec![give_up(file, Some(Device(to)))])
}

fn queue(world: &World, file: FileId) -> Queue {
    replay(world).queue(&file, world.sources()).unwrap()
}

fn waiting(world: &World, file: FileId) -> Vec<u32> {
    let queue = queue(world, file);
    queue.waiting.iter().map(|device| device.0).collect()
}

#[test]
fn lock_goes_to_whom_its_holder_names() {
    let (mut world, file) = with_file();
    assert_eq!(world.put(1, claim(file, None)), Outcome::Effect);
    assert_eq!(world.put(2, claim(file, None)), LOCKED);
    let mut held = world.held(file);
    held.turn = Turn::Mine;
    let write = world.calls().write(&held, content("one"), Time::default());
    let both = [write.changes, vec![give_up(file, Some(Device(2)))]].concat();
    let op = Op::new(write.guards, both);
    assert_eq!(world.put(1, op), Outcome::Effect);
    let last = world.end() - 1;
    let lock = Some(Lock {
        holder: Device(2),
        last,
    });
    assert_eq!(world.state.lock(&file), lock);
    assert_eq!(
        replay(&world).lock(world.end(), &file, world.sources()),
        Ok(lock)
    );
    // Who had it has it no more, and who has it may change the file.
    let late = world.calls().write(&held, content("late"), Time::default());
    assert!(matches!(world.put(1, late), Outcome::None(_)));
    let mut held = world.held(file);
    held.turn = Turn::Mine;
    let write = world.calls().write(&held, content("two"), Time::default());
    assert_eq!(world.put(2, write), Outcome::Effect);
    assert_eq!(world.put(2, unlock(file)), Outcome::Effect);
    assert_eq!(world.state.lock(&file), None);
}

#[test]
fn lock_is_passed_only_by_its_holder_and_to_who_may_write() {
    let (mut world, file) = with_file();
    assert_eq!(world.put(1, pass(file, 2)), LOST);
    assert_eq!(world.put(1, claim(file, None)), Outcome::Effect);
    assert_eq!(world.put(2, pass(file, 2)), LOST);
    assert_eq!(world.put(2, pass(file, 1)), LOST);
    // Device 3 may only read; there is no device 77.
    assert_eq!(world.put(3, pass(file, 1)), DENIED);
    assert_eq!(world.put(3, claim(file, None)), DENIED);
    assert_eq!(world.put(1, pass(file, 3)), DENIED);
    assert_eq!(world.put(1, pass(file, 77)), DENIED);
    let held = world.state.lock(&file).map(|lock| lock.holder);
    assert_eq!(held, Some(Device(1)));
    assert!(waiting(&world, file).is_empty());
}

#[test]
fn passed_lock_is_taken_over_from_the_position_at_which_it_was_passed() {
    let (mut world, file) = with_file();
    assert_eq!(world.put(1, claim(file, None)), Outcome::Effect);
    let before = world.state.lock(&file).unwrap();
    assert_eq!(world.put(1, pass(file, 2)), Outcome::Effect);
    let early = world.put(0, claim(file, Some(before)));
    assert_eq!(early, Outcome::None(NoEffect::Stale));
    let passed = world.state.lock(&file).unwrap();
    assert_eq!(world.put(0, claim(file, Some(passed))), Outcome::Effect);
    assert_eq!(world.put(2, pass(file, 1)), LOST);
    assert_eq!(world.put(2, unlock(file)), LOST);
}

#[test]
fn who_claims_in_vain_waits_until_its_turn() {
    let (mut world, file) = with_file();
    world.put(0, claim(file, None));
    for device in [2, 1, 2] {
        assert_eq!(world.put(device, claim(file, None)), LOCKED);
    }
    assert_eq!(waiting(&world, file), [2, 1]);
    // A Lock in vain is a program's that does not wait.
    assert_eq!(world.put(1, lock(file, None, Device(1))), LOCKED);
    assert_eq!(world.put(0, pass(file, 2)), Outcome::Effect);
    assert_eq!(waiting(&world, file), [1]);
    assert!(queue(&world, file).brief);
    assert_eq!(world.put(0, claim(file, None)), LOCKED);
    assert_eq!(waiting(&world, file), [1, 0]);
    // Device 1 takes the lock over. Nobody passes it to device 2, which has not used it.
    let lapsed = world.state.lock(&file);
    assert_eq!(world.put(1, claim(file, lapsed)), Outcome::Effect);
    assert_eq!(waiting(&world, file), [0]);
    // Everybody sees that the lock is free. Who gave it up may not have known who waits: they keep their places once.
    assert_eq!(world.put(1, unlock(file)), Outcome::Effect);
    let stays = Queue {
        waiting: vec![Device(0)],
        stayed: 1,
        ..Queue::default()
    };
    assert_eq!(queue(&world, file), stays);
    assert_eq!(world.put(2, claim(file, None)), Outcome::Effect);
    assert_eq!(world.put(1, claim(file, None)), LOCKED);
    assert_eq!(world.put(0, claim(file, None)), LOCKED);
    assert_eq!(waiting(&world, file), [0, 1]);
    assert_eq!(world.put(2, unlock(file)), Outcome::Effect);
    assert_eq!(waiting(&world, file), [1]);
    assert_eq!(world.put(1, claim(file, None)), Outcome::Effect);
    assert_eq!(world.put(1, unlock(file)), Outcome::Effect);
    assert_eq!(queue(&world, file), Queue::default());
    assert_eq!(world.put(2, claim(file, None)), Outcome::Effect);
    // A lock that is renewed for a program is for longer than one change.
    let mine = world.state.lock(&file);
    assert_eq!(world.put(2, lock(file, mine, Device(2))), Outcome::Effect);
    assert!(!queue(&world, file).brief);
}

#[test]
fn value_does_not_rest_on_claims_in_vain() {
    let (mut world, file) = with_file();
    world.put(0, claim(file, None));
    let taken = world.end() - 1;
    world.put(1, claim(file, None));
    world.put(2, claim(file, None));
    world.put(0, pass(file, 2));
    world.put(1, claim(file, None));
    let mut held = world.held(file);
    held.turn = Turn::Mine;
    let write = world.calls().write(&held, content("x"), Time::default());
    assert_eq!(world.put(2, write), Outcome::Effect);
    let mut replay = replay(&world);
    let at = world.end() - 1;
    let from = world.sources();
    assert_eq!(replay.outcome(at, 0, from), Ok(Outcome::Effect));
    let rests = replay.outcome_rests_on(at, 0, taken, &world.store).unwrap();
    let rests: Vec<u64> = rests.into_iter().map(|(at, _)| at).collect();
    assert_eq!(rests, [taken, taken + 3, at]);
    // A program's Lock in vain is an answer that the program was given.
    assert_eq!(world.put(1, lock(file, None, Device(1))), LOCKED);
    let mut replay = self::replay(&world);
    let end = world.end();
    replay.lock(end, &file, world.sources()).unwrap();
    let about = vec![About::Key(Key::Lock(file))];
    let rests = replay.rests_on(end, about, taken, &world.store).unwrap();
    assert!(rests.contains(&(end - 1, Device(1))));
}

/// The queue as it is defined, from all outcomes.
fn expected(world: &World, outcomes: &[Outcome], file: FileId) -> Queue {
    let mut queue = Queue::default();
    for (entry, outcome) in world.log.iter().zip(outcomes) {
        let (author, last) = (entry.written.device, entry.written.position);
        for change in &entry.body.ops()[0].changes {
            let (brief, holder) = match change {
                Change::Claim { file: at } if *at == file => (true, author),
                Change::Lock { file: at } if *at == file => (false, author),
                Change::Pass { file: at, to } if *at == file => (true, *to),
                Change::Unlock { file: at } if *at == file && *outcome == Outcome::Effect => {
                    queue.waiting.drain(..queue.stayed);
                    queue = Queue {
                        stayed: queue.waiting.len(),
                        waiting: queue.waiting,
                        ..Queue::default()
                    };
                    continue;
                }
                _ => continue,
            };
            if *outcome == Outcome::Effect {
                let place = queue.waiting.iter().position(|device| *device == holder);
                queue.stayed -= usize::from(place.is_some_and(|place| place < queue.stayed));
                queue.waiting.retain(|device| *device != holder);
                queue.lock = Some(Lock { holder, last });
                queue.brief = brief;
            } else if *outcome == LOCKED
                && matches!(change, Change::Claim { .. })
                && !queue.waiting.contains(&author)
            {
                queue.waiting.push(author);
            }
        }
    }
    queue
}

#[test]
fn queue_that_grows_with_the_log_is_that_of_the_whole_log() {
    let (mut waited, mut passed) = (0, 0);
    for seed in 0..60u64 {
        let mut next = fixed_numbers(seed);
        let (mut world, file) = with_file();
        let mut outcomes = vec![Outcome::Effect];
        let mut learning = replay(&world);
        let mut clients: Vec<Client> = (0..DEVICES).map(Client::new).collect();
        for _ in 0..80 {
            // Mostly locks.
            let what = if next(4) == 0 { next(17) } else { 15 };
            let step: Step = (next(4), what, next(256), next(256), 0);
            let client = &mut clients[usize::from(step.0)];
            client.catch_up(&world);
            let Some((_, Ok(Some(op)))) = client.call(&world.store, step) else {
                continue;
            };
            outcomes.push(world.put(client.device, op));
            let entry = world.log.last().unwrap();
            let outline = entry.body.outline();
            learning
                .push(&entry.written, &outline, &world.members)
                .unwrap();
            if next(3) == 0 {
                let cache = Cache::new(&world.store);
                let from = Sources {
                    members: &world.members,
                    stored: &cache,
                };
                let expected = expected(&world, &outcomes, file);
                assert_eq!(
                    cache.ask(|| learning.queue(&file, from)),
                    expected,
                    "{seed}"
                );
                assert_eq!(queue(&world, file), expected, "{seed}");
                waited += expected.waiting.len();
                passed += usize::from(expected.brief);
            }
        }
    }
    assert!(waited > 100 && passed > 100, "{waited}, {passed}");
}

/// A device that knows nothing of a file that changes all the time asks for what it misses together, and keeps what it
/// has found out.
#[test]
fn queue_of_a_busy_file_is_found_in_few_steps() {
    let (mut world, file) = with_file();
    let mut holder = 0;
    assert_eq!(world.put(holder, claim(file, None)), Outcome::Effect);
    for _ in 0..300 {
        let next = (holder + 1) % 3;
        assert_eq!(world.put(next, claim(file, None)), LOCKED);
        assert_eq!(world.put(holder, pass(file, next)), Outcome::Effect);
        holder = next;
    }
    assert_eq!(world.put((holder + 1) % 3, claim(file, None)), LOCKED);
    let cache = Cache::new(&world.store);
    let from = Sources {
        members: &world.members,
        stored: &cache,
    };
    let mut replay = replay(&world);
    let mut asks = 0;
    let queue = loop {
        match replay.queue(&file, from) {
            Ok(queue) => break queue,
            Err(Stop::Missing(missing)) => cache.fetch(&missing),
            Err(other) => panic!("{other}"),
        }
        asks += 1;
    };
    assert_eq!(queue.waiting, [Device((holder + 1) % 3)]);
    assert!(asks <= 12, "{asks}");
    let steps = replay.steps();
    replay.queue(&file, from).unwrap();
    assert_eq!(replay.steps(), steps);
}
