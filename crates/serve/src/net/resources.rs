//! What all connections of a server share: limits, counters, and the number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::net::counters::Counters;
use crate::net::debtors::Debtors;
use crate::net::end::End;
use crate::net::limiter::{ConnectionLimiter, Full};
use crate::net::limits::Limits;
use crate::net::peer::Peer;

/// Limits and counters of one server. Its service may use them, too.
pub struct Resources {
    limits: Limits,
    counters: Arc<Counters>,
    limiter: Arc<ConnectionLimiter>,
    /// Of all clients.
    debtors: Debtors,
    accounts: AtomicU64,
    began: Instant,
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
            debtors: Debtors::default(),
            accounts: AtomicU64::new(0),
            began: Instant::now(),
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

    pub(crate) fn debtors(&self) -> &Debtors {
        &self.debtors
    }

    /// A number that no other account has.
    pub(crate) fn next_account(&self) -> u64 {
        self.accounts.fetch_add(1, Ordering::Relaxed)
    }

    /// Milliseconds from the start of the server to `at`.
    pub(crate) fn clock_ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_millis() as u64
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
            End::Closed | End::Broken(_) | End::Unsupported(_) | End::Stopping => {}
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
