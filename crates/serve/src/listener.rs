//! The sockets that are listened on: one for each worker, all at one address, among which the
//! system deals out the connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport, set_tcp_nodelay};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind as bind_to, listen, socket_with};

/// Connections that wait for being accepted: enough for all readers to come back at once.
const BACKLOG: i32 = 4096;

/// Listens `count` times on `address`; also where that is.
pub(crate) fn bind(
    address: SocketAddr,
    count: usize,
) -> io::Result<(Vec<TcpListener>, SocketAddr)> {
    let first = one(address, false)?;
    let local = first.local_addr()?;
    let mut all = vec![first];
    for _ in 1..count {
        all.push(one(local, true)?);
    }
    Ok((all, local))
}

/// The first must have the address for itself: two servers that share one by mistake would each
/// get a part of the readers. Once it has it, it lets others of this process join.
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
    // Answers leave whole; waiting for more would only delay them. Connections inherit it.
    set_tcp_nodelay(&socket, true)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_an_address_and_servers_do_not() {
        let any = "127.0.0.1:0".parse().unwrap();
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
    fn connections_send_at_once() {
        let (listeners, local) = bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let _client = std::net::TcpStream::connect(local).unwrap();
        listeners[0].set_nonblocking(false).unwrap();
        let (stream, _) = listeners[0].accept().unwrap();
        assert!(stream.nodelay().unwrap());
    }
}
