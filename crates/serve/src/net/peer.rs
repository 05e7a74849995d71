//! The other end of a connection, for logs, limits and services.

use std::fmt;
use std::net::SocketAddr;

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A host, over TCP.
    Ip(SocketAddr),
    /// A local user (its id), over a Unix socket.
    User(u32),
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer::Ip(address)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Ip(address) => address.fmt(f),
            Peer::User(id) => write!(f, "user {id}"),
        }
    }
}
