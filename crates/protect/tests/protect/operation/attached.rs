//! Formats and attaches a protected device on a simulated machine.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protect::map::{Map, Root};
use protect::{Attach, AttachError, Cookie, Limits, Pace, Protected, Recovered, Shape, Watch};
use sim::device::Machine;
use wal::{Client, Device, Geometry, Key, VolumeId};

pub const VOLUME: VolumeId = VolumeId([7; 16]);

pub fn key() -> Key {
    Key::new([9; 32])
}

/// Counts alarms.
#[derive(Default)]
pub struct Alarms(pub AtomicUsize);

impl Watch for Alarms {
    fn bad_block(&self, _block: u64, _offset: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn repaired_block(&self, _block: u64, _offset: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn lost_blocks(&self, _blocks: Range<u64>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn device_failed(&self, _device: &'static str, _error: &io::Error) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn became_read_only(&self, _why: &str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Devices `D`, all zero, of so many bytes, and `L` with a log for it.
pub fn machine(data_bytes: u64, ring_bytes: u64) -> Machine {
    let blocks = data_bytes.div_ceil(4096);
    let area = Map::area_bytes(blocks).unwrap();
    let geometry = Geometry {
        ring_bytes,
        areas: vec![(Client(1), area)],
    };
    let log_bytes = (1 << 20) + area + ring_bytes + (1 << 20);
    let machine = Machine::new(&[("D", data_bytes), ("L", log_bytes / 4096 * 4096)]);
    let device = machine.device("L");
    wal::prepare(&*device, &geometry, &mut |_| {}).unwrap();
    let shape = Shape {
        bytes: data_bytes,
        sector_bytes: 512,
    };
    let root = Root::ZERO;
    let cookie = Cookie { shape, root }.encode();
    wal::format(
        &*device,
        &key(),
        VOLUME,
        &geometry,
        &[(Client(1), cookie)],
        b"",
    )
    .unwrap();
    device.sync().unwrap();
    machine
}

/// Attaches with small limits, so that everything happens often.
pub fn attach(machine: &Machine) -> Result<(Protected, Recovered, Arc<Alarms>), AttachError> {
    let limits = Limits {
        staged_bytes: 64 * 4096,
        cached_bytes: 16 * 4096,
        unsettled_bytes: 64 * 4096,
        relogged_bytes: 8 * 4096,
        hash_run_blocks: 4,
        ..Limits::default()
    };
    attach_within(machine, limits)
}

/// Attaches with these limits.
pub fn attach_within(
    machine: &Machine,
    limits: Limits,
) -> Result<(Protected, Recovered, Arc<Alarms>), AttachError> {
    let watch = Arc::new(Alarms::default());
    let attach = Attach {
        data: machine.device("D"),
        log: machine.device("L"),
        key: key(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim: None,
        limits,
        map_cache_bytes: 64 << 10,
        watch: watch.clone(),
    };
    let (engine, recovered) = attach.attach()?;
    let pace = Pace::default();
    Ok((Protected::start(engine, pace).unwrap(), recovered, watch))
}
