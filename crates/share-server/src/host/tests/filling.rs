//! Full storage: nothing acknowledged is lost, what waits is told or goes on when there is space.

use std::sync::Arc;

use trust::frame::Packer;
use trust::{Kind, Record};

use super::super::{Core, HostError, HostOptions};
use super::devices::{Device, admit, lock, nonce};
use super::world::{RING_BYTES, World, genesis_policy};
use crate::blocks;
use ordering::engine::Request;

fn begun(world: &World) -> (Arc<Core>, Device) {
    begun_with(world, HostOptions::default())
}

fn begun_with(world: &World, options: HostOptions) -> (Arc<Core>, Device) {
    let core = world.open_with(options).unwrap();
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

/// Blocks of 60,000 bytes.
fn blocks_of(numbers: std::ops::Range<u64>) -> Vec<Record> {
    let (volume, genesis) = genesis_policy();
    let mut signatures = trust::signatures::Signatures::new(4);
    let policies = trust_shared::genesis::Policies::begin(volume, &genesis, &mut signatures);
    let hasher = policies.unwrap().chain().hasher();
    let block = |number| {
        let plain = sim::random::noise(number, 60_000);
        Record {
            handle: hasher.name(Kind::Data, &plain),
            frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
        }
    };
    numbers.map(block).collect()
}

/// Stores a block. When it is durable, blocks of most of what may wait are stored: they wait before whatever is given to
/// the temporary log after that.
fn store_block_and_then_many(core: &Arc<Core>) {
    let batch = |blocks| blocks::Batch {
        session: core.own,
        blocks,
        entries: Vec::new(),
    };
    let later: Vec<_> = blocks_of(1..17)
        .into_iter()
        .map(|block| batch(vec![block]))
        .collect();
    let again = Arc::clone(core);
    let done = move |stored: Result<_, blocks::Error>| {
        drop(stored.unwrap());
        for batch in later {
            let done = |stored: Result<_, blocks::Error>| drop(stored.unwrap());
            again.blocks.submit(batch, Box::new(done));
        }
    };
    core.blocks.submit(batch(blocks_of(0..1)), Box::new(done));
}

#[test]
fn leaves_of_a_long_commit_beside_many_blocks_are_found_by_a_start() {
    let world = World::new();
    let blocks = blocks::Options {
        waiting_bytes: 1 << 20,
        ..blocks::Options::default()
    };
    let options = HostOptions {
        blocks,
        ..HostOptions::default()
    };
    let (core, mut one) = begun_with(&world, options);
    let ops = (2..15).map(admit).collect();
    for ops in [ops, vec![lock(1)]] {
        let entry = one.entry(ops);
        one.session.receive(&entry).unwrap();
        core.pump();
        one.draw().unwrap();
    }
    let mut devices: Vec<Device> = (2..15)
        .map(|number| Device::connect(&core, number).unwrap())
        .collect();
    for (device, number) in devices.iter_mut().zip(2..) {
        device.draw().unwrap();
        let resume = device.resume(number);
        device.session.receive(&resume).unwrap();
    }
    core.pump();
    // One entry is on its way, behind a block. The others make a commit of two batches, of 110 and 50 KB. Beside the blocks
    // that wait then there is room for the second one only.
    store_block_and_then_many(&core);
    for device in &mut devices {
        device.draw().unwrap();
        let entry = device.entry((0..1000).map(lock).collect());
        device.session.receive(&entry).unwrap();
    }
    core.pump();
    let later = std::time::Instant::now() + std::time::Duration::from_secs(60);
    core.try_again(later);
    core.pump();
    one.draw().unwrap();
    let leaves = one.leaves.clone();
    assert_eq!(leaves.len() as u64, core.status().leaves);
    drop((one, devices, core));
    let core = world.open().unwrap();
    let mut one = Device::connect(&core, 1).unwrap();
    one.draw().unwrap();
    assert!(one.leaves.starts_with(&leaves));
}
