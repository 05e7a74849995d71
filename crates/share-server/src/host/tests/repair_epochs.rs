//! The repair of a server whose owners have begun its log again: what a copy has of the log before.

use store::disk::Disk;

use super::super::HostError;
use super::devices::Device;
use super::epochs::{Rules, renew, send, verified, written};
use super::repair::{
    backup, copy_of, damaged, examine, files, lying_backup, one, repair, without_kept,
};
use super::world::World;

/// A server whose log the owners have begun again, with leaves of the new epoch; and as it was when that began, with all
/// leaves of the old epoch in files, and with the last ones in the temporary log.
fn begun_again() -> (World, World, World, u64) {
    let world = World::new();
    let (start, ..) = written(&world);
    let fork = |world: &World| {
        let copy = copy_of(world);
        World::of(world.machine.fork(), copy.disk, copy.blocks)
    };
    let (in_files, in_ring) = (fork(&world), fork(&world));
    in_files.open().unwrap().move_leaves().unwrap();
    let rules = Rules::of(start).signed();
    for world in [&world, &in_files] {
        renew(world, &rules).unwrap();
        let core = world.open().unwrap();
        let mut device = Device::connect(&core, 1).unwrap();
        device.follow(1, &verified(&rules));
        device.draw().unwrap();
        let resume = device.resume(9);
        send(&core, &mut device, &resume);
        core.move_leaves().unwrap();
    }
    (world, in_files, in_ring, start.size)
}

/// What a copy has beyond the prefix that stands does not matter: a device remembers it, and a backup may have it.
#[test]
fn leaves_of_an_epoch_that_is_over_make_no_copy_newer() {
    let (world, in_files, in_ring, start) = begun_again();
    let whole = files(&world.disk);
    let name = one(&world, "epoch-1/leaves/");
    let at = whole[&name].len() / 3;
    for copy in [backup(&in_files), in_ring.parts()] {
        let bad = damaged(&world, false, &name, at);
        assert!(examine(&bad).fault_count > 0);
        let repaired = repair(&bad, Some(copy)).unwrap();
        assert_eq!(repaired.left.fault_count, 0);
        assert_eq!(without_kept(&bad.disk), whole);
    }
    let other = |at| repair(&in_files, Some(lying_backup(&in_files, at)));
    assert_eq!(other(start).unwrap().mended, []);
    let error = other(start - 1).err().unwrap();
    assert!(matches!(error, HostError::ForkedCopy { .. }), "{error}");
}

/// An administrator who is told that the copy is newer would serve it, and it is the older one.
#[test]
fn lost_policy_makes_no_copy_newer() {
    let (world, ..) = begun_again();
    let bad = copy_of(&world);
    bad.disk.remove("policies/1").unwrap();
    let before = files(&bad.disk);
    let error = repair(&bad, Some(backup(&world))).err().unwrap();
    let is_unmended = matches!(error, HostError::Unmended { .. });
    let error = error.to_string();
    assert!(
        is_unmended && error.contains("one may be missing here"),
        "{error}"
    );
    assert_eq!(files(&bad.disk), before);
}
