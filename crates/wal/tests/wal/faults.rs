//! Devices on which calls fail, and what the log accepts afterwards.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use sim::device::{Fault, Lie, Machine};
use wal::{AppendError, Device, LogError, Lsn, OpenOptions, Recovery};

use crate::volume::{
    Hooked, ONE, PAGE, TWO, device, device_bytes, geometry, key, machine, open, open_at, put,
    record, refused, ring_start, seeds,
};

/// Frames of 2 pages with these seeds.
fn filled(seeds: std::ops::RangeInclusive<u64>) -> (Machine, Vec<Lsn>) {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let starts = seeds
        .map(|seed| put(&log, ONE, record(seed, 1)).0)
        .collect();
    (machine, starts)
}

fn cut(machine: &Machine) -> Result<Recovery, LogError> {
    let options = OpenOptions {
        cut_at_error: true,
        ..OpenOptions::default()
    };
    wal::open(device(machine), &key(), None, options)
}

fn ring() -> u64 {
    ring_start(&geometry(64))
}

#[test]
fn read_error_is_not_the_end_of_the_log() {
    let (machine, starts) = filled(1..=6);
    let end = open_at(&machine).unwrap().end().lsn;
    // The whole chain, and two windows and a frame beyond it.
    for page in 0..end.0 / PAGE + 40 {
        let at = ring() + page * PAGE;
        let failing = machine.fork();
        device(&failing).inject(Fault::always(Lie::ReadFails).at(at..at + PAGE));
        let error = refused(open_at(&failing));
        assert!(
            matches!(error, LogError::Io { offset, .. } if offset == at),
            "{error}"
        );
        let recovery = cut(&failing).unwrap();
        let frame = starts.iter().rev().find(|start| start.0 <= page * PAGE);
        match recovery.cut() {
            Some(cut) if page * PAGE <= end.0 => {
                let expected = frame.copied().unwrap_or(Lsn(0));
                let expected = if page * PAGE == end.0 { end } else { expected };
                assert_eq!(cut.at, expected, "page {page}");
            }
            None if page * PAGE > end.0 => assert_eq!(recovery.end().lsn, end),
            other => panic!("page {page}: {other:?}"),
        }
    }
}

#[test]
fn read_error_that_passes_is_tried_again() {
    let (machine, _) = filled(1..=6);
    device(&machine).inject(Fault {
        times: 4,
        ..Fault::once(Lie::ReadFails).at(ring() + 3 * PAGE..ring() + 4 * PAGE)
    });
    let recovery = open_at(&machine).unwrap();
    assert_eq!(seeds(&recovery, ONE), [1, 2, 3, 4, 5, 6]);
}

/// A device whose first read of each page is wrong: the page changes on the way, for example in bad memory.
struct WrongOnce {
    /// Pages that begin a frame; else pages of payload, which hold noise.
    headers: bool,
    device: Arc<dyn Device>,
    ring: u64,
    read: Mutex<BTreeSet<u64>>,
}

impl Device for WrongOnce {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn align(&self) -> u32 {
        self.device.align()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read(offset, into)?;
        let mut read = self.read.lock().unwrap();
        for (at, page) in (offset..)
            .step_by(PAGE as usize)
            .zip(into.chunks_mut(PAGE as usize))
        {
            let is_header = page.starts_with(b"bullafrm");
            if at >= self.ring && is_header == self.headers && read.insert(at) {
                page[100] ^= 1;
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.device.write(offset, from)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.device.zero(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

#[test]
fn page_that_changes_on_the_way_is_read_again() {
    let (machine, _) = filled(1..=6);
    for headers in [false, true] {
        let once = Arc::new(WrongOnce {
            headers,
            device: device(&machine),
            ring: ring(),
            read: Mutex::default(),
        });
        let recovery = wal::open(once, &key(), None, OpenOptions::default()).unwrap();
        assert_eq!(recovery.wrong_pages(), []);
        assert_eq!(seeds(&recovery, ONE), [1, 2, 3, 4, 5, 6]);
    }
}

#[test]
fn log_that_was_cut_is_used_on_without_alarms() {
    let (machine, starts) = filled(1..=12);
    let bad = ring() + starts[3].0;
    device(&machine).inject(Fault::always(Lie::ReadFails).at(bad..bad + PAGE));
    let recovery = cut(&machine).unwrap();
    assert_eq!(recovery.cut().unwrap().at, starts[3]);
    assert_eq!(seeds(&recovery, ONE), [1, 2, 3]);
    device(&machine).heal();
    let log = recovery.finish(&[(ONE, record(20, 0))]).unwrap();
    for seed in 21..30 {
        drop(open_at(&machine).unwrap()); // frames that were given up are no evidence
        put(&log, ONE, record(seed, 1));
    }
    let expected: Vec<u64> = (1..4).chain(20..30).collect();
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), expected);
}

#[test]
fn unreadable_superblock_is_not_passed_over() {
    let (machine, _) = filled(1..=3);
    for (first, second) in [(0u64, 128u64), (64, 192)] {
        let failing = machine.fork();
        let fail = |kib: u64| {
            let range = kib << 10..(kib << 10) + PAGE;
            device(&failing).inject(Fault::always(Lie::ReadFails).at(range));
        };
        fail(first);
        open_at(&failing).unwrap();
        fail(second);
        let error = refused(open_at(&failing));
        assert!(matches!(error, LogError::Io { .. }), "{error}");
        assert_eq!(seeds(&cut(&failing).unwrap(), ONE), [1, 2, 3]);
    }
}

#[test]
fn log_accepts_nothing_after_a_failed_sync_or_write() {
    for lie in [Lie::SyncFails, Lie::WriteFails { written: 3 }] {
        let machine = machine(64);
        let log = open_at(&machine).unwrap().finish(&[]).unwrap();
        let (start, durable) = put(&log, ONE, record(1, 1));
        let appended = log.append(&[(ONE, record(2, 1))]).unwrap();
        device(&machine).inject(Fault::once(lie));
        for _ in 0..3 {
            let error = log.flush(appended.end).wait().unwrap_err();
            assert!(matches!(error, LogError::Failed { .. }), "{error}");
            assert!(error.to_string().contains("error 5"), "{error}");
        }
        let error = log.append(&[(ONE, record(3, 1))]).unwrap_err();
        assert!(
            matches!(error, AppendError::Log(LogError::Failed { .. })),
            "{error}"
        );
        let error = log.checkpoint(ONE, start, b"").unwrap_err();
        assert!(matches!(error, LogError::Failed { .. }), "{error}");
        assert_eq!(log.durable(), durable);
        assert_eq!(log.flush(durable.lsn).wait().unwrap(), durable);
        drop(log);
        assert_eq!(seeds(&open_at(&machine).unwrap(), ONE)[..1], [1]);
    }
}

#[test]
fn failed_sync_of_a_checkpoint_releases_nothing() {
    for honest in 0..2 {
        let machine = machine(64);
        let log = open_at(&machine).unwrap().finish(&[]).unwrap();
        put(&log, ONE, record(1, 1));
        let (start, _) = put(&log, ONE, record(2, 1));
        log.checkpoint(TWO, start, b"").unwrap();
        device(&machine).inject(Fault::once(Lie::SyncFails).after(honest));
        let error = log.checkpoint(ONE, start, b"").unwrap_err();
        assert!(matches!(error, LogError::Failed { .. }), "{error}");
        assert_eq!(log.tail(), Lsn(0));
        assert!(log.flush(Lsn(u64::MAX)).wait().is_err());
    }
}

#[test]
fn failed_sync_at_opening_opens_nothing() {
    let (machine, _) = filled(1..=2);
    device(&machine).inject(Fault::once(Lie::SyncFails));
    assert!(matches!(
        refused(open_at(&machine)),
        LogError::Io { action: "sync", .. }
    ));
    for honest in 0..3 {
        device(&machine).inject(Fault::once(Lie::SyncFails).after(honest));
        let recovery = open_at(&machine);
        let failed = recovery.and_then(|recovery| recovery.finish(&[])).map(drop);
        assert!(failed.is_err(), "{honest}");
        device(&machine).heal();
    }
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [1, 2]);
}

type Use = fn(&wal::Log, Lsn) -> Result<(), LogError>;

#[test]
fn later_opening_elsewhere_stops_the_earlier_one() {
    let (machine, starts) = filled(1..=2);
    let uses: [Use; 2] = [
        |log, _| log.check_session(),
        |log, start| log.checkpoint(ONE, start, b""),
    ];
    for used in uses {
        let first = open_at(&machine).unwrap().finish(&[]).unwrap();
        first.check_session().unwrap();
        let second = open_at(&machine).unwrap().finish(&[]).unwrap();
        let error = used(&first, starts[0]).unwrap_err();
        assert!(matches!(error, LogError::Foreign), "{error}");
        let error = first.append(&[(ONE, record(3, 0))]).unwrap_err();
        assert!(
            matches!(error, AppendError::Log(LogError::Foreign)),
            "{error}"
        );
        second.check_session().unwrap();
    }
    let (first, second) = (open_at(&machine).unwrap(), open_at(&machine).unwrap());
    let log = first.finish(&[]).unwrap();
    let lost = second.finish(&[]).map(drop).unwrap_err();
    assert!(matches!(lost, LogError::Foreign), "{lost}");
    log.check_session().unwrap();
    // Somebody formats the device.
    crate::volume::format(&*device(&machine), &geometry(64));
    assert!(matches!(log.check_session(), Err(LogError::Foreign)));
}

#[test]
fn opening_that_is_overtaken_destroys_nothing() {
    let (machine, _) = filled(1..=2);
    let second = open_at(&machine).unwrap();
    // The second opening comes before the first write of the first one.
    let second = Mutex::new(Some(second));
    let hooked = Hooked {
        before_write: Box::new(move || {
            let second = second.lock().unwrap().take();
            if let Some(second) = second {
                put(&second.finish(&[]).unwrap(), ONE, record(3, 1));
            }
        }),
        ..Hooked::new(device(&machine))
    };
    let first = open(&(Arc::new(hooked) as _)).unwrap();
    let error = first.finish(&[(ONE, record(4, 0))]).map(drop).unwrap_err();
    assert!(matches!(error, LogError::Foreign), "{error}");
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [1, 2, 3]);
}

#[test]
fn lost_superblock_is_noticed_before_the_next() {
    let (machine, starts) = filled(1..=2);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    device(&machine).inject(Fault {
        times: 2,
        ..Fault::once(Lie::WriteDropped).at(0..256 << 10)
    });
    log.checkpoint(ONE, starts[0], b"lost").unwrap();
    let error = log.checkpoint(ONE, starts[1], b"").unwrap_err();
    assert!(matches!(error, LogError::Failed { .. }), "{error}");
    assert!(error.to_string().contains("superblock"), "{error}");
}

#[test]
fn session_that_cannot_be_read_now_is_not_lost() {
    let (machine, _) = filled(1..=2);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    device(&machine).inject(Fault::always(Lie::ReadFails));
    assert!(matches!(log.check_session(), Err(LogError::Io { .. })));
    device(&machine).heal();
    log.check_session().unwrap();
    put(&log, ONE, record(3, 0));
}

#[test]
fn crash_while_key_slots_are_replaced_leaves_old_or_new_ones() {
    let machine = machine(16);
    let read = |machine: &Machine| wal::key_slots(&*device(machine)).unwrap();
    assert_eq!(read(&machine), (crate::volume::VOLUME, b"slots".to_vec()));
    wal::set_key_slots(&*device(&machine), b"older").unwrap();
    device(&machine).flip(((512 << 10) + 70) * 8); // one copy is rotten, the other one must do
    machine.record();
    wal::set_key_slots(&*device(&machine), b"newer").unwrap();
    let mut found = std::collections::BTreeSet::new();
    for copy in machine.recorded() {
        for stop in [sim::device::Stop::Power, sim::device::Stop::Kill] {
            for outcome in copy.outcomes(stop, 4, 40, 1) {
                let restarted = copy.restart(stop, 4, &outcome);
                found.insert(read(&restarted).1);
                wal::set_key_slots(&*device(&restarted), b"last").unwrap();
                for half in [256u64 << 10, 512 << 10] {
                    let rotten = restarted.fork();
                    device(&rotten).flip((half + 70) * 8);
                    assert_eq!(read(&rotten).1, b"last", "both copies are new");
                }
            }
        }
    }
    assert_eq!(found, [b"newer".to_vec(), b"older".to_vec()].into());
}

#[test]
fn damaged_missing_and_overlong_key_slots_are_named() {
    let machine = machine(16);
    let log = device(&machine);
    for half in [256u64 << 10, 512 << 10] {
        log.flip((half + 70) * 8);
    }
    assert!(matches!(
        wal::key_slots(&*log),
        Err(LogError::Superblock { .. })
    ));
    assert!(wal::set_key_slots(&*log, b"new").is_err());
    let empty = Machine::new(&[("L", device_bytes(&geometry(16)))]);
    let error = wal::key_slots(&*device(&empty)).unwrap_err();
    assert!(matches!(error, LogError::NotALog), "{error}");
    let whole = crate::volume::machine(16);
    let error = wal::set_key_slots(&*device(&whole), &[0; (64 << 10) + 1]).unwrap_err();
    assert!(matches!(error, LogError::Invalid { .. }), "{error}");
    device(&whole).inject(Fault::always(Lie::ReadFails).at(0..1 << 20));
    let error = wal::key_slots(&*device(&whole)).unwrap_err();
    assert!(matches!(error, LogError::Io { .. }), "{error}");
}
