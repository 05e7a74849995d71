//! A home that no engine uses: what is done with one then. A home that is given up: this machine forgets its device.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use state::private;

use super::{Home, HomeError, SHARED, damaged};
use crate::disk::Closed;

const GONE: &str = ".gone";

/// A home that no engine uses, and that none can begin to use while this lives.
#[derive(Debug)]
pub struct Idle {
    home: Home,
    closed: Closed,
    owes: bool,
}

impl Home {
    /// Waits until no process uses the home.
    ///
    /// # Errors
    /// [`HomeError`]: another process uses it until the deadline, or its memory cannot be read.
    pub fn idle(self, deadline: Instant) -> Result<Idle, HomeError> {
        let (epoch, closed) = loop {
            let epoch = self.policies()?.newest_epoch().number;
            let closed = Closed::open(&self.memory(epoch), deadline)?;
            // Another process may have gone over to a later epoch while this one waited.
            if self.policies()?.newest_epoch().number == epoch {
                break (epoch, closed);
            }
        };
        let owes = !self.earlier_memories(epoch).is_empty();
        Ok(Idle {
            home: self,
            closed,
            owes,
        })
    }

    /// Removes what a process left that was killed while it forgot a volume.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn clean(state_directory: &Path) -> Result<(), HomeError> {
        let all = state_directory.join(SHARED);
        let entries = match fs::read_dir(&all) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(damaged(&all, e)),
        };
        for entry in entries.take(super::MAX_HOMES) {
            let path = entry.map_err(|e| damaged(&all, e))?.path();
            if path.to_str().is_some_and(|path| path.ends_with(GONE)) {
                fs::remove_dir_all(&path).map_err(|e| damaged(&path, e))?;
            }
        }
        Ok(())
    }
}

impl Idle {
    /// The home.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// How many leaves of the log this device has.
    pub fn size(&self) -> u64 {
        self.closed.size()
    }

    /// How many entries this device has sent without knowing whether they have a place in the log.
    pub fn unsent(&self) -> usize {
        self.closed.unsettled()
    }

    /// Whether this device has gone over to another log after a fork, and has not given back what it alone has.
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// Files that convict the server, or another device.
    ///
    /// # Errors
    /// [`HomeError`] when they cannot be listed.
    pub fn evidence(&self) -> Result<Vec<PathBuf>, HomeError> {
        let directory = self.home.directory.join("evidence");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(damaged(&directory, e)),
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let paths: std::io::Result<Vec<PathBuf>> = paths.collect();
        paths.map_err(|e| damaged(&directory, e))
    }

    /// Removes the home with the key of its device. It is gone at once for all programs; a process that is killed here
    /// leaves a directory that the next one removes.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn remove(self) -> Result<(), HomeError> {
        let directory = &self.home.directory;
        let gone = directory.with_extension("gone");
        match fs::remove_dir_all(&gone) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(damaged(&gone, e)),
            _ => {}
        }
        fs::rename(directory, &gone).map_err(|e| damaged(directory, e))?;
        private::sync_parent(directory)?;
        fs::remove_dir_all(&gone).map_err(|e| damaged(&gone, e))
    }
}
