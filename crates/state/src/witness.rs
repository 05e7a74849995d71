//! What a witness has cosigned, on disk: one signed note for each log. `trust::witness` decides, and this module sees to it
//! that a decision is durable before its cosignature leaves, and that no two decisions overlap.
//!
//! One directory belongs to one key, which a file in it names, and one process has its lock. A missing directory and a note that
//! cannot be read are errors, and never count as "never cosigned": a witness that forgets what it has cosigned helps to show two
//! histories. So [`create`] is the only way to an empty memory. Somebody who removes a note is not noticed.

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
/// The file that names the witness's key.
const WITNESS: &str = "witness";
/// Notes that are kept of one volume, those of its newest logs. A decision needs the newest one only.
const MAX_LOGS: usize = 16;
/// Refused checkpoints that are kept of one volume and one kind. The first ones matter most.
const MAX_EVIDENCE: usize = 16;

/// The memory of a witness, locked until it is dropped.
#[derive(Debug)]
pub struct WitnessState {
    directory: PathBuf,
    key: PublicKey,
    /// The newest log of each volume.
    newest: Mutex<HashMap<VolumeId, Note>>,
    _lock: LockFile,
}

/// Why the memory of a witness cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// There is none.
    #[error("{} is not the memory of a witness", path.display())]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// It belongs to another key.
    #[error("{} is the memory of the witness with the key {key}", path.display())]
    OtherKey {
        /// The directory.
        path: PathBuf,
        /// Its key.
        key: PublicKey,
    },
    /// There is one already.
    #[error("{} is the memory of a witness already, with the key {key}", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// Its key.
        key: PublicKey,
    },
    /// It cannot be read or written, or is in use.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why there is no cosignature.
#[derive(Debug, thiserror::Error)]
pub enum CosignError<E: std::error::Error + 'static> {
    /// The rules of a witness forbid it.
    #[error("{why}")]
    Refused {
        /// The rule.
        why: Refusal,
        /// Why the checkpoint could not be kept as evidence, which does not change the refusal.
        not_kept: Option<StateError>,
    },
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

/// Makes the empty memory of a witness that has not cosigned anything yet.
///
/// # Errors
/// [`MemoryError`]; [`MemoryError::Exists`] also for a memory of this key.
pub fn create(directory: &Path, key: &PublicKey, deadline: Instant) -> Result<(), MemoryError> {
    let notes = directory.join(COSIGNED);
    for directory in [directory, notes.as_path()] {
        private::create_directory(directory)?;
        private::tighten(directory)?;
    }
    let _lock = LockFile::take(directory.join("lock"), deadline)?;
    match owner(directory) {
        Ok(key) => {
            let path = directory.to_owned();
            return Err(MemoryError::Exists { path, key });
        }
        Err(MemoryError::Missing { .. }) => {}
        Err(error) => return Err(error),
    }
    let path = directory.join(WITNESS);
    if !names(&notes)?.is_empty() {
        return Err(failed(&path, "it is missing beside notes that were cosigned").into());
    }
    Ok(private::replace(&path, format!("{key}\n").as_bytes())?)
}

/// The key to which a memory belongs. Needs no lock.
///
/// # Errors
/// [`MemoryError`]
pub fn owner(directory: &Path) -> Result<PublicKey, MemoryError> {
    let path = directory.join(WITNESS);
    let text = match fs::read_to_string(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let path = directory.to_owned();
            return Err(MemoryError::Missing { path });
        }
        text => text.map_err(|e| failed(&path, e))?,
    };
    let key = text.strip_suffix('\n').and_then(|key| key.parse().ok());
    Ok(key.ok_or_else(|| failed(&path, "it does not name a key"))?)
}

impl WitnessState {
    /// Takes the lock of the memory that belongs to this key, and reads what was cosigned.
    ///
    /// # Errors
    /// [`MemoryError`]; [`StateError::Locked`] when another process has the lock at the deadline.
    pub fn open(
        directory: &Path,
        key: &PublicKey,
        deadline: Instant,
    ) -> Result<WitnessState, MemoryError> {
        let owner = owner(directory)?;
        if owner != *key {
            let path = directory.to_owned();
            return Err(MemoryError::OtherKey { path, key: owner });
        }
        for directory in [directory, &directory.join(COSIGNED)] {
            private::tighten(directory)?;
        }
        let lock = LockFile::take(directory.join("lock"), deadline)?;
        let mut newest: HashMap<VolumeId, Note> = HashMap::new();
        for note in notes(directory, false)? {
            let known = newest.get(&note.volume);
            if known.is_none_or(|known| known.log.epoch < note.log.epoch) {
                newest.insert(note.volume, note);
            }
        }
        Ok(WitnessState {
            directory: directory.to_owned(),
            key: *key,
            newest: Mutex::new(newest),
            _lock: lock,
        })
    }

    /// Cosigns a checkpoint if the rules allow it. `keys` are those of the volume's log, `name` is that of the witness. `sign`
    /// makes the signature line for a text. When this returns, what was cosigned is durable. The log that was cosigned last
    /// gets the same line again, and nothing is signed or written.
    ///
    /// # Errors
    /// [`CosignError`]. A checkpoint that the log's key has signed, and that does not continue what was cosigned, is kept as
    /// evidence.
    pub fn cosign<E: std::error::Error + 'static>(
        &self,
        submission: &Submission,
        keys: &[PublicKey],
        name: &str,
        sign: impl FnOnce(&str) -> Result<String, E>,
    ) -> Result<Cosigned, CosignError<E>> {
        let refused = |why, not_kept| CosignError::Refused { why, not_kept };
        // Before the lock, so that requests which the log's key has not signed do not wait for a signature.
        let signed = submission.check(keys).map_err(|why| refused(why, None))?;
        let mut note = signed.note().clone();
        let volume = note.volume;
        // Held to the end: two requests about one log follow one another.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let last = newest.get(&volume);
        let before = last.map(|note| note.log);
        if let Err(why) = signed.admit(before.as_ref()) {
            let kept = match evidence_kind(&why) {
                Some(kind) => self.keep_evidence(kind, last, submission, &note),
                None => Ok(()),
            };
            return Err(refused(why, kept.err()));
        }
        let same = last.filter(|last| last.log == note.log);
        if let Some(line) = same.and_then(|last| last.line_of(name, self.key)) {
            return Ok(Cosigned { line, before });
        }
        let line = sign(&note.text()).map_err(CosignError::Key)?;
        note.add(&line);
        self.keep(&note)?;
        if before.is_some_and(|before| before.epoch != note.log.epoch) {
            self.forget_ended(&volume);
        }
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
        let text = note.encode();
        // What cannot be read at the next start would stop the witness for good.
        Note::decode(text.as_bytes()).map_err(|why| failed(&path, why))?;
        private::replace(&path, text.as_bytes())
    }

    /// Removes the notes of a volume's oldest logs. The key of its log could fill the disk with logs otherwise.
    fn forget_ended(&self, volume: &VolumeId) {
        let directory = self.directory.join(COSIGNED);
        let begins = format!("{volume}.");
        let epoch = |name: &String| name.strip_prefix(&begins)?.parse::<u64>().ok();
        // The newest note is durable. What cannot be removed now stays until the next log begins.
        let listed = names(&directory).unwrap_or_default();
        let mut epochs: Vec<u64> = listed.iter().filter_map(epoch).collect();
        epochs.sort_unstable();
        let ended = epochs.len().saturating_sub(MAX_LOGS);
        for epoch in epochs.into_iter().take(ended) {
            let _ = fs::remove_file(directory.join(format!("{begins}{epoch}")));
        }
    }

    /// Keeps a refused checkpoint beside the one that it contradicts. `note` is the refused one with the log's lines only.
    fn keep_evidence(
        &self,
        kind: &str,
        last: Option<&Note>,
        submission: &Submission,
        note: &Note,
    ) -> Result<(), StateError> {
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
        let refused = Submission {
            note: note.clone(),
            ..submission.clone()
        };
        private::replace(&path, refused.encode().as_bytes())
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

/// The notes that the witness of this directory has cosigned last, one of each log, in the order of their file names. Needs no
/// lock.
///
/// # Errors
/// [`StateError::Failed`] for a directory that is missing, and for a note that cannot be read.
pub fn cosigned(directory: &Path) -> Result<Vec<Note>, StateError> {
    notes(directory, true)
}

/// `may_vanish`: a running witness may remove notes meanwhile.
fn notes(directory: &Path, may_vanish: bool) -> Result<Vec<Note>, StateError> {
    let directory = directory.join(COSIGNED);
    fs::metadata(&directory).map_err(|e| failed(&directory, e))?;
    let mut notes = Vec::new();
    for name in names(&directory)? {
        // What an interrupted write has left.
        if name.ends_with(".new") {
            continue;
        }
        let path = directory.join(&name);
        let note = match read(&path) {
            Err(_) if may_vanish && has_vanished(&path) => continue,
            note => note?,
        };
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

fn has_vanished(path: &Path) -> bool {
    matches!(fs::symlink_metadata(path), Err(e) if e.kind() == ErrorKind::NotFound)
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
