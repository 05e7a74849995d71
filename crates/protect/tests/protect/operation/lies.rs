//! A data device that loses or changes what was written to it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protect::{Block, BlockError, Protected};
use sim::time::wait_until;
use wal::Device;

use super::attached::{attach, machine};

fn settled(device: &Protected) {
    wait_until("everything is settled", || device.engine().is_settled());
}

#[test]
fn block_that_the_data_device_lost_is_repaired_from_the_log() {
    let machine = machine(64 * 4096, 256 << 10);
    let (device, _, alarms) = attach(&machine).unwrap();
    device.write(5 * 4096, &[3; 4096]).unwrap();
    device.flush().unwrap();
    settled(&device);
    machine.device("D").flip(5 * 4096 * 8);
    let mut found = [0; 4096];
    device.read(5 * 4096, &mut found).unwrap();
    assert_eq!(found, [3; 4096]);
    assert_eq!(alarms.0.load(Ordering::Relaxed), 1);
    device.flush().unwrap();
    device.detach(Duration::from_secs(20)).unwrap();
    let mut raw = [0; 4096];
    machine.device("D").read(5 * 4096, &mut raw).unwrap();
    assert_eq!(raw, [3; 4096]);
}

#[test]
fn changed_block_of_an_earlier_session_is_an_error_until_it_is_written() {
    let machine = machine(64 * 4096, 256 << 10);
    let (device, _, _) = attach(&machine).unwrap();
    device.write(0, &[3; 64 * 4096]).unwrap();
    device.detach(Duration::from_secs(20)).unwrap();
    drop(device);
    machine.device("D").flip(5 * 4096 * 8);
    let (device, recovered, alarms) = attach(&machine).unwrap();
    assert_eq!((recovered.sampled, recovered.changed), (64, 1));
    let mut found = [0; 8192];
    let error = device.read(4 * 4096, &mut found).unwrap_err();
    assert!(
        matches!(
            error,
            BlockError::Integrity {
                block: 5,
                offset: 20480
            }
        ),
        "{error}"
    );
    assert!(alarms.0.load(Ordering::Relaxed) > 0);
    let partial = device.write(5 * 4096, &[4; 512]).unwrap_err();
    assert!(
        matches!(partial, BlockError::Integrity { block: 5, .. }),
        "{partial}"
    );
    device.read(6 * 4096, &mut found).unwrap();
    assert_eq!(found, [3; 8192]);
    device.write(5 * 4096, &[4; 4096]).unwrap();
    device.read(4 * 4096, &mut found).unwrap();
    assert_eq!((found[0], found[4096]), (3, 4));
    device.detach(Duration::from_secs(20)).unwrap();
}
