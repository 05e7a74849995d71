//! What all connections of a server share: limits, counters, and the total of bytes held in memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::net::counters::Counters;
use crate::net::end::End;
use crate::net::limiter::{ConnectionLimiter, Full};
use crate::net::limits::Limits;
use crate::net::peer::Peer;

/// How long a request waits for others' answers to leave memory before it is refused.
const BUSY_WAIT: Duration = Duration::from_secs(2);
/// How often a waiter looks at the total.
pub(crate) const BUSY_STEP: Duration = Duration::from_millis(5);

/// Limits, counters and the total of held bytes of one server. Its service may use them, too.
pub struct Resources {
    limits: Limits,
    counters: Arc<Counters>,
    limiter: Arc<ConnectionLimiter>,
}

impl Resources {
    /// Resources within `limits`; raises the process's limit on open files to fit them.
    pub fn new(limits: Limits) -> Arc<Resources> {
        let limits = limits.fit_to_system();
        let counters = Arc::new(Counters::default());
        let (most, each) = (limits.max_connections, limits.max_per_client);
        Arc::new(Resources {
            limiter: ConnectionLimiter::new(Arc::clone(&counters), most, each),
            limits,
            counters,
        })
    }

    /// The limits, as the system allows them.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.limiter
    }

    /// Whether answers for slow clients take so much memory that new requests must wait.
    pub fn is_crowded(&self) -> bool {
        self.counters.held_bytes.get() > self.limits.max_held_bytes as u64
    }

    /// Waits up to two seconds for answers to leave memory; false when too much stays.
    pub async fn wait_for_room(&self) -> bool {
        let until = Instant::now() + BUSY_WAIT;
        while self.is_crowded() {
            if Instant::now() >= until {
                return false;
            }
            sleep(BUSY_STEP).await;
        }
        true
    }

    /// Adds `bytes` to the total until the guard is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        let bytes = bytes as u64;
        self.counters.held_bytes.add(bytes);
        let resources = Arc::clone(self);
        Held { resources, bytes }
    }

    /// Counts and logs the end of a connection.
    pub(crate) fn ended(&self, peer: Peer, end: &End) {
        let counters = &self.counters;
        match end {
            End::Malformed(_) => counters.malformed.add(1),
            End::TooSlow(_) => counters.too_slow.add(1),
            End::Idle => counters.idle.add(1),
            End::Unanswered => {
                tracing::warn!(%peer, "the service did not complete a request in time");
            }
            End::Closed | End::Broken(_) | End::Stopping => {}
        }
        tracing::debug!(%peer, %end, "connection closed");
    }

    /// Counts a refused connection, and logs one in a thousand, so that a flood of connections does not
    /// fill the log.
    pub(crate) fn turned_away(&self, peer: Peer, full: Full) {
        if self.counters.turned_away.get().is_multiple_of(1000) {
            match full {
                Full::All => {
                    let max = self.limits.max_connections;
                    tracing::warn!(max_connections = max, %peer, "too many connections, turned away");
                }
                Full::Client => {
                    let max = self.limits.max_per_client;
                    tracing::warn!(max_per_client = max, %peer, "too many connections of one client, turned away");
                }
            }
        }
        self.counters.turned_away.add(1);
    }
}

/// Bytes in a server's total, subtracted when this is dropped.
pub struct Held {
    resources: Arc<Resources>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.resources.counters.held_bytes.subtract(self.bytes);
    }
}
