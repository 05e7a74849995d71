//! One adopted version of the volume, as the mount numbers it.

use std::sync::Arc;

use volume::Snapshot;

/// One adopted version, numbered within the mount.
#[derive(Debug)]
pub struct View {
    /// Counts adopted versions; a statement that only renews keeps it.
    pub serial: u64,
    /// The version.
    pub snapshot: Arc<Snapshot>,
}
