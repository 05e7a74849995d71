//! All schedules of up to three operations on two blocks, with the background work at every stage between them, and all
//! crashes. Devices are honest.

use sim::device::{Machine, Stop};

use crate::explorer::{Explorer, Scope, Session, Tried};
use crate::model::{Model, Trust};
use crate::protected::{ProtectedDevice, machine};
use crate::subject::Attach;
use crate::trace::{Action, Trace};

/// Sixteen blocks and more are trimmed; fewer are written as zeros.
const BLOCKS: u64 = 20;
const RING_BYTES: u64 = 128 << 10;

/// One block, both, a part of one, a trim of both, a flush.
const OPERATIONS: [&str; 5] = ["w0-8", "w0-16", "w2-4", "z0-136", "f"];

/// How far the background work gets: commit in three stages, home, settle, checkpoint.
const PROGRESS: [&str; 11] = [
    "",
    "s0",
    "s0 s0",
    "s0 s0 s0",
    "s0 s0 s0 s1",
    "s0 s0 s0 s1 s1",
    "s0 s0 s0 s1 s1 s1",
    "s0 s0 s0 s1 s1 s1 s3",
    "s0 s0 s0 s1 s1 s1 s3 s3",
    "s0 s0 s0 s1 s1 s1 s3 s3 s3",
    "s0 s0 s0 s1 s1 s1 s3 s3 s3 s4",
];

const ALL: &str = "s0 s0 s0 s1 s1 s1 s3 s3 s3 s4";

/// A device that was just enrolled, and one whose first blocks have settled content.
pub fn starts(device: &dyn Attach) -> Vec<(Machine, Model)> {
    let fresh = machine(BLOCKS, RING_BYTES);
    let mut model = Model::new([0, 1]);
    device.attach(&fresh).unwrap().detach().unwrap();
    fresh.forget();
    let used = fresh.fork();
    let start = (fresh, model.clone());
    let mut subject = device.attach(&used).unwrap();
    subject.write(0, &model.write(0..16)).unwrap();
    subject.detach().unwrap();
    let begun = model.flush_begins();
    model.flushed(&begun);
    used.forget();
    vec![start, (used, model)]
}

pub fn actions(text: &str) -> Vec<Action> {
    text.parse::<Trace>().unwrap().schedule
}

/// All schedules of so many operations, of which every `stride`-th is tried, and so many crashes after each other.
fn explore(operations: u32, stride: usize, crashes: usize) -> Tried {
    let device = ProtectedDevice::small();
    let scope = Scope {
        crashes,
        ..Scope::honest()
    };
    let mut explorer = Explorer::new(&device, scope);
    for (machine, model) in &starts(&device) {
        let choices = OPERATIONS.len() * PROGRESS.len();
        for number in (0..choices.pow(operations - 1) * OPERATIONS.len()).step_by(stride) {
            let mut rest = number;
            let mut schedule = actions(OPERATIONS[rest % OPERATIONS.len()]);
            rest /= OPERATIONS.len();
            for _ in 1..operations {
                let choice = rest % choices;
                rest /= choices;
                schedule.extend(actions(PROGRESS[choice / OPERATIONS.len()]));
                schedule.extend(actions(OPERATIONS[choice % OPERATIONS.len()]));
            }
            schedule.extend(actions(ALL));
            let explored = explorer.explore(machine, model, &schedule);
            explored.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
    explorer.tried
}

/// With BULLA_LONG all schedules.
fn stride(short: usize) -> usize {
    match std::env::var_os("BULLA_LONG") {
        Some(_) => 1,
        None => short,
    }
}

#[test]
fn every_crash_of_two_operations_and_of_their_recovery_is_survived() {
    let tried = explore(2, stride(31), 2);
    println!("{tried:?}");
    assert!(tried.sessions > 5000, "{tried:?}");
}

#[test]
fn every_crash_of_three_operations_is_survived() {
    // Coprime to the numbers of choices.
    let tried = explore(3, stride(193), 1);
    println!("{tried:?}");
    assert!(tried.sessions > 1000, "{tried:?}");
}

/// Orders of background work that the schedules above do not have: two writes of one block to the data device, begun in
/// one order and run in the other; a trim that is homed after newer writes; a commit beside a settle.
const ORDERS: [&str; 7] = [
    "w0-8 s0 s0 s0 s1 w0-8 s0 s0 s0 s2 s2 s2 s1 s3 s3 s3 s1 s4",
    "w0-8 s0 s0 s0 s1 w0-8 s0 s0 s0 s2 s2 s2 s1 s1 s3 s3 s3 s4",
    "w0-8 s0 s0 s0 s1 w0-8 s0 s0 s0 s2 s1 s2 s1 s2 s3 s3 s3 s4 f",
    "w0-16 s0 s0 s0 s1 s1 s1 z0-136 w2-4 s0 s0 s0 s2 s1 s2 s1 s3 s3 s3 s4 w0-8",
    "z0-136 s0 s0 s0 s1 w0-16 s0 s0 s0 s2 s2 s2 s1 s1 s3 s3 s3 s4",
    "w0-8 s0 s0 s0 s1 s1 s1 s3 w0-8 s0 s0 s0 s3 s3 s4 s1 s1 s1 w8-16 s3 s0 s0 s0 s3 s3 s4",
    "w0-8 f w2-4 s0 s0 s0 s1 s1 s1 s3 z0-136 s0 s0 s0 s3 s3 s4 s1 s1 s1 s3 s3 s3 s4",
];

#[test]
fn background_work_in_other_orders_loses_nothing() {
    let device = ProtectedDevice::small();
    let scope = Scope {
        crashes: 1,
        ..Scope::honest()
    };
    let mut explorer = Explorer::new(&device, scope);
    for (machine, model) in &starts(&device) {
        for order in ORDERS {
            let explored = explorer.explore(machine, model, &actions(order));
            explored.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

/// After a kill, reads of the data device return bytes that a power cut can still lose. A recovery that finds a new
/// version there says so in the log, so it must have synced them before.
#[test]
fn power_cut_during_a_recovery_keeps_what_the_recovery_chose() {
    let device = ProtectedDevice::small();
    // Only blocks that were zeros are logged as digests.
    let (machine, model) = &starts(&device)[0];
    let before = machine.device("D").contents();
    let machine = machine.fork();
    let subject = device.attach(&machine).unwrap();
    let mut session = Session::begin(machine, model.clone(), subject, Trust::Honest).unwrap();
    // The log has the digest of the block, and the data device its content, which is not synced.
    for action in actions("w0-8 s0 s0 s0 s1 s1") {
        session.act(&action, Trust::Honest).unwrap();
    }
    let Session { machine, model, .. } = session;
    machine.stop();
    let is_old = |machine: &Machine| machine.device("D").contents() == before;
    let cuts = power_cuts(&machine);
    assert!(
        !is_old(&machine) && cuts.iter().any(is_old),
        "{}",
        cuts.len()
    );
    let killed = machine.outcomes(Stop::Kill, 1, 64, 0).next().unwrap();
    let machine = machine.restart(Stop::Kill, 1, &killed);
    machine.record();
    device.attach(&machine).unwrap();
    let recovery = machine.recorded();
    assert!(!recovery.is_empty());
    for machine in recovery.iter().flat_map(power_cuts) {
        let subject = device.attach(&machine).unwrap();
        Session::begin(machine, model.clone(), subject, Trust::Honest).unwrap();
    }
}

/// The machines that a power cut may leave.
fn power_cuts(machine: &Machine) -> Vec<Machine> {
    let outcomes = machine.outcomes(Stop::Power, 1, 64, 0);
    outcomes
        .map(|outcome| machine.restart(Stop::Power, 1, &outcome))
        .collect()
}

#[test]
fn trace_in_the_environment_is_replayed() {
    let Ok(text) = std::env::var("BULLA_TRACE") else {
        return;
    };
    let trace: Trace = text.parse().unwrap();
    let device = ProtectedDevice::small();
    for (machine, model) in &starts(&device) {
        let mut explorer = Explorer::new(&device, Scope::honest());
        if let Err(failure) = explorer.replay(machine, model, &trace) {
            panic!("{failure}");
        }
    }
}
