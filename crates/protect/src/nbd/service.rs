//! What all clients share: the device's threads, the limits, and whether the server stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::export::Export;
use super::in_flight::Spare;
use super::workers::Workers;
use crate::Block;

/// What a client may cost, and how long it may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time.
    pub clients: usize,
    /// Requests of one client that were not answered.
    pub requests: usize,
    /// The longest read or write, and the memory that each client can always use.
    pub payload_bytes: u32,
    /// Memory that clients use beyond that, first come, first served.
    pub spare_bytes: usize,
    /// Time for the negotiation.
    pub negotiation: Duration,
    /// Time for a request that was begun to become whole.
    pub request: Duration,
    /// Time for a client to read a reply.
    pub reply: Duration,
    /// Time for requests in flight at the end.
    pub stop: Duration,
    /// Threads for reads.
    pub readers: usize,
    /// Threads for writes and flushes.
    pub writers: usize,
}

impl Default for Limits {
    /// At most 96 MiB for payloads: 16 clients with 4 MiB each, and 32 MiB beyond.
    fn default() -> Limits {
        Limits {
            clients: 16,
            requests: 256,
            payload_bytes: 4 << 20,
            spare_bytes: 32 << 20,
            negotiation: Duration::from_secs(10),
            request: Duration::from_secs(30),
            reply: Duration::from_secs(30),
            stop: Duration::from_secs(10),
            readers: 32,
            writers: 32,
        }
    }
}

/// What every client uses.
pub(super) struct Service {
    pub(super) export: Export,
    pub(super) limits: Limits,
    pub(super) readers: Arc<Workers>,
    pub(super) writers: Arc<Workers>,
    pub(super) spare: Arc<Spare>,
    is_stopping: AtomicBool,
}

impl Service {
    pub(super) fn new(block: Arc<dyn Block>, name: &str, limits: Limits) -> Service {
        Service {
            export: Export::new(&*block, name.to_owned(), limits.payload_bytes),
            readers: Workers::new("nbd-read", block.clone(), limits.readers),
            writers: Workers::new("nbd-write", block, limits.writers),
            spare: Spare::new(limits.spare_bytes),
            limits,
            is_stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// From now on no client's request is begun.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }
}
