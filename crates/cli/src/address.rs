//! Parses addresses to listen on.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::{Failure, Kind, Outcome};

/// Reads an address to listen on: `HOST:PORT`, or `:PORT` for every address of this machine.
pub fn listen_address(text: &str) -> Outcome<SocketAddr> {
    let wrong = || {
        Failure::new(
            Kind::Usage,
            format!("`{text}` is not an address to listen on"),
        )
        .with_hint("write HOST:PORT: 127.0.0.1:28552, [::]:28552, or :28552 for every address")
    };
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    whole
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next())
        .ok_or_else(wrong)
}
