//! The NBD server over a device in memory: by hand, against hostile clients, and with the programs that people use.

mod hostile;
mod programs;
mod raw;
mod requests;
mod stopping;

use std::sync::Arc;
use std::time::Duration;

use protect::nbd::{Address, Limits, Server};
use sim::block::MemoryBlock;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A server on a Unix socket, and its device of 64 MiB in sectors of 512 bytes.
struct Served {
    server: Server,
    block: Arc<MemoryBlock>,
    dir: TempDir,
}

impl Served {
    fn new(limits: Limits) -> Served {
        Served::over(MemoryBlock::new(64 * MIB, 512), limits)
    }

    fn over(block: Arc<MemoryBlock>, limits: Limits) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("nbd"));
        let server = Server::start(&address, block.clone(), "", limits).unwrap();
        Served { server, block, dir }
    }

    /// A client that may send requests.
    fn client(&self) -> raw::Client {
        let mut client = raw::Client::connect(self.server.address());
        client.go();
        client
    }
}

/// Limits that a test of slow clients can wait for.
fn short() -> Limits {
    let time = Duration::from_secs(2);
    Limits {
        negotiation: time,
        request: time,
        reply: time,
        stop: time,
        ..Limits::default()
    }
}
