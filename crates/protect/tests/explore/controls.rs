//! Negative controls: the explorer, on a raw disk, finds each kind of fault that it is there to find.

use sim::device::{Fault, Lie, Machine, Stop};

use crate::explorer::{Explorer, Failure, Scope};
use crate::model::{Model, Trust};
use crate::raw::RawDisk;
use crate::trace::{Action, Trace};

const BLOCKS: u64 = 2;
const RAW: RawDisk = RawDisk {
    syncs_at_attach: true,
};

fn machine() -> Machine {
    let machine = Machine::new(&[]);
    machine.add("D", BLOCKS * 4096, 512).set_atomic(4096);
    machine
}

fn explore(machine: &Machine, scope: Scope, schedule: &str) -> Result<(), Failure> {
    let trace: Trace = schedule.parse().unwrap();
    let mut explorer = Explorer::new(&RAW, scope);
    let explored = explorer.explore(machine, &Model::new(0..BLOCKS), &trace.schedule);
    if let Err(failure) = &explored {
        let again = explorer.replay(machine, &Model::new(0..BLOCKS), &failure.trace);
        assert_eq!(again.unwrap_err().what, failure.what, "a failure replays");
    }
    explored
}

fn failure(machine: &Machine, scope: Scope, schedule: &str) -> String {
    explore(machine, scope, schedule).unwrap_err().what
}

#[test]
fn raw_disk_that_is_honest_and_atomic_passes() {
    explore(
        &machine(),
        Scope::honest(),
        "w0-16 f z0-8 w8-16 f w3-5 f w0-8",
    )
    .unwrap();
}

#[test]
fn disk_whose_sync_lies_loses_what_was_flushed() {
    let machine = machine();
    machine.device("D").inject(Fault::always(Lie::SyncIgnored));
    let scope = Scope {
        stops: vec![Stop::Power],
        ..Scope::honest()
    };
    let what = failure(&machine, scope, "w0-8 f");
    assert!(
        what.contains("block 0 is 0 after the crash; it has [0, 1], flushed up to number 1"),
        "{what}"
    );
}

#[test]
fn disk_that_tears_shows_a_block_that_nobody_wrote() {
    let machine = machine();
    machine.device("D").set_atomic(512);
    let what = failure(&machine, Scope::honest(), "w0-8");
    assert!(
        what.contains("[1, 1, 1, 1, 0, 0, 0, 0] after the crash"),
        "{what}"
    );
}

#[test]
fn choice_that_a_second_crash_undoes_is_found() {
    let raw = RawDisk {
        syncs_at_attach: false,
    };
    let mut explorer = Explorer::new(&raw, Scope::honest());
    let actions = [Action::Write(0..8)];
    let failure = explorer
        .explore(&machine(), &Model::new(0..BLOCKS), &actions)
        .unwrap_err();
    assert_eq!(failure.trace.crashes.len(), 2, "{failure}");
    assert!(
        failure
            .what
            .contains("block 0 is 0 after the crash; it has [1]"),
        "{failure}"
    );
}

#[test]
fn misdirected_and_dropped_writes_are_found() {
    let lying = machine();
    lying
        .device("D")
        .inject(Fault::once(Lie::WriteMisdirected { to: 4096 }));
    let scope = Scope {
        trust: Trust::LiesAboutAge,
        ..Scope::honest()
    };
    let what = failure(&lying, scope.clone(), "w0-8");
    assert!(what.contains("block 0 reads 0"), "{what}");
    let lying = machine();
    lying
        .device("D")
        .inject(Fault::once(Lie::WriteDropped).after(1));
    let what = failure(&lying, scope, "w0-8 w0-8");
    assert!(what.contains("block 0 reads 1"), "{what}");
}

#[test]
fn bytes_of_another_place_are_found() {
    let machine = machine();
    let mut model = Model::new(0..BLOCKS);
    wal::Device::write(&*machine.device("D"), 0, &model.write(0..8)).unwrap();
    machine.device("D").transplant(0, 4096, 4096);
    let mut explorer = Explorer::new(
        &RAW,
        Scope {
            trust: Trust::LiesAboutAge,
            ..Scope::honest()
        },
    );
    let what = explorer
        .explore(&machine, &model, &[Action::Flush])
        .unwrap_err()
        .what;
    assert!(
        what.contains("block 1 has bytes that nobody wrote there"),
        "{what}"
    );
}
