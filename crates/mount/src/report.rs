//! What a mount tells of itself, for people and metrics: gathered when somebody asks, from what is
//! counted anyway. Relies on `reader::Blocks`, `store::mirrors` and `store::cache` for their parts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use reader::ReadError;
use store::cache::CacheLimits;
use store::mirrors::Status;
use trust::error::Class;
use trust::statement::VolumeId;
use volume::VolumeError;

use crate::failure::Failure;
use crate::operations::Core;

/// What went wrong since the mount began.
#[derive(Debug, Default)]
pub struct Faults {
    unavailable: AtomicU64,
    expired: AtomicU64,
    integrity: AtomicU64,
    rollback: AtomicU64,
    fork: AtomicU64,
    other: AtomicU64,
    refreshes: AtomicU64,
    refreshes_failed: AtomicU64,
    last_refresh: Mutex<Option<Refresh>>,
}

impl Faults {
    /// Counts a request that was not answered with what was asked for. That something is proved not to
    /// be there, or is of another kind, is an answer.
    pub(crate) fn count(&self, failure: &Failure) {
        let Failure::Read(error) = failure else {
            return;
        };
        let counter = match (error.class(), error) {
            (Some(Class::Unavailable), _) => &self.unavailable,
            (Some(Class::Expired), _) => &self.expired,
            (Some(Class::Integrity), _) => &self.integrity,
            (Some(Class::Rollback), _) => &self.rollback,
            (Some(Class::Fork), _) => &self.fork,
            (None, VolumeError::Read(ReadError::NotFound { .. } | ReadError::WrongKind { .. })) => {
                return;
            }
            (None, _) => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes how a look for a newer version ended.
    pub(crate) fn refreshed(&self, error: Option<&VolumeError>) {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
        if error.is_some() {
            self.refreshes_failed.fetch_add(1, Ordering::Relaxed);
        }
        let refresh = Refresh {
            at: std::time::SystemTime::now(),
            error: error.cloned(),
        };
        let last = self.last_refresh.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = Some(refresh);
    }

    fn last_refresh(&self) -> Option<Refresh> {
        let last = self.last_refresh.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How the last look for a newer version ended.
#[derive(Debug, Clone)]
pub struct Refresh {
    /// When, by the wall clock.
    pub at: std::time::SystemTime,
    /// What was wrong, if it failed.
    pub error: Option<VolumeError>,
}

/// What a mount knows of itself at one moment.
#[derive(Debug, Clone)]
pub struct Report {
    /// The volume.
    pub volume: VolumeId,
    /// Where it is mounted.
    pub directory: PathBuf,
    /// The version that programs see.
    pub version: u64,
    /// Since when the version's statement holds, unix seconds.
    pub signed_unix_s: u64,
    /// Until when it holds, unix seconds.
    pub valid_until_unix_s: u64,
    /// The mount's own time, unix seconds: it never goes back.
    pub now_unix_s: u64,
    /// Begun with the version kept on this machine, and no place has confirmed it since.
    pub is_offline: bool,
    /// Files and directories that the kernel holds.
    pub known_files: usize,
    /// How each mirror does, in the order in which they were given.
    pub mirrors: Vec<Status>,
    /// Memory that checked blocks take, and may take, bytes.
    pub memory_bytes: (u64, u64),
    /// The cache on disk.
    pub disk: Option<Disk>,
    /// What was fetched.
    pub fetches: Fetches,
    /// Requests that failed, by the kind of error, as it is called everywhere.
    pub errors: Vec<(&'static str, u64)>,
    /// How often a newer version was looked for, and how often that failed.
    pub refreshes: (u64, u64),
    /// The last of these.
    pub last_refresh: Option<Refresh>,
}

/// What was fetched and what became of it.
#[derive(Debug, Clone, Copy)]
pub struct Fetches {
    /// Requests for blocks, hedges apart.
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
    /// Blocks that were not what their names say.
    pub damaged: u64,
    /// Blocks removed to make room.
    pub evicted: u64,
}

/// Makes reports about one mount, also while it is being served elsewhere.
#[derive(Debug, Clone)]
pub struct Reporter {
    core: Arc<Core>,
    directory: PathBuf,
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Reporter {
    pub(crate) fn new(core: Arc<Core>, directory: PathBuf) -> Reporter {
        Reporter { core, directory }
    }

    /// Where the mount is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// How the mount does now. Waits for nothing but short locks.
    pub fn report(&self) -> Report {
        let volume = &self.core.volume;
        let view = self.core.view();
        let (snapshot, faults) = (&view.snapshot, &self.core.faults);
        Report {
            volume: volume.id(),
            directory: self.directory.clone(),
            version: snapshot.record().version,
            signed_unix_s: snapshot.record().start,
            valid_until_unix_s: snapshot.valid_until(),
            now_unix_s: volume.now(),
            is_offline: volume.is_offline(),
            known_files: self.core.nodes.len(),
            mirrors: volume.mirrors().status(),
            memory_bytes: snapshot.blocks().memory_bytes(),
            disk: self.disk(),
            fetches: self.fetches(),
            errors: vec![
                ("unavailable", load(&faults.unavailable)),
                ("expired", load(&faults.expired)),
                ("integrity", load(&faults.integrity)),
                ("rollback", load(&faults.rollback)),
                ("fork", load(&faults.fork)),
                ("other", load(&faults.other)),
            ],
            refreshes: (load(&faults.refreshes), load(&faults.refreshes_failed)),
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
