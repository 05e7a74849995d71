//! Enrolments of devices of `sim`: to the end, in pieces, and over what lies there.

mod crash;
mod files;
mod refusals;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use sim::device::{Machine, SimDevice};
use sim::random::noise;
use wal::{Device, Key, MIN_RING_BYTES, VolumeId};

use super::{Enrol, EnrolError, Enrolled, Progress, Source};
use crate::core::Limits;
use crate::engine::Watch;
use crate::recovery::Attach;
use crate::volume::Shape;

const VOLUME: VolumeId = VolumeId([4; 16]);
const SLOTS: &[u8] = b"key slots";
/// Four leaves of the map; the last block is short.
const BYTES: u64 = 4 * (1 << 20) - 1536;
const SHAPE: Shape = Shape {
    bytes: BYTES,
    sector_bytes: 512,
};

static KEY: LazyLock<Key> = LazyLock::new(|| Key::new([6; 32]));
static NEVER: AtomicBool = AtomicBool::new(false);

/// A data device that counts reads and knows of holes.
struct Data {
    device: Arc<SimDevice>,
    holes: Vec<Range<u64>>,
    changed: Option<i128>,
    read_bytes: AtomicU64,
}

impl Data {
    fn new(machine: &Machine) -> Data {
        Data {
            device: machine.device("D"),
            holes: Vec::new(),
            changed: Some(1),
            read_bytes: AtomicU64::new(0),
        }
    }

    fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

impl Device for Data {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn align(&self) -> u32 {
        self.device.align()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset + into.len() as u64;
        self.read_bytes
            .fetch_add(into.len() as u64, Ordering::Relaxed);
        let hits = |hole: &Range<u64>| hole.start <= offset && end <= hole.end;
        assert!(!self.holes.iter().any(hits), "a hole was read at {offset}");
        self.device.read(offset, into)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("an enrolment does not write to the data device");
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("an enrolment does not write to the data device");
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

impl Source for Data {
    fn data_after(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let mut start = offset;
        for hole in &self.holes {
            if hole.contains(&start) {
                start = hole.end;
            }
        }
        let next = self.holes.iter().find(|hole| hole.start > start);
        let end = next.map_or(self.bytes(), |hole| hole.start);
        Ok((start < self.bytes()).then_some(start..end))
    }

    fn changed(&self) -> io::Result<Option<i128>> {
        Ok(self.changed)
    }
}

/// A device with noise, zero blocks and zero regions, and an empty one for the log.
fn machine() -> Machine {
    let (_, layout) = super::plan(SHAPE, MIN_RING_BYTES).unwrap();
    let machine = Machine::new(&[("D", BYTES), ("L", layout.device_bytes())]);
    let mut content = noise(3, BYTES as usize);
    content[1 << 20..2 << 20].fill(0);
    content[3 << 20..(3 << 20) + 8192].fill(0);
    machine.device("D").plant(0, &content);
    machine
}

/// An enrolment of [`VOLUME`] that asks for nothing special.
fn enrolment<'a>(data: &'a dyn Source, log: Arc<dyn Device>, shape: Shape) -> Enrol<'a> {
    Enrol {
        data,
        log,
        shape,
        ring_bytes: MIN_RING_BYTES,
        volume: VOLUME,
        key: &KEY,
        slots: SLOTS,
        overwrite: false,
        threads: 3,
        checkpoint_bytes: 1 << 20,
        stop: &NEVER,
    }
}

/// Enrols the machine's devices.
fn enrol<'a>(
    machine: &Machine,
    data: &'a Data,
    change: impl FnOnce(&mut Enrol<'a>),
    tell: &mut dyn FnMut(Progress),
) -> Result<Enrolled, EnrolError> {
    let mut enrol = enrolment(data, machine.device("L"), SHAPE);
    change(&mut enrol);
    enrol.run(tell)
}

fn run(machine: &Machine) -> Result<Enrolled, EnrolError> {
    enrol(machine, &Data::new(machine), |_| {}, &mut |_| {})
}

struct Silent;

impl Watch for Silent {
    fn bad_block(&self, _: u64, _: u64) {}
    fn repaired_block(&self, _: u64, _: u64) {}
    fn lost_blocks(&self, _: Range<u64>) {}
    fn device_failed(&self, _: &'static str, _: &io::Error) {}
    fn became_read_only(&self, _: &str) {}
}

/// Attaches, and compares each byte with the data device's.
fn check(machine: &Machine) {
    let attach = Attach {
        data: machine.device("D"),
        log: machine.device("L"),
        key: KEY.clone(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim: None,
        limits: Limits::default(),
        map_cache_bytes: 1 << 20,
        watch: Arc::new(Silent),
    };
    let (engine, recovered) = attach.attach().unwrap();
    assert_eq!((recovered.judged, recovered.bad), (0, 0));
    let mut content = vec![0; BYTES as usize];
    engine.read(0, &mut content).unwrap();
    assert!(content == machine.device("D").contents());
    // Not believed because it is there: a flipped bit is found.
    machine.device("D").flip(8 * (BYTES - 1));
    assert!(engine.read(BYTES - 512, &mut content[..512]).is_err());
    machine.device("D").flip(8 * (BYTES - 1));
}

#[test]
fn enrolled_device_reads_as_before() {
    let machine = machine();
    let data = Data::new(&machine);
    let mut told = Vec::new();
    let enrolled = enrol(&machine, &data, |_| {}, &mut |progress| told.push(progress)).unwrap();
    let expected = Enrolled {
        blocks: 4 * 256,
        zero_blocks: 256 + 2,
        resumed_at: 0,
    };
    assert_eq!(enrolled, expected);
    assert_eq!(data.read_bytes(), BYTES, "each byte once");
    check(&machine);
    let (volume, slots) = wal::key_slots(&*machine.device("L")).unwrap();
    assert_eq!((volume, slots.as_slice()), (VOLUME, SLOTS));
    let (_, layout) = super::plan(SHAPE, MIN_RING_BYTES).unwrap();
    let all = layout.device_bytes();
    assert!(told.contains(&Progress::Preparing { done: all, all }));
    let end = Progress::Reading {
        done: BYTES,
        all: BYTES,
    };
    assert_eq!(told.last(), Some(&end));
}

#[test]
fn holes_are_not_read() {
    let machine = machine();
    let mut data = Data::new(&machine);
    data.holes.push((1 << 20) + 4096..(2 << 20) - 4096);
    let enrolled = enrol(&machine, &data, |_| {}, &mut |_| {}).unwrap();
    assert_eq!(enrolled.zero_blocks, 256 + 2);
    assert_eq!(data.read_bytes(), BYTES - (1 << 20) + 8192);
    check(&machine);
}

#[test]
fn device_that_is_one_hole_is_enrolled_without_reading() {
    let machine = machine();
    machine.device("D").erase(0..BYTES);
    let mut data = Data::new(&machine);
    data.holes.push(0..BYTES);
    let enrolled = enrol(&machine, &data, |_| {}, &mut |_| {}).unwrap();
    assert_eq!((enrolled.zero_blocks, data.read_bytes()), (4 * 256, 0));
}

#[test]
fn number_of_threads_changes_nothing() {
    let contents = [0, 1, 2, 9].map(|threads| {
        let machine = machine();
        let data = Data::new(&machine);
        enrol(
            &machine,
            &data,
            |enrol| enrol.threads = threads,
            &mut |_| {},
        )
        .unwrap();
        machine.device("L").contents()
    });
    assert!(contents.iter().all(|content| *content == contents[0]));
}
