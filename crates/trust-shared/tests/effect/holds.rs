//! Locks of programs that devices hold: who takes them over, and changes that are made under them.

use trust_shared::calls;
use trust_shared::guard::Guard;
use trust_shared::hold::{Family, Hold, Range, Ranges};
use trust_shared::ops::Op;
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::{Device, FileId};

use crate::world::*;

const FLOCK: Family = Family::Flock;

fn hold(world: &World, device: u32, file: FileId, exclusive: bool, lapsed: &[(Device, u64)]) -> Op {
    let own = world.state.hold(&file, FLOCK, Device(device));
    let of = (file, FLOCK, Device(device));
    calls::hold(of, Ranges::whole(exclusive), own.as_ref(), lapsed)
}

fn held(world: &World, device: u32, file: FileId) -> Option<Hold> {
    world.state.hold(&file, FLOCK, Device(device))
}

fn last(world: &World, device: u32, file: FileId) -> u64 {
    held(world, device, file).unwrap().last
}

/// A file that everybody may write.
fn begun() -> (World, FileId) {
    let mut world = World::new();
    let f = file(EVERYBODY, 0, 1);
    let made = world.create(&root(), "f", f, regular("x"));
    assert_eq!(world.put(0, made), Outcome::Effect);
    (world, f)
}

/// A write that has effect only while the device holds what it has held since a position.
fn write_under(world: &World, device: u32, file: FileId, since: u64) -> Op {
    let held = world.held(file);
    let mut op = world.calls().write(&held, content("y"), TIME);
    op.guards.push(Guard::HeldSince {
        file,
        family: FLOCK,
        device: Device(device),
        position: since,
    });
    op
}

const LOCKED: Outcome = Outcome::None(NoEffect::Locked);
const LOST: Outcome = Outcome::None(NoEffect::LockLost);
const STALE: Outcome = Outcome::None(NoEffect::Stale);

#[test]
fn readers_hold_together_and_a_writer_alone() {
    let (mut world, f) = begun();
    for device in [0, 1] {
        let op = hold(&world, device, f, false, &[]);
        assert_eq!(world.put(device, op), Outcome::Effect);
    }
    let writer = hold(&world, 2, f, true, &[]);
    assert_eq!(world.put(2, writer.clone()), LOCKED);
    // Nor does one reader become a writer beside another.
    let more = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, more), LOCKED);
    for device in [0, 1] {
        let op = calls::release(f, FLOCK, Device(device));
        assert_eq!(world.put(device, op), Outcome::Effect);
    }
    assert_eq!(world.put(2, writer), Outcome::Effect);
    // The other family knows nothing of it.
    let of = (f, Family::Fcntl, Device(1));
    let op = calls::hold(of, Ranges::whole(true), None, &[]);
    assert_eq!(world.put(1, op), Outcome::Effect);
}

/// A device that asked for a lock in vain, and is then silent, delays no other device.
#[test]
fn value_does_not_rest_on_holds_in_vain() {
    let (mut world, f) = begun();
    let op = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, op), Outcome::Effect);
    let vain = hold(&world, 1, f, true, &[]);
    assert_eq!(world.put(1, vain), LOCKED);
    let vain = world.end() - 1;
    let release = calls::release(f, FLOCK, Device(0));
    assert_eq!(world.put(0, release), Outcome::Effect);
    let op = hold(&world, 2, f, true, &[]);
    assert_eq!(world.put(2, op), Outcome::Effect);
    let mut replay = replay(&world);
    let at = world.end() - 1;
    assert_eq!(replay.outcome(at, 0, world.sources()), Ok(Outcome::Effect));
    let rests = replay.outcome_rests_on(at, 0, 0, &world.store).unwrap();
    let positions: Vec<u64> = rests.into_iter().map(|(position, _)| position).collect();
    assert!(!positions.contains(&vain), "{positions:?}");
    assert!(positions.contains(&(vain + 1)), "{positions:?}");
}

#[test]
fn hold_is_taken_over_only_if_it_was_not_renewed() {
    let (mut world, f) = begun();
    let op = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, op), Outcome::Effect);
    let first = last(&world, 0, f);
    let renewed = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, renewed), Outcome::Effect);
    let after = held(&world, 0, f).unwrap();
    assert_eq!((after.since, after.last), (first, first + 1));
    let early = hold(&world, 1, f, true, &[(Device(0), first)]);
    assert_eq!(world.put(1, early), STALE);
    let late = hold(&world, 1, f, true, &[(Device(0), first + 1)]);
    assert_eq!(world.put(1, late), Outcome::Effect);
    assert_eq!(held(&world, 0, f), None);
    assert!(held(&world, 1, f).is_some());
    // A lazy evaluation says the same, from the bodies that it needs.
    let mut replay = replay(&world);
    let cache = Cache::new(&world.store);
    for device in 0..3 {
        let of = (&f, FLOCK, Device(device));
        let from = trust_shared::effect::replay::Sources {
            members: &world.members,
            stored: &cache,
        };
        let found = cache.ask(|| replay.hold(world.end(), of, from));
        assert_eq!(found, held(&world, device, f), "{device}");
    }
}

#[test]
fn only_the_device_itself_gives_up_what_it_renews() {
    let (mut world, f) = begun();
    let op = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, op), Outcome::Effect);
    let release = calls::release(f, FLOCK, Device(0));
    assert_eq!(world.put(1, release.clone()), LOCKED);
    assert_eq!(
        world.put(3, release.clone()),
        Outcome::None(NoEffect::NotPermitted)
    );
    assert_eq!(world.put(0, release.clone()), Outcome::Effect);
    assert_eq!(world.put(0, release), LOST);
    // Of a device that never was, nothing is held, and nobody looks for it.
    let nobody = calls::release(f, FLOCK, Device(99));
    assert_eq!(world.put(1, nobody), Outcome::None(NoEffect::NotPermitted));
    let replay = replay(&world);
    assert_eq!(replay.holders(&f, FLOCK).len(), 1);
    // A device cannot hold anything in the name of another device.
    let of = (f, FLOCK, Device(0));
    let op = calls::hold(of, Ranges::whole(true), None, &[]);
    assert_eq!(world.put(1, op), Outcome::None(NoEffect::NotPermitted));
}

#[test]
fn guard_about_a_hold_that_the_op_leaves_alone_is_misformed() {
    let (mut world, f) = begun();
    let guard = Guard::HoldLast {
        file: f,
        family: FLOCK,
        device: Device(0),
        position: 1,
    };
    let op = hold(&world, 1, f, true, &[]);
    let op = Op::new(vec![guard], op.changes);
    assert_eq!(world.put(1, op), Outcome::None(NoEffect::Misformed));
}

#[test]
fn device_that_lost_its_hold_writes_nothing_under_it() {
    let (mut world, f) = begun();
    let op = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, op), Outcome::Effect);
    let since = held(&world, 0, f).unwrap().since;
    let write = write_under(&world, 0, f, since);
    assert_eq!(world.put(0, write), Outcome::Effect);
    let other = hold(&world, 1, f, true, &[(Device(0), last(&world, 0, f))]);
    assert_eq!(world.put(1, other), Outcome::Effect);
    let write = write_under(&world, 0, f, since);
    assert_eq!(world.put(0, write), LOST);
    // Nor when it has the lock again: another device may have changed what the program has read.
    let back = calls::release(f, FLOCK, Device(1));
    assert_eq!(world.put(1, back), Outcome::Effect);
    let again = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, again), Outcome::Effect);
    let write = write_under(&world, 0, f, since);
    assert_eq!(world.put(0, write), LOST);
    let write = write_under(&world, 0, f, held(&world, 0, f).unwrap().since);
    assert_eq!(world.put(0, write), Outcome::Effect);
}

#[test]
fn device_says_rightly_whether_it_has_held_something() {
    let (mut world, f) = begun();
    let of = (f, FLOCK, Device(0));
    let since = |since| Hold {
        ranges: Ranges::whole(true),
        since,
        last: since,
    };
    let never = calls::hold(of, Ranges::whole(true), Some(&since(3)), &[]);
    assert_eq!(world.put(0, never), LOST);
    let op = hold(&world, 0, f, true, &[]);
    assert_eq!(world.put(0, op.clone()), Outcome::Effect);
    assert_eq!(world.put(0, op), STALE);
    let other = calls::hold(of, Ranges::whole(true), Some(&since(3)), &[]);
    assert_eq!(world.put(0, other), STALE);
    let gone = hold(&world, 0, file(EVERYBODY, 0, 77), true, &[]);
    assert_eq!(world.put(0, gone), Outcome::None(NoEffect::NotFound));
}

#[test]
fn ranges_are_held_where_they_do_not_clash() {
    let (mut world, f) = begun();
    let ranges = |start, exclusive| {
        let end = start + 10;
        Ranges::new(vec![Range {
            start,
            end,
            exclusive,
        }])
        .unwrap()
    };
    for device in 0..3 {
        let of = (f, Family::Fcntl, Device(device));
        let op = calls::hold(of, ranges(10 * u64::from(device), true), None, &[]);
        assert_eq!(world.put(device, op), Outcome::Effect);
    }
    let of = (f, Family::Fcntl, Device(0));
    let own = world.state.hold(&f, Family::Fcntl, Device(0));
    let op = calls::hold(of, ranges(5, true), own.as_ref(), &[]);
    assert_eq!(world.put(0, op), LOCKED);
    // What it held stays.
    assert_eq!(world.state.hold(&f, Family::Fcntl, Device(0)), own);
}
