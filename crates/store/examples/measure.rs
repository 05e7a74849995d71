//! Measures the repository: `cargo run --release -p bulla-store --example measure -- DIR BLOCKS
//! BLOCK_BYTES`. Appends, commits, opens and looks up; docs/decisions/0007 has the figures.

#![allow(clippy::unwrap_used)] // a measurement fails by panicking

use std::ops::ControlFlow;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use store::{BlockStore, Repository, Writer};
use trust::{Frame, Handle, Hasher, Kind, Record};

/// A record that is never unpacked; its handle is a hash of its number.
fn record(hasher: &Hasher, number: u64, payload: &Bytes) -> Record {
    let mut frame = BytesMut::with_capacity(payload.len() + 6);
    frame.put_slice(&[Kind::Data as u8, 0]);
    frame.put_u32_le(payload.len() as u32);
    frame.put_slice(payload);
    Record {
        handle: handle(hasher, number),
        frame: Frame::parse(frame.freeze()).unwrap(),
    }
}

fn handle(hasher: &Hasher, number: u64) -> Handle {
    hasher.name(Kind::Data, &number.to_le_bytes())
}

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4096) >> 20
}

/// CPU seconds of this process so far: a better measure than wall time on a shared machine.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
    let ticks = |i: usize| fields[i].parse::<f64>().unwrap();
    (ticks(12) + ticks(13)) / 100.0
}

/// Numbers below `n` in scattered order.
fn scattered(n: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (dir, blocks, len) = (
        &args[1],
        args[2].parse::<u64>().unwrap(),
        args[3].parse().unwrap(),
    );
    let hasher = Hasher::new(&[1; 32]);
    let payload = Bytes::from(vec![7u8; len]);
    if std::path::Path::new(dir).join("bulla").exists() {
        println!("reading the existing repository");
    } else {
        write(dir, blocks, &payload, &hasher);
    }

    let before = rss_mib();
    let start = Instant::now();
    let repo = Repository::open(dir).unwrap();
    println!(
        "open {} entries: {:?}",
        repo.index_entries(),
        start.elapsed()
    );
    let rate = |what: &str, count: u64, run: &mut dyn FnMut(u64)| {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        scattered(blocks, count).for_each(&mut *run);
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let count = count as f64;
        println!(
            "{what}: {:.0} /s, {:.0} per CPU second",
            count / seconds,
            count / cpu
        );
    };
    let count = blocks.min(1_000_000);
    for round in ["first", "again"] {
        rate(&format!("contains, present, {round}"), count, &mut |i| {
            assert!(repo.contains(&handle(&hasher, i)).unwrap());
        });
        rate(&format!("contains, absent, {round}"), count, &mut |i| {
            assert!(!repo.contains(&handle(&hasher, i + (1 << 40))).unwrap());
        });
    }
    println!(
        "memory: {} MiB before opening, {} MiB now",
        before,
        rss_mib()
    );
    let count = blocks.min(200_000);
    rate("try_cached, one block", count, &mut |i| {
        repo.try_cached(&handle(&hasher, i));
    });
    rate("read_blocking, one block", count, &mut |i| {
        let sink = &mut |_| ControlFlow::Continue(());
        repo.read_blocking(&[handle(&hasher, i)], 0, sink).unwrap();
    });
    let around = 256 << 10;
    rate(
        "read_blocking, one block and 256 KiB around",
        count.min(20_000),
        &mut |i| {
            let sink = &mut |_| ControlFlow::Continue(());
            repo.read_blocking(&[handle(&hasher, i)], around, sink)
                .unwrap();
        },
    );
}

fn write(dir: &str, blocks: u64, payload: &Bytes, hasher: &Hasher) {
    let repo = Repository::open_or_create(dir).unwrap();
    let mut writer = Writer::begin(&repo).unwrap();
    let before = rss_mib();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for i in 0..blocks {
        writer.append(&record(hasher, i, payload)).unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = writer.pending_bytes() as f64;
    println!(
        "append: {:.0} MB/s ({:.0} per CPU second), {:.0} blocks/s, {} MiB more memory",
        bytes / 1e6 / seconds,
        bytes / 1e6 / (cpu_seconds() - cpu),
        blocks as f64 / seconds,
        rss_mib().saturating_sub(before)
    );
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let done = writer.commit(b"measured").unwrap();
    let cpu = cpu_seconds() - cpu;
    println!(
        "commit: {:?}, {cpu:.2} CPU seconds, {done:?}",
        start.elapsed()
    );
    for i in 0..3 {
        let start = Instant::now();
        let extra = blocks + i * 10;
        for j in extra..extra + 10 {
            writer.append(&record(hasher, j, payload)).unwrap();
        }
        let done = writer.commit(b"measured").unwrap();
        println!(
            "commit of 10 blocks: {:?}, {} index bytes",
            start.elapsed(),
            done.index_bytes
        );
    }
}
