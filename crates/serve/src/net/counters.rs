//! What happened, as plain counters: `/metrics` and tests read them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that many threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn take_off(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
}

/// All counters of a server.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections open now.
    pub connections: Counter,
    /// Connections ever admitted.
    pub accepted: Counter,
    /// Connections turned away because there were too many.
    pub turned_away: Counter,
    /// Times that the system would not give a connection (too many open files and the like).
    pub accept_errors: Counter,
    /// Spells of that, each said once in the log.
    pub shortages: Counter,
    /// *Get head* requests.
    pub head_requests: Counter,
    /// Walks into the tree for *get head* requests that named a new path.
    pub walks: Counter,
    /// *Get data* requests.
    pub data_requests: Counter,
    /// Handles asked for.
    pub handles: Counter,
    /// *Get range* requests.
    pub range_requests: Counter,
    /// Requests that had to wait for the disk.
    pub disk_reads: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Answers held in memory now, bytes.
    pub held_bytes: Counter,
    /// Connections closed because the client sent something malformed.
    pub malformed: Counter,
    /// Requests for volumes that are not here.
    pub no_volume: Counter,
    /// Requests for objects that are not here.
    pub no_object: Counter,
    /// Requests that the disk failed.
    pub storage_errors: Counter,
    /// Requests refused because too much was held.
    pub busy: Counter,
    /// Connections closed because the client was too slow in sending or receiving.
    pub too_slow: Counter,
    /// Connections closed because the client asked nothing for long.
    pub idle: Counter,
    /// New heads picked up.
    pub new_heads: Counter,
    /// Heads or indexes that could not be read.
    pub refresh_errors: Counter,
}
