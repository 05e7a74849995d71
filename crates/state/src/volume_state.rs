//! The floor on disk: what this reader has already seen of a volume (design `trees.md`, *Floor*).
//!
//! It is state, not cache: one small file a volume under the state directory, replaced by write,
//! fsync, rename, fsync, under a lock that all processes of the user take. Losing it forgets which
//! versions were seen; nothing else may lower it. Beside it lie the head that
//! a publisher here signed last with the last leaves of the log that it made, the head that a reader
//! adopted last (which nothing depends on), and evidence of forks and rollbacks.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};
use trust::floor::{Floor, MAX_FLOOR_BYTES};
use trust::statement::{MAX_SIGNED_BYTES, VolumeId};
use trust::{Hasher, Kind};

use crate::error::StateError;

/// Pieces of evidence kept per volume; the oldest are what matters, so later ones are dropped.
const MAX_EVIDENCE: usize = 64;

/// Leaves that a publisher keeps: so many versions may be missing in a repository (it was set back, or
/// its disk was full each time) before its log has a hole that nobody can fill.
const MAX_LEAVES: u64 = 1024;

/// The state of one volume, on disk.
#[derive(Debug, Clone)]
pub struct State {
    volume: VolumeId,
    directory: PathBuf,
}

/// The state, locked against other processes until dropped.
#[derive(Debug)]
pub struct LockedState {
    volume: VolumeId,
    directory: PathBuf,
    _lock: File,
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

fn leaf_name(epoch: u64, index: u64) -> String {
    format!("{LEAVES}/{epoch}.{index}")
}

fn failed(path: &Path, cause: impl std::fmt::Display) -> StateError {
    StateError {
        path: path.display().to_string(),
        cause: cause.to_string(),
    }
}

impl State {
    /// The state of `volume` under `state_directory`, which is made when missing.
    ///
    /// # Errors
    /// [`StateError`] when it cannot be made.
    pub fn open(state_directory: &Path, volume: &VolumeId) -> Result<State, StateError> {
        let directory = state_directory.join("volumes").join(volume.to_string());
        let is_new = !directory.exists();
        fs::create_dir_all(&directory).map_err(|e| failed(&directory, e))?;
        if is_new {
            // A floor in a directory that is gone after a power cut is no floor.
            for above in directory.ancestors().skip(1).take(2) {
                let synced = File::open(above).and_then(|above| above.sync_all());
                synced.map_err(|e| failed(above, e))?;
            }
        }
        Ok(State {
            volume: *volume,
            directory,
        })
    }

    /// Waits for the lock. Holders keep it for a read and a write of one small file.
    ///
    /// # Errors
    /// [`StateError`] when the lock file cannot be made.
    pub fn lock(&self) -> Result<LockedState, StateError> {
        let path = self.directory.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| failed(&path, e))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed(&path, e))?;
        Ok(LockedState {
            volume: self.volume,
            directory: self.directory.clone(),
            _lock: lock,
        })
    }
}

impl LockedState {
    /// The floor, or the empty one when the volume was never seen.
    ///
    /// # Errors
    /// [`StateError`] when the file is there but not readable or not a floor: a reader that
    /// forgot what it has seen would accept a rollback, so this is never taken for "never seen".
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
    /// [`StateError`]; the old floor is then still there.
    pub fn store(&self, floor: &Floor) -> Result<(), StateError> {
        self.replace("floor", &floor.encode())
    }

    /// The head that this machine signed last as the volume's publisher, if it ever did.
    ///
    /// # Errors
    /// [`StateError`] when the file is there but not readable.
    pub fn signed(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("signed")
    }

    /// The head that was adopted last, if there ever was one. Whoever uses it judges it like a
    /// stranger's.
    ///
    /// # Errors
    /// [`StateError`] when the file is there but not readable.
    pub fn kept(&self) -> Result<Option<Vec<u8>>, StateError> {
        self.head("adopted")
    }

    /// Keeps the head that was adopted.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn keep(&self, head: &[u8]) -> Result<(), StateError> {
        if self.kept().is_ok_and(|kept| kept.as_deref() == Some(head)) {
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

    /// Keeps the head that is about to be shown, before anybody can see it.
    ///
    /// # Errors
    /// [`StateError`]; the head must not be shown then.
    pub fn keep_signed(&self, head: &[u8]) -> Result<(), StateError> {
        self.replace("signed", head)
    }

    /// Keeps a leaf of the log, signed, before the head that it is a leaf of is kept as signed.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn keep_leaf(&self, epoch: u64, index: u64, leaf: &[u8]) -> Result<(), StateError> {
        let kept = self.leaves(epoch, index, index.saturating_add(1));
        if kept.first().is_some_and(|(_, kept)| kept == leaf) {
            return Ok(());
        }
        let directory = self.directory.join(LEAVES);
        fs::create_dir_all(&directory).map_err(|e| failed(&directory, e))?;
        self.replace(&leaf_name(epoch, index), leaf)?;
        if let Some(oldest) = index.checked_sub(MAX_LEAVES) {
            let path = self.directory.join(leaf_name(epoch, oldest));
            // One that was never kept is not there.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// The leaves `from..until` of a log, as far as they are kept: index and signed statement. What
    /// cannot be read is not kept.
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

    /// Keeps a head that contradicts the version adopted last, and that version's head with it: each is
    /// signed, and together they convince people who have neither.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn keep_contradiction(&self, head: &[u8]) -> Result<(), StateError> {
        if let Ok(Some(adopted)) = self.kept() {
            self.keep_evidence(&adopted)?;
        }
        self.keep_evidence(head)
    }

    /// Keeps a piece of evidence (two contradicting heads, a rolled-back head) for people to look at.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn keep_evidence(&self, bytes: &[u8]) -> Result<(), StateError> {
        // Any fixed key does: the name only keeps one piece from being kept twice.
        let name = Hasher::new(&[0; 32]).name(Kind::Data, bytes).to_string();
        let directory = self.directory.join("evidence");
        fs::create_dir_all(&directory).map_err(|e| failed(&directory, e))?;
        let kept = fs::read_dir(&directory)
            .map_err(|e| failed(&directory, e))?
            .count();
        if kept >= MAX_EVIDENCE || directory.join(&name).exists() {
            return Ok(());
        }
        self.replace(&format!("evidence/{name}"), bytes)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let path = self.directory.join(name);
        let mut temporary = path.clone().into_os_string();
        temporary.push(".new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            match path.parent() {
                Some(parent) => File::open(parent)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|e| failed(&path, e))
    }
}
