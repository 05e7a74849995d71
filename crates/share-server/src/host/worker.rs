//! The threads of a server: one signs notes and keeps deadlines; another moves leaves to files; the third collects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commit::Woken;
use super::session::Bell;
use super::{Core, Host, HostError, State, collecting, mailbox};
use crate::blocks::storage::lock;

/// The devices are looked at so often at most, because each look is at all of them.
const BEAT_EVERY: Duration = Duration::from_millis(50);
/// How often the tail is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the devices' Attests rest at least before they are kept again, and how many times as long as that took: all
/// of them are written each time.
const ATTESTS_REST: Duration = Duration::from_millis(100);
const ATTESTS_OF_TIME: u32 = 9;
/// After a move leaves rest this many times as long as it took: each writes up to 16 MiB again, and a full temporary
/// log could ask for one at every commit.
const MOVES_OF_TIME: u32 = 5;

impl Host {
    /// Starts the threads of a server.
    pub(super) fn run(core: Arc<Core>) -> Result<Arc<Host>, HostError> {
        let mut host = Host {
            core,
            threads: Vec::new(),
        };
        for (name, work) in [
            ("host commit", commit as fn(&Arc<Core>)),
            ("host move", move_leaves),
            ("host collect", collecting::run),
        ] {
            let core = Arc::clone(&host.core);
            let thread = std::thread::Builder::new().name(name.to_owned());
            let started = thread.spawn(move || work(&core));
            let started = started.map_err(|error| host.core.place.io_error("", error))?;
            host.threads.push(started);
        }
        Ok(Arc::new(host))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.core.stop(HostError::Stopped);
        self.core.signals.stop();
        self.core.blocks.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic was reported by its thread
        }
        if let Err(error) = self.core.book.close() {
            tracing::warn!(%error, "when blocks were used last is not written");
        }
        let calls = lock(&self.core.mailbox).close();
        mailbox::call(calls);
    }
}

fn commit(core: &Arc<Core>) {
    loop {
        let now = Instant::now();
        let next_beat = core.beat(now);
        let again = core.try_again(now);
        let gathered = core.gathered(now);
        let (calls, deadline) = {
            let mut mailbox = lock(&core.mailbox);
            (mailbox.expire(now), mailbox.next())
        };
        mailbox::call(calls);
        let until = [again, gathered, deadline]
            .into_iter()
            .flatten()
            .fold(next_beat, Instant::min);
        loop {
            match core.signals.wait_to_commit(until) {
                Woken::Sign => core.sign_note(),
                Woken::Look => break,
                Woken::Stop => return,
            }
        }
    }
}

fn move_leaves(core: &Arc<Core>) {
    let mut rests_until = Instant::now();
    let mut kept = 0;
    while core.signals.wait_to_move(LOOK_EVERY) {
        let Some(now_kept) = keep_attests(core, kept) else {
            break;
        };
        kept = now_kept;
        core.accuse();
        if Instant::now() < rests_until || !core.must_move() {
            continue;
        }
        let began = Instant::now();
        let failure = core.move_leaves().err();
        rests_until = Instant::now() + MOVES_OF_TIME * began.elapsed();
        if let Some(error) = &failure {
            tracing::warn!(%error, "leaves cannot move out of the temporary log");
        }
        *lock(&core.failure) = failure;
    }
    core.keep_attests(kept);
}

/// Keeps the devices' Attests if there are newer ones than those of number `kept`. Returns the number of the newest;
/// nothing when the server stops.
fn keep_attests(core: &Core, kept: u64) -> Option<u64> {
    let began = Instant::now();
    let newest = core.keep_attests(kept);
    let rest = ATTESTS_REST.max(ATTESTS_OF_TIME * began.elapsed());
    let goes_on = newest == kept || core.signals.rest(rest.min(LOOK_EVERY));
    goes_on.then_some(newest)
}

impl Core {
    /// Wakes the sessions of devices that are due. Gives when the next one will be. It is called often, and mostly none
    /// is.
    pub(super) fn beat(&self, now: Instant) -> Instant {
        let (bells, next) = {
            let mut state = lock(&self.state);
            if now < state.beat_at {
                return state.beat_at;
            }
            let bells = state.beat(now, self.options.heartbeat);
            (bells, state.beat_at)
        };
        bells.iter().for_each(|bell| bell.ring());
        next
    }
}

impl State {
    fn beat(&mut self, now: Instant, idle: Duration) -> Vec<Arc<Bell>> {
        let mut next = now.checked_add(idle).unwrap_or(now);
        let mut bells = Vec::new();
        for (device, slot) in &mut self.slots {
            if slot.pulse.due() <= now {
                slot.pulse.sent(now);
                self.orderer.beat_to(*device);
                bells.push(Arc::clone(&slot.bell));
            }
            next = next.min(slot.pulse.due());
        }
        let soonest = now.checked_add(BEAT_EVERY).unwrap_or(now);
        self.beat_at = next.max(soonest);
        bells
    }
}
