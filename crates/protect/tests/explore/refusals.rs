//! Devices that take nothing more, and a host that is not alone: what was acknowledged stays, and nothing is released.

use std::sync::Arc;

use protect::{Admission, BlockError, Engine, EngineError};
use sim::device::{Fault, Lie, Machine};

use crate::protected::{Alarms, COMMIT, HOME, ProtectedDevice, SETTLE, machine};
use crate::subject::{Attach, Subject};

const PAGE: u64 = 4096;
const RING_BYTES: u64 = 128 << 10;

fn device() -> ProtectedDevice {
    let mut device = ProtectedDevice::small();
    device.anchored = false;
    device.limits.hash_run_blocks = u64::MAX;
    device
}

fn write(subject: &mut dyn Subject, block: u64, byte: u8) -> Result<(), BlockError> {
    subject.write(block * PAGE, &[byte; PAGE as usize])
}

fn check(subject: &mut dyn Subject, expected: &[(u64, u8)]) {
    for (block, byte) in expected {
        let mut page = [1; PAGE as usize];
        subject.read(block * PAGE, &mut page).unwrap();
        assert!(page.iter().all(|found| found == byte), "block {block}");
    }
}

fn work(subject: &mut dyn Subject, actor: usize) {
    while subject.step(actor) {}
}

/// A sparse file whose file system is full: what was flushed stays in the log and is read from there, again and again,
/// until there is space.
#[test]
fn full_data_device_is_read_only_and_its_blocks_come_from_the_log() {
    let machine = machine(20, RING_BYTES);
    let all = [(1, 1), (2, 2), (3, 3), (4, 0)];
    let mut subject = device().attach(&machine).unwrap();
    for block in 1..4 {
        write(&mut *subject, block, block as u8).unwrap();
        subject.flush().unwrap();
    }
    machine.device("D").set_full(true);
    work(&mut *subject, HOME);
    check(&mut *subject, &all);
    for refused in [write(&mut *subject, 5, 5), subject.zero(0, 20 * PAGE)] {
        assert!(matches!(refused, Err(BlockError::ReadOnly { .. })));
    }
    assert!(subject.alarms()[0].starts_with("read-only"));
    drop(subject);
    for _ in 0..2 {
        let (engine, alarms) = device().engine(&machine).unwrap();
        assert_eq!(engine.counts().redo_blocks, 3, "the tail is held");
        drop(engine);
        assert!(alarms.all().is_empty());
        let mut subject = device().attach(&machine).unwrap();
        check(&mut *subject, &all);
        subject.detach().unwrap_err();
    }
    machine.device("D").set_full(false);
    let mut subject = device().attach(&machine).unwrap();
    check(&mut *subject, &all);
    subject.detach().unwrap();
    let raw = machine.device("D").contents();
    for (block, byte) in all {
        assert_eq!(raw[(block * PAGE) as usize], byte);
    }
}

/// The reserve of this ring has space for ten frames.
#[test]
fn device_that_takes_nothing_is_attached_any_number_of_times() {
    for error in [None, Some(Lie::WriteFails { written: 0 })] {
        let machine = machine(20, RING_BYTES);
        let mut subject = device().attach(&machine).unwrap();
        write(&mut *subject, 1, 1).unwrap();
        subject.flush().unwrap();
        drop(subject);
        match error {
            None => machine.device("D").set_full(true),
            Some(lie) => machine.device("D").inject(Fault::always(lie)),
        }
        let mut newest = 0;
        for session in 0..100_u8 {
            let mut subject = device().attach(&machine).unwrap();
            check(&mut *subject, &[(1, 1), (2, newest), (3, 0)]);
            // As long as the log takes something.
            if session % 3 == 0 && write(&mut *subject, 2, session + 1).is_ok() {
                let flushed = subject.flush();
                newest = match flushed {
                    Ok(()) => session + 1,
                    Err(_) => newest,
                };
            }
        }
        machine.device("D").set_full(false);
        machine.device("D").heal();
        let mut subject = device().attach(&machine).unwrap();
        check(&mut *subject, &[(1, 1), (2, newest), (3, 0)]);
        write(&mut *subject, 3, 3).unwrap();
        subject.detach().unwrap();
        let raw = machine.device("D").contents();
        for (block, byte) in [(1, 1), (2, newest), (3, 3)] {
            assert_eq!(raw[(block * PAGE) as usize], byte);
        }
    }
}

/// The system may have dropped what it could not write, and the next sync may succeed: nothing is settled by it.
#[test]
fn failed_sync_of_the_data_device_settles_nothing_for_good() {
    let machine = machine(20, RING_BYTES);
    let mut subject = device().attach(&machine).unwrap();
    write(&mut *subject, 1, 1).unwrap();
    subject.flush().unwrap();
    work(&mut *subject, HOME);
    machine.device("D").inject(Fault::once(Lie::SyncFails));
    work(&mut *subject, SETTLE);
    assert!(
        subject.alarms()[0].starts_with("read-only"),
        "{:?}",
        subject.alarms()
    );
    let refused = write(&mut *subject, 2, 2);
    assert!(matches!(refused, Err(BlockError::ReadOnly { .. })));
    work(&mut *subject, COMMIT);
    check(&mut *subject, &[(1, 1), (2, 0)]);
    drop(subject);
    machine.device("D").put_back_all(0);
    let mut subject = device().attach(&machine).unwrap();
    check(&mut *subject, &[(1, 1), (2, 0)]);
    subject.detach().unwrap();
    assert_eq!(machine.device("D").contents()[PAGE as usize], 1);
}

fn attached(machine: &Machine) -> (Engine, Arc<Alarms>) {
    device().engine(machine).unwrap()
}

fn commit(engine: &Engine, block: u64, byte: u8) -> Result<(), EngineError> {
    let accepted = engine.write(block * PAGE, &[byte; PAGE as usize]);
    assert_eq!(accepted.unwrap(), Admission::Accepted);
    let commit = engine.commit_begin(None).unwrap();
    engine.commit_end(&engine.commit_run(&commit)?);
    Ok(())
}

/// The one that was attached first notices before it writes a superblock, and when it looks.
#[test]
fn host_that_is_not_alone_any_more_stops_and_the_other_one_loses_nothing() {
    for looks in [true, false] {
        let machine = machine(20, RING_BYTES);
        let (first, _) = attached(&machine);
        commit(&first, 1, 1).unwrap();
        let (second, _) = attached(&machine);
        commit(&second, 2, 2).unwrap();
        let noticed = match looks {
            true => first.log().check_session().map_err(EngineError::Log),
            false => first.checkpoint(),
        };
        assert!(
            matches!(noticed, Err(EngineError::Log(wal::LogError::Foreign))),
            "{noticed:?}"
        );
        // From now on it writes nothing, whatever it has accepted.
        let end = first.log().end();
        assert!(commit(&first, 3, 3).is_err());
        assert_eq!(first.log().end(), end);
        drop(first);
        commit(&second, 4, 4).unwrap();
        second.log().check_session().unwrap();
        drop(second);
        let mut subject = device().attach(&machine).unwrap();
        check(&mut *subject, &[(1, 1), (2, 2), (3, 0), (4, 4)]);
    }
}
