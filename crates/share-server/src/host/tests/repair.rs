//! Repair of a server's directory: what is mended is byte for byte what was written, what cannot be mended is refused with
//! nothing changed, and a crash at any step leaves a directory that is mended by the same command.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use sim::device::Machine;
use sim::disk::CrashDisk;
use store::disk::{Disk, read_whole, replace_file};
use trust::frame::Packer;
use trust::history::{Frontier, leaf_hash};
use trust::{Kind, Record};
use wal::Device as _;

use super::super::HostError;
use super::super::directory::{log_id, ring_key};
use super::super::examine::{Examined, examine_parts};
use super::super::leaves::file::Content;
use super::super::moving::Released;
use super::super::parts::Parts;
use super::super::record::StoredLeaf;
use super::super::repair::source::Source;
use super::super::repair::{Copied, Repaired, repair_parts};
use super::devices::{Device, nonce};
use super::world::{RING_BYTES, World, genesis_policy};
use ordering::engine::Request;
use ordering::prefixes::PAGE;

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
        if number.is_multiple_of(5) {
            let entry = device.change();
            device.session.receive(&entry).unwrap();
        }
        let mark = Request::Mark(nonce(number));
        device.session.receive(&mark).unwrap();
        core.pump();
        device.draw().unwrap();
    }
    let blocks = (from..to.min(from + 8)).map(block).collect();
    device
        .session
        .store(blocks, Box::new(|stored| drop(stored.unwrap())));
    core.pump();
    world.pass(std::time::Duration::from_secs(500));
    core.blocks.storage().settle().unwrap();
    core.move_leaves().unwrap();
}

fn block(number: u64) -> Record {
    let plain = sim::random::noise(number + 1, 3000);
    let signatures = &mut trust::signatures::Signatures::new(4);
    let (volume, genesis) = genesis_policy();
    let policies = trust_shared::genesis::Policies::begin(volume, &genesis, signatures);
    let hasher = policies.unwrap().chain().hasher();
    Record {
        handle: hasher.name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

pub(super) type Files = BTreeMap<String, Vec<u8>>;

pub(super) fn files(disk: &CrashDisk) -> Files {
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
        disk.make_dir(dir).unwrap();
        replace_file(&*disk, name, &format!("{name}.tmp"), dir, bytes).unwrap();
    }
    disk
}

/// The same storage once more, with the files of one moment.
pub(super) fn copy_of(world: &World) -> World {
    let disk = disk_of(&files(&world.disk));
    let blocks = disk_of(&files(&world.blocks));
    World::of(world.machine.clone(), disk, blocks)
}

/// A copy without a temporary log, as a backup of any age.
pub(super) fn backup(world: &World) -> Parts {
    let mut parts = copy_of(world).parts();
    let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
    parts.ring = Err(Arc::new(store::disk::io_error(&*parts.root, "log", gone)));
    parts
}

pub(super) fn examine(world: &World) -> Examined {
    examine_parts(&world.parts(), true, &mut |_| {}).unwrap()
}

pub(super) fn repair(world: &World, copy: Option<Parts>) -> Result<Repaired, HostError> {
    let copy = copy.map(|copy| Copied::server(Path::new("copy"), copy));
    repair_parts(&world.parts(), copy.as_ref(), true, &mut |_| {})
}

/// With this byte changed.
pub(super) fn damaged(world: &World, in_blocks: bool, name: &str, at: usize) -> World {
    let bad = copy_of(world);
    let disk = if in_blocks { &bad.blocks } else { &bad.disk };
    let mut bytes = read_whole(&**disk, name, LONGEST).unwrap();
    bytes[at] ^= 1 << (at % 8);
    let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
    replace_file(&**disk, name, "aside.tmp", dir, &bytes).unwrap();
    bad
}

pub(super) fn one(world: &World, beginning: &str) -> String {
    let names = world.disk.files().into_iter().chain(world.blocks.files());
    let mut found = names.filter(|name| name.starts_with(beginning));
    found.next().unwrap()
}

pub(super) fn without_kept(disk: &CrashDisk) -> Files {
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
    grow(&world, 0, 220);
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
    for at in (0..whole[&name].len()).step_by(97) {
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
    assert!(alone > 10 && refused > 60, "{alone} and {refused}");
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
            let error = error.to_string();
            let is_lost = error.contains("copy does not have it");
            assert!(is_lost || error.contains("are not those that"), "{error}");
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
    let ring = Machine::new(&[("log", RING_BYTES + (2 << 20))]);
    let fork = World::of(ring, common.disk.clone(), common.blocks.clone());
    let (volume, _) = genesis_policy();
    let device = fork.machine.device("log");
    let (key, id) = (ring_key(volume), log_id(volume));
    crate::blocks::Storage::format(&*device, &key, id, RING_BYTES).unwrap();
    grow(&fork, 40, 60);
    let name = one(&world, "leaves/");
    let len = files(&world.disk)[&name].len();
    let bad = damaged(&world, false, &name, len * 3 / 4);
    let before = files(&bad.disk);
    let error = repair(&bad, Some(backup(&fork))).err().unwrap();
    assert!(matches!(error, HostError::ForkedCopy { .. }), "{error}");
    assert_eq!(files(&bad.disk), before);
    let ring = Machine::new(&[("log", RING_BYTES + (2 << 20))]);
    let device = ring.device("log");
    crate::blocks::Storage::format(&*device, &key, id, RING_BYTES).unwrap();
    let newer = copy_of(&world);
    let newer = World::of(ring, newer.disk, newer.blocks);
    grow(&newer, 60, 70);
    let error = repair(
        &damaged(&world, false, &name, len / 2),
        Some(backup(&newer)),
    );
    let error = error.err().unwrap();
    assert!(matches!(error, HostError::NewerCopy { .. }), "{error}");
}

/// The number of the leaf that a refusal names.
fn named_leaf(why: &str) -> Option<u64> {
    let words: Vec<&str> = why.split_whitespace().collect();
    let leaf = words.iter().position(|word| *word == "leaf")?;
    words.get(leaf + 1)?.parse().ok()
}

/// A copy that differs in one leaf, with a right check beside it.
pub(super) fn lying_backup(world: &World, at: u64) -> Parts {
    let parts = backup(world);
    let source = Source::open(world.disk.clone(), HashMap::new()).unwrap();
    let leaves = (0..source.end()).map(|at| source.leaf(at).unwrap());
    let mut leaves: Vec<StoredLeaf> = leaves.collect();
    leaves[at as usize] = StoredLeaf {
        leaf: [&[3][..], &[0xee; 32]].concat().into(),
        body: None,
        decides: false,
    };
    let mut content = Content::after(Frontier::new());
    let mut tree = Frontier::new();
    let mut roots = Vec::new();
    for stored in &leaves {
        tree.push_hash(leaf_hash(&stored.leaf)).unwrap();
        if tree.size().is_multiple_of(PAGE) {
            roots.push(tree.root());
        }
    }
    assert!(content.extend(&leaves, &roots));
    let (row, bytes) = content.encode();
    replace_file(&*parts.root, &row.name(), "aside.tmp", "leaves", &bytes).unwrap();
    parts
}

/// A leaf of a copy that is no leaf of this log: the roots around it refuse it. Where there is no root, it is not proved.
#[test]
fn leaf_that_no_root_requires_is_not_taken() {
    let (world, _) = world();
    let name = one(&world, "leaves/");
    let len = files(&world.disk)[&name].len();
    let without_roots = Machine::new(&[("log", RING_BYTES + (2 << 20))]);
    let device = without_roots.device("log");
    let (volume, _) = genesis_policy();
    let (key, id) = (ring_key(volume), log_id(volume));
    crate::blocks::Storage::format(&*device, &key, id, RING_BYTES).unwrap();
    let (mut refused, mut unproved) = (0, 0);
    let last = (len * 9 / 10..len * 96 / 100).step_by(20);
    for at in (len / 3..len * 9 / 10).step_by(311).chain(last) {
        let bad = damaged(&world, false, &name, at);
        let Err(HostError::Unmended { why }) = repair(&bad, None) else {
            continue;
        };
        let before = files(&bad.disk);
        // Others name the author who contradicts.
        let is_lost = why.contains("is damaged, and");
        let Some(leaf) = named_leaf(&why).filter(|_| is_lost) else {
            continue;
        };
        let error = repair(&bad, Some(lying_backup(&world, leaf)));
        let error = error.err().unwrap().to_string();
        assert!(error.contains("are not those that"), "leaf {leaf}: {error}");
        refused += 1;
        let bad = World::of(without_roots.clone(), bad.disk, bad.blocks);
        let error = repair(&bad, Some(lying_backup(&world, leaf)));
        let error = error.err().unwrap().to_string();
        // The last page is full at 256 leaves.
        match leaf < 256 {
            true => assert!(error.contains("are not those that"), "leaf {leaf}: {error}"),
            // A later entry may tell.
            false if error.contains("are not those that") => {}
            false => {
                assert!(error.contains("nothing proves"), "leaf {leaf}: {error}");
                unproved += 1;
            }
        }
        assert_eq!(files(&bad.disk), before);
    }
    assert!(refused > 10 && unproved > 0, "{refused} and {unproved}");
}

/// A policy or an epoch that is gone: the server would go on with what is over.
#[test]
fn missing_policies_stop_the_start() {
    let (world, _) = world();
    let policy = read_whole(&*world.disk, "policies/0", LONGEST).unwrap();
    let bad = copy_of(&world);
    replace_file(&*bad.disk, "policies/2", "2.tmp", "policies", &policy).unwrap();
    let error = bad.open().err().unwrap().to_string();
    assert!(
        error.contains("policies/1 is damaged: is missing"),
        "{error}"
    );
    let core = world.open().unwrap();
    let storage = core.blocks.storage();
    let later = Released {
        size: 1,
        root: [1; 32],
        epoch: 5,
    };
    let durable = storage.log().durable().lsn;
    storage.release_entries(durable, &later.encode()).unwrap();
    drop(core);
    let error = world.open().err().unwrap().to_string();
    assert!(error.contains("of epoch 5"), "{error}");
    assert!(examine(&world).fault_count > 0);
    assert!(matches!(
        repair(&world, None),
        Err(HostError::Unmended { .. })
    ));
}

/// Frames of the temporary log are destroyed, and entries are missing: nothing is changed.
#[test]
fn temporary_log_that_may_have_lost_entries_is_not_mended() {
    let (world, _) = world();
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    for number in 0..4 {
        let request = match number {
            0 => device.resume(250),
            _ => device.change(),
        };
        device.session.receive(&request).unwrap();
        core.pump();
        device.draw().unwrap();
    }
    // The last frame has a block, and so does not show whether entries are missing before it.
    device
        .session
        .store(vec![block(0)], Box::new(|stored| drop(stored.unwrap())));
    core.pump();
    drop((device, core));
    let ring = world.machine.device("log");
    let mut frames = Vec::new();
    for offset in (1 << 20..(1 << 20) + RING_BYTES).step_by(4096) {
        let mut page = wal::Buffer::zeroed(4096);
        ring.read(offset, &mut page).unwrap();
        if page.starts_with(b"bullafrm") {
            let lsn = u64::from_le_bytes(page[36..44].try_into().unwrap());
            frames.push((lsn, offset));
        }
    }
    frames.sort_unstable();
    let (mut noticed, mut refused, mut not_shown) = (0, 0, 0);
    for (_, offset) in frames.iter().rev().take(8) {
        let bit = (offset + 60) * 8;
        ring.flip(bit);
        let before = files(&world.disk);
        // The last one looks like the end after a crash.
        if examine(&world).fault_count > 0 {
            noticed += 1;
            let error = repair(&world, None).err().unwrap().to_string();
            let is_lost = named_leaf(&error).is_some() || error.contains("sign a fork");
            // Here the temporary log is no file, so one without entries is not made anew.
            assert!(is_lost || error.contains("is no file"), "{error}");
            refused += usize::from(is_lost);
            not_shown += usize::from(error.contains("no entry after the destroyed frame"));
            assert_eq!(files(&world.disk), before);
        }
        ring.flip(bit);
    }
    assert!(
        noticed > 2 && refused > 1 && not_shown > 0,
        "{noticed}, {refused} and {not_shown} of {frames:?}"
    );
    assert_eq!(examine(&world).fault_count, 0);
}

#[test]
fn second_repair_keeps_the_damaged_file_of_the_first() {
    let (world, _) = world();
    let name = one(&world, "leaves/");
    let len = files(&world.disk)[&name].len();
    let mut bad = copy_of(&world);
    let mut kept = Vec::new();
    for part in 1..4 {
        bad = damaged(&bad, false, &name, len * part / 5);
        let bytes = files(&bad.disk).remove(&name).unwrap();
        repair(&bad, Some(backup(&world))).unwrap();
        kept.push(bytes);
    }
    let all = files(&bad.disk);
    let names = ["", ".2", ".3"].map(|number| format!("{name}{number}.damaged"));
    for (name, bytes) in names.iter().zip(&kept) {
        assert!(all[name] == *bytes, "{name}");
    }
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
        let name = names
            .into_iter()
            .find(|name| name.starts_with(beginning))
            .unwrap();
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
            assert_eq!(
                is_block,
                found.faults.iter().any(|fault| fault.block.is_some())
            );
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
                // Another number of a format.
                assert_ne!(name, "snapshot");
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
    let names = [
        (false, one(&world, "leaves/")),
        (true, segment),
        (true, "head".to_owned()),
    ];
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
            let disk = if in_blocks {
                &begun.blocks
            } else {
                &begun.disk
            };
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
