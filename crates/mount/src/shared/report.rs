//! The state of a mount of a shared volume, for `bulla status` and the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use share::client::{Stopped, View};
use trust::volume_id::VolumeId;
use trust_shared::hold::Family;

use super::core::{Core, Shows};

/// The state of a mount at one moment.
#[derive(Debug, Clone)]
pub struct Report {
    /// The volume.
    pub volume: VolumeId,
    /// Its name on this machine.
    pub name: String,
    /// Where it is mounted.
    pub directory: PathBuf,
    /// `major:minor` of the mount, by which its bind mounts are found.
    pub device: Option<String>,
    /// The state that programs see.
    pub shows: Shows,
    /// Connection, phase, size of the log.
    pub view: View,
    /// Why the mount is read-only, and since when.
    pub read_only: Option<(Stopped, SystemTime)>,
    /// Files with changes that are not in the log yet.
    pub dirty_files: usize,
    /// Their local bytes.
    pub dirty_bytes: u64,
    /// How old the oldest of these changes is.
    pub oldest: Option<Duration>,
    /// Files that the kernel or a program has.
    pub known_files: usize,
    /// Files with locks of programs.
    pub locks: Vec<Locked>,
}

/// The locks of programs on one file.
#[derive(Debug, Clone)]
pub struct Locked {
    /// The file.
    pub path: String,
    /// By flock(2), and not by fcntl(2).
    pub flock: bool,
    /// Processes of this machine that have a lock.
    pub held_by: Vec<u32>,
    /// Ranges that this device holds for them, so that others wait.
    pub ranges: usize,
    /// Processes of this machine that wait, each with the process here that has the lock. None: another device has it.
    pub waiting: Vec<(u32, Option<u32>)>,
}

/// Makes reports about a mount.
#[derive(Clone)]
pub struct Reporter {
    core: Arc<Core>,
    directory: PathBuf,
    device: Option<String>,
}

impl Reporter {
    pub(super) fn new(core: Arc<Core>, directory: PathBuf, device: Option<String>) -> Reporter {
        Reporter {
            core,
            directory,
            device,
        }
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The state now.
    pub fn report(&self) -> Report {
        let core = &self.core;
        let changed = core.nodes.changed();
        let dirty = changed.iter().filter_map(|node| node.cached().dirty());
        let dirty: Vec<_> = dirty.collect();
        let now_ms = core.clock_ms();
        let age = |since_ms: &u64| Duration::from_millis(now_ms.saturating_sub(*since_ms));
        let oldest = dirty.iter().map(|(_, since_ms)| age(since_ms)).max();
        Report {
            volume: core.volume.client().volume(),
            name: core.volume.home().name().to_owned(),
            directory: self.directory.clone(),
            device: self.device.clone(),
            shows: core.shows,
            view: core.volume.client().view(),
            read_only: core.stopped(),
            dirty_files: dirty.len(),
            dirty_bytes: dirty.iter().map(|(bytes, _)| bytes).sum(),
            oldest,
            known_files: core.nodes.count(),
            locks: self.locks(),
        }
    }

    fn locks(&self) -> Vec<Locked> {
        let rows = self.core.locks.rows();
        let rows = rows.into_iter().map(|row| {
            let (file, family) = row.key;
            let node = self.core.nodes.of(&file);
            let mut held_by: Vec<u32> = row.locks.iter().map(|lock| lock.pid).collect();
            held_by.sort_unstable();
            held_by.dedup();
            Locked {
                path: node.map_or_else(String::new, |node| node.shown()),
                flock: family == Family::Flock,
                held_by,
                ranges: row.held,
                waiting: row.waiting,
            }
        });
        let used = |locked: &Locked| !locked.held_by.is_empty() || !locked.waiting.is_empty();
        rows.filter(used).collect()
    }
}
