//! The socket in a home: its path, who may connect, and frames.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::client::local::{HELLO_BYTES, Hello};

const SOCKET: &str = "socket";
/// Longest path that the address of a socket can hold, bytes.
const MAX_ADDRESS_BYTES: usize = 107;
/// How long the other end may take for its hello.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long one frame may take, once it has begun.
const FRAME_WITHIN: Duration = Duration::from_secs(30);

/// The socket of a home.
pub(super) fn path(home: &Path) -> PathBuf {
    home.join(SOCKET)
}

/// A name of the socket that fits into an address, and what keeps it valid. The path of a home may be too long.
fn address(home: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let path = path(home);
    if path.as_os_str().len() <= MAX_ADDRESS_BYTES {
        return Ok((path, None));
    }
    let directory = File::open(home)?;
    let short = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
    Ok((short.into(), Some(directory)))
}

/// Listens. Only the process that has the home's lock may call this: it replaces what an ended process left.
pub(super) fn bind(home: &Path) -> io::Result<(UnixListener, Owner)> {
    let path = path(home);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let (address, _directory) = address(home)?;
    let listener = std::os::unix::net::UnixListener::bind(address)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let owner = Owner(fs::metadata(&path)?.uid());
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, owner))
}

/// Connects to the process that listens, if one does and belongs to the owner of the home.
pub(super) async fn connect(home: &Path) -> io::Result<UnixStream> {
    let (address, _directory) = address(home)?;
    let stream = UnixStream::connect(address).await?;
    let owner = Owner(fs::metadata(home)?.uid());
    match owner.admits(stream.peer_cred()?.uid()) {
        true => Ok(stream),
        false => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            "another user listens on the socket of this home",
        )),
    }
}

/// The user whose processes may talk to one another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner(u32);

impl Owner {
    /// Whether a process of this user may. The system's administrator can read the home anyway.
    pub(super) fn admits(self, user: u32) -> bool {
        user == self.0 || user == 0
    }

    #[cfg(test)]
    pub(super) fn of(user: u32) -> Owner {
        Owner(user)
    }
}

/// Exchanges the first bytes.
pub(super) async fn greet(stream: &mut UnixStream) -> io::Result<Hello> {
    let exchange = async {
        stream.write_all(&Hello::own().encode()).await?;
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).await?;
        Hello::decode(&bytes).map_err(io::Error::other)
    };
    timeout(HELLO_WITHIN, exchange).await?
}

/// The next frame: `length u32 | message`. None at the end. Memory grows with what has come.
pub(super) async fn read_frame(
    from: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Option<Bytes>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    let rest = async {
        from.read_exact(&mut length[1..]).await?;
        let length = u32::from_le_bytes(length) as usize;
        if length > most {
            return Err(io::Error::new(ErrorKind::InvalidData, "a frame too long"));
        }
        let mut message = Vec::with_capacity(length.min(64 << 10));
        from.take(length as u64).read_to_end(&mut message).await?;
        match message.len() == length {
            true => Ok(Some(message.into())),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    };
    timeout(FRAME_WITHIN, rest).await?
}

/// Writes a frame.
pub(super) async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    message: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    let frame = [&length.to_le_bytes(), message].concat();
    timeout(FRAME_WITHIN, to.write_all(&frame)).await?
}
