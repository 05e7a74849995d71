//! Locks of files: who may change a locked file, and how a lock passes from one device to another.

use trust::inode::Time;
use trust_shared::calls::{Turn, lock, unlock};
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::{Device, FileId};

use crate::world::*;

/// A world with one file of everybody.
fn with_file() -> (World, FileId) {
    let mut world = World::new();
    let new = file(EVERYBODY, 0, 1);
    let op = world
        .calls()
        .create(&world.spot(&root(), "f"), new, regular(""));
    assert_eq!(world.put(0, op.unwrap()), Outcome::Effect);
    (world, new)
}

fn write(world: &mut World, device: u32, file: FileId, text: &str, turn: Turn) -> Outcome {
    let mut held = world.held(file);
    held.turn = turn;
    let op = world.calls().write(&held, content(text), Time::default());
    world.put(device, op)
}

#[test]
fn only_the_holder_writes_a_locked_file() {
    let (mut world, file) = with_file();
    assert_eq!(world.put(1, lock(file, None, Device(1))), Outcome::Effect);
    let other = write(&mut world, 2, file, "two", Turn::Free);
    assert_eq!(other, Outcome::None(NoEffect::Locked));
    assert_eq!(
        write(&mut world, 1, file, "one", Turn::Mine),
        Outcome::Effect
    );
    let lost = write(&mut world, 2, file, "two", Turn::Mine);
    assert_eq!(lost, Outcome::None(NoEffect::LockLost));
    assert_eq!(
        world.put(2, unlock(file)),
        Outcome::None(NoEffect::LockLost)
    );
    assert_eq!(world.put(1, unlock(file)), Outcome::Effect);
    assert_eq!(
        write(&mut world, 2, file, "two", Turn::Free),
        Outcome::Effect
    );
}

#[test]
fn lock_is_taken_over_only_from_a_holder_who_has_not_renewed_it() {
    let (mut world, file) = with_file();
    assert_eq!(world.put(1, lock(file, None, Device(1))), Outcome::Effect);
    let seen = world.state.lock(&file);
    let taken = lock(file, seen, Device(2));
    let renewed = lock(file, seen, Device(1));
    assert_eq!(world.put(1, renewed), Outcome::Effect);
    assert_eq!(world.put(2, taken), Outcome::None(NoEffect::Stale));
    let taken = lock(file, world.state.lock(&file), Device(2));
    assert_eq!(world.put(2, taken), Outcome::Effect);
    assert_eq!(
        world.state.lock(&file).map(|lock| lock.holder),
        Some(Device(2))
    );
    let late = write(&mut world, 1, file, "one", Turn::Mine);
    assert_eq!(late, Outcome::None(NoEffect::LockLost));
}

#[test]
fn two_devices_cannot_both_take_a_free_lock() {
    let (mut world, file) = with_file();
    assert_eq!(world.put(1, lock(file, None, Device(1))), Outcome::Effect);
    let second = world.put(2, lock(file, None, Device(2)));
    assert_eq!(second, Outcome::None(NoEffect::Locked));
    let blind = trust_shared::ops::Op::new(
        Vec::new(),
        vec![trust_shared::change::Change::Lock { file }],
    );
    assert_eq!(world.put(2, blind), Outcome::None(NoEffect::Locked));
    let blind = trust_shared::ops::Op::new(
        Vec::new(),
        vec![trust_shared::change::Change::Unlock { file }],
    );
    let other = world.put(2, blind);
    assert_eq!(other, Outcome::None(NoEffect::LockLost));
    let reader = world.put(3, unlock(file));
    assert_eq!(reader, Outcome::None(NoEffect::NotPermitted));
}
