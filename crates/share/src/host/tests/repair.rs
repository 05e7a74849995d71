//! Repair of a server's directory: what is mended is byte for byte what was written, what cannot be mended is refused with
//! nothing changed, and a crash at any step leaves a directory that is mended by the same command.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sim::disk::CrashDisk;
use store::disk::{Disk, read_whole, replace_file};
use trust::frame::Packer;
use trust::{Kind, Record};

use super::super::HostError;
use super::super::examine::{Examined, examine_parts};
use super::super::parts::Parts;
use super::super::repair::{Repaired, repair_parts};
use super::devices::{Device, nonce};
use super::world::{World, genesis_policy};
use crate::engine::Request;

const LONGEST: usize = 1 << 24;

/// Leaves of marks, entries, and blocks in segments.
fn grow(world: &World, from: u64, to: u64) {
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    let resume = device.resume((from % 200) as u8 + 1);
    device.session.receive(&resume).unwrap();
    core.pump();
    device.draw().unwrap();
    for number in from..to {
        let entry = device.change();
        device.session.receive(&entry).unwrap();
        let mark = Request::Mark(nonce(number));
        device.session.receive(&mark).unwrap();
        core.pump();
        device.draw().unwrap();
    }
    let blocks = (from..to.min(from + 8)).map(block).collect();
    device.session.store(blocks, Box::new(|stored| drop(stored.unwrap())));
    core.pump();
    world.pass(std::time::Duration::from_secs(500));
    core.blocks.storage().settle().unwrap();
    core.move_leaves().unwrap();
}

fn block(number: u64) -> Record {
    let plain = sim::random::noise(number + 1, 3000);
    let signatures = &mut trust::signatures::Signatures::new(4);
    let (volume, genesis) = genesis_policy();
    let policies = trust::shared::genesis::Policies::begin(volume, &genesis, signatures);
    let hasher = policies.unwrap().chain().hasher();
    Record {
        handle: hasher.name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

type Files = BTreeMap<String, Vec<u8>>;

fn files(disk: &CrashDisk) -> Files {
    let names = disk.files().into_iter();
    let read = |name: String| {
        let bytes = read_whole(disk, &name, LONGEST).unwrap();
        (name, bytes)
    };
    names.map(read).collect()
}

fn disk_of(files: &Files) -> Arc<CrashDisk> {
    let disk = CrashDisk::new();
    for name in ["policies", "leaves", "evidence", "index", "segments"] {
        disk.make_dir(name).unwrap();
    }
    for (name, bytes) in files {
        let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
        replace_file(&*disk, name, &format!("{name}.tmp"), dir, bytes).unwrap();
    }
    disk
}

/// The same storage once more, with the files of one moment.
fn copy_of(world: &World) -> World {
    let disk = disk_of(&files(&world.disk));
    let blocks = disk_of(&files(&world.blocks));
    World::of(world.machine.clone(), disk, blocks)
}

/// A copy without a temporary log, as a backup of any age.
fn backup(world: &World) -> Parts {
    let mut parts = copy_of(world).parts();
    let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
    parts.ring = Err(Arc::new(store::disk::io_error(&*parts.root, "log", gone)));
    parts
}

fn examine(world: &World) -> Examined {
    examine_parts(&world.parts(), true, &mut |_| {}).unwrap()
}

fn repair(world: &World, copy: Option<Parts>) -> Result<Repaired, HostError> {
    let copy = copy.map(|copy| (Path::new("copy"), copy));
    repair_parts(&world.parts(), copy.as_ref(), true, &mut |_| {})
}

/// With this byte changed.
fn damaged(world: &World, in_blocks: bool, name: &str, at: usize) -> World {
    let bad = copy_of(world);
    let disk = if in_blocks { &bad.blocks } else { &bad.disk };
    let mut bytes = read_whole(&**disk, name, LONGEST).unwrap();
    bytes[at] ^= 1 << (at % 8);
    let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
    replace_file(&**disk, name, "aside.tmp", dir, &bytes).unwrap();
    bad
}

fn one(world: &World, beginning: &str) -> String {
    let names = world.disk.files().into_iter().chain(world.blocks.files());
    let mut found = names.filter(|name| name.starts_with(beginning));
    found.next().unwrap()
}

fn without_kept(disk: &CrashDisk) -> Files {
    let mut all = files(disk);
    all.retain(|name, _| !name.ends_with(".damaged"));
    all
}

/// The server starts, and a device reads everything.
fn goes_on(world: &World, leaves: usize) {
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    assert_eq!(device.leaves.len(), leaves);
    for number in 0..8 {
        let block = block(number);
        let found = device.session.retrieve(&block.handle).unwrap();
        assert_eq!(found.as_ref(), Some(&block));
    }
}

fn world() -> (World, usize) {
    let world = World::new();
    grow(&world, 0, 130);
    assert_eq!(examine(&world).fault_count, 0);
    let leaves = examine(&world).leaves as usize;
    (world, leaves)
}

#[test]
fn changed_byte_of_a_file_of_leaves_is_mended_or_refused() {
    let (world, leaves) = world();
    let name = one(&world, "leaves/");
    let whole = files(&world.disk);
    let (mut alone, mut refused) = (0, 0);
    for at in (0..whole[&name].len()).step_by(41) {
        let bad = damaged(&world, false, &name, at);
        assert!(examine(&bad).fault_count > 0, "byte {at}");
        let before = files(&bad.disk);
        match repair(&bad, None) {
            Ok(repaired) => {
                assert_eq!(repaired.left.fault_count, 0, "byte {at}");
                assert_eq!(without_kept(&bad.disk), whole, "byte {at}");
                alone += 1;
            }
            Err(HostError::Unmended { why }) => {
                assert!(why.contains("leaf ") || why.contains("leaves"), "{why}");
                assert_eq!(files(&bad.disk), before, "byte {at}");
                refused += 1;
            }
            Err(other) => panic!("byte {at}: {other}"),
        }
        let bad = damaged(&world, false, &name, at);
        let repaired = repair(&bad, Some(backup(&world))).unwrap();
        assert_eq!(repaired.left.fault_count, 0, "byte {at}");
        assert_eq!(repaired.kept.len(), 1);
        assert_eq!(without_kept(&bad.disk), whole, "byte {at}");
        if at % 7 == 0 {
            goes_on(&bad, leaves);
        }
    }
    // The head, the checks and the table follow from the rest; what an author has signed does not.
    assert!(alone > 20 && refused > 100, "{alone} and {refused}");
}

#[test]
fn older_copy_mends_what_it_has_and_no_more() {
    let world = World::new();
    grow(&world, 0, 20);
    let old = copy_of(&world);
    grow(&world, 20, 130);
    let name = one(&world, "leaves/");
    let len = files(&world.disk)[&name].len();
    let whole = files(&world.disk);
    // Within its leaves, and at the end of the later ones.
    let early = len / 20;
    let bad = damaged(&world, false, &name, early);
    repair(&bad, Some(backup(&old))).unwrap();
    assert_eq!(without_kept(&bad.disk), whole);
    let mut refused = 0;
    for at in (len * 2 / 3..len * 2 / 3 + 600).step_by(50) {
        let bad = damaged(&world, false, &name, at);
        let before = files(&bad.disk);
        if let Err(error) = repair(&bad, Some(backup(&old))) {
            assert!(error.to_string().contains("copy does not have it"), "{error}");
            assert_eq!(files(&bad.disk), before);
            refused += 1;
        }
    }
    assert!(refused > 6, "{refused}");
}

#[test]
fn copy_of_a_fork_and_a_newer_copy_are_refused() {
    let world = World::new();
    grow(&world, 0, 20);
    let common = copy_of(&world);
    grow(&world, 20, 60);
    // The same beginning, and other leaves after it.
    let ring = sim::device::Machine::new(&[("log", super::world::RING_BYTES + (2 << 20))]);
    let fork = World::of(ring, common.disk.clone(), common.blocks.clone());
    let (volume, _) = genesis_policy();
    let key = super::super::directory::ring_key(volume);
    let device = fork.machine.device("log");
    let id = super::super::directory::log_id(volume);
    crate::blocks::Storage::format(&*device, &key, id, super::world::RING_BYTES).unwrap();
    grow(&fork, 40, 60);
    let name = one(&world, "leaves/");
    let len = files(&world.disk)[&name].len();
    let bad = damaged(&world, false, &name, len * 3 / 4);
    let before = files(&bad.disk);
    let error = repair(&bad, Some(backup(&fork))).err().unwrap();
    assert!(matches!(error, HostError::ForkedCopy { .. }), "{error}");
    assert_eq!(files(&bad.disk), before);
    let newer = copy_of(&world);
    grow(&newer, 60, 70);
    let error = repair(&damaged(&world, false, &name, len / 2), Some(backup(&newer)));
    let error = error.err().unwrap();
    assert!(matches!(error, HostError::NewerCopy { .. }), "{error}");
}

/// A leaf of a copy that is no leaf of this log: the roots around it refuse it.
#[test]
fn leaf_that_no_root_requires_is_not_taken() {
    let (world, _) = world();
    let name = one(&world, "leaves/");
    let len = files(&world.disk)[&name].len();
    let mut lied = 0;
    for at in (len / 3..len / 2).step_by(97) {
        let bad = damaged(&world, false, &name, at);
        let other = World::new();
        grow(&other, 300, 430);
        let before = files(&bad.disk);
        let error = repair(&bad, Some(backup(&other)));
        assert!(error.is_err(), "byte {at}");
        assert_eq!(files(&bad.disk), before, "byte {at}");
        lied += 1;
    }
    assert!(lied > 3);
}

#[test]
fn missing_file_of_leaves_is_taken_from_a_copy() {
    let (world, leaves) = world();
    let name = one(&world, "leaves/");
    let bad = copy_of(&world);
    bad.disk.remove(&name).unwrap();
    assert!(examine(&bad).fault_count > 0);
    assert!(repair(&bad, None).is_err());
    let repaired = repair(&bad, Some(backup(&world))).unwrap();
    assert_eq!(repaired.left.fault_count, 0);
    assert_eq!(repaired.taken_leaves, leaves as u64);
    goes_on(&bad, leaves);
}

#[test]
fn changed_byte_of_segments_and_index_is_named_and_mended() {
    let (world, leaves) = world();
    for beginning in ["segments/", "index/", "head", "bulla"] {
        let names = world.blocks.files().into_iter();
        let name = names.into_iter().find(|name| name.starts_with(beginning)).unwrap();
        let len = files(&world.blocks)[&name].len();
        for at in (0..len).step_by((len / 60).max(1)) {
            let bad = damaged(&world, true, &name, at);
            let Ok(found) = examine_parts(&bad.parts(), true, &mut |_| {}) else {
                // Another number of the format.
                assert_eq!(beginning, "bulla");
                continue;
            };
            assert!(found.fault_count > 0, "byte {at} of {name}");
            let named = found.faults.iter().all(|fault| fault.path.ends_with(&name));
            assert!(named, "byte {at} of {name}: {:?}", found.faults);
            let is_block = found.wrong_blocks > 0;
            assert_eq!(is_block, found.faults.iter().any(|fault| fault.block.is_some()));
            let alone = repair(&bad, None).unwrap();
            assert_eq!(alone.left.fault_count, 0, "byte {at} of {name}");
            assert_eq!(alone.lost_count, u64::from(is_block), "byte {at} of {name}");
            let bad = damaged(&world, true, &name, at);
            let repaired = repair(&bad, Some(backup(&world))).unwrap();
            assert_eq!(repaired.lost_count, 0, "byte {at} of {name}");
            goes_on(&bad, leaves);
        }
    }
}

#[test]
fn changed_byte_of_a_small_file_is_mended() {
    let (world, leaves) = world();
    for name in ["snapshot", "policies/0", "bulla"] {
        let whole = files(&world.disk);
        let len = whole[name].len();
        for at in (0..len).step_by((len / 40).max(1)) {
            let bad = damaged(&world, false, name, at);
            let Ok(found) = examine_parts(&bad.parts(), true, &mut |_| {}) else {
                assert_eq!(name, "bulla");
                continue;
            };
            assert!(found.fault_count > 0, "byte {at} of {name}");
            let before = files(&bad.disk);
            match repair(&bad, None) {
                Ok(repaired) => assert_eq!(repaired.left.fault_count, 0),
                Err(HostError::Unmended { why }) => {
                    assert!(why.contains("policies/0"), "{why}");
                    assert_eq!(files(&bad.disk), before);
                    repair(&bad, Some(backup(&world))).unwrap();
                    assert_eq!(without_kept(&bad.disk)[name], whole[name]);
                }
                Err(other) => panic!("byte {at} of {name}: {other}"),
            }
            goes_on(&bad, leaves);
        }
    }
}

#[test]
fn crash_at_any_step_of_a_repair_leaves_what_the_same_command_mends() {
    let (world, leaves) = world();
    let segment = one(&world, "segments/");
    let names = [(false, one(&world, "leaves/")), (true, segment), (true, "head".to_owned())];
    let mut bad = copy_of(&world);
    for (in_blocks, name) in names {
        let disk = if in_blocks { &bad.blocks } else { &bad.disk };
        let at = read_whole(&**disk, &name, LONGEST).unwrap().len() / 3;
        bad = damaged(&bad, in_blocks, &name, at);
    }
    let whole = files(&world.disk);
    let mut crashes = 0;
    for in_blocks in [false, true] {
        for operation in 0.. {
            let begun = copy_of(&bad);
            let disk = if in_blocks { &begun.blocks } else { &begun.disk };
            disk.crash_at(disk.operations() + operation);
            let ended = repair(&begun, Some(backup(&world)));
            if !disk.crashed() {
                assert!(ended.is_ok());
                break;
            }
            for outcome in disk.outcomes(6) {
                let (root, blocks) = match in_blocks {
                    false => (begun.disk.reborn(&outcome), begun.blocks.clone()),
                    true => (begun.disk.clone(), begun.blocks.reborn(&outcome)),
                };
                let again = copy_of(&World::of(world.machine.clone(), root, blocks));
                let repaired = repair(&again, Some(backup(&world)));
                let repaired = repaired.unwrap_or_else(|why| panic!("{operation}: {why}"));
                assert_eq!(repaired.left.fault_count, 0, "{operation}, {outcome:?}");
                assert_eq!(repaired.lost_count, 0, "{operation}, {outcome:?}");
                let mut now = without_kept(&again.disk);
                now.retain(|name, _| !name.ends_with(".tmp"));
                assert_eq!(now, whole, "{operation}, {outcome:?}");
                crashes += 1;
            }
            let one = begun.disk.outcomes(1).remove(0);
            let other = begun.blocks.outcomes(1).remove(0);
            let again = World::of(
                world.machine.clone(),
                begun.disk.reborn(&one),
                begun.blocks.reborn(&other),
            );
            repair(&again, Some(backup(&world))).unwrap();
            goes_on(&copy_of(&again), leaves);
        }
    }
    assert!(crashes > 60, "{crashes}");
}
