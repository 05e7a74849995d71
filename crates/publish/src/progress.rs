//! What a publication reports while it works and at the end.

use std::path::{Path, PathBuf};

use trust::root::Totals;
use trust::statement::VolumeId;

use crate::publish_error::Unreadable;
use trust::change::Change;

/// Names of left-out files that are kept; more are only counted.
pub const MAX_SKIPPED_TOLD: usize = 1000;

/// Receives the progress of a publication. Calls come from several threads and must return quickly.
pub trait Observer: Sync {
    /// This many more files, with this many bytes of content, have been found.
    fn found(&self, _files: u64, _bytes: u64) {}
    /// This many more files, with this many bytes of content, are done.
    fn finished(&self, _files: u64, _bytes: u64) {}
    /// A file is left out because it cannot be read.
    fn skipped(&self, _path: &Path, _why: &Unreadable) {}
}

/// Ignores all reports.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Observer for Silent {}

/// A file that was left out because it could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Relative to the published directory.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// What was published.
#[derive(Debug, Clone)]
pub struct Published {
    /// The volume.
    pub volume: VolumeId,
    /// Whether this publication made the volume.
    pub new_volume: bool,
    /// The version, 1 and up.
    pub version: u64,
    /// Hash of the root record; `None` for a dry run.
    pub record_hash: Option<[u8; 32]>,
    /// End of its validity, unix seconds.
    pub valid_until: u64,
    /// End of the validity of its record alone, without a timestamp, unix seconds.
    pub record_until: u64,
    /// Whether readers do not believe this new volume before its first timestamp.
    pub waits_for_timestamp: bool,
    /// End of the validity of the version before, unix seconds; `None` for a new volume.
    pub previous_until: Option<u64>,
    /// Whether the tree is exactly that of the version before.
    pub unchanged: bool,
    /// Number of files and bytes of the tree, as signed.
    pub totals: Totals,
    /// Files and directories that were left out because they could not be read.
    pub skipped_count: u64,
    /// The first [`MAX_SKIPPED_TOLD`] of them.
    pub skipped: Vec<Skipped>,
    /// For a dry run: how the tree differs from the version before, in the order of the walk.
    pub changes: Vec<Change>,
    /// Bytes that the repository grew by: segments and index; for a dry run, the segments alone.
    pub new_bytes: u64,
}
