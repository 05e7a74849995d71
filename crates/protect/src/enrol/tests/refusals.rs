//! What is refused, and what is told.

use sim::device::{Fault, Lie, Machine};
use wal::{Key, LogError, VolumeId};

use super::super::{EnrolError, Found, look, plan};
use super::crash::stopped;
use super::{BYTES, Data, SHAPE, VOLUME, check, enrol, enrolment, machine, run};
use crate::volume::Shape;

#[test]
fn log_device_that_is_too_small_is_told_how_much_is_needed() {
    let (_, layout) = plan(SHAPE, wal::MIN_RING_BYTES).unwrap();
    let needs = layout.device_bytes();
    for missing in [512, 1 << 20, needs] {
        let machine = machine();
        let small = Machine::new(&[("D", BYTES), ("L", needs - missing)]);
        small.device("D").plant(0, &machine.device("D").contents());
        let error = run(&small).unwrap_err();
        let EnrolError::TooSmall { needed, found } = error else {
            panic!("{error}");
        };
        assert_eq!((needed, found), (needs, needs - missing));
        assert_eq!(small.operations(), 0, "nothing was written");
    }
}

#[test]
fn log_device_in_use_is_not_overwritten_without_leave() {
    let log_of_another = || {
        let machine = machine();
        let data = Data::new(&machine);
        let volume = VolumeId([1; 16]);
        enrol(&machine, &data, |it| it.volume = volume, &mut |_| {}).unwrap();
        (machine, Found::Log(volume))
    };
    let with_data = |offset: u64| {
        let machine = machine();
        machine.device("L").flip(offset * 8);
        (machine, Found::Data)
    };
    let unfinished = {
        let machine = stopped();
        let found = look(&*machine.device("L"), SHAPE).unwrap();
        assert!(matches!(found, Found::Unfinished(_)));
        (machine, found)
    };
    for (machine, expected) in [
        log_of_another(),
        with_data(1080),
        with_data((1 << 20) - 1),
        unfinished,
    ] {
        let before = machine.device("L").contents();
        let other = VolumeId([3; 16]);
        let data = Data::new(&machine);
        let error = enrol(&machine, &data, |it| it.volume = other, &mut |_| {}).unwrap_err();
        assert!(
            matches!(&error, EnrolError::Occupied { found } if *found == expected),
            "{error}"
        );
        assert!(machine.device("L").contents() == before);
        assert_eq!(data.read_bytes(), 0);
        let enrolled = enrol(&machine, &data, |it| it.overwrite = true, &mut |_| {}).unwrap();
        assert_eq!(enrolled.resumed_at, 0);
        check(&machine);
    }
}

#[test]
fn enrolled_device_is_not_enrolled_again_by_the_same_call() {
    let machine = machine();
    run(&machine).unwrap();
    let found = Found::Log(VOLUME);
    let again = run(&machine).unwrap_err();
    assert!(matches!(again, EnrolError::Occupied { found: it } if it == found));
}

#[test]
fn enrolment_goes_on_only_with_its_key_and_its_ring() {
    let machine = stopped();
    let other = Key::new([1; 32]);
    let data = Data::new(&machine);
    let error = enrol(&machine, &data, |it| it.key = &other, &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, EnrolError::WrongKey { volume: VOLUME }),
        "{error}"
    );
    let ring = wal::MIN_RING_BYTES;
    let larger = Machine::new(&[
        ("D", BYTES),
        ("L", machine.device("L").contents().len() as u64 * 2),
    ]);
    larger.device("D").plant(0, &machine.device("D").contents());
    larger.device("L").plant(0, &machine.device("L").contents());
    let data = Data::new(&larger);
    let error = enrol(&larger, &data, |it| it.ring_bytes *= 2, &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, EnrolError::OtherRing { ring_bytes } if ring_bytes == ring),
        "{error}"
    );
    run(&machine).unwrap();
    check(&machine);
}

#[test]
fn device_that_changed_between_two_runs_is_told() {
    let machine = stopped();
    let mut data = Data::new(&machine);
    data.changed = Some(2);
    let error = enrol(&machine, &data, |_| {}, &mut |_| {}).unwrap_err();
    assert!(matches!(error, EnrolError::Changed), "{error}");
    assert_eq!(data.read_bytes(), 0);
    enrol(&machine, &data, |it| it.overwrite = true, &mut |_| {}).unwrap();
    check(&machine);
}

#[test]
fn map_that_changed_between_two_runs_is_told() {
    let machine = stopped();
    let (_, layout) = plan(SHAPE, wal::MIN_RING_BYTES).unwrap();
    let area = layout.area(crate::engine::CLIENT);
    // All slots of the map.
    let slots = area.end - area.start - super::super::progress::REGION_BYTES;
    for page in 0..slots / 4096 {
        machine.device("L").flip((area.start + page * 4096) * 8);
    }
    let error = run(&machine).unwrap_err();
    assert!(matches!(error, EnrolError::Map(_)), "{error}");
    assert!(matches!(
        wal::key_slots(&*machine.device("L")),
        Err(LogError::NotALog)
    ));
}

#[test]
fn block_that_cannot_be_read_is_named() {
    let machine = machine();
    let data = machine.device("D");
    let bad = (3 << 20) + 5 * 4096;
    data.inject(Fault::once(Lie::ReadFails).at(0..4096));
    data.inject(Fault::always(Lie::ReadFails).at(bad..bad + 512));
    let error = run(&machine).unwrap_err();
    assert!(
        matches!(error, EnrolError::Data { offset, .. } if offset == bad),
        "{error}"
    );
    data.heal();
    assert!(run(&machine).unwrap().resumed_at >= 2 << 20);
    check(&machine);
}

#[test]
fn failed_log_device_is_told_and_the_enrolment_goes_on() {
    let machine = machine();
    let log = machine.device("L");
    for (lie, after) in [(Lie::WriteFails { written: 1 }, 6), (Lie::SyncFails, 5)] {
        log.inject(Fault::once(lie).after(after));
        assert!(run(&machine).is_err());
        log.heal();
    }
    run(&machine).unwrap();
    check(&machine);
}

#[test]
fn lengths_that_cannot_be_protected_are_refused() {
    for (bytes, sector_bytes) in [
        (0, 512),
        (511, 512),
        (4608, 4096),
        (4096, 1024),
        (u64::MAX - 511, 512),
    ] {
        let shape = Shape {
            bytes,
            sector_bytes,
        };
        let planned = plan(shape, wal::MIN_RING_BYTES);
        assert!(
            matches!(planned, Err(EnrolError::Shape { .. })),
            "{bytes}: {planned:?}"
        );
    }
    let shape = Shape {
        bytes: 512,
        sector_bytes: 512,
    };
    plan(shape, wal::MIN_RING_BYTES).unwrap();
    assert!(matches!(plan(shape, 4096), Err(EnrolError::Log(_))));
    let machine = machine();
    let data = Data::new(&machine);
    let error = enrol(&machine, &data, |it| it.shape.bytes -= 512, &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, EnrolError::Shape { bytes: BYTES }),
        "{error}"
    );
}

#[test]
fn check_writes_nothing() {
    let machine = machine();
    let data = Data::new(&machine);
    let enrol = enrolment(&data, machine.device("L"), SHAPE);
    assert_eq!(enrol.check().unwrap(), Found::Nothing);
    assert_eq!((machine.operations(), data.read_bytes()), (0, 0));
}
