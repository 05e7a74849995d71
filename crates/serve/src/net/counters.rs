//! Plain counters of connections and bytes; `/metrics` and tests read them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that many threads change.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
}

/// The counters of a server, whatever its service.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections open now.
    pub connections: Counter,
    /// Connections admitted since the start.
    pub accepted: Counter,
    /// Connections refused by a limit on connections.
    pub turned_away: Counter,
    /// Failed `accept` calls (too many open files and the like).
    pub accept_errors: Counter,
    /// Periods in which `accept` failed; the log has one line for each.
    pub shortages: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Bytes of answers and pushes in memory now.
    pub held_bytes: Counter,
    /// Clients with some of these bytes now.
    pub holders: Counter,
    /// Connections closed because the client broke the protocol.
    pub malformed: Counter,
    /// Requests refused because the server held too many bytes.
    pub busy: Counter,
    /// Connections closed because the client sent or received too slowly.
    pub too_slow: Counter,
    /// Connections closed because the client sent no request for long.
    pub idle: Counter,
}
