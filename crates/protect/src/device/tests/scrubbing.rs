//! Scrubs of a device in use: what is wrong on the log's disk and in blocks of zeros is told, and repaired.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::scrub::{Defect, News, Report, Scrub};

/// A map of three leaves below one page.
const MANY: u64 = 600;
const AREA: u64 = 1 << 20;
const PAGES: u64 = 4;
/// Nothing goes home or leaves the log before a scrub wants it.
const LAZY: Duration = Duration::from_secs(3600);

fn lazy() -> Pace {
    Pace {
        idle: LAZY,
        full_percent: 100,
        settle: LAZY,
        ..Pace::default()
    }
}

fn scrub_log(device: &Protected) -> Vec<LogDefect> {
    let mut scrub = LogScrub::new(device).patience(Duration::from_secs(30));
    let mut found = Vec::new();
    while scrub
        .step(1, &mut |defect| found.push(defect))
        .unwrap()
        .is_some()
    {}
    found
}

fn defect(part: Part, offset: u64, is_repaired: bool) -> LogDefect {
    LogDefect {
        part,
        offset,
        lost: 0..0,
        is_repaired,
    }
}

fn scrub_blocks(device: &Protected) -> (Vec<u64>, Report) {
    let mut found = Vec::new();
    let run =
        Scrub::new(0, None).run(
            &Blocks(device),
            &AtomicBool::new(false),
            &mut |news| match news {
                News::Defect { block, defect, .. } => {
                    assert!(matches!(defect, Defect::NotZero { is_repaired: true }));
                    found.push(block);
                }
                News::Position(_) => {}
            },
        );
    (found, run.unwrap())
}

fn write(device: &Protected, block: u64, byte: u8) {
    device.write(block * 4096, &[byte; 4096]).unwrap();
    device.flush().unwrap();
}

fn finds(device: &Protected, blocks: &[(u64, u8)]) {
    let mut page = [0; 4096];
    for (block, byte) in blocks {
        device.read(block * 4096, &mut page).unwrap();
        assert!(page == [*byte; 4096], "block {block}");
    }
}

/// The page of the log's disk that is filled with this byte.
fn logged(machine: &Machine, byte: u8) -> u64 {
    let contents = machine.device("L").contents();
    let pages = contents.chunks(4096);
    4096 * pages
        .into_iter()
        .position(|page| page.iter().all(|b| *b == byte))
        .unwrap() as u64
}

/// The frames of the ring, in the order of the disk.
fn frames(machine: &Machine) -> Vec<u64> {
    let contents = machine.device("L").contents();
    let starts = (0..).step_by(4096).zip(contents.chunks(4096));
    let frames = starts.filter(|(_, page)| page.starts_with(b"bullafrm"));
    frames.map(|(at, _)| at).collect()
}

/// A device of which block 10 and 300 are settled and in the durable map.
fn settled(machine: &Machine) {
    let device = start(machine, Limits::default(), Pace::default());
    write(&device, 10, 1);
    write(&device, 300, 2);
    device.detach(Duration::from_secs(30)).unwrap();
}

#[test]
fn sound_log_has_no_defects() {
    let machine = machine_of(MANY);
    settled(&machine);
    let device = start(&machine, Limits::default(), lazy());
    write(&device, 11, 3);
    assert_eq!(scrub_log(&device), []);
    assert_eq!(scrub_blocks(&device).0, [0; 0]);
}

#[test]
fn copies_of_superblocks_slots_and_interior_pages_are_mended() {
    let machine = machine_of(MANY);
    settled(&machine);
    let device = start(&machine, Limits::default(), lazy());
    write(&device, 11, 3);
    let disk = machine.device("L");
    // The page above the leaves, in both of its slots: one of them is in use.
    let pages = [AREA, AREA + PAGES * 4096];
    let copies = [0, 64 << 10, 256 << 10];
    for offset in copies.iter().chain(&pages) {
        disk.flip((offset + 40) * 8);
    }
    let found = scrub_log(&device);
    let parts = [Part::Superblock, Part::Superblock, Part::KeySlots];
    for (part, offset) in parts.into_iter().zip(copies) {
        assert!(found.contains(&defect(part, offset, true)), "{found:?}");
    }
    let page = found.last().unwrap();
    assert_eq!(
        (page.part, page.is_repaired, found.len()),
        (Part::MapPage, true, 4)
    );
    assert!(pages.contains(&page.offset));
    assert_eq!(scrub_log(&device), []);
    drop(device);
    // The second copies bear the loss of the first ones, and were right all the time.
    for offset in [
        128 << 10,
        192 << 10,
        AREA + 2 * PAGES * 4096,
        AREA + (2 * PAGES + 1) * 4096,
    ] {
        disk.flip((offset + 40) * 8);
    }
    let device = attach(&machine);
    finds(&device, &[(10, 1), (300, 2), (11, 3), (12, 0)]);
}

#[test]
fn leaf_is_mended_from_memory_or_its_blocks_are_told() {
    let machine = machine_of(MANY);
    settled(&machine);
    for is_known in [true, false] {
        let machine = machine.fork();
        let device = start(&machine, Limits::default(), lazy());
        if is_known {
            finds(&device, &[(300, 2)]);
        }
        let leaf = AREA + 2 * 4096;
        for slot in [leaf, leaf + PAGES * 4096] {
            machine.device("L").flip(slot * 8 + 9);
        }
        // An attachment reads some leaves, and keeps them.
        let known = device.engine().map.get_range_at_once(256..512).is_some();
        let found = scrub_log(&device);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].part, found[0].is_repaired),
            (Part::MapPage, known)
        );
        assert_eq!(found[0].lost, if known { 0..0 } else { 256..512 });
        assert!(known || !is_known);
        drop(device);
        if known {
            finds(&attach(&machine), &[(300, 2)]);
        }
    }
}

/// The leaf in memory is newer than the durable one, which is wrong.
#[test]
fn page_that_the_next_checkpoint_replaces_is_replaced_at_once() {
    let machine = machine_of(MANY);
    settled(&machine);
    let device = attach(&machine);
    let shared = &device.shared;
    write(&device, 11, 3);
    lock(&shared.signals).drain = true;
    while let Some(homed) = shared.home_once(0) {
        homed.unwrap();
    }
    shared.settle();
    let leaf = AREA + 4096;
    for slot in [leaf, leaf + PAGES * 4096] {
        machine.device("L").flip(slot * 8 + 9);
    }
    let found = scrub_log(&device);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].part, found[0].is_repaired), (Part::MapPage, true));
    drop(device);
    finds(&attach(&machine), &[(10, 1), (11, 3), (300, 2)]);
}

#[test]
fn frame_that_is_wrong_is_not_needed_any_more() {
    // The first frame has no content, the others have.
    for number in 0..4 {
        let machine = machine();
        let device = start(&machine, Limits::default(), lazy());
        for block in 1..4 {
            write(&device, block, block as u8);
        }
        let frame = frames(&machine)[number];
        machine.device("L").flip((frame + 50) * 8);
        assert_eq!(scrub_log(&device), [defect(Part::Frame, frame, true)]);
        assert_eq!(scrub_log(&device), []);
        drop(device);
        let device = attach(&machine);
        finds(&device, &[(1, 1), (2, 2), (3, 3)]);
    }
}

/// Nothing is left to go home, and no commit follows the frame at the end.
#[test]
fn last_frame_of_a_settled_log_is_not_needed_any_more() {
    let machine = machine();
    let device = attach(&machine);
    device.engine().say_detached().unwrap();
    let frame = frames(&machine)[1];
    machine.device("L").flip((frame + 50) * 8);
    assert_eq!(scrub_log(&device), [defect(Part::Frame, frame, true)]);
    assert_eq!(scrub_log(&device), []);
    let killed = machine.fork();
    device.detach(Duration::from_secs(30)).unwrap();
    drop(device);
    let engine = Attach {
        data: killed.device("D"),
        log: killed.device("L"),
        key: key(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim: None,
        limits: Limits::default(),
        map_cache_bytes: 1 << 20,
        watch: Arc::new(Silent),
    };
    let (_, recovered) = engine.attach().unwrap();
    assert!(!recovered.was_detached, "it was killed");
}

#[test]
fn tail_does_not_pass_what_is_not_settled() {
    let machine = machine();
    let device = attach(&machine);
    write(&device, 1, 1);
    let engine = device.engine();
    let tail = engine.log().tail();
    engine.checkpoint_all().unwrap();
    assert_eq!(engine.log().tail(), tail);
    drop(device);
    finds(&attach(&machine), &[(1, 1)]);
}

#[test]
fn page_of_a_frame_comes_from_memory_or_its_block_is_told() {
    for cached_bytes in [1 << 20, 0] {
        let machine = machine();
        let limits = Limits {
            cached_bytes,
            ..Limits::default()
        };
        let device = start(&machine, limits, lazy());
        for block in 1..4 {
            write(&device, block, 0x70 + block as u8);
        }
        let page = logged(&machine, 0x72);
        machine.device("L").flip(page * 8);
        let is_lost = cached_bytes == 0;
        let lost = if is_lost { 2..3 } else { 0..0 };
        let one = LogDefect {
            lost,
            ..defect(Part::Content, page, !is_lost)
        };
        assert_eq!(scrub_log(&device), [one]);
        finds(&device, &[(1, 0x71), (3, 0x73)]);
        let mut content = [0; 4096];
        assert_eq!(device.read(2 * 4096, &mut content).is_err(), is_lost);
    }
}

#[test]
fn frame_that_stays_needed_is_told_as_not_repaired() {
    let machine = machine();
    let device = attach(&machine);
    write(&device, 1, 1);
    let frame = frames(&machine)[1];
    machine.device("L").flip((frame + 50) * 8);
    // No thread writes home.
    let mut scrub = LogScrub::new(&device).patience(Duration::from_millis(300));
    let mut found = Vec::new();
    while scrub
        .step(1, &mut |defect| found.push(defect))
        .unwrap()
        .is_some()
    {}
    assert_eq!(found, [defect(Part::Frame, frame, false)]);
    let signals = lock(&device.shared.signals);
    assert!(!signals.drain && !signals.checkpoint_now);
}

#[test]
fn log_that_another_host_took_is_left_alone() {
    let machine = machine_of(MANY);
    settled(&machine);
    let device = attach(&machine);
    let other = attach(&machine);
    for page in [0, AREA, AREA + PAGES * 4096] {
        machine.device("L").flip((page + 40) * 8);
    }
    let contents = machine.device("L").contents();
    let mut scrub = LogScrub::new(&device);
    let error = scrub
        .step(1, &mut |defect| panic!("{defect:?}"))
        .unwrap_err();
    assert!(matches!(error, BlockError::ReadOnly { .. }), "{error}");
    device.engine().fail(&"it is somebody else's");
    assert_eq!(scrub_log(&device), []);
    assert!(machine.device("L").contents() == contents);
    drop(other);
}

#[test]
fn scrub_ends_when_another_host_takes_the_log() {
    let machine = machine_of(MANY);
    settled(&machine);
    let device = attach(&machine);
    let mut scrub = LogScrub::new(&device);
    scrub
        .step(1, &mut |defect| panic!("{defect:?}"))
        .unwrap()
        .unwrap();
    let other = attach(&machine);
    let error = scrub
        .step(1, &mut |defect| panic!("{defect:?}"))
        .unwrap_err();
    assert!(matches!(error, BlockError::ReadOnly { .. }), "{error}");
    drop(other);
}

#[test]
fn blocks_of_zeros_are_zeros_on_the_device() {
    let machine = machine_of(MANY);
    settled(&machine);
    let device = start(&machine, Limits::default(), lazy());
    // In a leaf with other values, in one without, and the last block.
    for block in [9, 550, 599] {
        machine.device("D").flip((block * 4096 + 5) * 8);
    }
    let (found, report) = scrub_blocks(&device);
    assert_eq!(found, [9, 550, 599]);
    assert_eq!((report.repaired, report.bad, report.right), (3, 0, 597));
    device.flush().unwrap();
    assert_eq!(scrub_blocks(&device).0, [0; 0]);
    finds(&device, &[(9, 0), (10, 1)]);
    device.detach(Duration::from_secs(30)).unwrap();
    let contents = machine.device("D").contents();
    for block in [9, 550, 599] {
        assert!(
            contents[block * 4096..][..4096]
                .iter()
                .all(|byte| *byte == 0)
        );
    }
}

#[test]
fn block_of_zeros_stays_as_it_is_if_nothing_can_be_written() {
    let machine = machine();
    let device = attach(&machine);
    machine.device("D").flip((5 * 4096 + 5) * 8);
    let found = device.engine().not_zero(0..BLOCKS).pop().unwrap();
    device.engine().fail(&"a disk failed");
    let told = device.shared.mend_zeros(found).unwrap();
    assert!(matches!(told, Some(Defect::NotZero { is_repaired: false })));
}

/// A short ring in many laps, checkpoints all the time, trims and writes to blocks of zeros: nothing is wrong.
#[test]
fn scrubs_beside_writers_raise_no_alarm() {
    let machine = machine_of(MANY);
    settled(&machine);
    let quick = Duration::from_millis(5);
    let pace = Pace {
        commit: quick,
        settle: quick,
        idle: quick,
        ..Pace::default()
    };
    let device = start(&machine, Limits::default(), pace);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (device, end) = (&device, &end);
            scope.spawn(move || {
                for n in (writer..).step_by(2) {
                    let block = n * 37 % MANY;
                    match n % 5 {
                        0 => device.zero(block / 2 * 4096, 20 * 4096).unwrap(),
                        _ => device.write(block * 4096, &[n as u8; 4096]).unwrap(),
                    }
                    if n % 7 == 0 {
                        device.flush().unwrap();
                    }
                    if end.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let begun = Instant::now();
        let mut checkpoints = 0;
        while checkpoints < 200 && begun.elapsed() < Duration::from_secs(20) {
            let scrub = || (scrub_log(&device), scrub_blocks(&device).0);
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scrub));
            if found.as_ref().ok() != Some(&(Vec::new(), Vec::new())) {
                end.store(true, Ordering::Relaxed);
                panic!("{found:?}");
            }
            checkpoints = device.traffic().checkpoints.load(Ordering::Relaxed);
        }
        end.store(true, Ordering::Relaxed);
        assert!(checkpoints > 5, "{checkpoints} checkpoints");
    });
    device.detach(Duration::from_secs(30)).unwrap();
    let contents = machine.device("D").contents();
    let mut read = vec![0; contents.len()];
    device.read(0, &mut read).unwrap();
    assert!(read == contents);
}

/// Something is written to the block after the scrub has read it.
#[test]
fn zeros_do_not_overwrite_a_newer_write() {
    let machine = machine();
    let device = attach(&machine);
    machine.device("D").flip((5 * 4096 + 5) * 8);
    let engine = device.engine();
    let found = engine.not_zero(5..6).pop().unwrap();
    write(&device, 5, 8);
    assert!(device.shared.mend_zeros(found).unwrap().is_none());
    finds(&device, &[(5, 8)]);
    // A trim is on its way.
    machine.device("D").flip((6 * 4096 + 5) * 8);
    let found = engine.not_zero(6..7).pop().unwrap();
    lock(&engine.core).stage_trim(6..7);
    assert!(device.shared.mend_zeros(found).unwrap().is_none());
}

#[test]
fn block_of_zeros_that_cannot_be_read_is_told() {
    let machine = machine();
    let device = attach(&machine);
    let place = 5 * 4096..6 * 4096;
    machine
        .device("D")
        .inject(Fault::always(Lie::ReadFails).at(place));
    let mut found = Vec::new();
    let mut scrub = Scrub::new(0, None);
    while scrub
        .step(&Blocks(&device), &mut |news| {
            if let News::Defect { block, defect, .. } = news {
                found.push((block, matches!(defect, Defect::Unreadable(_))));
            }
        })
        .unwrap()
        .is_some()
    {}
    assert_eq!(found, [(5, true)]);
    assert_eq!(scrub.report().right, BLOCKS - 1);
}
