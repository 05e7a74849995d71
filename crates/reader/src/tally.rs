//! Counts for progress bars.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far a walk has come; read for a progress bar.
#[derive(Debug, Default)]
pub struct Tally {
    /// Files and other entries that are not directories.
    pub leaves: AtomicU64,
    /// Content, bytes.
    pub bytes: AtomicU64,
    /// All content that will be counted, bytes; 0 while it is not known.
    pub total_bytes: AtomicU64,
}

impl Tally {
    /// Counts files and bytes that are done.
    pub fn add(&self, leaves: u64, bytes: u64) {
        self.leaves.fetch_add(leaves, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
