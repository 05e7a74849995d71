//! Why a connection ended, for logs and counters.

use std::fmt;
use std::io;

use trust::Reject;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it.
    Closed,
    /// The network, or the TLS session, failed.
    Broken(io::Error),
    /// The client broke the protocol.
    Malformed(Reject),
    /// The client took too long.
    TooSlow(&'static str),
    /// The client sent no request for long.
    Idle,
    /// The service did not complete a request in time.
    Unanswered,
    /// The server stops.
    Stopping,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("the client closed it"),
            End::Broken(e) => write!(f, "broken: {e}"),
            End::Malformed(why) => write!(f, "the client broke the protocol: {why}"),
            End::TooSlow(what) => write!(f, "the client {what}"),
            End::Idle => f.write_str("the client sent no request for long"),
            End::Unanswered => f.write_str("the service did not complete a request in time"),
            End::Stopping => f.write_str("the server stops"),
        }
    }
}
