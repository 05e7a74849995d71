//! Ports for servers that a test stops and starts again, or that it names before they listen.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that systems give to programs that ask for any port.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;
/// Ports of each process, so that processes that run side by side use different ones.
const OF_EACH: u32 = 61;

/// A port on which nobody listens, and that the system gives to nobody else. Each call gives another one.
///
/// # Panics
/// When all of them are taken.
pub fn own() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(OF_EACH);
    for _ in 0..COUNT {
        let at = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = (FIRST + at) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
