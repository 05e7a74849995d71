//! The state of one volume on this machine (design `trees.md`, *Floor*).
//!
//! One small directory per volume. It holds the floor, the head that a reader adopted last, what this machine has signed
//! ([`crate::signing_state`]), and evidence of forks and rollbacks (`evidence`). A file is replaced as a whole: write,
//! fsync, rename, fsync. All processes of the user take one lock to read, and another one to sign, which takes long where
//! a key waits for its owner.
//!
//! This is state, not a cache: without the floor the reader forgets which versions it has seen. Only the
//! rules of `trust::floor` lower it. Nothing depends on the adopted head.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trust::floor::{Floor, MAX_FLOOR_BYTES};
use trust::statement::VolumeId;

use crate::blocking::{self, AbandonOnDrop, Claim};
use crate::error::{StateError, failed, stalled};
use crate::lock::{self, LockFile};
use crate::private;
use crate::signing_state::{LEAVES, SigningState, read_head};

/// Maximum time for finding the name of a lock's holder.
const NAMING: Duration = Duration::from_millis(500);

/// The state of one volume, on disk. Clones share it.
#[derive(Debug, Clone)]
pub struct VolumeState {
    volume: VolumeId,
    directory: PathBuf,
    /// Whether this process has made or found the directory.
    is_prepared: Arc<AtomicBool>,
}

/// The state, locked against other processes until dropped.
#[derive(Debug)]
pub struct LockedState {
    volume: VolumeId,
    pub(crate) directory: PathBuf,
    _lock: LockFile,
}

/// The default state directory: `$XDG_STATE_HOME/bulla`, `~/.local/state/bulla`, or
/// `/var/lib/bulla` for services without a home.
pub fn default_directory() -> PathBuf {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    match (variable("XDG_STATE_HOME"), variable("HOME")) {
        (Some(state), _) if state.is_absolute() => state.join("bulla"),
        (_, Some(home)) => home.join(".local/state/bulla"),
        _ => PathBuf::from("/var/lib/bulla"),
    }
}

const SIGNING_LOCK: &str = "signing.lock";
pub(crate) const EVIDENCE: &str = "evidence";

impl VolumeState {
    /// The state of `volume` under `state_directory`. The first lock makes the directory; nothing is read or
    /// written before that.
    pub fn at(state_directory: &Path, volume: &VolumeId) -> VolumeState {
        VolumeState {
            volume: *volume,
            directory: state_directory.join("volumes").join(volume.to_string()),
            is_prepared: Arc::default(),
        }
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Takes the lock; waits for it on this thread until `deadline`. Holders keep it while they read and
    /// write a few small files. Not for threads of a runtime: those call [`VolumeState::update`].
    ///
    /// # Errors
    /// [`StateError::Locked`] at the deadline; [`StateError::Failed`] when the lock file cannot be made.
    pub fn lock(&self, deadline: Instant) -> Result<LockedState, StateError> {
        self.prepare()?;
        Ok(self.locked(LockFile::take(self.lock_path(), deadline)?))
    }

    /// Takes the lock of those who sign; waits for it on this thread until `deadline`. Readers do not wait for it.
    ///
    /// # Errors
    /// As [`VolumeState::lock`].
    pub fn lock_signing(&self, deadline: Instant) -> Result<SigningState, StateError> {
        self.prepare()?;
        let lock = LockFile::take(self.directory.join(SIGNING_LOCK), deadline)?;
        Ok(SigningState::new(self.directory.clone(), lock))
    }

    /// Takes the lock, runs `work` on the pool of blocking threads, and releases the lock. Waiting for
    /// the lock occupies no thread.
    ///
    /// If `work` had not begun by the deadline, or when the returned future is dropped, it never runs and the
    /// call returns. Work that had begun gets ten seconds more. After that the call returns an error that
    /// says so, and the work runs to its end.
    ///
    /// # Errors
    /// The errors of `work`; [`StateError::Locked`] when another process held the lock until the deadline;
    /// [`StateError::Stalled`] when the disk did not answer before the deadline.
    ///
    /// # Panics
    /// Outside a tokio runtime, and when `work` panics.
    pub async fn update<T, E>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&LockedState) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StateError> + Send + 'static,
    {
        let claim = Claim::default();
        let _abandon = AbandonOnDrop(claim.clone());
        let mut attempt = Attempt {
            state: self.clone(),
            lock: None,
            claim: claim.clone(),
            work,
        };
        let (path, began) = (self.lock_path(), Instant::now());
        let mut was_locked = false;
        loop {
            let tried = blocking::run(&claim, &path, deadline, || attempt.run()).await;
            let (mut lock, busy) = match tried {
                Ok(Tried::Done(done)) => return done,
                Ok(Tried::Busy(lock, busy)) => (lock, busy),
                // The last attempt came too late because of the lock.
                Err(StateError::Stalled { begun: false, .. }) if was_locked => break,
                Err(error) => return Err(error.into()),
            };
            was_locked = true;
            let Some(pause) = lock.next_pause(deadline) else {
                break;
            };
            tokio::time::sleep(pause).await;
            attempt = Attempt {
                lock: Some(lock),
                ..busy
            };
        }
        claim.abandon();
        let naming = Instant::now() + NAMING;
        let name = {
            let path = path.clone();
            move || lock::refusal(&path, began)
        };
        let refusal = blocking::run(&claim, &path, naming, name).await;
        Err(refusal.unwrap_or_else(|error| error).into())
    }

    /// Whether this machine remembers anything about the volume. Nothing is created.
    pub fn is_known(&self) -> bool {
        self.directory.join("floor").exists()
    }

    /// The directory with the evidence of forks and rollbacks; it may not exist.
    pub fn evidence_directory(&self) -> PathBuf {
        self.directory.join(EVIDENCE)
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.join("lock")
    }

    fn locked(&self, lock: LockFile) -> LockedState {
        LockedState {
            volume: self.volume,
            directory: self.directory.clone(),
            _lock: lock,
        }
    }

    /// Makes the directory and closes it to other users. Only once: if the directory is removed while the
    /// process runs, that is an error, because a new and empty one would have forgotten the floor.
    fn prepare(&self) -> Result<(), StateError> {
        if self.is_prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        private::create_directory(&self.directory)?;
        for directory in self.directory.ancestors().take(2) {
            private::tighten(directory)?;
        }
        for name in [
            SIGNING_LOCK,
            "floor",
            "signed",
            "pending",
            "confirmed",
            "adopted",
            "policy",
            EVIDENCE,
            LEAVES,
        ] {
            private::tighten(&self.directory.join(name))?;
        }
        self.is_prepared.store(true, Ordering::Release);
        Ok(())
    }
}

/// One attempt of [`VolumeState::update`] to take the lock and do its work.
struct Attempt<F> {
    state: VolumeState,
    lock: Option<LockFile>,
    claim: Claim,
    work: F,
}

enum Tried<R, F> {
    Done(R),
    Busy(LockFile, Attempt<F>),
}

impl<F> Attempt<F> {
    fn run<T, E: From<StateError>>(mut self) -> Tried<Result<T, E>, F>
    where
        F: FnOnce(&LockedState) -> Result<T, E>,
    {
        let lock = match self.open() {
            Ok(lock) => lock,
            Err(error) => return Tried::Done(Err(error.into())),
        };
        match lock.try_take() {
            Ok(true) => {}
            Ok(false) => return Tried::Busy(lock, self),
            Err(error) => return Tried::Done(Err(error.into())),
        }
        let locked = self.state.locked(lock);
        if !self.claim.begin() {
            // Nothing receives this error: the caller has left.
            return Tried::Done(Err(stalled(&self.state.lock_path(), false).into()));
        }
        Tried::Done((self.work)(&locked))
    }

    fn open(&mut self) -> Result<LockFile, StateError> {
        match self.lock.take() {
            Some(lock) => Ok(lock),
            None => {
                self.state.prepare()?;
                LockFile::open(self.state.lock_path())
            }
        }
    }
}

impl LockedState {
    /// The floor, or the empty floor when the volume was never seen.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable or not a floor. That is never taken as "never
    /// seen", because a reader that forgot what it has seen would accept a rollback.
    pub fn load(&self) -> Result<Floor, StateError> {
        let path = self.directory.join("floor");
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(file) => file
                .take(MAX_FLOOR_BYTES as u64 + 1)
                .read_to_end(&mut bytes),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Floor::new(self.volume)),
            Err(e) => return Err(failed(&path, e)),
        }
        .map_err(|e| failed(&path, e))?;
        let floor = Floor::decode(&bytes).map_err(|e| failed(&path, e))?;
        if floor.volume() != self.volume {
            return Err(failed(&path, "it is the floor of another volume"));
        }
        Ok(floor)
    }

    /// Replaces the floor; durable when this returns.
    ///
    /// # Errors
    /// [`StateError`]; then the old floor is still in place.
    pub fn store(&self, floor: &Floor) -> Result<(), StateError> {
        self.replace("floor", &floor.encode())
    }

    /// The head that was adopted last, if there was one. It is as untrusted as a head from a replica:
    /// the caller judges it.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn adopted_head(&self) -> Result<Option<Vec<u8>>, StateError> {
        read_head(&self.directory.join("adopted"))
    }

    /// Keeps the head that was adopted.
    ///
    /// # Errors
    /// [`StateError`]; then the previous head is still in place.
    pub fn keep_adopted_head(&self, head: &[u8]) -> Result<(), StateError> {
        let kept = self.adopted_head();
        if kept.is_ok_and(|kept| kept.as_deref() == Some(head)) {
            return Ok(());
        }
        self.replace("adopted", head)
    }

    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        private::replace(&self.directory.join(name), bytes)
    }
}
