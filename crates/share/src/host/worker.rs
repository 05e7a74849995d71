//! The two threads of a server: one takes commits to their end, wakes sessions and keeps deadlines; the other moves
//! leaves to files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commit::Woken;
use super::{Core, Host, HostError, mailbox};
use crate::blocks::storage::lock;

/// How often the tail is looked at, and the devices' Attests are kept.
const LOOK_EVERY: Duration = Duration::from_secs(1);
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
            ("host commit", commit as fn(&Core)),
            ("host move", move_leaves),
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
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic was reported by its thread
        }
        let calls = lock(&self.core.mailbox).close();
        mailbox::call(calls);
    }
}

fn commit(core: &Core) {
    let mut next_beat = Instant::now() + core.options.heartbeat;
    loop {
        let now = Instant::now();
        let mut until = next_beat;
        if now >= next_beat {
            next_beat = now + core.options.heartbeat;
            lock(&core.state).orderer.beat();
            wake(core);
            until = next_beat;
        }
        let again = core.try_again(now);
        let (calls, deadline) = {
            let mut mailbox = lock(&core.mailbox);
            (mailbox.expire(now), mailbox.next())
        };
        mailbox::call(calls);
        let until = [again, deadline]
            .into_iter()
            .flatten()
            .fold(until, Instant::min);
        let Woken::Answers(answers) = core.signals.wait_to_commit(until) else {
            return;
        };
        if !answers.is_empty() && core.take_answers(answers) {
            wake(core);
            if core.must_move() {
                core.signals.look_at_tail();
            }
        }
    }
}

fn wake(core: &Core) {
    for bell in core.bells_of_news() {
        bell.ring();
    }
}

fn move_leaves(core: &Core) {
    let mut rests_until = Instant::now();
    let mut kept = 0;
    while core.signals.wait_to_move(LOOK_EVERY) {
        kept = core.keep_attests(kept);
        let rest = rests_until.saturating_duration_since(Instant::now());
        if !core.signals.rest(rest) {
            break;
        }
        if !core.must_move() {
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
