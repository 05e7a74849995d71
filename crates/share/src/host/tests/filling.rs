//! Full storage: nothing acknowledged is lost, what waits is told or goes on when there is space.

use super::super::{Core, HostError};
use super::devices::{Device, lock, nonce};
use super::world::{RING_BYTES, World};
use crate::engine::Request;

fn begun(world: &World) -> (std::sync::Arc<Core>, Device) {
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    let resume = device.resume(1);
    device.session.receive(&resume).unwrap();
    core.pump();
    device.draw().unwrap();
    (core, device)
}

#[test]
fn entries_without_any_block_do_not_fill_the_temporary_log() {
    let world = World::new();
    let (core, mut device) = begun(&world);
    let before = core.blocks.storage().log().end().0;
    let mut number = 0;
    // Three times around the ring.
    while core.blocks.storage().log().end().0 < before + 3 * RING_BYTES {
        number += 1;
        device
            .session
            .receive(&Request::Mark(nonce(number)))
            .unwrap();
        assert!(!core.pump(), "full after {number} commits");
        device.draw().unwrap();
        if core.must_move() {
            core.move_leaves().unwrap();
        }
    }
    assert_eq!(core.status().leaves, number + 1);
}

#[test]
fn full_disk_keeps_leaves_in_the_temporary_log_until_there_is_space() {
    let world = World::new();
    let (core, mut device) = begun(&world);
    for from in 0..12 {
        let entry = device.change();
        device.session.receive(&entry).unwrap();
        core.pump();
        device.draw().unwrap();
        world.disk.full_from(world.disk.operations() + from);
        let moved = core.move_leaves();
        world.disk.free_space();
        if moved.is_ok() {
            assert!(from > 3, "{from} operations");
            break;
        }
        assert!(matches!(moved, Err(HostError::Disk(_))), "{moved:?}");
        let mut again = Device::connect(&core, 1).unwrap();
        again.draw().unwrap();
        assert_eq!(again.leaves, device.leaves);
        device.session = again.session;
    }
    core.move_leaves().unwrap();
    assert_eq!(core.leaves.end(), device.leaves.len() as u64);
}

#[test]
fn commit_that_finds_no_space_goes_on_when_there_is_some() {
    let world = World::new();
    let (core, mut device) = begun(&world);
    // Nothing moves, until the temporary log is full.
    let mut sent = 1;
    loop {
        let ops: Vec<_> = (0..1000).map(lock).collect();
        let entry = device.entry(ops);
        device.session.receive(&entry).unwrap();
        sent += 1;
        if core.pump() {
            break;
        }
        device.draw().unwrap();
        assert!(sent < 1000);
    }
    assert!(device.draw().unwrap().is_empty(), "it is not durable");
    // Those who wait too long are told, and the commit comes again.
    core.blocks
        .storage()
        .refuse_waiting(&crate::blocks::Error::Full {
            cause: "for a test".into(),
        });
    assert!(matches!(
        core.status().failure,
        Some(HostError::Blocks(crate::blocks::Error::Full { .. }))
    ));
    assert!(core.status().stopped.is_none());
    core.move_leaves().unwrap();
    let later = std::time::Instant::now() + std::time::Duration::from_secs(60);
    assert_eq!(core.try_again(later), None);
    assert!(!core.pump());
    device.draw().unwrap();
    assert_eq!(device.leaves.len(), sent);
    assert!(core.status().failure.is_none());
}
