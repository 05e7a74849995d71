//! What a mirror counts besides its connections.

use std::sync::Arc;

use crate::net::{self, Counter};

/// All counters of a mirror.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections and bytes.
    pub net: Arc<net::Counters>,
    /// *Get head* requests.
    pub head_requests: Counter,
    /// Walks into the tree for *get head* requests that named a new path.
    pub walks: Counter,
    /// *Get data* requests.
    pub data_requests: Counter,
    /// Handles in *get data* requests.
    pub handles: Counter,
    /// *Get range* requests.
    pub range_requests: Counter,
    /// Reads that had to wait for the disk.
    pub disk_reads: Counter,
    /// Requests for volumes that this mirror does not have.
    pub no_volume: Counter,
    /// Requests for objects that this mirror does not have.
    pub no_object: Counter,
    /// Requests that failed because the disk failed.
    pub storage_errors: Counter,
    /// New heads found.
    pub new_heads: Counter,
    /// Heads or indexes that could not be read.
    pub refresh_errors: Counter,
}
