//! Where clients connect: a Unix socket that only its owner can open, or a TCP address for those who ask for it.

use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sendmsg, sockopt,
};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;
/// A client on another machine that vanished is noticed after about a minute and a half.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: u32 = 4;

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A socket file, which only its owner and root may open.
    Unix(PathBuf),
    /// A TCP address. Everybody who reaches it can read and write the device: NBD without TLS asks for no password.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    /// `IP:PORT` is a TCP address, everything with a slash is a path.
    fn from_str(text: &str) -> Result<Address, String> {
        if text.contains('/') {
            return Ok(Address::Unix(PathBuf::from(text)));
        }
        let address = text.parse();
        let address = address.map_err(|_| format!("{text}: neither a path nor IP:PORT"))?;
        Ok(Address::Tcp(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A program answers there.
    #[error("{0}: another program serves there")]
    InUse(Address),
    /// A file of another kind lies where the socket should be. It is not replaced.
    #[error("{}: exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("{address}: cannot listen")]
    Io {
        /// Where.
        address: Address,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A listening socket. A socket file is removed with it.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Listener {
    pub(super) fn bind(address: &Address) -> Result<Listener, ListenError> {
        let failed = |source| ListenError::Io {
            address: address.clone(),
            source,
        };
        match address {
            Address::Tcp(wanted) => match TcpListener::bind(wanted) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    Err(ListenError::InUse(address.clone()))
                }
                bound => bound.map(Listener::Tcp).map_err(failed),
            },
            Address::Unix(path) => {
                remove_stale(path, address)?;
                let (socket, file) = listen(path).map_err(failed)?;
                Ok(Listener::Unix(socket, file))
            }
        }
    }

    /// The address, with the port that was chosen if port 0 was asked for.
    pub(super) fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok(Stream::Unix(stream))
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
                sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
                sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_COUNT)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Ends the listening: [`accept`](Listener::accept) returns with an error, and newcomers find nobody.
    pub(super) fn stop(&self) {
        let socket = match self {
            Listener::Unix(listener, file) => {
                file.remove();
                listener.as_fd()
            }
            Listener::Tcp(listener) => listener.as_fd(),
        };
        if let Err(error) = rustix::net::shutdown(socket, rustix::net::Shutdown::Both) {
            tracing::debug!(%error, "cannot stop listening");
        }
    }
}

/// Removes a socket that a server left which ended without a stop.
fn remove_stale(path: &Path, address: &Address) -> Result<(), ListenError> {
    let failed = |source| ListenError::Io {
        address: address.clone(),
        source,
    };
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // Somebody answers, or the answer cannot be had: the socket is not ours to remove.
        Ok(_) => return Err(ListenError::InUse(address.clone())),
        Err(error) => return Err(failed(error)),
    }
    // Another server may have replaced it meanwhile.
    let now = path.symlink_metadata().map_err(failed)?;
    if (now.dev(), now.ino()) != (found.dev(), found.ino()) {
        return Err(ListenError::InUse(address.clone()));
    }
    std::fs::remove_file(path).map_err(failed)
}

/// Nobody can connect before `listen`, so the socket has its mode before it has a client.
fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let name = SocketAddrUnix::new(path)?;
    let kind = SocketType::STREAM;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &name)?;
    let found = path.symlink_metadata()?;
    let file = SocketFile {
        path: path.to_owned(),
        id: (found.dev(), found.ino()),
    };
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, owner_only)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), file))
}

/// A socket file that this process made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    /// Removes the file if it is still the one that was made.
    fn remove(&self) {
        let found = self.path.symlink_metadata();
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, "cannot remove {}", self.path.display());
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Why bytes were not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    /// The client did not read them by the deadline.
    Late,
    /// The connection has ended.
    Gone,
}

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).read(into),
            Stream::Tcp(stream) => (&mut &*stream).read(into),
        }
    }

    pub(super) fn set_read_timeout(&self, after: Duration) -> io::Result<()> {
        // Zero would mean for ever.
        let after = Some(after.max(Duration::from_millis(1)));
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(after),
            Stream::Tcp(stream) => stream.set_read_timeout(after),
        }
    }

    /// Sends what the connection takes without waiting. What was sent is removed from `parts`.
    pub(super) fn send_now(&self, parts: &mut &mut [IoSlice<'_>]) -> Result<(), Unsent> {
        IoSlice::advance_slices(parts, 0);
        while !parts.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(self, parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => IoSlice::advance_slices(parts, sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Unsent::Gone),
            }
        }
        Ok(())
    }

    /// Sends it all, by the deadline.
    pub(super) fn send(
        &self,
        mut parts: &mut [IoSlice<'_>],
        deadline: Instant,
    ) -> Result<(), Unsent> {
        loop {
            self.send_now(&mut parts)?;
            if parts.is_empty() {
                return Ok(());
            }
            self.wait_until_writable(deadline)?;
        }
    }

    fn wait_until_writable(&self, deadline: Instant) -> Result<(), Unsent> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Unsent::Late);
        }
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(self, PollFlags::OUT)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(_) => Err(Unsent::Gone),
        }
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        // Fails if the client was faster.
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(how),
            Stream::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests;
