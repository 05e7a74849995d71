//! Blocks, devices and servers for the tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use share_server::blocks::{Batch, Clock, Device, Error, Options, Receipt, Session, Storage};
use sim::random::noise;
use store::Repository;
use trust::frame::Packer;
use trust::{Hasher, Kind, Record};
use wal::{Device as LogDevice, Key, VolumeId};

pub const RING_BYTES: u64 = 4 << 20;
pub const DEVICE_BYTES: u64 = (2 << 20) + RING_BYTES;

pub fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

pub fn key() -> Key {
    Key::new([3; 32])
}

/// A block of noise with this number.
pub fn block(number: u64, len_bytes: usize) -> Record {
    let plain = noise(number + 1, len_bytes);
    Record {
        handle: hasher().name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

/// So many blocks of 64 KiB that together they go straight to the segments.
pub fn much(first: u64) -> Vec<Record> {
    (0..17)
        .map(|number| block(first + number, 64 << 10))
        .collect()
}

/// A clock that a test sets.
#[derive(Clone, Default)]
pub struct Time(Arc<AtomicU64>);

impl Time {
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn clock(&self) -> Clock {
        let time = self.0.clone();
        Arc::new(move || Duration::from_millis(time.load(Ordering::Relaxed)))
    }
}

pub fn format(device: &dyn LogDevice) {
    Storage::format(device, &key(), VolumeId([9; 16]), RING_BYTES).unwrap();
}

pub fn open(
    device: Arc<dyn LogDevice>,
    repository: Repository,
    time: &Time,
    options: Options,
) -> Result<Storage, Error> {
    open_with(device, repository, time, options, &mut |_| {})
}

pub fn open_with(
    device: Arc<dyn LogDevice>,
    repository: Repository,
    time: &Time,
    options: Options,
    entries: &mut dyn FnMut(wal::Entry),
) -> Result<Storage, Error> {
    Storage::open(
        device,
        &key(),
        repository,
        hasher(),
        time.clock(),
        options,
        entries,
    )
}

/// Where the answer to a batch will be.
pub type Answer = Arc<Mutex<Option<Result<Receipt, Error>>>>;

/// Gives a batch to a server whose steps the test calls.
pub fn submit(
    storage: &Storage,
    session: Session,
    blocks: Vec<Record>,
    entries: Vec<wal::Record>,
) -> Answer {
    let answer = Answer::default();
    let place = answer.clone();
    let batch = Batch {
        session,
        blocks,
        entries,
    };
    storage.submit(
        batch,
        Box::new(move |result| *place.lock().unwrap() = Some(result)),
    );
    answer
}

pub fn answered(answer: &Answer) -> Option<Result<Receipt, Error>> {
    answer.lock().unwrap().clone()
}

/// Stores blocks, durably.
pub fn store(storage: &Storage, session: Session, blocks: &[Record]) -> Result<Receipt, Error> {
    let answer = submit(storage, session, blocks.to_vec(), Vec::new());
    storage.commit();
    answered(&answer).expect("an answer")
}

pub fn session(storage: &Storage, number: u8) -> Session {
    storage.open_session(Device([number; 32])).unwrap()
}

/// A record of the orderer.
pub fn entry(number: u8) -> wal::Record {
    wal::Record {
        kind: 9,
        body: bytes::Bytes::from(vec![number; 300]),
        payload: Vec::new(),
    }
}
