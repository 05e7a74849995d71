//! Collections over real storage: old versions go, and every position of the window reads whole, whatever crashes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sim::disk::CrashDisk;
use store::disk::Disk;
use trust::inode::Inode;
use trust::reach::{Found, Wanted};
use trust::{Handle, Record, Reject};
use trust_shared::checkpoint::{Checkpoint, Posted, Row};
use trust_shared::decision::{Decision, Label};
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Replay, Stop, Volume};
use trust_shared::ops::Body;

use super::super::collected::{Collected, Uncollected};
use super::super::options::{CollectionOptions, Collections};
use super::super::{Core, HostOptions, collecting};
use super::devices::Device;
use super::volume::spec::Entry;
use super::volume::tree::{self, Made};
use super::volume::{AFTER, BEFORE, QUARTER, Writer, options, written};
use super::world::{World, checkpointer};
use crate::blocks::storage::lock;
use ordering::roster::outline_of;
use ordering::scheme::Leaf;

fn ended(collected: &Collected) {
    assert!(collected.hindered.is_none(), "{:?}", collected.hindered);
}

fn segment_bytes(world: &World) -> u64 {
    let files = world.blocks.files();
    let segments = files.iter().filter(|name| name.ends_with(".seg"));
    let len = |name: &String| world.blocks.open(name).unwrap().len_bytes().unwrap();
    segments.map(len).sum()
}

#[test]
fn old_versions_go_and_every_position_of_the_window_and_each_pin_reads_whole() {
    let world = World::new();
    let (core, mut device, mut writer) = written(&world, 12).unwrap();
    // A snapshot of how it is now. It counts when its author writes again.
    let size = device.seen().size;
    let pin = Decision::Pin {
        label: Label::new("kept").unwrap(),
        size,
    };
    let pin = Body::new(vec![trust_shared::calls::decide(pin)]).unwrap();
    writer
        .order(&core, &mut device, &pin, Entry::Other)
        .unwrap();
    writer.spec.pins.insert(size);
    let all: Vec<Handle> = writer.made.keys().copied().collect();
    let mut removed = 0;
    for quarter in 0..20 {
        for file in 0..3 {
            writer.write(&core, &mut device, file).unwrap();
        }
        if quarter % 3 == 0 {
            writer.fold(&core, &mut device).unwrap();
        }
        writer.quarter(&core, &world).unwrap();
        let collected = core.collect();
        ended(&collected);
        assert_eq!(writer.gone(&core), [], "quarter {quarter}");
        removed += collected.removed_blocks;
    }
    let storage = core.blocks.storage();
    let left = all
        .iter()
        .filter(|block| storage.peek(block).unwrap().is_some());
    let left = left.count();
    assert!(removed > 50, "{removed} blocks removed");
    assert!(
        left < all.len() / 2,
        "{left} of {} old blocks are left",
        all.len()
    );
    let before = segment_bytes(&world);
    storage.clear().unwrap();
    let after = segment_bytes(&world);
    assert!(
        after < before,
        "the space is free: {after} of {before} bytes"
    );
    assert_eq!(writer.gone(&core), []);
}

#[test]
fn volume_that_is_quiet_for_long_loses_nothing_that_its_newest_position_needs() {
    let world = World::new();
    let (core, _device, mut writer) = written(&world, 8).unwrap();
    for _ in 0..40 {
        writer.quarter(&core, &world).unwrap();
    }
    let collected = core.collect();
    ended(&collected);
    assert_eq!(collected.window.0, collected.window.1);
    assert!(collected.removed_blocks > 10, "{collected:?}");
    assert_eq!(writer.gone(&core), []);
    // There is nothing more to do.
    let again = core.collect();
    ended(&again);
    assert_eq!(again.removed_blocks, 0);
}

#[test]
fn retrieved_and_touched_blocks_stay_and_blocks_of_before_a_power_cut_count_as_young() {
    let world = World::new();
    let (core, device, mut writer) = written(&world, 8).unwrap();
    // Two versions that nothing needs any more.
    let blocks = |number, writer: &mut Writer| {
        let hasher = writer.hasher.clone();
        tree::version(&hasher, number, &mut writer.made).1
    };
    let (asked, retrieved) = (blocks(1, &mut writer), blocks(2, &mut writer));
    for _ in 0..6 {
        writer.quarter(&core, &world).unwrap();
    }
    for block in &asked {
        assert!(device.session.cstore(block).unwrap());
        writer.spec.used(*block);
    }
    for block in &retrieved {
        assert!(device.session.retrieve(block).unwrap().is_some());
        writer.spec.used(*block);
    }
    // Stored again, beside the copy in the segments, which is the one that stays.
    let again = blocks(4, &mut writer);
    writer.store(&core, &device, &again);
    core.blocks.storage().settle().unwrap();
    world.pass(Duration::from_secs(130));
    core.blocks.storage().settle().unwrap();
    assert_eq!(core.blocks.storage().temporary_blocks(), 0);
    ended(&core.collect());
    assert_eq!(writer.gone(&core), []);
    let gone = blocks(3, &mut writer).pop().unwrap();
    assert!(!device.session.cstore(&gone).unwrap());
    assert!(device.session.retrieve(&gone).unwrap().is_none());
    drop((device, core));
    let core = world.open_with(options(AFTER)).unwrap();
    writer.spec.now += 2;
    for _ in 0..4 {
        world.pass(QUARTER);
        core.count_time();
        let collected = core.collect();
        ended(&collected);
        assert_eq!(collected.removed_blocks, 0);
    }
    // After a whole window all of it is known again.
    for _ in 0..2 {
        world.pass(QUARTER);
        core.count_time();
        writer.spec.now += 12;
    }
    let collected = core.collect();
    ended(&collected);
    assert!(collected.removed_blocks > 0);
    assert_eq!(writer.gone(&core), []);
}

#[test]
fn restart_goes_on_with_the_retention_that_is_decided_although_the_log_grows() {
    let world = World::new();
    let (core, mut device, mut writer) = written(&world, 8).unwrap();
    let seconds = 2 * 24 * 3600;
    let retain = trust_shared::calls::decide(Decision::Retain { seconds });
    let retain = Body::new(vec![retain]).unwrap();
    let ordered = writer.order(&core, &mut device, &retain, Entry::Other);
    ordered.unwrap();
    writer.write(&core, &mut device, 0).unwrap();
    for _ in 0..8 {
        writer.quarter(&core, &world).unwrap();
    }
    let hasher = writer.hasher.clone();
    let (_, asked) = tree::version(&hasher, 1, &mut writer.made);
    for block in &asked {
        assert!(device.session.cstore(block).unwrap());
    }
    // Longer than `keep`, and shorter than what is decided.
    for _ in 0..6 {
        writer.quarter(&core, &world).unwrap();
    }
    drop((device, core));
    let core = world.open_with(options(BEFORE)).unwrap();
    // What comes after the start is not durable when time is counted for the first time.
    let mut device = Device::connect(&core, 1).unwrap();
    core.sign_note();
    device.draw().unwrap();
    let resume = device.resume(2);
    device.session.receive(&resume).unwrap();
    let published = lock(&core.state).orderer.published();
    assert!(lock(&core.state).orderer.ledger().size() > published);
    core.count_time();
    core.pump();
    let known = core
        .book
        .with(|ages| (ages.window(), ages.knows_the_window()));
    assert_eq!(known, (8, true));
    let collected = core.collect();
    ended(&collected);
    assert!(collected.removed_blocks > 0);
    let storage = core.blocks.storage();
    for block in &asked {
        assert!(storage.peek(block).unwrap().is_some());
    }
}

#[test]
fn restarted_server_frees_the_space_of_segments_that_were_removed_before() {
    let world = World::new();
    let (core, device, mut writer) = written(&world, 8).unwrap();
    for _ in 0..8 {
        writer.quarter(&core, &world).unwrap();
    }
    drop((device, core));
    let collection = CollectionOptions {
        grace: Duration::from_secs(2),
        runs: Collections::Never,
        ..options(BEFORE).collection
    };
    let options = HostOptions {
        collection,
        ..options(BEFORE)
    };
    let core = world.open_with(options).unwrap();
    let collected = core.collect();
    ended(&collected);
    assert!(collected.removed_blocks > 0);
    drop(core);
    // It looks often.
    let mut options = options;
    options.collection.quarter = Duration::from_secs(4);
    let core = world.open_with(options).unwrap();
    // One writer begins within the grace: it may not remove them.
    core.blocks.storage().clear().unwrap();
    let before = segment_bytes(&world);
    let other = Arc::clone(&core);
    let collecting = std::thread::spawn(move || collecting::run(&other));
    let until = Instant::now() + Duration::from_mins(1);
    while segment_bytes(&world) == before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    core.signals.stop();
    collecting.join().unwrap();
    assert!(segment_bytes(&world) < before, "{before} bytes stay");
    assert_eq!(writer.gone(&core), []);
}

/// Posts a checkpoint of the log as it is, with these rows.
fn checkpoint(core: &Arc<Core>, device: &Device, writer: &mut Writer, rows: &[(Row, Vec<u8>)]) {
    let (hasher, mut nodes) = (writer.hasher.clone(), Vec::new());
    let mut builder = trust_shared::checkpoint::Builder::new(&hasher, |handle, bytes| {
        nodes.push((handle.any(), bytes.clone()));
    });
    builder.rows(rows.iter().cloned()).unwrap();
    let state = builder.finish().unwrap();
    let blocks: Vec<Handle> = nodes.iter().map(|(handle, _)| *handle).collect();
    for (handle, bytes) in nodes {
        writer.made.insert(handle, (trust::Kind::Map, bytes));
    }
    writer.store(core, device, &blocks);
    let note = device.note.unwrap();
    let made = Checkpoint {
        log: note.note().log,
        state,
    };
    let signed = made.statement(core.volume).sign(&[&checkpointer()]);
    let posted = Posted { note, signed };
    core.keep_checkpoint(posted.encode()).unwrap();
    writer.spec.pins.insert(made.log.size);
}

#[test]
fn position_of_a_checkpoint_stays_and_what_its_rows_name() {
    let world = World::new();
    let (core, mut device, mut writer) = written(&world, 8).unwrap();
    // An inode that is in no entry and in no fold: it did not fit into its row.
    let hasher = writer.hasher.clone();
    let (inode, content) = tree::version(&hasher, 500, &mut writer.made);
    let (handle, block) = hasher.seal::<trust::handle::InodeBlock>(inode.encode().into());
    let sealed = (trust::Kind::Inode, block.into_bytes());
    writer.made.insert(handle.any(), sealed);
    let named = [vec![handle.any()], content].concat();
    writer.store(&core, &device, &named);
    let value = [vec![0, 1], trust::inode::Entry::Block(handle).encode()].concat();
    let rows = [(Row::Inode(tree::file(99).into()), value)];
    checkpoint(&core, &device, &mut writer, &rows);
    for quarter in 0..14 {
        writer.write(&core, &mut device, quarter % 3).unwrap();
        if quarter % 3 == 0 {
            writer.fold(&core, &mut device).unwrap();
        }
        writer.quarter(&core, &world).unwrap();
        let collected = core.collect();
        ended(&collected);
        assert_eq!(collected.pins, 1);
        assert_eq!(writer.gone(&core), [], "quarter {quarter}");
    }
    let storage = core.blocks.storage();
    for block in named {
        assert!(storage.peek(&block).unwrap().is_some());
    }
    // Without it, the same state goes.
    let begin = writer.versions;
    writer.spec.pins.clear();
    checkpoint(&core, &device, &mut writer, &[(Row::Policy, vec![0])]);
    for _ in 0..8 {
        writer.quarter(&core, &world).unwrap();
    }
    let collected = core.collect();
    ended(&collected);
    assert!(collected.removed_blocks > 5, "{collected:?}, {begin}");
    assert_eq!(writer.gone(&core), []);
    assert!(storage.peek(&handle.any()).unwrap().is_none());
}

#[test]
fn decision_that_is_not_durable_is_waited_for() {
    let world = World::new();
    let (core, mut device, writer) = written(&world, 2).unwrap();
    let before = lock(&core.state).orderer.published();
    let seconds = 24 * 3600;
    let retain = trust_shared::calls::decide(Decision::Retain { seconds });
    let request = device.entry(vec![retain]);
    device.session.receive(&request).unwrap();
    let ledger = lock(&core.state).orderer.ledger().size();
    assert_eq!(ledger, before + 1);
    let other = Arc::clone(&core);
    let collecting = std::thread::spawn(move || other.collect());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!collecting.is_finished());
    core.pump();
    let collected = collecting.join().unwrap();
    ended(&collected);
    assert_eq!(writer.gone(&core), []);
}

#[test]
fn node_that_cannot_be_read_stops_the_collection_and_is_named() {
    let world = World::new();
    let (core, _device, mut writer) = written(&world, 8).unwrap();
    for _ in 0..8 {
        writer.quarter(&core, &world).unwrap();
    }
    let node = *writer.fold_blocks.first().unwrap();
    let record = writer.record(&node);
    let bytes = record.frame.as_bytes();
    let mut damaged = 0;
    for name in world.blocks.files() {
        let file = world.blocks.open(&name).unwrap();
        let mut content = vec![0; file.len_bytes().unwrap() as usize];
        file.read_at(&mut content, 0).unwrap();
        let found = content
            .windows(bytes.len())
            .position(|window| window == &bytes[..]);
        if let Some(at) = found {
            let last = (at + bytes.len() - 1) as u64;
            file.write_at(&[!bytes[bytes.len() - 1]], last).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let before = segment_bytes(&world);
    let collected = core.collect();
    let why = collected.hindered.expect("something in the way");
    assert!(matches!(*why, Uncollected::Unsure { .. }), "{why}");
    assert!(why.to_string().contains(&node.to_string()), "{why}");
    assert_eq!(
        (collected.removed_blocks, segment_bytes(&world)),
        (0, before)
    );
}

#[test]
fn missing_block_of_content_is_counted_and_stands_in_nobodys_way() {
    let world = World::new();
    let (core, mut device, mut writer) = written(&world, 8).unwrap();
    // An entry whose author never stored its blocks.
    let (inode, _) = tree::version(&writer.hasher, 900, &mut Made::new());
    let trust::inode::Content::Regular(trust::inode::FileContent::Array(root)) = inode.content
    else {
        panic!("a file of blocks");
    };
    let lost = trust::array::ArrayRoot {
        len: 600,
        height: 0,
        ..root
    };
    let content = trust::inode::FileContent::Array(lost);
    let inode = Inode::new(
        0o644,
        trust::inode::Time::default(),
        trust::inode::Content::Regular(content),
    );
    let body = tree::set(7, &Arc::new(inode));
    writer
        .order(&core, &mut device, &body, Entry::Other)
        .unwrap();
    for _ in 0..8 {
        writer.quarter(&core, &world).unwrap();
    }
    let collected = core.collect();
    ended(&collected);
    assert_eq!(collected.lost_blocks, 1);
    assert!(collected.removed_blocks > 0);
    assert_eq!(writer.gone(&core), []);
}

/// A device that begins with the first leaf, and has nothing but what the server has now.
struct Fresh<'a>(&'a Core);

impl Blocks for Fresh<'_> {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        let storage = self.0.blocks.storage();
        let record = storage.peek(&wanted.handle()).unwrap();
        let unpack = |record: Record| wanted.unpack(storage.hasher(), &record.frame);
        record.map(unpack).transpose()
    }
}

impl Bodies for Fresh<'_> {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        let stored = self.0.read(position..position + 1).unwrap().remove(0);
        let body = stored.body.map(|body| Body::decode(&body));
        Ok(body.transpose()?.map(Arc::new))
    }
}

impl Fresh<'_> {
    fn inode(&self, file: u64) -> Result<Option<Arc<Inode>>, Stop> {
        let (roster, end) = {
            let state = lock(&self.0.state);
            let roster = state.orderer.ledger().volume().clone();
            (roster, state.orderer.published())
        };
        let members = roster.members();
        let storage = self.0.blocks.storage();
        let volume = Volume::new(self.0.volume, storage.hasher().clone());
        let mut replay = Replay::new(volume);
        for (at, stored) in (0..end).zip(self.0.read(0..end).unwrap()) {
            if let Leaf::Entry(entry) = stored.decode().unwrap() {
                let written = roster.written(at, &entry).unwrap();
                let outline = outline_of(&entry).unwrap();
                replay.push(&written, &outline, members)?;
            }
        }
        replay.grow(end);
        let from = Sources {
            members,
            stored: self,
        };
        replay.inode(end, &tree::file(file), from)
    }
}

#[test]
fn device_that_begins_with_the_first_leaf_knows_every_file_after_a_collection() {
    let world = World::new();
    let (core, mut device, mut writer) = written(&world, 8).unwrap();
    // Twice an entry comes between the position of a fold and its own: only the fold before says what it changed.
    for _ in 0..2 {
        let upto = device.seen().size;
        let files = std::mem::take(&mut writer.newest);
        writer.write(&core, &mut device, 0).unwrap();
        writer.fold_of(&core, &mut device, upto, files).unwrap();
    }
    for _ in 0..12 {
        writer.quarter(&core, &world).unwrap();
    }
    let collected = core.collect();
    ended(&collected);
    assert!(collected.removed_blocks > 10, "{collected:?}");
    assert_eq!(writer.gone(&core), []);
    for file in 0..3 {
        let inode = Fresh(&core).inode(file).unwrap().expect("a file");
        if file == 0 {
            assert_eq!(Some(&inode), writer.newest.get(&0));
        }
    }
}

/// Collects, stopping at each operation of the disk with the segments; then a restarted server has what is needed, and
/// its next collection ends.
fn sweep(blocks: &dyn Fn() -> Arc<CrashDisk>) -> Result<usize, String> {
    let prepared = || {
        let mut world = World::new();
        world.blocks = blocks();
        store::Repository::create_on(world.blocks.clone()).unwrap();
        let (core, device, mut writer) = written(&world, 6).unwrap();
        for _ in 0..6 {
            writer.quarter(&core, &world).unwrap();
        }
        (world, core, device, writer)
    };
    let (world, core, ..) = prepared();
    let from = world.blocks.operations();
    ended(&core.collect());
    let to = world.blocks.operations();
    assert!(to > from + 5, "{from} to {to}");
    let mut checked = 0;
    for operation in from..to {
        let (world, core, device, writer) = prepared();
        world.blocks.crash_at(operation);
        // The removal of an old file may fail unseen.
        core.collect();
        let place = format!("operation {operation}");
        for outcome in world.blocks.outcomes(8) {
            let restarted = World::of(
                world.machine.fork(),
                Arc::clone(&world.disk),
                world.blocks.reborn(&outcome),
            );
            let core = restarted.open_with(options(BEFORE));
            let core = core.map_err(|why| format!("{place}, {outcome:?}: {why}"))?;
            for round in ["at once", "after another collection"] {
                let gone = writer.gone(&core);
                if !gone.is_empty() {
                    return Err(format!("{place}, {outcome:?}, {round}: lost {gone:?}"));
                }
                ended(&core.collect());
            }
            checked += 1;
            drop(core);
        }
        drop((device, core));
    }
    Ok(checked)
}

#[test]
fn no_crash_of_a_collection_loses_a_needed_block() {
    let checked = sweep(&CrashDisk::new).unwrap_or_else(|why| panic!("{why}"));
    println!("{checked} crashes");
    assert!(checked > 30, "{checked} crashes are too few");
}

#[test]
fn rewritten_segments_without_syncs_are_found() {
    let ignoring =
        || CrashDisk::ignoring_syncs(|name| name.ends_with(".tmp") && name.starts_with("segments"));
    let why = sweep(&ignoring).unwrap_err();
    assert!(why.contains("lost") || why.contains("damaged"), "{why}");
}
