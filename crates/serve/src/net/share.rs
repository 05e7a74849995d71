//! What the connections of one client have together: the table of `limiter` has one for each client, and the accounts of
//! its connections (`account`) count on it.

use std::sync::atomic::AtomicU64;

use crate::net::counters::Counter;
use crate::net::debtors::Debtors;

/// What the connections of one client hold together.
#[derive(Default)]
pub(crate) struct Share {
    pub(super) held_bytes: AtomicU64,
    /// Connections that hold something.
    pub(super) holders: Counter,
    /// Requests that wait for room.
    pub(super) waiting: Counter,
    pub(super) debtors: Debtors,
}
