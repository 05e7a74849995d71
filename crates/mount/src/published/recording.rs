//! What programs read of a mount, noted as a profile (`volume::profile`).
//!
//! The kernel asks once for what it keeps, so a path is noted when it is used for the first time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use volume::profile::Profile;

use super::nodes::Node;

/// Notes what programs read.
#[derive(Debug, Default)]
pub struct Recorder {
    profile: Mutex<Profile>,
}

impl Recorder {
    /// What was read until now.
    pub fn profile(&self) -> Profile {
        self.noted().clone()
    }

    /// A name was looked up and found.
    pub(super) fn found(&self, parent: &Node, name: &[u8]) {
        self.noted().note(&join(parent.bytes(), name));
    }

    /// A directory was opened to list it.
    pub(super) fn listed(&self, directory: &Node) {
        self.noted().note_whole(&directory.bytes());
    }

    /// Bytes of a file of `size` bytes were read.
    pub(super) fn read(&self, file: &Node, offset: u64, len: usize, size: u64) {
        let end = offset.saturating_add(len as u64);
        self.noted().note_range(&file.bytes(), offset..end, size);
    }

    fn noted(&self) -> MutexGuard<'_, Profile> {
        self.profile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn join(mut directory: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !directory.is_empty() {
        directory.push(b'/');
    }
    directory.extend_from_slice(name);
    directory
}
