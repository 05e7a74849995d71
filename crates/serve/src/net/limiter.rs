//! Who may come in: so many connections in all, and so many of one client.
//!
//! A client is an IPv4 address, or an IPv6 network of 64 bits, for that is what one client is given.
//! The table holds clients that are connected and nobody else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::net::counters::Counters;

/// A client, in 64 bits: IPv4 ones in a network that IPv6 has set aside for them.
type Client = u64;

fn client(address: IpAddr) -> Client {
    match address.to_canonical() {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
    }
}

/// All seats of a server.
pub(crate) struct ConnectionLimiter {
    counters: Arc<Counters>,
    most: usize,
    most_per_client: usize,
    taken: Mutex<HashMap<Client, usize>>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// Too many connections.
    All,
    /// Too many of this client.
    Client,
}

/// A connection's seat, free again when this is dropped.
pub(crate) struct Permit {
    seats: Arc<ConnectionLimiter>,
    client: Client,
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

    fn taken(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for a connection from `address`.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Permit, Full> {
        let client = client(address);
        let mut taken = self.taken();
        if self.counters.connections.get() >= self.most as u64 {
            return Err(Full::All);
        }
        let own = taken.entry(client).or_insert(0);
        if *own >= self.most_per_client {
            return Err(Full::Client);
        }
        *own += 1;
        self.counters.connections.add(1);
        self.counters.accepted.add(1);
        let seats = Arc::clone(self);
        Ok(Permit { seats, client })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        if let Some(own) = taken.get_mut(&self.client) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.remove(&self.client);
            }
        }
        self.seats.counters.connections.take_off(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_takes_no_more_than_its_share_and_gives_it_back() {
        let counters = Arc::new(Counters::default());
        let seats = ConnectionLimiter::new(Arc::clone(&counters), 5, 2);
        let first = seats.take(ip("192.0.2.1")).ok().unwrap();
        let _second = seats.take(ip("::ffff:192.0.2.1")).ok().unwrap();
        assert_eq!(seats.take(ip("192.0.2.1")).err(), Some(Full::Client));
        drop(first);
        let _again = seats.take(ip("192.0.2.1")).ok().unwrap();
        // One network of 64 bits is one client; its neighbour is another.
        let _six = seats.take(ip("2001:db8::1")).ok().unwrap();
        let seven = seats.take(ip("2001:db8::2:0:0:1")).ok().unwrap();
        assert_eq!(seats.take(ip("2001:db8::3")).err(), Some(Full::Client));
        let _eight = seats.take(ip("2001:db8:0:1::1")).ok().unwrap();
        assert_eq!(seats.take(ip("192.0.2.2")).err(), Some(Full::All));
        assert_eq!(counters.connections.get(), 5);
        drop(seven);
        assert!(seats.take(ip("192.0.2.2")).is_ok());
        assert_eq!(seats.taken().len(), 3);
    }
}
