//! A second judge of small histories. It knows only what programs asked and were told, and when: no log, no position.
//! It searches two orders of the calls, one for each device, that fork consistency allows:
//!
//! - each order has all of its device's answered calls and perhaps others, in the order of real time;
//! - run one after the other, the calls give the answers that programs got;
//! - up to the last call that both orders have, they are the same.
//!
//! What `checks` accepts must have such orders. So a mistake in `checks`, in its positions or its notion of a view,
//! shows as a history that the search refuses.

use crate::history::History;
use crate::posix::Posix;
use crate::protocol::{ADMIN, Answer, Device};

/// A call as the search sees it.
#[derive(Clone, Copy)]
struct Event {
    device: Device,
    bit: u32,
    before: u32,
    /// It has an answer that must come out.
    answered: bool,
}

struct Search<'a> {
    history: &'a History,
    events: Vec<Event>,
}

/// Whether two devices can have seen this under fork consistency.
pub fn fork_consistent(history: &History) -> bool {
    let events = history.records.iter().map(|record| Event {
        device: record.call.device(),
        bit: record.call.bit(),
        before: record.before,
        answered: record.given.is_some_and(|given| given.answer != Answer::Io),
    });
    let search = Search {
        history,
        events: events.collect(),
    };
    search.together(&Posix::new(ADMIN), 0)
}

impl Search<'_> {
    /// Runs a call. None: its answer is another one.
    fn run(&self, at: usize, machine: &Posix) -> Option<Posix> {
        let record = &self.history.records[at];
        let mut machine = machine.clone();
        let right = machine.run(record.call, record.what);
        let fits = !self.events[at].answered
            || right.is_none()
            || right == record.given.map(|given| given.answer);
        fits.then_some(machine)
    }

    /// Calls that can come next, after those in `done`, without those in `never`.
    fn next(&self, done: u32, never: u32) -> impl Iterator<Item = usize> + '_ {
        let free = move |event: &Event| (done | never) & event.bit == 0;
        (0..self.events.len()).filter(move |at| free(&self.events[*at]))
    }

    /// Calls that both devices share, one after the other, and from some point on each device for itself.
    fn together(&self, machine: &Posix, done: u32) -> bool {
        if self.alone(0, machine, done, 0) {
            return true;
        }
        self.next(done, 0).any(|at| {
            let event = self.events[at];
            let late = self.events.iter().any(|other| {
                other.answered && done & other.bit == 0 && event.before & other.bit != 0
            });
            // A call that ended before this one began cannot come after it. It may be in no order but its device's own.
            !late
                && self
                    .run(at, machine)
                    .is_some_and(|machine| self.together(&machine, done | event.bit))
        })
    }

    /// Orders of their own: first device 0's, then device 1's with none of the calls of it.
    fn alone(&self, device: Device, machine: &Posix, done: u32, taken: u32) -> bool {
        if device == 2 {
            return true;
        }
        self.order(device, (machine, machine), (done, done), taken)
    }

    /// Continues one device's order. `machines` and `done`: where the orders part, and where this one is.
    fn order(
        &self,
        device: Device,
        machines: (&Posix, &Posix),
        done: (u32, u32),
        taken: u32,
    ) -> bool {
        let ((parting, machine), (shared, mine)) = (machines, done);
        let own = self
            .events
            .iter()
            .filter(|event| event.device == device && event.answered);
        if own.clone().all(|event| mine & event.bit != 0) {
            let other = taken | mine & !shared;
            if device == 1 || self.alone(1, parting, shared, other) {
                return true;
            }
        }
        // An answered call of the other device is in that device's order, so it cannot be in this one too.
        self.next(mine, taken).any(|at| {
            let event = self.events[at];
            if event.device != device && event.answered {
                return false;
            }
            let missed = self.events.iter().any(|other| {
                other.device == device
                    && other.answered
                    && mine & other.bit == 0
                    && event.before & other.bit != 0
            });
            let next = if missed { None } else { self.run(at, machine) };
            next.is_some_and(|next| {
                self.order(device, (parting, &next), (shared, mine | event.bit), taken)
            })
        })
    }
}
