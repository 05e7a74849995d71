//! What this machine has signed of one volume (docs/decisions/0078): the heads that it signed, showed and confirmed last,
//! the policy that an owner signed here, and the last leaves of the log.
//!
//! Two records of one version are a fork for every reader, so a command that signs compares, signs and remembers under one
//! lock. Readers of the volume do not take it: a key may lie in a token that waits for a finger.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use trust::statement::MAX_SIGNED_BYTES;

use crate::error::{StateError, failed};
use crate::lock::LockFile;
use crate::private;

/// Number of leaves that a publisher keeps. A repository that was restored from a backup, or whose disk was
/// full, may lack that many versions. Beyond that, its log has a gap that cannot be filled.
const MAX_LEAVES: u64 = 1024;

pub(crate) const LEAVES: &str = "leaves";

fn leaf_name(epoch: u64, index: u64) -> String {
    format!("{LEAVES}/{epoch}.{index}")
}

/// What was signed, locked against other processes that sign until dropped.
#[derive(Debug)]
pub struct SigningState {
    directory: PathBuf,
    _lock: LockFile,
}

impl SigningState {
    pub(crate) fn new(directory: PathBuf, lock: LockFile) -> SigningState {
        SigningState {
            directory,
            _lock: lock,
        }
    }

    /// The head that this machine signed last as the volume's publisher, if it ever signed one.
    ///
    /// # Errors
    /// [`StateError`] when the file exists and is not readable.
    pub fn signed(&self) -> Result<Option<Vec<u8>>, StateError> {
        read_head(&self.directory.join("signed"))
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
        read_head(&self.directory.join("pending"))
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
        read_head(&self.directory.join("confirmed"))
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
        read_head(&self.directory.join("policy"))
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

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        private::replace(&self.directory.join(name), bytes)
    }
}

/// A head or a policy that was kept; none if the file does not exist.
pub(crate) fn read_head(path: &Path) -> Result<Option<Vec<u8>>, StateError> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file
            .take(trust::head::MAX_HEAD_BYTES as u64 + 1)
            .read_to_end(&mut bytes),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, e)),
    }
    .map_err(|e| failed(path, e))?;
    Ok(Some(bytes))
}
