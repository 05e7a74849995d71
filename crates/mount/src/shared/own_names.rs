//! Names that a mount has changed itself: the kernel, which asked for it, knows of them.

use std::collections::HashMap;
use std::sync::Mutex;

use share::writeback::lock;
use trust_shared::principal::{FileId, Name};

/// Most names that are remembered as changed by this mount.
const MAX_OWN: usize = 1 << 12;

/// The names, each with the size of a prefix that has the change.
#[derive(Debug, Default)]
pub struct OwnNames(Mutex<HashMap<(FileId, Name), u64>>);

impl OwnNames {
    /// This mount has changed a name.
    pub fn changed(&self, directory: FileId, name: &Name, at: u64) {
        let mut names = lock(&self.0);
        if names.len() >= MAX_OWN {
            names.clear();
        }
        names.insert((directory, name.clone()), at);
    }

    /// Whether the change at a position is one of them.
    pub fn has(&self, directory: FileId, name: &Name, position: u64) -> bool {
        let names = lock(&self.0);
        let at = names.get(&(directory, name.clone()));
        at.is_some_and(|at| *at > position)
    }
}
