//! Threads that call the device. Two groups exist, one for reads and one for everything that may wait until the device
//! has room: writes then never keep reads from their threads. A group starts threads as it needs them, up to its limit.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::export::Command;
use super::in_flight::Room;
use super::wire::NbdError;
use crate::{Block, BlockError};

/// Enough for a call of the device.
const STACK_BYTES: usize = 1 << 20;

/// A request and where its reply goes.
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) room: Room,
}

/// A group of threads and its queue. The queue is as long as all clients' requests in flight, which are bounded.
pub(super) struct Workers {
    name: &'static str,
    block: Arc<dyn Block>,
    max_threads: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// A thread was woken and has not looked yet. It wakes the next one if there is more to do: one wake-up for each
    /// job would cost more than short jobs take.
    is_waking: bool,
    stopped: bool,
}

impl Workers {
    pub(super) fn new(
        name: &'static str,
        block: Arc<dyn Block>,
        max_threads: usize,
    ) -> Arc<Workers> {
        Arc::new(Workers {
            name,
            block,
            max_threads: max_threads.max(1),
            state: Mutex::default(),
            work: Condvar::new(),
        })
    }

    /// Has the job done by the next free thread.
    pub(super) fn push(self: &Arc<Self>, job: Job) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        self.wake(&mut state);
        if state.jobs.len() > state.idle && state.threads < self.max_threads {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn wake(&self, state: &mut State) {
        if state.idle > 0 && !state.is_waking && !state.jobs.is_empty() {
            state.is_waking = true;
            self.work.notify_one();
        }
    }

    fn start_thread(self: &Arc<Self>) {
        let workers = self.clone();
        let builder = thread::Builder::new().name(self.name.to_owned());
        let started = builder.stack_size(STACK_BYTES).spawn(move || {
            let _leaving = Leaving(&workers);
            while let Some(job) = workers.next() {
                let result = perform(&*workers.block, job.command);
                job.room.answer(result);
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start a thread for nbd requests");
            let mut state = self.lock();
            state.threads -= 1;
            if state.threads == 0 {
                // Dropping them answers them with an error.
                state.jobs.clear();
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                self.wake(&mut state);
                return Some(job);
            }
            if state.stopped {
                return None;
            }
            state.idle += 1;
            let woken = self.work.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            state.is_waking = false;
        }
    }

    /// The threads end when they have nothing to do.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.work.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread out, also when it panics. Another thread is started in its place if jobs wait.
struct Leaving<'a>(&'a Arc<Workers>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.threads -= 1;
        if thread::panicking() && !state.jobs.is_empty() {
            state.threads += 1;
            drop(state);
            self.0.start_thread();
        }
    }
}

fn perform(block: &dyn Block, command: Command) -> Result<Vec<u8>, NbdError> {
    let (result, durable) = match command {
        Command::Read { offset, bytes } => {
            let mut data = vec![0; usize::try_from(bytes).unwrap_or_default()];
            let result = block.read(offset, &mut data);
            return result.map(|()| data).map_err(|error| told(&error));
        }
        Command::Write {
            offset,
            data,
            durable,
        } => (block.write(offset, &data), durable),
        Command::Zero {
            offset,
            bytes,
            durable,
        } => (block.zero(offset, u64::from(bytes)), durable),
        Command::Flush => (Ok(()), true),
    };
    result.map_err(|error| told(&error))?;
    if durable && let Err(error) = block.flush() {
        // A device that became read-only has lost writes: that is no matter of permission.
        return Err(match told(&error) {
            NbdError::Perm => NbdError::Io,
            other => other,
        });
    }
    Ok(Vec::new())
}

/// The protocol's error for the device's.
fn told(error: &BlockError) -> NbdError {
    tracing::debug!(
        error = error as &dyn std::error::Error,
        "nbd request failed"
    );
    match error {
        BlockError::Io { source, .. } if is_full(source) => NbdError::NoSpc,
        BlockError::Integrity { .. } | BlockError::Io { .. } => NbdError::Io,
        BlockError::ReadOnly { .. } => NbdError::Perm,
        BlockError::Range { .. } => NbdError::Inval,
        BlockError::Detached => NbdError::Shutdown,
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
