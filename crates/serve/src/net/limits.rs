//! Every limit of connections, with its default and what it bounds.

use std::time::Duration;

/// Limits of a server, whatever its service; the defaults suit a small machine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that serve connections. Each has its own listening socket.
    pub workers: usize,
    /// Most connections at a time. The server tells one more "busy" and closes it. Lowered to what
    /// the system's limit on open files allows.
    pub max_connections: usize,
    /// Most connections of one client at a time: an IPv4 address, an IPv6 network of 64 bits, or a
    /// user of a Unix socket.
    pub max_per_client: usize,
    /// Longest wait for a client's hello, a TLS handshake included.
    pub hello_timeout: Duration,
    /// Longest wait for the rest of a request, besides the time for its bytes at
    /// `min_bytes_per_second`.
    pub request_timeout: Duration,
    /// Longest time without a request.
    pub idle_timeout: Duration,
    /// Longest time without a request for a client that watches: it waits for pushes, and proves
    /// with a request now and then that it is still there (decision 0027).
    pub watch_timeout: Duration,
    /// Longest wait for the service to complete a request.
    pub answer_timeout: Duration,
    /// Window in which a client's pace is measured: in so much time that the server waits for it, it
    /// takes `min_bytes_per_second` on average, or is cut off.
    pub write_timeout: Duration,
    /// How long a connection may owe what it asked for (see `debtors`) before it makes room for a request that
    /// finds none in memory.
    pub room_timeout: Duration,
    /// Slowest client that the server waits for.
    pub min_bytes_per_second: u64,
    /// Most requests of one connection that the service has yet to complete.
    pub max_in_flight: usize,
    /// Bytes of answers that one connection gathers before it writes them.
    pub gather_bytes: usize,
    /// Most bytes of pushes that wait for one connection; one more push ends it.
    pub max_push_bytes: usize,
    /// Most bytes that all connections hold together. Each client has a share of them (see
    /// [`super::account`]); beyond it the client's requests wait, and are refused as "busy" when
    /// waiting does not help.
    pub max_held_bytes: usize,
    /// Most bytes that the answers of one connection hold; its further requests wait. One answer, or
    /// one slice of a long one, may be longer.
    pub max_held_per_connection: usize,
    /// How long connections may finish their answers after the server was asked to stop.
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
            watch_timeout: Duration::from_secs(900),
            answer_timeout: Duration::from_secs(600),
            write_timeout: Duration::from_secs(10),
            room_timeout: Duration::from_secs(1),
            min_bytes_per_second: 64 << 10,
            max_in_flight: 16,
            gather_bytes: 256 << 10,
            max_push_bytes: 256 << 10,
            max_held_bytes: 256 << 20,
            max_held_per_connection: 4 << 20,
            grace: Duration::from_secs(10),
        }
    }
}

/// Descriptors that are not connections: open files, listeners, the runtime's own.
const OTHER_DESCRIPTORS: u64 = 512;

impl Limits {
    /// How long a client may take to send `bytes`, besides a fixed time.
    pub(crate) fn time_for(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.min_bytes_per_second.max(1) as f64)
    }

    /// Raises the limit on open files as far as the system allows, and lowers `max_connections` to
    /// fit it.
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
