//! What a witness has cosigned, on disk: one signed note for each log. `trust::witness` decides, and this module sees to it
//! that a decision is durable before its cosignature leaves, and that no two decisions overlap.
//!
//! One directory belongs to one witness, and one process has its lock. A file that cannot be read is an error, and never
//! counts as "never cosigned": a witness that forgets what it has cosigned helps to show two histories.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use trust::checkpoint::MAX_CHECKPOINT_BYTES;
use trust::history::{LogPoint, leaf_hash};
use trust::key::PublicKey;
use trust::statement::VolumeId;
use trust::witness::{Note, Refusal, Submission};

use crate::error::{StateError, failed};
use crate::lock::LockFile;
use crate::private;

/// The directory of the notes.
const COSIGNED: &str = "cosigned";
/// The directory of what was refused.
const EVIDENCE: &str = "evidence";
/// Refused checkpoints that are kept of one volume and one kind. The first ones matter most.
const MAX_EVIDENCE: usize = 16;

/// The memory of a witness, locked until it is dropped.
#[derive(Debug)]
pub struct WitnessState {
    directory: PathBuf,
    /// The newest log of each volume.
    newest: Mutex<HashMap<VolumeId, Note>>,
    _lock: LockFile,
}

/// Why there is no cosignature.
#[derive(Debug, thiserror::Error)]
pub enum CosignError<E: std::error::Error + 'static> {
    /// The rules of a witness forbid it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The state cannot be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The key did not sign.
    #[error(transparent)]
    Key(E),
}

/// A cosignature, and what was cosigned before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cosigned {
    /// The signature line.
    pub line: String,
    /// The newest log of this volume before.
    pub before: Option<LogPoint>,
}

impl WitnessState {
    /// Takes the lock of a directory, which is made if there is none, and reads what was cosigned.
    ///
    /// # Errors
    /// [`StateError::Locked`] when another process has the lock at the deadline; [`StateError::Failed`].
    pub fn open(directory: &Path, deadline: Instant) -> Result<WitnessState, StateError> {
        let notes = directory.join(COSIGNED);
        for directory in [directory, notes.as_path()] {
            private::create_directory(directory)?;
            private::tighten(directory)?;
        }
        let lock = LockFile::take(directory.join("lock"), deadline)?;
        let mut newest: HashMap<VolumeId, Note> = HashMap::new();
        for note in cosigned(directory)? {
            let known = newest.get(&note.volume);
            if known.is_none_or(|known| known.log.epoch < note.log.epoch) {
                newest.insert(note.volume, note);
            }
        }
        Ok(WitnessState {
            directory: directory.to_owned(),
            newest: Mutex::new(newest),
            _lock: lock,
        })
    }

    /// Cosigns a checkpoint if the rules allow it. `keys` are those of the volume's log. `sign` makes the signature line for a
    /// text. When this returns, what was cosigned is durable.
    ///
    /// # Errors
    /// [`CosignError`]. A checkpoint that the log's key has signed, and that does not continue what was cosigned, is kept as
    /// evidence.
    pub fn cosign<E: std::error::Error + 'static>(
        &self,
        submission: &Submission,
        keys: &[PublicKey],
        sign: impl FnOnce(&str) -> Result<String, E>,
    ) -> Result<Cosigned, CosignError<E>> {
        let volume = submission.note.volume;
        // Held to the end: two requests about one log follow one another.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let last = newest.get(&volume);
        let before = last.map(|note| note.log);
        if let Err(refusal) = submission.admit(keys, before.as_ref()) {
            if let Some(kind) = evidence_kind(&refusal) {
                self.keep_evidence(kind, last, submission)?;
            }
            return Err(refusal.into());
        }
        let line = sign(&submission.note.text()).map_err(CosignError::Key)?;
        let mut note = submission.note.clone();
        note.add(&line);
        self.keep(&note)?;
        newest.insert(volume, note);
        Ok(Cosigned { line, before })
    }

    /// What was cosigned last of this volume's newest log.
    pub fn last(&self, volume: &VolumeId) -> Option<LogPoint> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.get(volume).map(|note| note.log)
    }

    fn keep(&self, note: &Note) -> Result<(), StateError> {
        let directory = self.directory.join(COSIGNED);
        let path = directory.join(format!("{}.{}", note.volume, note.log.epoch));
        // A note that was filled up with lines of strangers is kept without them.
        let mut text = note.encode();
        if text.len() > MAX_CHECKPOINT_BYTES {
            text = Note::new(note.volume, note.log).encode();
        }
        private::replace(&path, text.as_bytes())
    }

    /// Keeps a refused checkpoint beside the one that it contradicts.
    fn keep_evidence(
        &self,
        kind: &str,
        last: Option<&Note>,
        submission: &Submission,
    ) -> Result<(), StateError> {
        let note = &submission.note;
        let directory = self.directory.join(EVIDENCE);
        private::create_directory(&directory)?;
        let begins = format!("{kind}.{}.", note.volume);
        let text = leaf_hash(note.text().as_bytes());
        let text = text.iter().take(8).map(|byte| format!("{byte:02x}"));
        let name = format!(
            "{begins}{}.{}.{}",
            note.log.epoch,
            note.log.size,
            text.collect::<String>()
        );
        if directory.join(format!("{name}.refused")).exists() {
            return Ok(());
        }
        let listed = names(&directory)?;
        let kept = listed
            .iter()
            .filter(|name| name.starts_with(&begins) && name.ends_with(".refused"));
        if kept.count() >= MAX_EVIDENCE {
            return Ok(());
        }
        if let Some(last) = last {
            let path = directory.join(format!("{name}.cosigned"));
            private::replace(&path, last.encode().as_bytes())?;
        }
        let path = directory.join(format!("{name}.refused"));
        private::replace(&path, submission.encode().as_bytes())
    }
}

/// The kind of evidence that a refused checkpoint is. Two logs of one size are proof; without a proof the sender may just
/// have sent a wrong one, so these do not take the room of the others.
fn evidence_kind(refusal: &Refusal) -> Option<&'static str> {
    match refusal {
        Refusal::OtherRoot { .. } => Some("conflict"),
        Refusal::BadProof { .. } => Some("unproved"),
        _ => None,
    }
}

/// All notes that the witness of this directory has cosigned, the newest of each log, in the order of their file names. Needs
/// no lock.
///
/// # Errors
/// [`StateError::Failed`] for a directory or a note that cannot be read.
pub fn cosigned(directory: &Path) -> Result<Vec<Note>, StateError> {
    let directory = directory.join(COSIGNED);
    let mut notes = Vec::new();
    for name in names(&directory)? {
        // What an interrupted write has left.
        if name.ends_with(".new") {
            continue;
        }
        let path = directory.join(&name);
        let note = read(&path)?;
        if name != format!("{}.{}", note.volume, note.log.epoch) {
            return Err(failed(&path, "it is the note of another log"));
        }
        notes.push(note);
    }
    Ok(notes)
}

/// The files of refused checkpoints in this directory, in order.
///
/// # Errors
/// [`StateError::Failed`].
pub fn evidence(directory: &Path) -> Result<Vec<PathBuf>, StateError> {
    let directory = directory.join(EVIDENCE);
    let mut files = names(&directory)?;
    files.retain(|name| name.ends_with(".refused"));
    Ok(files.iter().map(|name| directory.join(name)).collect())
}

fn read(path: &Path) -> Result<Note, StateError> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|e| failed(path, e))?;
    let mut file = file.take(MAX_CHECKPOINT_BYTES as u64 + 1);
    file.read_to_end(&mut bytes).map_err(|e| failed(path, e))?;
    Note::decode(&bytes).map_err(|e| failed(path, e))
}

/// The names in a directory, in order; none if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>, StateError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(directory, e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| failed(directory, e))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
