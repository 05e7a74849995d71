//! Tells the service manager that the service is ready or stops, as sd_notify(3) describes: a datagram to
//! the socket that `NOTIFY_SOCKET` names. If it is unset, nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the socket.
pub const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports that the service is ready. The manager shows `status` to its users.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={}", one_line(status)));
}

/// Shows the manager's users how the service is.
pub fn status(status: &str) {
    tell(&format!("STATUS={}", one_line(status)));
}

/// Reports that the service stops.
pub fn stopping() {
    tell("STOPPING=1");
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn tell(state: &str) {
    let Some(place) = std::env::var_os(VARIABLE).filter(|place| !place.is_empty()) else {
        return;
    };
    // The service works without the notification.
    if let Err(error) = send(&place, state) {
        tracing::warn!(place = %place.to_string_lossy(), %error, "cannot notify the service manager");
    }
}

/// `place` is a path, or `@` and a name in the abstract namespace.
fn send(place: &OsStr, state: &str) -> io::Result<()> {
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(place)?,
        _ => return Err(io::Error::from(io::ErrorKind::Unsupported)),
    };
    let socket = UnixDatagram::unbound()?;
    // A full queue must not block the service.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("bulla-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let places = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&address).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (socket, place) in places {
            send(&place, "READY=1\nSTATUS=well").unwrap();
            let mut bytes = [0; 64];
            let n = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], b"READY=1\nSTATUS=well");
        }
        assert!(send(OsStr::new("vsock:2:1"), "READY=1").is_err());
        assert_eq!(one_line("a\nREADY=1"), "a READY=1");
    }
}
