//! Pages of the map and of the ring that somebody changed, or put back: their blocks are read as errors until they are
//! written, or are right, and all others go on.

use std::ops::Range;
use std::sync::Arc;

use protect::{Admission, BlockError, Engine, EngineError, Redos};
use sim::device::{Fault, Lie, Machine};
use wal::{Client, Lsn};

use crate::protected::{Alarms, ProtectedDevice, machine};

const PAGE: u64 = 4096;
const RING_BYTES: u64 = 128 << 10;
/// Three leaves of the map below its top page.
const BLOCKS: u64 = 600;
/// Two pages of level 1 below the top page.
const MANY: u64 = 70_000;

/// Everything is logged with its content, or everything that may be by its digest.
fn device(by_content: bool) -> ProtectedDevice {
    let mut device = ProtectedDevice::small();
    device.anchored = false;
    if by_content {
        device.limits.hash_run_blocks = u64::MAX;
    }
    device
}

fn attach(machine: &Machine, by_content: bool) -> (Engine, Arc<Alarms>) {
    device(by_content).engine(machine).unwrap()
}

fn write(engine: &Engine, block: u64, byte: u8) {
    let accepted = engine.write(block * PAGE, &[byte; PAGE as usize]).unwrap();
    assert_eq!(accepted, Admission::Accepted);
    let commit = engine.commit_begin(None).unwrap();
    let done = engine.commit_run(&commit).unwrap();
    engine.commit_end(&done);
}

fn go_home(engine: &Engine) {
    while let Some(homing) = engine.home_begin(Redos::All) {
        let homed = engine.home_run(&homing).unwrap();
        engine.home_end(&homing, Some(&homed));
    }
}

fn settle(engine: &Engine) -> Result<(), EngineError> {
    go_home(engine);
    if let Some(settling) = engine.settle_begin() {
        let done = engine.settle_run(&settling)?;
        engine.settle_end(&done);
    }
    Ok(())
}

/// The byte that fills the block, or the number of the block that is named as bad.
fn read(engine: &Engine, block: u64) -> Result<u8, u64> {
    let mut page = [0; PAGE as usize];
    match engine.read(block * PAGE, &mut page) {
        Ok(()) => {
            assert!(page.iter().all(|byte| *byte == page[0]));
            Ok(page[0])
        }
        Err(BlockError::Integrity { block, .. }) => Err(block),
        Err(error) => panic!("block {block}: {error}"),
    }
}

/// Reads blocks. Each has the byte that is expected, or is named as bad.
fn finds(engine: &Engine, blocks: &[(u64, Result<u8, u64>)]) {
    for (block, expected) in blocks {
        assert_eq!(read(engine, *block), *expected, "block {block}");
    }
}

/// Writes blocks, which are settled and in the map.
fn prepare(machine: &Machine, blocks: &[(u64, u8)]) {
    let (engine, _) = attach(machine, true);
    for (block, byte) in blocks {
        write(&engine, *block, *byte);
        settle(&engine).unwrap();
        engine.checkpoint().unwrap();
    }
    engine.checkpoint().unwrap();
}

/// The places of a page of the map in both slots, with the second copies of an interior page; `number` counts from the
/// top page on.
fn slots(machine: &Machine, blocks: u64, number: u64) -> Vec<u64> {
    let (engine, _) = attach(machine, true);
    let area: Range<u64> = engine.log().area(Client(1));
    let leaves = blocks.div_ceil(256);
    let all = protect::map::Map::area_bytes(blocks).unwrap() / PAGE / 2;
    let interior = (all - leaves) / 2;
    let pages = leaves + interior;
    let mut places = vec![number, pages + number];
    if number < interior {
        places.extend([2 * pages + number, 2 * pages + interior + number]);
    }
    places.iter().map(|at| area.start + at * PAGE).collect()
}

fn rot(machine: &Machine, places: &[u64]) {
    for place in places {
        machine.device("L").flip((place + 100) * 8);
    }
}

/// Everybody but the blocks of a lost leaf goes on.
fn check_leaf_0(machine: &Machine, kept: Option<u8>) {
    let (engine, alarms) = attach(machine, true);
    write(&engine, 11, 3);
    settle(&engine).unwrap();
    assert_eq!(engine.failure(), None);
    assert_eq!(alarms.all(), ["blocks 0..256 are lost"]);
    for round in 0..2 {
        assert_eq!(read(&engine, 11), Ok(3), "round {round}");
        assert_eq!(read(&engine, 300).ok(), kept, "round {round}");
        assert_eq!(read(&engine, 10), Err(10), "its value is lost");
        assert_eq!(read(&engine, 12), Err(12), "that it was zeros is lost too");
        assert_eq!(read(&engine, 301), Ok(0));
        settle(&engine).unwrap();
        engine.checkpoint().unwrap();
    }
    assert!(alarms.all().contains(&"block 10 is bad".to_owned()));
    let part = engine.write(10 * PAGE, &[4; 512]).unwrap_err();
    assert!(
        matches!(part, BlockError::Integrity { block: 10, .. }),
        "{part}"
    );
    write(&engine, 10, 5);
    engine.zero(20 * PAGE, 100 * PAGE).unwrap();
    settle_all(&engine);
    drop(engine);
    let (engine, alarms) = attach(machine, true);
    finds(
        &engine,
        &[(10, Ok(5)), (11, Ok(3)), (50, Ok(0)), (12, Err(12))],
    );
    assert_eq!(alarms.all(), ["block 12 is bad"]);
}

fn settle_all(engine: &Engine) {
    while let Some(commit) = engine.commit_begin(None) {
        let done = engine.commit_run(&commit).unwrap();
        engine.commit_end(&done);
    }
    while !engine.is_settled() {
        settle(engine).unwrap();
    }
    engine.checkpoint().unwrap();
}

#[test]
fn rotten_leaf_of_the_map_costs_its_own_blocks_alone() {
    let machine = machine(BLOCKS, RING_BYTES);
    prepare(&machine, &[(10, 1), (300, 2)]);
    rot(&machine, &slots(&machine, BLOCKS, 1));
    check_leaf_0(&machine, Some(2));
}

#[test]
fn leaf_that_is_put_back_is_believed_no_more_than_a_rotten_one() {
    let machine = machine(BLOCKS, RING_BYTES);
    prepare(&machine, &[(10, 1), (300, 2)]);
    let instant = machine.operations();
    prepare(&machine, &[(10, 9)]);
    let slots = slots(&machine, BLOCKS, 1);
    // Data and digest of an earlier time fit each other.
    machine.device("D").put_back(0..256 * PAGE, instant);
    let back = machine.fork();
    for slot in slots.iter().copied() {
        back.device("L").put_back(slot..slot + PAGE, instant);
    }
    check_leaf_0(&back, Some(2));
    // The slot that is not named has the older page. Both slots have it now.
    for (from, to) in [(0, 1), (1, 0)] {
        let both = machine.fork();
        both.device("L").transplant(slots[from], slots[to], PAGE);
        let (engine, _) = attach(&both, true);
        assert_eq!(read(&engine, 10), Err(10));
    }
}

#[test]
fn page_of_the_map_that_changes_on_the_way_costs_nothing() {
    let machine = machine(MANY, RING_BYTES);
    // An attachment looks at every fifth leaf, and not at this one. Before it are the top page and two interior ones.
    let leaf = 1;
    prepare(&machine, &[(leaf * 256, 1)]);
    let slots = slots(&machine, MANY, 3 + leaf);
    let (engine, alarms) = attach(&machine, true);
    for slot in slots {
        let wrong = Fault::once(Lie::ReadWrong).at(slot..slot + PAGE);
        machine.device("L").inject(wrong);
    }
    write(&engine, leaf * 256 + 1, 3);
    settle(&engine).unwrap();
    assert_eq!(alarms.all(), [""; 0]);
    assert_eq!(read(&engine, leaf * 256), Ok(1));
    assert_eq!(read(&engine, leaf * 256 + 1), Ok(3));
}

#[test]
fn lost_interior_page_costs_the_blocks_below_it_alone() {
    let machine = machine(MANY, 4 * RING_BYTES);
    prepare(&machine, &[(10, 1), (69_000, 2)]);
    let places = slots(&machine, MANY, 1);
    rot(&machine, &places);
    let (engine, alarms) = attach(&machine, true);
    write(&engine, 11, 3);
    settle(&engine).unwrap();
    assert_eq!(alarms.all(), ["blocks 0..65536 are lost"]);
    // More leaves than are kept in memory: they go to the slots that the lost page may have named.
    for leaf in 0..20 {
        write(&engine, leaf * 256 + 12, 4);
        settle(&engine).unwrap();
    }
    let expected = |engine: &Engine| {
        assert_eq!(read(engine, 10), Err(10));
        assert_eq!(read(engine, 65_535), Err(65_535));
        for (block, byte) in [
            (11, 3),
            (12, 4),
            (19 * 256 + 12, 4),
            (69_000, 2),
            (65_536, 0),
        ] {
            assert_eq!(read(engine, block), Ok(byte), "block {block}");
        }
    };
    expected(&engine);
    // The lost page comes back after a crash: nothing below it is taken for something else.
    let healed = machine.fork();
    rot(&healed, &places);
    let (after, _) = attach(&healed, true);
    for (block, byte) in [
        (11, 3),
        (12, 4),
        (19 * 256 + 12, 4),
        (69_000, 2),
        (65_536, 0),
    ] {
        assert_eq!(read(&after, block), Ok(byte), "block {block}");
    }
    assert!([Ok(1), Err(10)].contains(&read(&after, 10)));
    engine.checkpoint().unwrap();
    drop(engine);
    let (engine, _) = attach(&machine, true);
    expected(&engine);
}

#[test]
fn lost_top_page_makes_the_device_read_only_and_nothing_final() {
    let machine = machine(BLOCKS, RING_BYTES);
    prepare(&machine, &[(10, 1), (300, 2)]);
    let top = slots(&machine, BLOCKS, 0);
    rot(&machine, &top);
    let (engine, alarms) = attach(&machine, true);
    write(&engine, 11, 3);
    let error = settle(&engine).unwrap_err();
    assert!(matches!(error, EngineError::Map(_)), "{error}");
    assert_eq!(read(&engine, 11), Ok(3));
    assert_eq!(read(&engine, 10), Err(10));
    assert_eq!(alarms.all(), ["block 10 is bad"]);
    drop(engine);
    rot(&machine, &top);
    let (engine, _) = attach(&machine, true);
    finds(&engine, &[(10, Ok(1)), (11, Ok(3)), (300, Ok(2))]);
}

/// The log says what some blocks of a lost leaf are: they stay right.
#[test]
fn attachment_goes_on_where_the_log_meets_a_lost_leaf() {
    let machine = machine(BLOCKS, RING_BYTES);
    prepare(&machine, &[(10, 1), (300, 2)]);
    let (engine, _) = attach(&machine, false);
    write(&engine, 11, 3);
    settle(&engine).unwrap();
    // This one is not settled, and the data device does not have it.
    write(&engine, 12, 4);
    drop(engine);
    rot(&machine, &slots_of(&machine));
    let (engine, alarms) = attach(&machine, true);
    let alarms = alarms.all();
    assert!(
        alarms.contains(&"blocks 0..256 are lost".to_owned()),
        "{alarms:?}"
    );
    let all = [
        (10, Err(10)),
        (11, Ok(3)),
        (12, Err(12)),
        (300, Ok(2)),
        (301, Ok(0)),
    ];
    finds(&engine, &all);
    write(&engine, 12, 5);
    settle_all(&engine);
    drop(engine);
    let (engine, _) = attach(&machine, true);
    finds(
        &engine,
        &[(10, Err(10)), (11, Ok(3)), (12, Ok(5)), (300, Ok(2))],
    );
}

/// Slots of leaf 0, without an attachment that would settle something.
fn slots_of(machine: &Machine) -> Vec<u64> {
    slots(&machine.fork(), BLOCKS, 1)
}

/// The place in the ring of the page that is filled with this byte.
fn logged_page(machine: &Machine, byte: u8) -> u64 {
    let contents = machine.device("L").contents();
    let ring = contents.len() as u64 - RING_BYTES;
    let is_it = |at: &u64| {
        let page = &contents[*at as usize..][..PAGE as usize];
        page.iter().all(|found| *found == byte)
    };
    (ring..contents.len() as u64)
        .step_by(4096)
        .find(is_it)
        .unwrap()
}

/// Blocks 1 to 3 with bytes 1 to 3 in the log, and then what `more` does. The page of block 2 is lost.
fn with_lost_page(more: impl Fn(&Engine)) -> Machine {
    let machine = machine(BLOCKS, RING_BYTES);
    let (engine, _) = attach(&machine, true);
    (1..4).for_each(|n| write(&engine, n, n as u8));
    more(&engine);
    drop(engine);
    let place = logged_page(&machine, 2);
    machine.device("L").flip((place + 7) * 8);
    machine
}

#[test]
fn block_whose_page_of_the_log_is_wrong_is_lost_alone() {
    let machine = with_lost_page(|_| {});
    for _ in 0..2 {
        let (engine, alarms) = attach(&machine, true);
        let told = alarms.all();
        assert!(
            told.contains(&"1 pages of the log are wrong".to_owned()),
            "{told:?}"
        );
        assert!(told.contains(&"block 2 is bad".to_owned()), "{told:?}");
        finds(&engine, &[(1, Ok(1)), (2, Err(2)), (3, Ok(3)), (4, Ok(0))]);
        let part = engine.write(2 * PAGE, &[4; 512]).unwrap_err();
        assert!(
            matches!(part, BlockError::Integrity { block: 2, .. }),
            "{part}"
        );
        // The block is not written home, and the others are.
        settle(&engine).unwrap();
        assert!(engine.is_settled());
    }
    let (engine, _) = attach(&machine, true);
    settle(&engine).unwrap();
    engine.checkpoint().unwrap();
    drop(engine);
    let (engine, alarms) = attach(&machine, true);
    assert_eq!(read(&engine, 2), Err(2));
    assert_eq!(
        alarms.all(),
        ["block 2 is bad"],
        "the page is out of the log"
    );
    write(&engine, 2, 5);
    settle_all(&engine);
    drop(engine);
    let (engine, alarms) = attach(&machine, true);
    assert_eq!((read(&engine, 2), read(&engine, 3)), (Ok(5), Ok(3)));
    assert!(alarms.all().is_empty());
}

#[test]
fn block_whose_page_of_the_log_is_wrong_comes_from_the_data_device_if_it_has_it() {
    let machine = with_lost_page(go_home);
    let (engine, alarms) = attach(&machine, true);
    assert_eq!(alarms.all(), ["1 pages of the log are wrong"]);
    assert_eq!(read(&engine, 2), Ok(2));
    settle_all(&engine);
    drop(engine);
    let (engine, alarms) = attach(&machine, true);
    assert_eq!(read(&engine, 2), Ok(2));
    assert!(alarms.all().is_empty());
}

#[test]
fn newer_version_of_a_block_whose_page_of_the_log_is_wrong_is_right() {
    let machine = with_lost_page(|engine| write(engine, 2, 7));
    let (engine, alarms) = attach(&machine, true);
    assert_eq!(alarms.all(), ["1 pages of the log are wrong"]);
    assert_eq!(read(&engine, 2), Ok(7));
    let trimmed = with_lost_page(|engine| {
        engine.zero(0, 20 * PAGE).unwrap();
        let commit = engine.commit_begin(None).unwrap();
        engine.commit_end(&engine.commit_run(&commit).unwrap());
    });
    let (engine, _) = attach(&trimmed, true);
    assert_eq!(read(&engine, 2), Ok(0));
}

/// A page that was never durable is torn by a crash: then the log ends before its frame, and nobody lost anything.
#[test]
fn wrong_page_of_the_last_frame_ends_the_log() {
    let machine = machine(BLOCKS, RING_BYTES);
    let (engine, _) = attach(&machine, true);
    (1..3).for_each(|n| write(&engine, n, n as u8));
    drop(engine);
    let place = logged_page(&machine, 2);
    machine.device("L").flip((place + 7) * 8);
    let (engine, alarms) = attach(&machine, true);
    assert!(alarms.all().is_empty());
    assert_eq!((read(&engine, 1), read(&engine, 2)), (Ok(1), Ok(0)));
    assert!(engine.log().durable().lsn > Lsn(0));
}

/// A session with a block that only the ring has, at this place.
fn with_page_in_the_ring() -> (Machine, Engine, Arc<Alarms>, u64) {
    let machine = machine(BLOCKS, RING_BYTES);
    let mut device = device(true);
    device.limits.cached_bytes = 0;
    let (engine, alarms) = device.engine(&machine).unwrap();
    (1..4).for_each(|n| write(&engine, n, n as u8));
    let place = logged_page(&machine, 2);
    (machine, engine, alarms, place)
}

#[test]
fn page_of_the_ring_that_rots_while_attached_costs_its_block_alone() {
    let (machine, engine, alarms, place) = with_page_in_the_ring();
    machine.device("L").flip((place + 7) * 8);
    settle(&engine).unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(engine.failure(), None);
    assert!(engine.is_settled());
    assert_eq!(alarms.all(), ["block 2 is bad"]);
    let expected = [(1, Ok(1)), (2, Err(2)), (3, Ok(3)), (4, Ok(0))];
    for (block, byte) in expected {
        assert_eq!(read(&engine, block), byte);
    }
    let part = engine.write(2 * PAGE, &[4; 512]).unwrap_err();
    assert!(
        matches!(part, BlockError::Integrity { block: 2, .. }),
        "{part}"
    );
    drop(engine);
    let (engine, _) = attach(&machine, true);
    for (block, byte) in expected {
        assert_eq!(read(&engine, block), byte);
    }
    write(&engine, 2, 5);
    settle_all(&engine);
    drop(engine);
    let (engine, alarms) = attach(&machine, true);
    assert_eq!((read(&engine, 2), read(&engine, 3)), (Ok(5), Ok(3)));
    assert!(alarms.all().is_empty());
}

#[test]
fn page_of_the_ring_that_is_wrong_for_a_while_costs_nothing() {
    let (machine, engine, alarms, place) = with_page_in_the_ring();
    machine.device("L").flip((place + 7) * 8);
    for _ in 0..5 {
        let homing = engine.home_begin(Redos::All).unwrap();
        let homed = engine.home_run(&homing).unwrap();
        assert!(!homed.is_whole());
        engine.home_end(&homing, Some(&homed));
    }
    machine.device("L").flip((place + 7) * 8);
    settle(&engine).unwrap();
    assert!(engine.is_settled());
    assert_eq!(alarms.all(), [""; 0]);
    assert_eq!(read(&engine, 2), Ok(2));
    assert_eq!(machine.device("D").contents()[2 * PAGE as usize], 2);
}

/// A page that cannot be read may be readable tomorrow: nothing is given up.
#[test]
fn page_of_the_ring_that_cannot_be_read_is_not_given_up() {
    let (machine, engine, alarms, place) = with_page_in_the_ring();
    let fails = Fault::always(Lie::ReadFails).at(place..place + PAGE);
    machine.device("L").inject(fails);
    for _ in 0..30 {
        let homing = engine.home_begin(Redos::All).unwrap();
        let homed = engine.home_run(&homing);
        assert!(homed.is_err());
        engine.home_end(&homing, None);
    }
    machine.device("L").heal();
    settle(&engine).unwrap();
    assert_eq!(alarms.all(), [""; 0]);
    assert_eq!(read(&engine, 2), Ok(2));
}

#[test]
fn block_that_the_data_device_has_needs_no_page_of_the_ring() {
    let (machine, engine, _, _) = with_page_in_the_ring();
    go_home(&engine);
    drop(engine);
    let (engine, alarms) = attach(&machine, true);
    let place = logged_page(&machine, 2);
    machine.device("L").flip((place + 7) * 8);
    assert_eq!(read(&engine, 2), Ok(2));
    settle(&engine).unwrap();
    assert_eq!(alarms.all(), [""; 0]);
    assert_eq!(read(&engine, 2), Ok(2));
    engine.checkpoint().unwrap();
    drop(engine);
    assert_eq!(read(&attach(&machine, true).0, 2), Ok(2));
}

#[test]
fn newer_version_of_a_block_that_is_given_up_is_right() {
    let (machine, engine, _, place) = with_page_in_the_ring();
    machine.device("L").flip((place + 7) * 8);
    go_home(&engine);
    let settling = engine.settle_begin().unwrap();
    // Durable while the loss of the older version is settled.
    write(&engine, 2, 7);
    engine.settle_end(&engine.settle_run(&settling).unwrap());
    assert_eq!(read(&engine, 2), Ok(7));
    settle_all(&engine);
    assert_eq!(read(&engine, 2), Ok(7));
    drop(engine);
    assert_eq!(read(&attach(&machine, true).0, 2), Ok(7));
}
