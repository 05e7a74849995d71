//! A page of the ring that holds content rots at any moment of a schedule while the device is attached. Its block can be
//! lost; no other one is, and the device goes on, survives every crash and can be detached.

use sim::device::Stop;

use crate::content::{BLOCK, Image};
use crate::exhaustive::{actions, starts};
use crate::explorer::{Explorer, Scope, Session, Tried};
use crate::model::{Model, Trust};
use crate::protected::ProtectedDevice;
use crate::subject::Attach;
use crate::trace::Action;

/// Three stages of the first thread that writes home, so often that a page that stays wrong is given up.
const GIVE_UP: &str =
    "s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1 s1";

/// After `g`: everything is tried until it is given up.
const SCHEDULES: [&str; 6] = [
    "w0-8 s0 s0 s0 w8-16 f s1 s1 s1 s3 s3 s3 s4 w0-8 f",
    "w0-16 f w2-4 s0 s0 s0 s1 s2 s1 s2 s1 s2 s3 s3 s3 s4",
    "w0-8 f w0-8 f s1 s1 s1 z0-136 s0 s0 s0 s1 s1 s1 s3 s3 s3 s4 w8-16 f",
    // A newer version becomes durable after the older one is given up, before and while that is settled.
    "w0-8 f g w0-8 s0 s0 s0 s3 s3 s3 s1 s1 s1 s3 s3 s3 s4",
    "w0-16 f g s3 w0-8 s0 s0 s0 s3 s3 s1 s1 s1 s3 s3 s3 s4",
    "w0-16 f g s3 s3 w0-8 s0 s0 s0 s3 s4 s1 s1 s1 s3 s3 s3 s4",
];

fn schedule(text: &str) -> Vec<Action> {
    actions(&text.replace('g', GIVE_UP))
}

/// Everything is logged with its content, and read from the ring.
fn device() -> ProtectedDevice {
    let mut device = ProtectedDevice::small();
    device.limits.hash_run_blocks = u64::MAX;
    device.limits.cached_bytes = 0;
    device
}

fn scope() -> Scope {
    Scope {
        trust: Trust::Rots,
        stops: vec![Stop::Kill, Stop::Power],
        pieces: 2,
        outcomes: [4, 2],
        crashes: 1,
    }
}

/// Pages of the log's device that hold content of watched blocks, counted from its end.
fn content_pages(session: &Session) -> Vec<u64> {
    let contents = session.machine.device("L").contents();
    let holds = |page: &[u8]| {
        let has = |block| Image::of(block, page).is_some_and(|image| image != Image::default());
        session.model.blocks().into_iter().any(has)
    };
    let pages = contents.rchunks_exact(BLOCK).zip(0..);
    pages
        .filter(|(page, _)| holds(page))
        .map(|(_, number)| number)
        .collect()
}

/// The session after these actions.
fn after(
    device: &ProtectedDevice,
    start: &(sim::device::Machine, Model),
    schedule: &[Action],
) -> Session {
    let machine = start.0.fork();
    let subject = device.attach(&machine).unwrap();
    let mut session = Session::begin(machine, start.1.clone(), subject, Trust::Honest).unwrap();
    for action in schedule {
        session.act(action, Trust::Honest).unwrap();
    }
    session
}

#[test]
fn page_of_the_ring_that_rots_costs_its_own_block_alone() {
    let device = device();
    let mut tried = Tried::default();
    for start in &starts(&device) {
        let mut explorer = Explorer::new(&device, scope());
        for text in SCHEDULES {
            let schedule = schedule(text);
            for at in 1..schedule.len() {
                // Between two stages of giving up nothing else happens.
                let is_stage = |action: &Action| *action == Action::Step(1);
                if at > 2 && schedule[at - 3..=at].iter().all(is_stage) {
                    continue;
                }
                for page in content_pages(&after(&device, start, &schedule[..at])) {
                    let mut rotting = schedule.clone();
                    rotting.insert(at, Action::Rot(page));
                    let explored = explorer.explore(&start.0, &start.1, &rotting);
                    explored.unwrap_or_else(|failure| panic!("{failure}"));
                    let mut session = after(&device, start, &schedule[..at]);
                    for action in rotting[at..].iter().chain([&Action::Drain]) {
                        session.act(action, Trust::Rots).unwrap();
                    }
                    let lost = session.lost();
                    assert!(lost.len() <= 1, "{rotting:?}: {lost:?} are lost");
                }
            }
        }
        tried = Tried {
            schedules: tried.schedules + explorer.tried.schedules,
            crashes: tried.crashes + explorer.tried.crashes,
            sessions: tried.sessions + explorer.tried.sessions,
            refused: tried.refused + explorer.tried.refused,
        };
    }
    println!("{tried:?}");
    assert!(tried.schedules > 100 && tried.sessions > 1000, "{tried:?}");
}
