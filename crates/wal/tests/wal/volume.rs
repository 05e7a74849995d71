//! Small logs for tests: two clients, records with pages of noise, on files and on simulated machines.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sim::device::{Machine, SimDevice};
use wal::{
    Client, Device, DigestKey, FileDevice, Geometry, Key, Layout, Log, LogError, Lsn, Mark,
    OpenOptions, PAGE_BYTES, Piece, Record, Recovery, VolumeId,
};

pub const ONE: Client = Client(1);
pub const TWO: Client = Client(2);
pub const VOLUME: VolumeId = VolumeId([7; 16]);
pub const PAGE: u64 = PAGE_BYTES as u64;

pub fn key() -> Key {
    Key::new([9; 32])
}

/// Two clients; the first has an area.
pub fn geometry(ring_pages: u64) -> Geometry {
    Geometry {
        ring_bytes: ring_pages * PAGE,
        areas: vec![(ONE, 3 * PAGE), (TWO, 0)],
    }
}

pub fn device_bytes(geometry: &Geometry) -> u64 {
    Layout::new(geometry).unwrap().device_bytes()
}

/// Offset of the ring on the device.
pub fn ring_start(geometry: &Geometry) -> u64 {
    device_bytes(geometry) - geometry.ring_bytes
}

/// Formats a device for [`VOLUME`].
pub fn format(device: &dyn Device, geometry: &Geometry) {
    wal::prepare(device, geometry, &mut |_| {}).unwrap();
    let cookies = [(ONE, b"first cookie".to_vec())];
    wal::format(device, &key(), VOLUME, geometry, &cookies, b"slots").unwrap();
}

/// A formatted log in a new file.
pub fn file(directory: &Path, geometry: &Geometry) -> Arc<dyn Device> {
    let path = directory.join("log");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(device_bytes(geometry)).unwrap();
    let device = FileDevice::open(&path).unwrap();
    format(&device, geometry);
    Arc::new(device)
}

/// A machine whose only device holds a new log.
pub fn machine(ring_pages: u64) -> Machine {
    let geometry = geometry(ring_pages);
    let machine = Machine::new(&[("L", device_bytes(&geometry))]);
    format(&*machine.device("L"), &geometry);
    machine.forget();
    machine
}

/// A device that calls the test before each write and each sync.
pub struct Hooked {
    pub device: Arc<dyn Device>,
    pub before_write: Box<dyn Fn() + Send + Sync>,
    pub before_sync: Box<dyn Fn() + Send + Sync>,
    /// Gets the offset. Its error is that of the read.
    pub before_read: Box<dyn Fn(u64) -> io::Result<()> + Send + Sync>,
}

impl Hooked {
    pub fn new(device: Arc<dyn Device>) -> Hooked {
        Hooked {
            device,
            before_write: Box::new(|| {}),
            before_sync: Box::new(|| {}),
            before_read: Box::new(|_| Ok(())),
        }
    }
}

impl Device for Hooked {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn align(&self) -> u32 {
        self.device.align()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (self.before_read)(offset)?;
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        (self.before_write)();
        self.device.write(offset, from)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.device.zero(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        (self.before_sync)();
        self.device.sync()
    }
}

/// The log's device of a machine.
pub fn device(machine: &Machine) -> Arc<SimDevice> {
    machine.device("L")
}

pub fn open(device: &Arc<dyn Device>) -> Result<Recovery, LogError> {
    wal::open(Arc::clone(device), &key(), None, OpenOptions::default())
}

pub fn open_at(machine: &Machine) -> Result<Recovery, LogError> {
    wal::open(device(machine), &key(), None, OpenOptions::default())
}

pub fn open_anchored(machine: &Machine, anchor: Mark) -> Result<Recovery, LogError> {
    let options = OpenOptions::default();
    wal::open(device(machine), &key(), Some(anchor), options)
}

/// The error of an open that must fail.
pub fn refused(opened: Result<Recovery, LogError>) -> LogError {
    match opened {
        Ok(recovery) => panic!("opened; ends at {}", recovery.end().lsn),
        Err(error) => error,
    }
}

pub fn digests() -> DigestKey {
    DigestKey::new(&key(), VOLUME)
}

/// A page of noise.
pub fn noise(seed: u64) -> Bytes {
    let mut page = vec![0; PAGE_BYTES];
    let mut noise = blake3::Hasher::new();
    noise
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut page);
    page.into()
}

/// A record with pages of noise that depend on the seed.
pub fn record(seed: u64, pages: usize) -> Record {
    let piece = |number: usize| {
        let page = noise(seed * 1000 + number as u64);
        Piece {
            digest: digests().digest(&page),
            page,
        }
    };
    Record {
        kind: (seed % 251) as u8,
        body: Bytes::from(format!("record {seed}")),
        payload: (0..pages).map(piece).collect(),
    }
}

/// The seeds of all records of a client in order, after every page was compared with [`record`]'s.
pub fn seeds(recovery: &Recovery, client: Client) -> Vec<u64> {
    let seed = |entry: Result<wal::Entry, LogError>| {
        let entry = entry.unwrap();
        let body = String::from_utf8(entry.body.to_vec()).unwrap();
        let seed = body.strip_prefix("record ").unwrap().parse().unwrap();
        let written = record(seed, entry.digests.len());
        assert_eq!(entry.kind, written.kind);
        for (number, (digest, piece)) in entry.digests.iter().zip(&written.payload).enumerate() {
            let lsn = Lsn(entry.payload.0 + number as u64 * PAGE);
            assert_eq!(recovery.read(lsn, *digest).unwrap()[..], piece.page[..]);
        }
        seed
    };
    recovery.cursor(client).map(seed).collect()
}

/// Appends and commits one record. Returns where its frame begins and the mark after it.
pub fn put(log: &Log, client: Client, record: Record) -> (Lsn, Mark) {
    let appended = log.append(&[(client, record)]).unwrap();
    (appended.start, log.flush(appended.end).wait().unwrap())
}
