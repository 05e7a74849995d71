//! What requests do, and in which order they are answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use protect::nbd::{Address, Limits, Server};
use protect::{Block, BlockError};
use sim::block::{Call, MemoryBlock};

use super::raw::{Client, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES, request, write};
use super::{MIB, Served};

const LONG: Duration = Duration::from_secs(60);
const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ESHUTDOWN: u32 = 108;

fn is_write(call: Call) -> bool {
    matches!(call, Call::Write { .. })
}

#[test]
fn connections_see_one_device_and_a_flush_covers_the_writes_of_all() {
    let served = Served::new(Limits::default());
    let (mut one, mut other) = (served.client(), served.client());
    assert_eq!(one.write(0, 512, &[7; 1024]), 0);
    assert_eq!(other.read(0, 2048).unwrap()[512..1536], [7; 1024]);
    assert_eq!(served.block.flushed(512..1536), [0; 1024]);
    assert_eq!(other.ask(FLUSH, 0, 0, 0), 0);
    assert_eq!(served.block.flushed(512..1536), [7; 1024]);
    assert_eq!(served.server.totals().clients, 2);
}

#[test]
fn tcp_client_is_served_like_a_local_one() {
    let block = MemoryBlock::new(MIB, 4096);
    let address = Address::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::start(&address, block, "", Limits::default()).unwrap();
    let mut client = Client::connect(server.address());
    client.go();
    assert_eq!(client.write(0, 4096, &[7; 4096]), 0);
    assert_eq!(client.read(4096, 4096).unwrap(), [7; 4096]);
    assert_eq!(client.write(0, 512, &[7; 4096]), EINVAL);
}

#[test]
fn fua_is_durable_when_it_is_answered_and_others_are_not_synced() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    assert_eq!(client.write(0, 0, &[7; 4096]), 0);
    assert_eq!(client.ask(TRIM, 0, 4096, 4096), 0);
    assert_eq!(client.ask(WRITE_ZEROES, 0, 4096, 4096), 0);
    assert!(!served.block.calls().contains(&Call::Flush));
    assert_eq!(client.write(FUA, 4096, &[8; 4096]), 0);
    assert_eq!(served.block.flushed(0..8192)[4096..], [8; 4096]);
    assert_eq!(client.ask(TRIM, FUA, 0, 4096), 0);
    assert_eq!(served.block.flushed(0..4096), [0; 4096]);
    assert_eq!(client.ask(WRITE_ZEROES, FUA, 4096, 4096), 0);
    assert_eq!(served.block.flushed(0..8192), [0; 8192]);
    let calls = served.block.calls();
    assert_eq!(calls.iter().filter(|call| **call == Call::Flush).count(), 3);
}

#[test]
fn zeros_are_not_bounded_by_the_longest_payload() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    assert_eq!(client.write(0, 40 * MIB, &[7; 512]), 0);
    assert_eq!(client.ask(WRITE_ZEROES, 2, 0, 64 << 20), 0);
    assert_eq!(client.read(40 * MIB, 512).unwrap(), [0; 512]);
}

#[test]
fn bad_requests_are_refused_and_the_next_one_is_served() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    let end = 64 * MIB;
    assert_eq!(client.write(0, end, &[7; 512]), ENOSPC);
    assert_eq!(client.write(0, end - 512, &[7; 1024]), ENOSPC);
    assert_eq!(client.write(0, 0, &vec![7; (4 << 20) + 512]), EINVAL);
    assert_eq!(client.write(8, 0, &[7; 512]), EINVAL);
    assert_eq!(client.read(end, 512), Err(EINVAL));
    assert_eq!(client.read(u64::MAX - 511, 512), Err(EINVAL));
    assert_eq!(client.read(0, (4 << 20) + 512), Err(EINVAL));
    assert_eq!(client.read(0, u32::MAX - 511), Err(EINVAL));
    assert_eq!(client.ask(9, 0, 0, 512), EINVAL);
    assert!(served.block.calls().is_empty());
    assert_eq!(client.write(0, end - 512, &[7; 512]), 0);
}

#[test]
fn errors_of_the_device_have_the_numbers_of_the_protocol() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    let mut told = |failure: fn() -> BlockError, kind: u16| {
        served.block.fail(|_| true, 1, failure);
        match kind {
            WRITE => client.write(0, 0, &[7; 512]),
            FLUSH => client.ask(FLUSH, 0, 0, 0),
            _ => client.ask(kind, 0, 0, 512),
        }
    };
    let integrity = || BlockError::Integrity {
        block: 0,
        offset: 0,
    };
    let read_only = || BlockError::ReadOnly {
        why: "a sync failed".to_owned(),
    };
    assert_eq!(told(integrity, READ), EIO);
    assert_eq!(told(|| io_error(io::ErrorKind::TimedOut), WRITE), EIO);
    assert_eq!(told(|| io_error(io::ErrorKind::StorageFull), WRITE), ENOSPC);
    assert_eq!(told(read_only, WRITE), EPERM);
    assert_eq!(told(read_only, FLUSH), EIO);
    assert_eq!(told(|| BlockError::Detached, TRIM), ESHUTDOWN);
    assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
}

fn io_error(kind: io::ErrorKind) -> BlockError {
    BlockError::Io {
        device: "data",
        source: kind.into(),
    }
}

#[test]
fn fua_whose_sync_fails_is_an_error() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    let failed = || BlockError::ReadOnly {
        why: "a sync failed".to_owned(),
    };
    served.block.fail(|call| call == Call::Flush, 2, failed);
    assert_eq!(client.write(FUA, 0, &[7; 512]), EIO);
    assert_eq!(client.ask(WRITE_ZEROES, FUA, 0, 512), EIO);
}

#[test]
fn reads_are_served_while_more_writes_wait_than_there_are_threads() {
    let limits = Limits {
        writers: 2,
        readers: 2,
        ..Limits::default()
    };
    let served = Served::new(limits);
    served.block.stall(is_write);
    let mut client = served.client();
    for cookie in 0..100 {
        client.send(&write(0, cookie, 4096 * cookie, &[7; 4096]));
    }
    client.send(&request(FLUSH, 0, 100, 0, 0));
    assert!(served.block.wait_stalled(2, LONG));
    assert_eq!(client.read(MIB, 4096).unwrap(), [0; 4096]);
    assert_eq!(served.client().read(MIB, 4096).unwrap(), [0; 4096]);
    served.block.release();
    let mut answered: Vec<_> = (0..101).map(|_| client.reply()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..101).map(|n| (n, 0)).collect::<Vec<_>>());
}

#[test]
fn replies_come_as_requests_are_done() {
    let served = Served::new(Limits::default());
    let first = Call::Read {
        offset: 0,
        bytes: 512,
    };
    served.block.stall(move |call| call == first);
    let mut client = served.client();
    client.send(&request(READ, 0, 1, 0, 512));
    assert!(served.block.wait_stalled(1, LONG));
    assert_eq!(client.read(512, 512).unwrap(), [0; 512]);
    served.block.release();
    assert_eq!(client.reply(), (1, 0));
}

#[test]
fn requests_in_flight_are_answered_after_the_client_says_goodbye() {
    let served = Served::new(Limits::default());
    served.block.stall(is_write);
    let mut client = served.client();
    client.send(&write(0, 1, 0, &[7; 512]));
    client.send(&request(super::raw::DISC, 0, 0, 0, 0));
    assert!(served.block.wait_stalled(1, LONG));
    served.block.release();
    assert_eq!(client.reply(), (1, 0));
    assert_eq!(client.rest(), []);
    assert_eq!(served.server.totals().cut_off, 0);
}

#[test]
fn client_that_sends_no_more_still_gets_its_replies() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    client.send(&request(READ, 0, 1, 0, 512));
    client.hang_up();
    assert_eq!(client.reply(), (1, 0));
    assert_eq!(client.rest(), [0; 512]);
}

/// A device whose reads panic.
struct Broken;

impl Block for Broken {
    fn bytes(&self) -> u64 {
        MIB
    }

    fn sector_bytes(&self) -> u32 {
        512
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), BlockError> {
        panic!("a defect of the device");
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), BlockError> {
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> Result<(), BlockError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

#[test]
fn request_whose_thread_panics_is_an_error_and_the_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Unix(dir.path().join("nbd"));
    let limits = Limits {
        readers: 1,
        ..Limits::default()
    };
    let server = Server::start(&address, Arc::new(Broken), "", limits).unwrap();
    let mut client = Client::connect(server.address());
    client.go();
    let requests: Vec<_> = (0..5).flat_map(|n| request(READ, 0, n, 0, 512)).collect();
    client.send(&requests);
    for _ in 0..5 {
        assert_eq!(client.reply().1, EIO);
    }
    assert_eq!(client.write(0, 0, &[7; 512]), 0);
}
