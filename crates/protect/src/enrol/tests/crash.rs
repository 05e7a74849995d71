//! Enrolments that end early and go on.

use std::sync::atomic::{AtomicBool, Ordering};

use sim::device::{Fault, Lie, Stop};
use wal::{Device, Key, VolumeId};

use super::super::progress::Record;
use super::super::{EnrolError, Found, look, plan};
use super::{BYTES, Data, SHAPE, SLOTS, VOLUME, check, enrol, machine, run};
use crate::engine::CLIENT;
use crate::map::Root;
use crate::volume::Shape;

/// After a crash at any operation the same call ends the enrolment.
fn crash_everywhere(stop: Stop) {
    let whole = machine();
    whole.record();
    run(&whole).unwrap();
    let stops = whole.recorded();
    assert!(stops.len() > 40, "{} operations", stops.len());
    let mut resumed = 0;
    for (number, stopped) in (0..).zip(&stops) {
        for outcome in stopped.outcomes(stop, usize::MAX, 3, number) {
            let machine = stopped.restart(stop, usize::MAX, &outcome);
            // A log that is nearly made is either a log, or not begun, or to go on with.
            let found = look(&*machine.device("L"), SHAPE).unwrap();
            match found {
                Found::Log(volume) => assert_eq!(volume, VOLUME),
                _ => {
                    let data = Data::new(&machine);
                    let overwrite = found == Found::Data;
                    let enrolled =
                        enrol(&machine, &data, |it| it.overwrite = overwrite, &mut |_| {});
                    let resumed_at = enrolled.unwrap().resumed_at;
                    assert!(
                        !overwrite,
                        "operation {number}, outcome {outcome}: {found:?}"
                    );
                    assert_eq!(data.read_bytes(), BYTES - resumed_at);
                    resumed += u64::from(resumed_at > 0);
                }
            }
            check(&machine);
        }
    }
    assert!(resumed > 20, "{resumed} went on");
}

#[test]
fn power_cut_at_any_operation_leaves_an_enrolment_that_goes_on() {
    crash_everywhere(Stop::Power);
}

#[test]
fn kill_at_any_operation_leaves_an_enrolment_that_goes_on() {
    crash_everywhere(Stop::Kill);
}

#[test]
fn stopped_enrolment_tells_how_to_go_on_and_reads_nothing_twice() {
    let machine = machine();
    let stop = AtomicBool::new(false);
    let data = Data::new(&machine);
    let mut count = 0;
    let ended = enrol(
        &machine,
        &data,
        |enrol| {
            enrol.stop = &stop;
            enrol.checkpoint_bytes = u64::MAX;
        },
        &mut |progress| {
            count += u32::from(matches!(progress, super::super::Progress::Reading { .. }));
            stop.store(count == 2, Ordering::Relaxed);
        },
    );
    let Err(EnrolError::Stopped { done }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(done, 3 << 20);
    let Found::Unfinished(found) = look(&*machine.device("L"), SHAPE).unwrap() else {
        panic!("nothing to go on with");
    };
    assert_eq!((found.volume, found.slots.as_slice()), (VOLUME, SLOTS));
    assert_eq!(
        (found.done, found.ring_bytes),
        (3 << 20, wal::MIN_RING_BYTES)
    );
    // No log yet.
    assert!(matches!(
        wal::key_slots(&*machine.device("L")),
        Err(wal::LogError::NotALog)
    ));
    let data = Data::new(&machine);
    let enrolled = enrol(&machine, &data, |_| {}, &mut |_| {}).unwrap();
    assert_eq!(enrolled.resumed_at, done);
    assert_eq!(data.read_bytes(), BYTES - done);
    check(&machine);
    assert_eq!(
        look(&*machine.device("L"), SHAPE).unwrap(),
        Found::Log(VOLUME)
    );
}

/// A machine whose enrolment was stopped after 3 MiB.
pub(super) fn stopped() -> sim::device::Machine {
    let machine = machine();
    let stop = AtomicBool::new(false);
    let ended = enrol(
        &machine,
        &Data::new(&machine),
        |enrol| enrol.stop = &stop,
        &mut |progress| {
            let super::super::Progress::Reading { done, .. } = progress else {
                return;
            };
            stop.store(done == 2 << 20, Ordering::Relaxed);
        },
    );
    assert!(
        matches!(ended, Err(EnrolError::Stopped { .. })),
        "{ended:?}"
    );
    machine
}

#[test]
fn log_that_was_attached_after_a_crash_at_the_end_is_not_made_anew() {
    let machine = machine();
    machine.record();
    run(&machine).unwrap();
    // The last operations: the record is cleared, and a sync.
    let stops = machine.recorded();
    let before_clear = &stops[stops.len() - 2];
    let outcome = before_clear.outcomes(Stop::Kill, 1, 1, 0).next().unwrap();
    let machine = before_clear.restart(Stop::Kill, 1, &outcome);
    assert!(matches!(
        look(&*machine.device("L"), SHAPE).unwrap(),
        Found::Unfinished(_)
    ));
    // The device is attached, and the log forgets its beginning.
    let log = machine.device("L");
    let open = || wal::open(log.clone(), &super::KEY, None, wal::OpenOptions::default()).unwrap();
    let recovery = open();
    let cookie = recovery.cookie(CLIENT).to_vec();
    let session = recovery.finish(&[]).unwrap();
    session.checkpoint(CLIENT, session.end(), &cookie).unwrap();
    drop(session);
    let oldest = open().oldest(CLIENT);
    assert!(oldest > wal::Lsn(0));
    assert_eq!(run(&machine).unwrap().resumed_at, BYTES);
    assert_eq!(
        open().oldest(CLIENT),
        oldest,
        "the log is the one that was attached"
    );
    assert_eq!(look(&*log, SHAPE).unwrap(), Found::Log(VOLUME));
    check(&machine);
}

#[test]
fn record_that_was_changed_is_not_believed() {
    let (_, layout) = plan(SHAPE, wal::MIN_RING_BYTES).unwrap();
    let region = layout.area(CLIENT).end - super::super::progress::REGION_BYTES;
    for byte in [9, 30, 60, 70, 80, 4096, 73_700] {
        let machine = stopped();
        for copy in 0..2 {
            machine
                .device("L")
                .flip((region + copy * 73_728 + byte) * 8);
        }
        let ended = run(&machine);
        let refused = matches!(
            ended,
            Err(EnrolError::WrongKey { .. }
                | EnrolError::Occupied { .. }
                | EnrolError::OtherRing { .. })
        );
        // A record that is no longer one is as if there were none, and the map's area is not looked at.
        let anew = matches!(&ended, Ok(enrolled) if enrolled.resumed_at == 0);
        assert!(refused || anew, "byte {byte}: {ended:?}");
    }
}

#[test]
fn enrolment_that_is_begun_anew_forgets_the_old_one_first() {
    let machine = stopped();
    let (_, layout) = plan(SHAPE, wal::MIN_RING_BYTES).unwrap();
    let area = layout.area(CLIENT).start;
    let log = machine.device("L");
    // The map is zeros when the log's device fails; what lies behind it is as it was.
    let failed = Fault::once(Lie::WriteFails { written: 80 }).at(area..area + 512);
    log.inject(failed);
    let data = Data::new(&machine);
    let error = enrol(&machine, &data, |it| it.overwrite = true, &mut |_| {}).unwrap_err();
    assert!(matches!(error, EnrolError::Log(_)), "{error}");
    log.heal();
    assert_eq!(run(&machine).unwrap().resumed_at, 0);
    check(&machine);
}

#[test]
fn record_is_the_one_of_the_document() {
    let key = Key::new(std::array::from_fn(|n| n as u8));
    let mut record = Record {
        volume: VolumeId(std::array::from_fn(|n| 0x20 + n as u8)),
        shape: Shape {
            bytes: 70_000 * 4096,
            sector_bytes: 512,
        },
        ring_bytes: 65_536,
        generation: 0,
        done: 256,
        root: Root::ZERO,
        changed: None,
        slots: b"slots".to_vec(),
    };
    let (_, layout) = plan(record.shape, 65_536).unwrap();
    let log = sim::device::Machine::new(&[]).add("L", layout.device_bytes(), 512);
    let place = super::super::progress::Place::new(&layout);
    place.store(&*log, &key, &mut record).unwrap();
    let mut copy = vec![0; 73_728];
    let end = layout.area(CLIENT).end;
    log.read(end - 73_728, &mut copy).unwrap();
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let last = copy[..73_696].iter().rposition(|byte| *byte != 0).unwrap();
    let fields = hex(&copy[..=last]);
    let rows = [
        format!("| fields | `{fields}` |"),
        format!("| MAC | `{}` |", hex(&copy[73_696..])),
    ];
    let document = include_str!("../../../../../docs/formats/protect.md");
    let missing: Vec<&String> = rows.iter().filter(|row| !document.contains(*row)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn record_is_read_as_it_was_written() {
    let machine = machine();
    let (_, layout) = plan(SHAPE, wal::MIN_RING_BYTES).unwrap();
    let place = super::super::progress::Place::new(&layout);
    let log = machine.device("L");
    let key = Key::new([1; 32]);
    let mut record = Record {
        volume: VolumeId([2; 16]),
        shape: Shape {
            bytes: 4096,
            sector_bytes: 4096,
        },
        ring_bytes: 7,
        generation: 41,
        done: 1,
        root: Root::from_bytes([3; 16]),
        changed: Some(-5),
        slots: vec![8; wal::MAX_SLOTS_BYTES],
    };
    for _ in 0..3 {
        place.store(&*log, &key, &mut record).unwrap();
        let authentic = Some((&key, record.volume));
        assert_eq!(
            place.newest(&*log, authentic).unwrap().as_ref(),
            Some(&record)
        );
        assert_eq!(place.newest(&*log, None).unwrap().as_ref(), Some(&record));
        let other = Key::new([2; 32]);
        assert_eq!(
            place.newest(&*log, Some((&other, record.volume))).unwrap(),
            None
        );
        assert_eq!(place.newest(&*log, Some((&key, VOLUME))).unwrap(), None);
    }
    assert_eq!(record.generation, 44);
    place.clear(&*log).unwrap();
    assert_eq!(place.newest(&*log, None).unwrap(), None);
    assert!(log.bytes() > 0);
}
