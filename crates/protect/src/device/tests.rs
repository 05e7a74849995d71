//! Threads that meet at an unlucky moment, which the test chooses: the device's own threads have ended, and the test
//! does their work. Simulated devices come from `sim`.

mod scrubbing;

use std::ops::Range;
use std::sync::Arc;

use sim::device::{Fault, Lie, Machine};
use wal::{ClaimOptions, Client, Device, Geometry, Key, VolumeId};

use super::*;
use crate::map::{Map, Root};
use crate::{Attach, Cookie, Limits, Shape, ThisHost, Watch};

const BLOCKS: u64 = 64;

fn key() -> Key {
    Key::new([9; 32])
}

struct Silent;

impl Watch for Silent {
    fn bad_block(&self, _: u64, _: u64) {}
    fn repaired_block(&self, _: u64, _: u64) {}
    fn lost_blocks(&self, _: Range<u64>) {}
    fn device_failed(&self, _: &'static str, _: &std::io::Error) {}
    fn became_read_only(&self, _: &str) {}
}

/// A device with the shortest ring, and what it is attached from.
fn machine() -> Machine {
    machine_of(BLOCKS)
}

fn machine_of(blocks: u64) -> Machine {
    machine_with(blocks, wal::MIN_RING_BYTES)
}

fn machine_with(blocks: u64, ring_bytes: u64) -> Machine {
    let area = Map::area_bytes(blocks).unwrap();
    let geometry = Geometry {
        ring_bytes,
        areas: vec![(Client(1), area)],
    };
    let log_bytes = wal::Layout::new(&geometry).unwrap().device_bytes();
    let machine = Machine::new(&[("D", blocks * 4096), ("L", log_bytes)]);
    let shape = Shape {
        bytes: blocks * 4096,
        sector_bytes: 512,
    };
    let root = Root::ZERO;
    let cookie = Cookie { shape, root }.encode();
    let device = machine.device("L");
    wal::prepare(&*device, &geometry, &mut |_| {}).unwrap();
    let cookies = [(Client(1), cookie)];
    wal::format(
        &*device,
        &key(),
        VolumeId([7; 16]),
        &geometry,
        &cookies,
        b"",
    )
    .unwrap();
    device.sync().unwrap();
    machine
}

/// Attaches.
fn start(machine: &Machine, limits: Limits, pace: Pace) -> Protected {
    start_with(machine, limits, pace, None)
}

fn start_with(
    machine: &Machine,
    limits: Limits,
    pace: Pace,
    claim: Option<ClaimOptions>,
) -> Protected {
    let attach = Attach {
        data: machine.device("D"),
        log: machine.device("L"),
        key: key(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim,
        limits: Limits {
            hash_run_blocks: u64::MAX,
            ..limits
        },
        map_cache_bytes: 1 << 20,
        watch: Arc::new(Silent),
    };
    Protected::start(attach.attach().unwrap().0, pace).unwrap()
}

/// Attaches. The threads have ended.
fn attach(machine: &Machine) -> Protected {
    attach_with(machine, Limits::default(), Pace::default())
}

fn attach_with(machine: &Machine, limits: Limits, pace: Pace) -> Protected {
    let mut device = start(machine, limits, pace);
    device.stop();
    lock(&device.shared.signals).stop = false;
    device
}

#[test]
fn checkpoint_before_the_wait_for_it_is_not_waited_for_again() {
    let device = attach(&machine());
    let shared = &device.shared;
    let mut block = 0;
    let before = loop {
        let offset = block % BLOCKS * 4096;
        assert_eq!(
            shared.engine.write(offset, &[7; 4096]).unwrap(),
            Admission::Accepted
        );
        block += 1;
        match shared.commit_frame(None) {
            Frame::Durable => {}
            Frame::Full(before) => break before,
            Frame::None | Frame::Failed => panic!("block {block} is not committed"),
        }
    };
    // The thread that settles is quicker than the one that found the log full, and leaves nothing to do.
    while let Some(homed) = shared.home_once(0) {
        homed.unwrap();
    }
    shared.settle();
    shared.checkpoint();
    assert_eq!(shared.engine.oldest(), shared.engine.log().tail());
    assert!(shared.wait_for_checkpoint(before));
    assert!(
        !lock(&shared.signals).checkpoint_now,
        "it asked for a checkpoint that cannot come"
    );
    assert!(matches!(shared.commit_frame(None), Frame::Durable));
}

#[test]
fn failed_sync_of_the_data_device_makes_it_read_only_for_good() {
    let machine = machine();
    let device = attach(&machine);
    let shared = &device.shared;
    device.write(0, &[7; 4096]).unwrap();
    shared.flush().unwrap();
    lock(&shared.signals).drain = true;
    while let Some(homed) = shared.home_once(0) {
        homed.unwrap();
    }
    machine.device("D").inject(Fault::once(Lie::SyncFails));
    for _ in 0..2 {
        shared.settle();
        let why = shared.engine.failure().unwrap();
        assert!(why.contains("cannot be synced"), "{why}");
        shared.checkpoint();
    }
    assert!(!shared.engine.is_settled(), "the next sync proves nothing");
    assert!(shared.engine.oldest() < shared.engine.log().durable().lsn);
    let refused = device.write(0, &[8; 4096]).unwrap_err();
    assert!(matches!(refused, BlockError::ReadOnly { .. }), "{refused}");
}

#[test]
fn device_that_another_host_attaches_becomes_read_only() {
    let machine = machine();
    let device = attach(&machine);
    device.write(0, &[7; 4096]).unwrap();
    device.flush().unwrap();
    device.shared.look_for_others();
    assert_eq!(device.engine().failure(), None);
    let other = attach(&machine);
    device.shared.look_for_others();
    let why = device.engine().failure().unwrap();
    assert!(why.contains("another process or host"), "{why}");
    let refused = device.write(0, &[8; 4096]).unwrap_err();
    assert!(matches!(refused, BlockError::ReadOnly { .. }), "{refused}");
    other.shared.look_for_others();
    assert_eq!(other.engine().failure(), None);
    let mut found = [0; 4096];
    other.read(0, &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
}

#[test]
fn page_of_the_ring_that_rots_costs_one_block_and_the_device_is_detached_in_order() {
    let machine = machine();
    let uncached = Limits {
        cached_bytes: 0,
        ..Limits::default()
    };
    let lazy = Pace {
        // Nothing goes home before the page rots.
        idle: Duration::from_secs(3600),
        full_percent: 100,
        ..Pace::default()
    };
    let device = start(&machine, uncached, lazy);
    for block in 1..4 {
        device.write(block * 4096, &[block as u8; 4096]).unwrap();
        device.flush().unwrap();
    }
    let contents = machine.device("L").contents();
    let is_it = |page: &[u8]| page.iter().all(|byte| *byte == 2);
    let page = contents.chunks(4096).position(is_it).unwrap() as u64;
    machine.device("L").flip(page * 4096 * 8);
    let begun = Instant::now();
    device.detach(Duration::from_secs(30)).unwrap();
    // The tries are spread over some time.
    assert!(begun.elapsed() > Duration::from_secs(1));
    assert_eq!(device.engine().failure(), None);
    drop(device);
    let device = attach(&machine);
    let mut found = [0; 4096];
    let lost = device.read(2 * 4096, &mut found).unwrap_err();
    assert!(
        matches!(lost, BlockError::Integrity { block: 2, .. }),
        "{lost}"
    );
    for block in [1, 3] {
        device.read(block * 4096, &mut found).unwrap();
        assert_eq!(found, [block as u8; 4096]);
    }
}

/// The next host need not wait for a process that has ended by itself, detached or not.
#[test]
fn device_that_ends_gives_its_claim_back() {
    let machine = machine();
    let claim = ClaimOptions {
        host: Arc::new(ThisHost),
        force: false,
        keep: true,
    };
    let device = start_with(&machine, Limits::default(), Pace::default(), Some(claim));
    let is_claimed = || {
        let contents = machine.device("L").contents();
        contents[196 << 10..256 << 10].iter().any(|byte| *byte != 0)
    };
    device.write(0, &[7; 4096]).unwrap();
    assert!(is_claimed());
    drop(device);
    assert!(!is_claimed());
}

/// Somebody writes all the time.
fn busy() -> Pace {
    Pace {
        idle: Duration::from_secs(3600),
        ..Pace::default()
    }
}

#[test]
fn what_streams_goes_home_from_memory() {
    let machine = machine();
    let small = Limits {
        frame_bytes: 4096,
        ..Limits::default()
    };
    let device = attach_with(&machine, small, busy());
    let shared = &device.shared;
    let mut block = 0;
    while !shared.streams() {
        assert!(shared.home_once(0).is_none(), "it stays in the log");
        let written = shared.engine.write(block * 4096, &[7; 4096]);
        assert_eq!(written.unwrap(), Admission::Accepted);
        assert!(matches!(shared.commit_frame(None), Frame::Durable));
        block += 1;
    }
    assert!(2 * block < shared.engine.log().ring_bytes() / 4096 / 2);
    // The log cannot be what is read.
    let contents = machine.device("L").contents();
    let is_it = |page: &[u8]| page.iter().all(|byte| *byte == 7);
    for (number, page) in (0..).zip(contents.chunks(4096)) {
        if is_it(page) {
            machine.device("L").flip(number * 4096 * 8);
        }
    }
    assert!(shared.home_once(0).unwrap().unwrap().is_whole());
    assert!(shared.home_once(0).is_none());
    shared.settle();
    assert!(shared.engine.is_settled());
    let contents = machine.device("D").contents();
    assert!(contents.chunks(4096).take(block as usize).all(is_it));
    // It ends when frames are not full any more.
    lock(&shared.signals).last_full_frame = Instant::now().checked_sub(Duration::from_secs(3601));
    assert!(!shared.streams());
}

#[test]
fn frame_that_nobody_waits_for_waits_for_room_in_memory_when_the_log_is_half_full() {
    let machine = machine();
    let small = Limits {
        frame_bytes: 4096,
        cached_bytes: 4096,
        ..Limits::default()
    };
    let device = attach_with(&machine, small, busy());
    let shared = &device.shared;
    let mut block = 0;
    while shared.used_percent() < 50 {
        assert!(!shared.must_home_first());
        let written = shared.engine.write(block * 4096, &[7; 4096]);
        assert_eq!(written.unwrap(), Admission::Accepted);
        assert!(matches!(shared.commit_frame(None), Frame::Durable));
        block += 1;
    }
    assert!(shared.must_home_first());
    shared.engine.write(block * 4096, &[8; 4096]).unwrap();
    shared.commit(None);
    assert!(!shared.engine.is_durable(shared.engine.newest()));
    shared.flush().unwrap();
    while let Some(homed) = shared.home_once(1) {
        homed.unwrap();
    }
    assert!(!shared.must_home_first());
}

#[test]
fn small_flushed_writes_do_not_stream_however_full_the_log_is() {
    // Room for frames of many blocks.
    let machine = machine_with(BLOCKS, 16 * wal::MIN_RING_BYTES);
    let device = attach_with(&machine, Limits::default(), busy());
    let shared = &device.shared;
    let mut block = 0;
    while shared.used_percent() < 45 {
        device.write(block % BLOCKS * 4096, &[7; 4096]).unwrap();
        shared.flush().unwrap();
        assert!(!shared.streams());
        assert!(shared.home_once(0).is_none(), "it stays in the log");
        block += 1;
    }
    assert!(block > 3);
}
