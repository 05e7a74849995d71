//! Limits the number of connections, in all and of one client.
//!
//! A client is an IPv4 address, an IPv6 network of 64 bits (which is what one customer is given), or
//! a user of a Unix socket. The table holds connected clients only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::net::counters::Counters;
use crate::net::peer::Peer;
use crate::net::share::Share;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    Address(u32),
    Network(u64),
    User(u32),
}

fn client(peer: Peer) -> Client {
    match peer {
        Peer::User(id) => Client::User(id),
        Peer::Ip(address) => match address.ip().to_canonical() {
            IpAddr::V4(v4) => Client::Address(v4.to_bits()),
            IpAddr::V6(v6) => Client::Network((v6.to_bits() >> 64) as u64),
        },
    }
}

/// Counts the connections of a server.
pub(crate) struct ConnectionLimiter {
    counters: Arc<Counters>,
    most: usize,
    most_per_client: usize,
    taken: Mutex<HashMap<Client, Taken>>,
}

/// What one client has.
#[derive(Default)]
struct Taken {
    connections: usize,
    share: Arc<Share>,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The server has too many connections.
    All,
    /// This client has too many connections.
    Client,
}

/// The right to one connection, given back when this is dropped.
pub(crate) struct Permit {
    limiter: Arc<ConnectionLimiter>,
    client: Client,
    share: Arc<Share>,
}

impl Permit {
    /// What the connections of the client hold in memory.
    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.share
    }
}

impl ConnectionLimiter {
    pub(crate) fn new(
        counters: Arc<Counters>,
        most: usize,
        most_per_client: usize,
    ) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            counters,
            most,
            most_per_client: most_per_client.max(1),
            taken: Mutex::default(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Client, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection of `peer`.
    pub(crate) fn take(self: &Arc<Self>, peer: Peer) -> Result<Permit, Full> {
        let client = client(peer);
        let mut taken = self.taken();
        if self.counters.connections.get() >= self.most as u64 {
            return Err(Full::All);
        }
        let own = taken.entry(client).or_default();
        if own.connections >= self.most_per_client {
            return Err(Full::Client);
        }
        own.connections += 1;
        let share = Arc::clone(&own.share);
        self.counters.connections.add(1);
        self.counters.accepted.add(1);
        let limiter = Arc::clone(self);
        Ok(Permit {
            limiter,
            client,
            share,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.limiter.taken();
        if let Some(own) = taken.get_mut(&self.client) {
            own.connections = own.connections.saturating_sub(1);
            if own.connections == 0 {
                taken.remove(&self.client);
            }
        }
        self.limiter.counters.connections.subtract(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Peer {
        Peer::Ip((text.parse::<IpAddr>().unwrap(), 7).into())
    }

    #[test]
    fn connections_of_one_client_are_limited_and_permits_returned() {
        let counters = Arc::new(Counters::default());
        let limiter = ConnectionLimiter::new(Arc::clone(&counters), 5, 2);
        let first = limiter.take(ip("192.0.2.1")).ok().unwrap();
        let _second = limiter.take(ip("::ffff:192.0.2.1")).ok().unwrap();
        assert_eq!(limiter.take(ip("192.0.2.1")).err(), Some(Full::Client));
        drop(first);
        let _again = limiter.take(ip("192.0.2.1")).ok().unwrap();
        // One network of 64 bits is one client; its neighbour is another.
        let _six = limiter.take(ip("2001:db8::1")).ok().unwrap();
        let seven = limiter.take(ip("2001:db8::2:0:0:1")).ok().unwrap();
        assert_eq!(limiter.take(ip("2001:db8::3")).err(), Some(Full::Client));
        let _eight = limiter.take(ip("2001:db8:0:1::1")).ok().unwrap();
        assert_eq!(limiter.take(ip("192.0.2.2")).err(), Some(Full::All));
        assert_eq!(limiter.take(Peer::User(7)).err(), Some(Full::All));
        assert_eq!(counters.connections.get(), 5);
        drop(seven);
        assert!(limiter.take(ip("192.0.2.2")).is_ok());
        assert_eq!(limiter.taken().len(), 3);
    }
}
