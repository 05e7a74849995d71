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
    /// The client speaks a later protocol.
    Unsupported(Reject),
    /// The client took too long.
    TooSlow(&'static str),
    /// The client sent no request for long.
    Idle,
    /// The service did not complete a request in time.
    Unanswered,
    /// The server stops.
    Stopping,
}

impl From<Reject> for End {
    fn from(why: Reject) -> End {
        match why {
            Reject::Unsupported { .. } => End::Unsupported(why),
            why => End::Malformed(why),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("the client closed it"),
            End::Broken(e) => write!(f, "broken: {e}"),
            End::Malformed(why) => write!(f, "the client broke the protocol: {why}"),
            End::Unsupported(why) => write!(f, "the client is of a later bulla: {why}"),
            End::TooSlow(what) => write!(f, "the client {what}"),
            End::Idle => f.write_str("the client sent no request for long"),
            End::Unanswered => f.write_str("the service did not complete a request in time"),
            End::Stopping => f.write_str("the server stops"),
        }
    }
}
