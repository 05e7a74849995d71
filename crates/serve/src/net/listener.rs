//! Listening TCP sockets: one for each worker, all at one address; the system spreads connections
//! among them. A socket that a service manager opened is shared by all workers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport, set_tcp_nodelay};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind as bind_to, listen, socket_with};

/// Connections that may wait to be accepted: enough for all clients to come back at once.
const BACKLOG: i32 = 4096;

/// The address that a server listens on cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// Where connections come from.
#[derive(Debug)]
pub enum Listen {
    /// An address that this process binds.
    At(SocketAddr),
    /// A listening TCP socket from a service manager. Clients that connect while no process serves
    /// it wait in its queue.
    On(TcpListener),
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen::At(address)
    }
}

impl Listen {
    /// A listener for each of `count` workers, and their address.
    pub(crate) fn open(self, count: usize) -> Result<(Vec<TcpListener>, SocketAddr), ListenError> {
        let address = match &self {
            Listen::At(address) => *address,
            Listen::On(socket) => socket.local_addr().map_err(|source| ListenError {
                address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
                source,
            })?,
        };
        let opened = match self {
            Listen::At(address) => bind(address, count),
            Listen::On(socket) => share(&socket, count).map(|all| (all, address)),
        };
        opened.map_err(|source| ListenError { address, source })
    }
}

/// The same socket for each worker.
fn share(socket: &TcpListener, count: usize) -> io::Result<Vec<TcpListener>> {
    socket.set_nonblocking(true)?;
    // Connections already in the queue keep what the service manager chose.
    set_tcp_nodelay(socket, true)?;
    (0..count.max(1)).map(|_| socket.try_clone()).collect()
}

/// Listens `count` times on `address`; also returns the address with its port.
fn bind(address: SocketAddr, count: usize) -> io::Result<(Vec<TcpListener>, SocketAddr)> {
    let first = one(address, false)?;
    let local = first.local_addr()?;
    let mut all = vec![first];
    for _ in 1..count {
        all.push(one(local, true)?);
    }
    Ok((all, local))
}

/// The first socket must own the address, because two servers that share one by mistake would each get a
/// part of the clients. Once it is bound, sockets of this process may join.
fn one(address: SocketAddr, joins: bool) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    if joins {
        set_socket_reuseport(&socket, true)?;
    }
    bind_to(&socket, &address)?;
    set_socket_reuseport(&socket, true)?;
    // Each answer is one write, so waiting for more only delays it. Connections inherit this.
    set_tcp_nodelay(&socket, true)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_an_address_and_servers_do_not() {
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (listeners, local) = bind(any, 3).unwrap();
        assert_eq!(listeners.len(), 3);
        for listener in &listeners {
            assert_eq!(listener.local_addr().unwrap(), local);
        }
        let taken = bind(local, 2).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(listeners);
        assert!(bind(local, 2).is_ok());
    }

    #[test]
    fn passed_socket_is_shared_and_keeps_its_queue() {
        let made = TcpListener::bind("127.0.0.1:0").unwrap();
        let early = std::net::TcpStream::connect(made.local_addr().unwrap()).unwrap();
        let (listeners, local) = Listen::On(made).open(2).unwrap();
        assert_eq!(listeners.len(), 2);
        let (stream, peer) = listeners[1].accept().unwrap();
        assert_eq!(peer, early.local_addr().unwrap());
        drop(stream);
        let empty = listeners[0].accept().unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let _late = std::net::TcpStream::connect(local).unwrap();
        assert!(listeners[0].accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn connections_have_no_delay() {
        let (listeners, local) = bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let _client = std::net::TcpStream::connect(local).unwrap();
        listeners[0].set_nonblocking(false).unwrap();
        let (stream, _) = listeners[0].accept().unwrap();
        assert!(stream.nodelay().unwrap());
    }
}
