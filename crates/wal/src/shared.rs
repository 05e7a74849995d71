//! What the threads of an open log share: the device, keys, locks, and who waits for what. Locks are taken in this
//! order: superblock, syncing, state.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

use crate::buffer::Buffer;
use crate::chain::Chain;
use crate::device::Device;
use crate::error::LogError;
use crate::frame::FrameKey;
use crate::key::{DigestKey, Key, VolumeId};
use crate::layout::Layout;
use crate::machine::Machine;
use crate::position::Lsn;
use crate::superblock::{Gap, Superblock, SuperblockKey};

/// The longest single write in bytes.
const WRITE_BYTES: usize = 4 << 20;

/// The keys of a volume's log.
#[derive(Clone)]
pub(crate) struct Keys {
    pub frame: FrameKey,
    pub digests: DigestKey,
    pub superblock: SuperblockKey,
}

impl Keys {
    pub(crate) fn new(key: &Key, volume: VolumeId) -> Keys {
        Keys {
            frame: FrameKey::new(key, volume),
            digests: DigestKey::new(key, volume),
            superblock: SuperblockKey::new(key, volume),
        }
    }

    /// Follows the chain of frames.
    pub(crate) fn chain<'a>(&'a self, layout: &'a Layout, gaps: &'a [Gap]) -> Chain<'a> {
        Chain {
            key: &self.frame,
            digests: &self.digests,
            layout,
            gaps,
        }
    }
}

pub(crate) struct Shared {
    pub device: Arc<dyn Device>,
    pub layout: Layout,
    pub keys: Keys,
    /// The superblock that is durable.
    pub superblock: Mutex<Superblock>,
    /// Held during a sync: the system reports an error to one of two that run at once.
    syncing: Mutex<()>,
    pub write_buffer: Mutex<Buffer>,
    state: Mutex<State>,
    /// The end of a commit, or a change of the pressure that somebody watches.
    pub changed: Condvar,
    /// Work for the committing thread.
    pub work: Condvar,
    pub committer: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct State {
    pub machine: Machine,
    /// Whether a thread writes and syncs for all others.
    pub committing: bool,
    /// How far the committing thread must commit.
    pub wanted: Lsn,
    pub wakers: Vec<(Lsn, Waker)>,
    pub stopped: bool,
}

/// Takes a lock. A thread that panicked holding it has left nothing half done: I/O happens outside of the state's lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(
        device: Arc<dyn Device>,
        layout: Layout,
        keys: Keys,
        machine: Machine,
        superblock: Superblock,
    ) -> Shared {
        Shared {
            device,
            layout,
            keys,
            superblock: Mutex::new(superblock),
            syncing: Mutex::new(()),
            write_buffer: Mutex::new(Buffer::zeroed(WRITE_BYTES)),
            state: Mutex::new(State {
                machine,
                committing: false,
                wanted: Lsn(0),
                wakers: Vec::new(),
                stopped: false,
            }),
            changed: Condvar::new(),
            work: Condvar::new(),
            committer: Mutex::new(None),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes what was written durable. A failure ends the log.
    pub fn sync(&self) -> Result<(), LogError> {
        let _turn = lock(&self.syncing);
        if let Some(failure) = self.state().machine.failure() {
            return Err(failure);
        }
        let synced = self.device.sync();
        synced.map_err(|e| self.fail(&LogError::io("sync", 0, e)))
    }

    /// Ends the log, and returns what every later call returns.
    pub fn fail(&self, cause: &LogError) -> LogError {
        let failure = match cause {
            LogError::Foreign | LogError::Failed { .. } => cause.clone(),
            LogError::Io { source, .. } => LogError::Failed {
                cause: format!("{cause}: {source}").into(),
            },
            _ => LogError::Failed {
                cause: cause.to_string().into(),
            },
        };
        let mut state = self.state();
        if state.machine.failure().is_none() {
            tracing::error!(%failure, "the log has failed");
        }
        state.machine.fail(failure.clone());
        let failure = state.machine.failure().unwrap_or(failure);
        self.announce(&mut state);
        failure
    }

    /// Wakes whoever waits for a commit that has happened now, or never will.
    pub fn announce(&self, state: &mut State) {
        let durable = state.machine.durable().lsn;
        let over = state.stopped || state.machine.failure().is_some();
        let wakers = std::mem::take(&mut state.wakers);
        for (lsn, waker) in wakers {
            if over || lsn <= durable {
                waker.wake();
            } else {
                state.wakers.push((lsn, waker));
            }
        }
        self.changed.notify_all();
        if over {
            self.work.notify_all();
        }
    }
}
