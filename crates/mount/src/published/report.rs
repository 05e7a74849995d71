//! The state of a mount, for `bulla status` and metrics. A report is made on request from existing counters,
//! some of them in `reader::Blocks`, `store::mirrors` and `store::cache`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::cache::CacheLimits;
use store::mirrors::{Outage, Status};
use trust::statement::VolumeId;

pub use crate::published::faults::Refresh;
use crate::published::faults::load;
use crate::published::operations::Core;

/// The state of a mount at one moment.
#[derive(Debug, Clone)]
pub struct Report {
    /// The volume.
    pub volume: VolumeId,
    /// Where it is mounted.
    pub directory: PathBuf,
    /// `major:minor` of the mount, by which its bind mounts are found.
    pub device: Option<String>,
    /// The version that programs see.
    pub version: u64,
    /// Begin of validity of the version's statement, unix seconds.
    pub signed_unix_s: u64,
    /// End of validity, unix seconds; `None` if the mount stays at this version, which then does not expire.
    pub valid_until_unix_s: Option<u64>,
    /// When the volume's newest policy ends, and the volume with it; `None` if it has no end, or if the mount stays
    /// at this version.
    pub policy_until_unix_s: Option<u64>,
    /// The mount's own time, unix seconds: it never goes back.
    pub now_unix_s: u64,
    /// Mounted with the version kept on this machine, and no mirror has confirmed it since.
    pub is_offline: bool,
    /// No mirror answers, and reads wait for one.
    pub outage: Option<Outage>,
    /// Files and directories that the kernel holds.
    pub known_files: usize,
    /// State of each mirror, in the order in which they were given.
    pub mirrors: Vec<Status>,
    /// Memory that verified blocks use, and its limit, bytes.
    pub memory_bytes: (u64, u64),
    /// The cache on disk.
    pub disk: Option<Disk>,
    /// Counters of fetched blocks.
    pub fetches: Fetches,
    /// Requests that failed, by the product-wide name of the error.
    pub errors: Vec<(&'static str, u64)>,
    /// How often a newer version was looked for, and how often that failed.
    pub refreshes: (u64, u64),
    /// The last of these.
    pub last_refresh: Option<Refresh>,
}

/// Counters of fetched blocks.
#[derive(Debug, Clone, Copy)]
pub struct Fetches {
    /// Requests for blocks, without hedges.
    pub requests: u64,
    /// Blocks wanted and received.
    pub fetched: u64,
    /// Blocks received unasked and kept.
    pub around: u64,
    /// Blocks that the disk cache had.
    pub from_disk: u64,
    /// Answers that failed a check.
    pub wrong: u64,
}

/// The cache on disk.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Where.
    pub directory: PathBuf,
    /// What it takes, bytes.
    pub used_bytes: u64,
    /// What it may take.
    pub limits: CacheLimits,
    /// Nothing more is kept: the disk has too little space.
    pub is_full: bool,
    /// Blocks given out.
    pub hits: u64,
    /// Blocks that were not there.
    pub misses: u64,
    /// Blocks written.
    pub written: u64,
    /// Blocks for which there was no room.
    pub refused: u64,
    /// Blocks that did not match their handles.
    pub damaged: u64,
    /// Blocks removed to make room.
    pub evicted: u64,
}

/// Makes reports about one mount, also while it is being served elsewhere.
#[derive(Debug, Clone)]
pub struct Reporter {
    core: Arc<Core>,
    directory: PathBuf,
    device: Option<String>,
}

impl Reporter {
    pub(crate) fn new(core: Arc<Core>, directory: PathBuf, device: Option<String>) -> Reporter {
        Reporter {
            core,
            directory,
            device,
        }
    }

    /// Where the mount is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The state now. Waits for nothing but short locks.
    pub fn report(&self) -> Report {
        let volume = &self.core.volume;
        let view = self.core.view();
        let (snapshot, faults) = (&view.snapshot, &self.core.faults);
        Report {
            volume: volume.id(),
            directory: self.directory.clone(),
            device: self.device.clone(),
            version: snapshot.record().version,
            signed_unix_s: snapshot.record().start,
            valid_until_unix_s: snapshot.end(),
            policy_until_unix_s: snapshot.policy_end().filter(|_| snapshot.end().is_some()),
            now_unix_s: volume.now(),
            is_offline: volume.is_offline(),
            outage: volume.mirrors().outage(),
            known_files: self.core.nodes.len(),
            mirrors: volume.mirrors().status(),
            memory_bytes: snapshot.blocks().memory_bytes(),
            disk: self.disk(),
            fetches: self.fetches(),
            errors: faults.errors(),
            refreshes: faults.refreshes(),
            last_refresh: faults.last_refresh(),
        }
    }

    fn fetches(&self) -> Fetches {
        let view = self.core.view();
        let counters = view.snapshot.blocks().counters();
        Fetches {
            requests: load(&counters.requests),
            fetched: load(&counters.fetched),
            around: load(&counters.around),
            from_disk: load(&counters.from_disk),
            wrong: load(&counters.wrong),
        }
    }

    fn disk(&self) -> Option<Disk> {
        let view = self.core.view();
        let disk = view.snapshot.blocks().disk()?;
        let counters = disk.counters();
        Some(Disk {
            directory: disk.directory().to_owned(),
            used_bytes: disk.used_bytes(),
            limits: disk.limits(),
            is_full: disk.is_full(),
            hits: load(&counters.hits),
            misses: load(&counters.misses),
            written: load(&counters.written),
            refused: load(&counters.refused),
            damaged: load(&counters.damaged),
            evicted: load(&counters.evicted),
        })
    }
}
