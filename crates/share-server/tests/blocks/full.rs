//! Full disks: a clear error, nothing acknowledged is lost, and the server goes on when there is space.

use std::sync::Arc;
use std::time::Duration;

use share_server::blocks::{Error, Options, Progress, Storage};
use sim::device::{Fault, Lie, Machine};
use sim::disk::CrashDisk;
use store::Repository;
use trust::Record;
use wal::Device as LogDevice;

use crate::support::{
    self, DEVICE_BYTES, RING_BYTES, Time, answered, block, much, session, store, submit,
};

struct Place {
    machine: Machine,
    disk: Arc<CrashDisk>,
    time: Time,
}

fn place() -> Place {
    let machine = Machine::new(&[("log", DEVICE_BYTES)]);
    support::format(&*machine.device("log"));
    let disk = CrashDisk::new();
    Repository::create_on(disk.clone()).unwrap();
    Place {
        machine,
        disk,
        time: Time::default(),
    }
}

impl Place {
    fn open(&self) -> Storage {
        let device: Arc<dyn LogDevice> = self.machine.device("log");
        let repository = Repository::open_on(self.disk.clone()).unwrap();
        support::open(device, repository, &self.time, Options::default()).unwrap()
    }
}

fn check(storage: &Storage, blocks: &[Record]) {
    let reader = session(storage, 9);
    for block in blocks {
        let found = storage.retrieve(reader, &block.handle).unwrap();
        assert_eq!(found.as_ref(), Some(block), "{} is lost", block.handle);
    }
}

/// Moves, and blocks that bypass the log, with the disk full from an operation on. Returns whether anything met it.
fn moves_on_a_full_disk(from: u64) -> bool {
    let place = place();
    let storage = place.open();
    let one = session(&storage, 1);
    let blocks = [block(1, 8192), block(2, 30_000), block(3, 5)];
    store(&storage, one, &blocks).unwrap();
    place.time.pass(Duration::from_secs(200));
    let before = place.disk.operations();
    place.disk.full_from(before + from);
    let many = much(20);
    let answer = submit(&storage, one, many.clone(), Vec::new());
    let moved = storage.advance();
    let told = answered(&answer).expect("an answer");
    let met = moved.is_err();
    if met {
        assert!(matches!(moved, Err(Error::Full { .. })), "{moved:?}");
        assert!(matches!(told, Err(Error::Full { .. })), "{told:?}");
        // The log goes on.
        store(&storage, one, &[block(5, 700)]).unwrap();
        check(&storage, &[&blocks[..], &[block(5, 700)]].concat());
    }
    place.disk.free_space();
    let answer = submit(&storage, one, many.clone(), Vec::new());
    place.time.pass(Duration::from_secs(200));
    storage.settle().unwrap();
    answered(&answer).unwrap().unwrap();
    assert_eq!(storage.temporary_blocks(), 0);
    check(&storage, &[&blocks[..], &many].concat());
    met
}

#[test]
fn segments_that_are_full_at_any_write_lose_nothing_and_go_on() {
    let mut from = 0;
    while moves_on_a_full_disk(from) {
        from += 1;
    }
    println!("{from} operations met a full disk");
    assert!(from >= 8, "{from}");
}

#[test]
fn full_log_refuses_until_blocks_have_moved() {
    let place = place();
    let storage = place.open();
    let one = session(&storage, 1);
    place.disk.full_from(place.disk.operations());
    let mut stored = Vec::new();
    let waits = loop {
        let next = block(stored.len() as u64, 60_000);
        let answer = submit(&storage, one, vec![next.clone()], Vec::new());
        match storage.commit() {
            Progress::Full => break answer,
            _ => answered(&answer).unwrap().unwrap(),
        };
        stored.push(next);
        assert!((stored.len() as u64) < RING_BYTES / 60_000);
    };
    assert!(storage.is_pressed());
    // It waits, and whoever gives up is told.
    assert!(answered(&waits).is_none());
    assert!(matches!(storage.advance(), Err(Error::Full { .. })));
    storage.refuse_waiting(&Error::Full {
        cause: "for a test".into(),
    });
    assert!(matches!(answered(&waits), Some(Err(Error::Full { .. }))));
    check(&storage, &stored);
    place.disk.free_space();
    // Space is needed, so blocks move before their time.
    let moved = storage.advance().unwrap();
    assert!(moved.moved > 0);
    store(&storage, one, &[block(1000, 60_000)]).unwrap();
    check(&storage, &stored);
}

#[test]
fn log_that_fails_at_any_write_loses_nothing_and_is_opened_again() {
    let mut writes = 0;
    for after in 0.. {
        let place = place();
        let storage = place.open();
        let one = session(&storage, 1);
        let device = place.machine.device("log");
        device.inject(Fault::once(Lie::WriteFails { written: 3 }).after(after));
        let mut stored = Vec::new();
        let mut failure = None;
        for number in 0..6 {
            let next = block(number, 20_000);
            match store(&storage, one, std::slice::from_ref(&next)) {
                Ok(_) => stored.push(next),
                Err(error) => failure = failure.or(Some(error)),
            }
            place.time.pass(Duration::from_secs(100));
            if let Err(error) = storage.advance() {
                failure = failure.or(Some(error));
            }
        }
        device.heal();
        match failure {
            None => break,
            Some(error) => assert!(matches!(error, Error::Log(_)), "{error}"),
        }
        writes += 1;
        drop(storage);
        let storage = place.open();
        check(&storage, &stored);
        let one = session(&storage, 1);
        store(&storage, one, &[block(100, 20_000)]).unwrap();
        storage.settle().unwrap();
        check(&storage, &stored);
    }
    assert!(writes >= 8, "{writes} writes");
}
