//! Connections.

pub(crate) mod connection;
pub mod counters;
pub mod limiter;
pub mod limits;
pub mod listener;
pub(crate) mod outbox;
pub(crate) mod worker;

pub use counters::Counters;
pub use limits::Limits;
pub use listener::Listen;
