//! The state of one volume on this machine (design `trees.md`, *Floor*).
//!
//! One small directory per volume. It holds the floor, the head that a reader adopted last, the head that a
//! publisher on this machine signed last with the last leaves of its log, and evidence of forks and
//! rollbacks (`evidence`). A file is replaced as a whole: write, fsync, rename, fsync. All processes of the user take one
//! lock.
//!
//! This is state, not a cache: without the floor the reader forgets which versions it has seen. Only the
//! rules of `trust::floor` lower it. Nothing depends on the adopted head.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use trust::floor::{Floor, MAX_FLOOR_BYTES};
use trust::statement::{MAX_SIGNED_BYTES, VolumeId};

use crate::blocking::{self, AbandonOnDrop, Claim};
use crate::error::{StateError, failed, stalled};
use crate::lock::{self, LockFile};
use crate::private;

/// Number of leaves that a publisher keeps. A repository that was restored from a backup, or whose disk was
/// full, may lack that many versions. Beyond that, its log has a gap that cannot be filled.
const MAX_LEAVES: u64 = 1024;

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

const LEAVES: &str = "leaves";
pub(crate) const EVIDENCE: &str = "evidence";

fn leaf_name(epoch: u64, index: u64) -> String {
    format!("{LEAVES}/{epoch}.{index}")
}

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
            "floor", "signed", "pending", "adopted", "policy", EVIDENCE, LEAVES,
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

    /// The head that this machine signed last as the volume's publisher, if it ever signed one.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn signed(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("signed")
    }

    /// The head that was adopted last, if there was one. It is as untrusted as a head from a replica:
    /// the caller judges it.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn adopted_head(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("adopted")
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

    fn head(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.directory.join(name);
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(file) => file
                .take(trust::head::MAX_HEAD_BYTES as u64 + 1)
                .read_to_end(&mut bytes),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(&path, e)),
        }
        .map_err(|e| failed(&path, e))?;
        Ok(Some(bytes))
    }

    /// Keeps the head that is about to be published. Call this before any reader can see the head.
    ///
    /// # Errors
    /// [`StateError`]; then the head must not be published.
    pub fn keep_signed(&self, head: &[u8]) -> Result<(), StateError> {
        self.replace("signed", head)
    }

    /// The head that this machine signed, and that witnesses may have heard of, before any reader could see it.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn pending(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("pending")
    }

    /// Keeps a head that witnesses are about to hear of, or forgets it.
    ///
    /// # Errors
    /// [`StateError`]; then no witness must hear of it.
    pub fn keep_pending(&self, head: Option<&[u8]>) -> Result<(), StateError> {
        let path = self.directory.join("pending");
        let Some(head) = head else {
            return match fs::remove_file(&path) {
                Ok(()) => private::sync_parent(&path),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                Err(e) => Err(failed(&path, e)),
            };
        };
        self.replace("pending", head)
    }

    /// The head that a timestamp key of this machine confirmed last for a repository elsewhere, if one ever did.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn confirmed(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("confirmed")
    }

    /// Keeps the head that is confirmed. Call this before anybody can see the signature.
    ///
    /// # Errors
    /// [`StateError`]; then the signature must not be given away.
    pub fn keep_confirmed(&self, head: &[u8]) -> Result<(), StateError> {
        self.replace("confirmed", head)
    }

    /// The policy that an owner's key signed last on this machine, if one ever did.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn signed_policy(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("policy")
    }

    /// Keeps a policy that an owner's key has signed. Call this before anybody can see the signature.
    ///
    /// # Errors
    /// [`StateError`]; then the signature must not be given away.
    pub fn keep_signed_policy(&self, policy: &[u8]) -> Result<(), StateError> {
        self.replace("policy", policy)
    }

    /// Keeps a signed leaf of the log. Call this before keeping the head of that log.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn keep_leaf(&self, epoch: u64, index: u64, leaf: &[u8]) -> Result<(), StateError> {
        let kept = self.leaves(epoch, index, index.saturating_add(1));
        if kept.first().is_some_and(|(_, kept)| kept == leaf) {
            return Ok(());
        }
        let directory = self.directory.join(LEAVES);
        private::create_directory(&directory)?;
        self.replace(&leaf_name(epoch, index), leaf)?;
        if let Some(oldest) = index.checked_sub(MAX_LEAVES) {
            let path = self.directory.join(leaf_name(epoch, oldest));
            // The leaf may never have been kept.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// The kept leaves `from..until` of a log: index and signed statement. Unreadable ones are left out.
    pub fn leaves(&self, epoch: u64, from: u64, until: u64) -> Vec<(u64, Bytes)> {
        let first = from.max(until.saturating_sub(MAX_LEAVES));
        let read = |index| {
            let file = File::open(self.directory.join(leaf_name(epoch, index))).ok()?;
            let mut bytes = Vec::new();
            let most = MAX_SIGNED_BYTES as u64;
            file.take(most).read_to_end(&mut bytes).ok()?;
            Some((index, bytes.into()))
        };
        (first..until).filter_map(read).collect()
    }

    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        private::replace(&self.directory.join(name), bytes)
    }
}
