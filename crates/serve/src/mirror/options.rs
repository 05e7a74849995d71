//! What a mirror keeps in memory and how it uses its disks.

use std::time::Duration;

/// Options of a mirror; the limits of its connections are [`crate::net::Limits`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Most reads of all connections that wait for the disk at a time.
    pub disk_reads: usize,
    /// Memory for answers that are asked for often, of all volumes, bytes; below 1 MiB none.
    pub response_cache_bytes: usize,
    /// Memory for paths that are asked for often, of all volumes, bytes; below 1 MiB none.
    pub path_cache_bytes: usize,
    /// How often the mirror looks for a new head.
    pub refresh: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            disk_reads: 64,
            response_cache_bytes: 256 << 20,
            path_cache_bytes: 16 << 20,
            refresh: Duration::from_secs(1),
        }
    }
}
