//! What a block of 64 KiB costs on this machine's disk. Nothing is asserted: `cargo test --release -p bulla-share-server --test
//! blocks -- --ignored --nocapture measure`. PSTORE is how such a block was stored when its length decided.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use share_server::blocks::{Batch, Options, Server, Session, Storage};
use store::Repository;
use trust::Record;
use wal::FileDevice;

use crate::support::{self, block, hasher, key};

const RING_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: usize = 64 << 10;
const ROUNDS: u64 = 200;
const LARGE_BYTES: usize = 64 << 20;
/// Requests that a client has under way at a time.
const UNDER_WAY: usize = 16;

fn server(dir: &std::path::Path) -> Server {
    let path = dir.join("log");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(RING_BYTES + (2 << 20)).unwrap();
    drop(file);
    let device = FileDevice::open(&path).unwrap();
    Storage::format(&device, &key(), wal::VolumeId([9; 16]), RING_BYTES).unwrap();
    let start = Instant::now();
    let storage = Storage::open(
        Arc::new(device),
        &key(),
        Repository::open_or_create(dir.join("repository")).unwrap(),
        hasher(),
        Arc::new(move || start.elapsed()),
        Options::default(),
        &mut |_| {},
    );
    Server::start(storage.unwrap()).unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[derive(Debug, Clone, Copy)]
enum Way {
    /// STOREs of one block.
    Store,
    /// PSTOREs of one block.
    Pstore,
    /// STOREs of 2 MiB.
    Batches,
}

/// Stores 64 MiB with some requests under way at a time.
fn large(server: &Server, session: Session, blocks: &[Record], way: Way) -> Duration {
    let started = Instant::now();
    let mut waiting: VecDeque<Receiver<bool>> = VecDeque::new();
    let each = match way {
        Way::Batches => (2 << 20) / (BLOCK_BYTES + 64),
        Way::Store | Way::Pstore => 1,
    };
    for some in blocks.chunks(each) {
        if waiting.len() >= UNDER_WAY {
            assert!(waiting.pop_front().unwrap().recv().unwrap());
        }
        let (tell, told) = sync_channel(1);
        let done = Box::new(move |result: Result<_, _>| tell.send(result.is_ok()).unwrap());
        match way {
            Way::Pstore => server.submit_permanent(session, some[0].clone(), done),
            Way::Store | Way::Batches => {
                let batch = Batch {
                    session,
                    blocks: some.to_vec(),
                    entries: Vec::new(),
                };
                server.submit(batch, done);
            }
        }
        waiting.push_back(told);
    }
    assert!(waiting.into_iter().all(|told| told.recv().unwrap()));
    started.elapsed()
}

#[test]
#[ignore = "a measurement"]
fn blocks_of_64_kib() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = server(dir.path());
    let session = support::session(server.storage(), 1);
    let (mut through_log, mut straight) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (one, other) = (
            block(2 * round, BLOCK_BYTES),
            block(2 * round + 1, BLOCK_BYTES),
        );
        let started = Instant::now();
        server.store(session, vec![one]).unwrap();
        through_log.push(started.elapsed());
        let started = Instant::now();
        server.pstore(session, other).unwrap();
        straight.push(started.elapsed());
    }
    let (log, segment) = (median(through_log), median(straight));
    let ratio = log.as_secs_f64() / segment.as_secs_f64();
    println!("one block: log {log:?}, segment {segment:?}, ratio {ratio:.2}");
    for round in 0..5 {
        for (number, way) in [Way::Pstore, Way::Store, Way::Batches]
            .into_iter()
            .enumerate()
        {
            let first = 1_000_000 * (3 * round + number as u64 + 1);
            let blocks: Vec<Record> = (0..(LARGE_BYTES / BLOCK_BYTES) as u64)
                .map(|n| block(first + n, BLOCK_BYTES))
                .collect();
            let time = large(&server, session, &blocks, way);
            let rate = LARGE_BYTES as f64 / time.as_secs_f64() / f64::from(1 << 20);
            println!("64 MiB, round {round}, {way:?}: {time:?}, {rate:.0} MiB/s");
            server.storage().settle().unwrap();
        }
    }
}
