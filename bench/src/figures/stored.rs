//! Figure 20 (SUNDR Fig. 6): blocks of 8 KiB stored by the block server of a shared volume, through its temporary log
//! (STORE) and straight into the segments (PSTORE), and an fsync for each block on the same file system.
//!
//! The server is in this process, without a network: its disk is what the figure is about. *Draining*: the log is
//! short, so blocks move to the segments while others are stored.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use share_server::blocks::{Batch, Device, Options, Server, Session, Storage};
use store::Repository;
use trust::frame::Packer;
use trust::{Hasher, Kind, Record};
use wal::{FileDevice, Key, VolumeId};

use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::stats;

const PSTORE: &str = "PSTORE";
const EACH_SYNCED: &str = "ext4, fsync each";
const UNPINNED: Placement = Placement::Unpinned;

const BLOCK_BYTES: usize = 8 << 10;
/// Blocks of a run with many clients, and of one with a single client.
const BLOCKS: (usize, usize) = (40_000, 2_000);
const ALONE: (usize, usize) = (500, 50);
const CLIENTS: usize = 32;
/// Holds all blocks of a run.
const RING_BYTES: (u64, u64) = (2 << 30, 192 << 20);
/// Holds a small part of them.
const SHORT_RING_BYTES: (u64, u64) = (64 << 20, 8 << 20);
/// Bytes in the log before a restart, which the log takes without moving any.
const RESTARTED_BYTES: (u64, u64) = (1 << 30, 64 << 20);

const RATE: Metric = Metric::rate_in("rate", "blocks/s, 32 clients");
const LATENCY: Metric = Metric::time("latency", "ms, one client");
const DRAINING: Metric = Metric::rate_in("draining", "blocks/s, 32 clients");
const RESTART: Metric = Metric::time("restart", "s, log full");

/// Blocks stored.
pub const FIGURE: Figure = Figure {
    number: 20,
    title: "blocks of 8 KiB stored on a block server",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[RATE, LATENCY, DRAINING, RESTART],
    reaches: &[
        Reach::new("rate", UNPINNED, PSTORE, Bound::AtLeast(2.0)),
        Reach::new("latency", UNPINNED, PSTORE, Bound::AtMost(0.3)),
        Reach::new("draining", UNPINNED, PSTORE, Bound::AtLeast(1.7)).beside("rate"),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    let blocks: Arc<[Record]> = (0..field.pick(BLOCKS)).map(block).collect::<Result<_>>()?;
    let rows: [(&str, Measure); 3] = [
        (OURS, stored),
        (PSTORE, stored_permanently),
        (EACH_SYNCED, synced),
    ];
    for (name, measure) in rows {
        let (field, blocks) = (field.clone(), blocks.clone());
        line_up.add(name, Ok(move |_| measure(&field, &blocks)));
    }
    Ok(line_up)
}

type Measure = fn(&Field, &[Record]) -> Result<Vec<Reading>>;

fn hasher() -> Hasher {
    Hasher::new(&[20; 32])
}

/// A block that does not compress.
fn block(number: usize) -> Result<Record> {
    let mut plain = vec![0; BLOCK_BYTES];
    let mut noise = blake3::Hasher::new();
    noise.update(&number.to_le_bytes());
    noise.finalize_xof().fill(&mut plain);
    Ok(Record {
        handle: hasher().name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain)?,
    })
}

/// Where a block server lies.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn new(field: &Field, ring_bytes: u64) -> Result<Place> {
        let dir = field.fresh("block-server")?;
        let log = dir.join("log");
        File::create(&log)?.set_len(ring_bytes + (2 << 20))?;
        let device = FileDevice::open(&log)?;
        Storage::format(&device, &Key::new([20; 32]), VolumeId([20; 16]), ring_bytes)?;
        Repository::create(dir.join("repository"))?;
        Ok(Place { dir })
    }

    fn open(&self) -> Result<Storage> {
        let device = FileDevice::open(&self.dir.join("log"))?;
        ensure!(device.is_direct(), "the file system has no direct I/O");
        let start = Instant::now();
        Ok(Storage::open(
            Arc::new(device),
            &Key::new([20; 32]),
            Repository::open(self.dir.join("repository"))?,
            hasher(),
            Arc::new(move || start.elapsed()),
            Options::default(),
            &mut |_| {},
        )?)
    }
}

/// One client's request, which waits for its answer.
type Request = fn(&Server, Session, &Record) -> Result<()>;

fn store(server: &Server, session: Session, block: &Record) -> Result<()> {
    server.store(session, vec![block.clone()])?;
    Ok(())
}

fn pstore(server: &Server, session: Session, block: &Record) -> Result<()> {
    server.pstore(session, block.clone())?;
    Ok(())
}

fn stored(field: &Field, blocks: &[Record]) -> Result<Vec<Reading>> {
    let long = field.pick(RING_BYTES);
    let place = Place::new(field, long)?;
    let mut readings = served(&place, field, blocks, store)?;
    let place = Place::new(field, field.pick(SHORT_RING_BYTES))?;
    let server = Server::start(place.open()?)?;
    let rate = many(&server, blocks, store)?;
    let entries = server.storage().repository().index_entries();
    ensure!(entries > 0, "nothing has moved while blocks were stored");
    readings.push((DRAINING.name, rate));
    drop(server);
    let place = Place::new(field, long)?;
    fill(&place, field.pick(RESTARTED_BYTES))?;
    let start = Instant::now();
    let storage = place.open()?;
    readings.push((RESTART.name, start.elapsed().as_secs_f64()));
    ensure!(storage.temporary_blocks() > 0, "the log is empty");
    Ok(readings)
}

fn stored_permanently(field: &Field, blocks: &[Record]) -> Result<Vec<Reading>> {
    let place = Place::new(field, field.pick(SHORT_RING_BYTES))?;
    // Each commit of segments takes several syncs; an eighth shows the rate.
    let some = blocks.len() / 8;
    served(&place, field, blocks.get(..some).unwrap_or(blocks), pstore)
}

fn served(
    place: &Place,
    field: &Field,
    blocks: &[Record],
    request: Request,
) -> Result<Vec<Reading>> {
    let server = Server::start(place.open()?)?;
    let alone = blocks.len().min(field.pick(ALONE));
    let (few, rest) = blocks.split_at(alone);
    let session = server.storage().open_session(Device([1; 32]))?;
    let mut times = Vec::new();
    for block in few {
        let start = Instant::now();
        request(&server, session, block)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let rate = many(&server, rest, request)?;
    let latency = stats::median(&times).context("no time")?;
    Ok(vec![(RATE.name, rate), (LATENCY.name, latency)])
}

/// Blocks a second that so many clients store, each with one request at a time.
fn many(server: &Server, blocks: &[Record], request: Request) -> Result<f64> {
    by_clients(blocks, |number| {
        let mut key = [2; 32];
        key[0] = number as u8;
        let session = server.storage().open_session(Device(key))?;
        Ok(move |block: &Record| request(server, session, block))
    })
}

fn by_clients<C: Fn(&Record) -> Result<()>>(
    blocks: &[Record],
    client: impl Fn(usize) -> Result<C> + Sync,
) -> Result<f64> {
    let next = AtomicUsize::new(0);
    let work = |number: usize| {
        let request = client(number)?;
        while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
            request(block)?;
        }
        anyhow::Ok(())
    };
    let work = &work;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let spawn = |number| scope.spawn(move || work(number));
        let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
        for client in clients {
            let ended = client.join();
            ended.map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        anyhow::Ok(())
    })?;
    Ok(blocks.len() as f64 / start.elapsed().as_secs_f64())
}

/// Fills the log without moving anything.
fn fill(place: &Place, bytes: u64) -> Result<()> {
    let storage = place.open()?;
    let session = storage.open_session(Device([1; 32]))?;
    let mut number = 1 << 32;
    while storage.log().pressure().used < bytes {
        let blocks = (number..number + 64).map(block).collect::<Result<_>>()?;
        number += 64;
        let batch = Batch {
            session,
            blocks,
            entries: Vec::new(),
        };
        storage.submit(batch, Box::new(drop));
        storage.commit();
    }
    Ok(())
}

/// Each client appends to a file of its own, with an fsync for each block.
fn synced(field: &Field, blocks: &[Record]) -> Result<Vec<Reading>> {
    let dir = field.fresh("synced")?;
    let alone = blocks.len().min(field.pick(ALONE));
    let (few, rest) = blocks.split_at(alone);
    let file = create(&dir, CLIENTS)?;
    let mut times = Vec::new();
    for block in few {
        let start = Instant::now();
        append(&file, block)?;
        times.push(start.elapsed());
    }
    let rate = by_clients(rest, |number| {
        let file = create(&dir, number)?;
        Ok(move |block: &Record| append(&file, block))
    })?;
    let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    let latency = stats::median(&times).context("no time")? * 1e3;
    Ok(vec![(RATE.name, rate), (LATENCY.name, latency)])
}

fn append(mut file: &File, block: &Record) -> Result<()> {
    file.write_all(block.frame.as_bytes())?;
    Ok(file.sync_all()?)
}

fn create(dir: &Path, number: usize) -> Result<File> {
    let path = dir.join(number.to_string());
    let file = OpenOptions::new().create_new(true).append(true).open(path);
    Ok(file?)
}
