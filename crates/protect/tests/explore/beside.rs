//! Reads beside writes: a read that another thread overtakes returns one of the versions and never an error.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use protect::{Admission, Engine, Redos};
use sim::device::{Held, Machine};
use wal::Device;

use crate::protected::{ProtectedDevice, machine};

const SOON: Duration = Duration::from_secs(10);

fn attached(machine: &Machine) -> Arc<Engine> {
    let device = ProtectedDevice {
        anchored: false,
        ..ProtectedDevice::small()
    };
    Arc::new(device.engine(machine).unwrap().0)
}

/// Writes a block of `byte`, home and settled.
fn settle(engine: &Engine, byte: u8) {
    assert_eq!(engine.write(0, &[byte; 4096]).unwrap(), Admission::Accepted);
    let commit = engine.commit_begin(None).unwrap();
    let done = engine.commit_run(&commit).unwrap();
    engine.commit_end(&done);
    let homing = engine.home_begin(Redos::All).unwrap();
    let homed = engine.home_run(&homing).unwrap();
    engine.home_end(&homing, Some(&homed));
    let settling = engine.settle_begin().unwrap();
    let done = engine.settle_run(&settling).unwrap();
    engine.settle_end(&done);
    engine.checkpoint().unwrap();
}

#[test]
fn read_that_is_overtaken_again_and_again_is_not_reported() {
    let machine = machine(20, 128 << 10);
    let engine = attached(&machine);
    let data = machine.device("D");
    settle(&engine, 1);
    data.hold(Held::Read, 0..data.bytes(), 0);
    let reader = thread::spawn({
        let engine = engine.clone();
        move || {
            let mut page = [0; 4096];
            engine.read(0, &mut page).map(|()| page)
        }
    });
    for byte in 2..7 {
        assert!(data.wait_held(SOON));
        settle(&engine, byte);
        // Lets this read go on and holds the next one.
        data.hold(Held::Read, 0..data.bytes(), 0);
    }
    assert!(data.wait_held(SOON));
    data.release();
    let page = reader.join().unwrap().unwrap();
    assert!(page.iter().all(|byte| *byte == page[0]) && page[0] > 1);
}

#[test]
fn read_beside_a_write_in_flight_to_the_data_device_returns_the_new_version() {
    let machine = machine(20, 128 << 10);
    let engine = attached(&machine);
    let data = machine.device("D");
    settle(&engine, 1);
    assert_eq!(engine.write(0, &[2; 4096]).unwrap(), Admission::Accepted);
    let commit = engine.commit_begin(None).unwrap();
    let done = engine.commit_run(&commit).unwrap();
    engine.commit_end(&done);
    let homing = engine.home_begin(Redos::All).unwrap();
    data.hold(Held::Write, 0..4096, 3);
    thread::scope(|scope| {
        let home = scope.spawn(|| engine.home_run(&homing));
        assert!(data.wait_held(SOON));
        let mut page = [0; 4096];
        engine.read(0, &mut page).unwrap();
        assert!(page.iter().all(|byte| *byte == 2));
        data.release();
        home.join().unwrap().unwrap();
    });
}
