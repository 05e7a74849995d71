//! Lives on honest devices, and with each adversary: right bytes or a named error, and refusal below the anchor.

use sim::device::{Lie, Stop};

use crate::explorer::Session;
use crate::life::{Adversary, Lived, lives, seeds};
use crate::model::{Model, Trust};
use crate::protected::{ProtectedDevice, machine};
use crate::subject::Attach;
use crate::trace::Action;

#[test]
fn honest_devices_lose_nothing_and_raise_no_alarm() {
    let lived = lives(&ProtectedDevice::small(), Adversary::Nobody, seeds(40));
    println!("{lived:?}");
    assert!(
        lived.crashes > lived.sessions && lived.logged > 8 * (64 << 10),
        "{lived:?}"
    );
}

#[test]
fn honest_devices_without_an_anchor_lose_nothing() {
    let device = ProtectedDevice {
        anchored: false,
        ..ProtectedDevice::small()
    };
    lives(&device, Adversary::Nobody, seeds(10));
}

#[test]
fn lagging_anchor_loses_nothing_and_refuses_what_is_older_than_it() {
    let device = ProtectedDevice {
        lags: true,
        ..ProtectedDevice::small()
    };
    lives(&device, Adversary::Nobody, seeds(20));
    for adversary in [
        Adversary::PutBack("L"),
        Adversary::BothPutBack,
        Adversary::Cut,
    ] {
        let lived = lives(&device, adversary, seeds(10));
        assert!(lived.refused > 0, "{adversary:?}: {lived:?}");
    }
}

#[test]
fn full_data_device_loses_nothing_and_reads_go_on() {
    caught(Adversary::Full, 20);
}

/// A trim waited for room after its first, partial block had been accepted, and then failed.
#[test]
fn trim_that_fails_has_changed_nothing() {
    lives(&ProtectedDevice::small(), Adversary::Full, 138..139);
}

/// Lives in which somebody lies, which must be noticed.
fn caught(adversary: Adversary, short: u64) -> Lived {
    let lived = lives(&ProtectedDevice::small(), adversary, seeds(short));
    println!("{adversary:?}: {lived:?}");
    assert!(
        lived.noticed > 0,
        "{adversary:?} never did anything: {lived:?}"
    );
    lived
}

#[test]
fn rot_is_found_or_mended() {
    caught(Adversary::Rot("D"), 10);
    caught(Adversary::Rot("L"), 10);
}

#[test]
fn writes_that_go_wrong_unseen_are_found() {
    for device in ["D", "L"] {
        caught(Adversary::Calls(device, Lie::WriteDropped), 10);
        caught(Adversary::Calls(device, Lie::WriteTorn { written: 3 }), 10);
        caught(
            Adversary::Calls(device, Lie::WriteMisdirected { to: 0 }),
            10,
        );
    }
}

#[test]
fn syncs_that_lie_lose_no_bytes_unseen() {
    caught(Adversary::NoSync("D"), 10);
    caught(Adversary::NoSync("L"), 10);
}

#[test]
fn calls_that_fail_once_lose_nothing_unseen() {
    for device in ["D", "L"] {
        caught(Adversary::Calls(device, Lie::ReadFails), 10);
        lives(
            &ProtectedDevice::small(),
            Adversary::Calls(device, Lie::ReadWrong),
            seeds(10),
        );
        caught(Adversary::Calls(device, Lie::WriteFails { written: 2 }), 10);
        caught(Adversary::Calls(device, Lie::SyncFails), 10);
    }
}

#[test]
fn blocks_that_fail_for_ever_lose_nothing_unseen() {
    for device in ["D", "L"] {
        caught(Adversary::Dead(device, Lie::ReadFails), 6);
        caught(Adversary::Dead(device, Lie::WriteFails { written: 0 }), 6);
    }
}

#[test]
fn content_that_is_put_back_or_moved_is_found() {
    for device in ["D", "L"] {
        caught(Adversary::PartPutBack(device), 10);
        caught(Adversary::Transplant(device), 10);
    }
    caught(Adversary::PutBack("D"), 10);
}

#[test]
fn log_that_is_put_back_or_cut_is_refused_below_the_anchor() {
    for adversary in [
        Adversary::PutBack("L"),
        Adversary::BothPutBack,
        Adversary::Cut,
    ] {
        let lived = caught(adversary, 10);
        assert!(lived.refused > 0, "{adversary:?}: {lived:?}");
    }
}

#[test]
fn without_an_anchor_old_devices_show_only_what_was_once_there() {
    let device = ProtectedDevice {
        anchored: false,
        ..ProtectedDevice::small()
    };
    for adversary in [
        Adversary::PutBack("L"),
        Adversary::BothPutBack,
        Adversary::NoSync("L"),
    ] {
        let lived = lives(&device, adversary, seeds(10));
        assert!(lived.sessions > 10, "{adversary:?}: {lived:?}");
    }
}

#[test]
fn flushed_content_that_the_data_device_takes_back_is_reported() {
    let device = ProtectedDevice::small();
    // Two blocks are more than a flush logs again, so it waits for the data device.
    for sectors in [0..8, 0..16] {
        let machine = machine(20, 128 << 10);
        let instant = machine.operations();
        let subject = device.attach(&machine).unwrap();
        let model = Model::new([0, 1]);
        let mut session = Session::begin(machine.clone(), model, subject, Trust::Honest).unwrap();
        session.act(&Action::Write(sectors), Trust::Honest).unwrap();
        session.act(&Action::Flush, Trust::Honest).unwrap();
        let model = session.model.clone();
        drop(session);
        machine.stop();
        for outcome in machine.outcomes(Stop::Power, 2, 64, 0) {
            let machine = machine.restart(Stop::Power, 2, &outcome);
            machine.device("D").put_back_all(instant);
            if let Ok(subject) = device.attach(&machine) {
                Session::begin(machine, model.clone(), subject, Trust::Lies).unwrap();
            }
        }
    }
}
