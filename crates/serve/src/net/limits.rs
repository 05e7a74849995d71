//! Every bound of the server, with its default and what it bounds.

use std::time::Duration;

/// Bounds; the defaults suit a mirror on a small machine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that serve connections, each its own.
    pub workers: usize,
    /// Connections at one time; one more is told "busy" and closed. Lowered to what the system's
    /// limit on open files allows.
    pub max_connections: usize,
    /// Connections of one client (an IPv4 address, an IPv6 network of 64 bits) at one time.
    pub max_per_client: usize,
    /// Longest wait for a client's hello.
    pub hello_timeout: Duration,
    /// Longest wait for the rest of a request that has begun.
    pub request_timeout: Duration,
    /// Longest time without a request.
    pub idle_timeout: Duration,
    /// What a client is granted to take an answer, besides the time at `min_bytes_per_second`.
    pub write_timeout: Duration,
    /// Slowest reader that is put up with.
    pub min_bytes_per_second: u64,
    /// Reads of one connection that may wait for the disk at one time.
    pub disk_reads_per_connection: usize,
    /// Reads of all connections that may wait for the disk at one time.
    pub disk_reads: usize,
    /// Answers of one connection gathered before they are written, bytes.
    pub gather_bytes: usize,
    /// Answers of all connections that are held for slow readers, bytes; beyond it new requests
    /// wait, and are told "busy" when waiting does not help.
    pub max_held_bytes: usize,
    /// Answers that are kept in memory because they are asked for often, of all volumes, bytes;
    /// below 1 MiB none.
    pub hot_bytes: usize,
    /// Paths into the tree that are kept in memory because they are asked for often, of all volumes,
    /// bytes; below 1 MiB none.
    pub ways_bytes: usize,
    /// How often the head is looked at.
    pub refresh: Duration,
    /// How long connections may finish their answers after the server was told to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            workers: std::thread::available_parallelism().map_or(1, |n| n.get()),
            max_connections: 16_384,
            max_per_client: 4096,
            hello_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(10),
            min_bytes_per_second: 64 << 10,
            disk_reads_per_connection: 16,
            disk_reads: 64,
            gather_bytes: 256 << 10,
            max_held_bytes: 256 << 20,
            hot_bytes: 256 << 20,
            ways_bytes: 16 << 20,
            refresh: Duration::from_secs(1),
            grace: Duration::from_secs(10),
        }
    }
}

/// Descriptors that are not connections: segments that are open, listeners, the runtime's own.
const OTHER_DESCRIPTORS: u64 = 512;

impl Limits {
    /// Raises the limit on open files as far as the system lets a process raise it, and lowers
    /// `max_connections` to what that allows.
    pub(crate) fn fit_to_system(mut self) -> Limits {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let old = getrlimit(Resource::Nofile);
        let wished = Rlimit {
            current: old.maximum,
            maximum: old.maximum,
        };
        let now = match setrlimit(Resource::Nofile, wished) {
            Ok(()) => wished,
            Err(_) => old,
        };
        let files = now.current.unwrap_or(u64::MAX);
        let room = files.saturating_sub(OTHER_DESCRIPTORS).max(1);
        if (self.max_connections as u64) > room {
            tracing::warn!(
                limit = files,
                max_connections = room,
                "fewer connections than configured: the limit on open files is too low"
            );
            self.max_connections = room as usize;
        }
        self
    }
}
