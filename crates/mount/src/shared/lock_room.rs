//! What a mount knows of the locks of its programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use share::locks::{Denied, Granted, Key, Known, LAPSES, Locks, Row};
use share::writeback::lock;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use trust_shared::hold::Family;
use trust_shared::principal::FileId;

use super::held_before::HeldBefore;
use super::loss::Loss;

/// Most calls that wait for other devices: each takes a place of those that all calls share. Further ones are made again
/// and again.
const MAX_WAITING: usize = 64;

/// What a request is told.
pub type Told = Result<Granted, Denied<Loss>>;
/// A request that waits.
pub type Waiter = oneshot::Sender<Told>;

/// The locks of a mount.
pub struct LockRoom {
    state: Mutex<State>,
    /// What this device may hold, on disk. None: the locks stay on this machine.
    pub before: Option<HeldBefore>,
    /// Places for calls that wait for other devices.
    pub waiting: Semaphore,
    /// True: no more calls are made. The tasks that make calls watch it.
    pub ends: watch::Sender<bool>,
}

/// What changes together.
#[derive(Default)]
pub struct State {
    /// The locks of programs.
    pub locks: Locks<Waiter, Loss>,
    /// Wakes who makes the calls of a file.
    pub drivers: BTreeMap<Key, Arc<Notify>>,
    /// When the last call began after which the log said that something is held.
    pub heard: BTreeMap<Key, Duration>,
    /// Since when which prefix of the log is known.
    pub known: Known,
}

impl State {
    /// Doubts what is held of a file if the log has said nothing of it for the time to live of locks.
    pub fn doubt_silence(&mut self, key: Key) {
        let heard = self.heard.get(&key);
        if heard.is_some_and(|heard| since_boot().saturating_sub(*heard) >= LAPSES) {
            self.locks.doubt(key);
        }
    }
}

/// Time since the machine has started. It goes on while the machine sleeps.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl LockRoom {
    /// Nothing is locked. `before`: where it is written down what this device holds.
    pub fn new(before: Option<HeldBefore>) -> LockRoom {
        LockRoom {
            state: Mutex::default(),
            before,
            waiting: Semaphore::new(MAX_WAITING),
            ends: watch::Sender::new(false),
        }
    }

    /// Stops all tasks that make calls, and waits until they have ended.
    pub async fn end(&self) {
        self.ends.send_replace(true);
        self.ends.closed().await;
    }

    /// What changes together. Nothing else is locked while it is.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The locks under which a program changes a file through an open file. None: one of them is lost.
    pub fn guards(&self, file: FileId, handle: u64) -> Option<Vec<(Family, u64)>> {
        self.state().locks.guards(file, handle)
    }

    /// A program has changed a file under these locks.
    pub fn wrote(&self, file: FileId, guards: Vec<(Family, u64)>) {
        self.state().locks.wrote(file, guards);
    }

    /// The locks under which what is local of a file was written.
    pub fn under(&self, file: FileId) -> Vec<(Family, u64)> {
        self.state().locks.under(file)
    }

    /// Whether some of what is local of a file was written under a lock that the device had before.
    pub fn is_under_older(&self, file: FileId) -> bool {
        self.state().locks.is_under_older(file)
    }

    /// All locks, for reports.
    pub fn rows(&self) -> Vec<Row> {
        self.state().locks.rows()
    }

    /// Nothing is local of a file any more.
    pub fn clean(&self, file: FileId) {
        self.state().locks.clean(file);
    }
}
