//! Measures the disk cache: `cargo run --release -p bulla-store --example cache -- DIR QUOTA_MIB BLOCK_BYTES`.
//! Writes twice the quota, so that half of the time room is made, while another thread reads what was just
//! written. Then opens the cache again, to see how long that takes and how much memory.

#![allow(clippy::unwrap_used)] // a measurement fails by panicking

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use store::BlockStore;
use store::cache::{CacheLimits, CacheStore, DiskCache};
use trust::{Frame, Handle, Hasher, Kind};

fn frame(number: u64, len: usize) -> Frame {
    let mut frame = BytesMut::with_capacity(len + 6);
    frame.put_slice(&[Kind::Data as u8, 0]);
    frame.put_u32_le(len as u32);
    frame.put_bytes(number as u8, len);
    Frame::parse(frame.freeze()).unwrap()
}

fn handle(number: u64) -> Handle {
    Hasher::new(&[7; 32]).name(Kind::Data, &number.to_le_bytes())
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0 / f64::from(1 << 20)
}

/// The longest of many times.
#[derive(Default)]
struct Longest {
    times: Vec<Duration>,
}

impl Longest {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.times.push(began.elapsed());
        done
    }

    fn tell(mut self, what: &str) {
        self.times.sort_unstable();
        let at = |part: f64| self.times[((self.times.len() - 1) as f64 * part) as usize];
        let (half, late) = (at(0.5), at(0.999));
        let count = self.times.len();
        println!(
            "{what}: median {half:?}, 99.9% {late:?}, longest {:?} of {count}",
            at(1.0)
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, quota_mib, block_bytes] = args.as_slice() else {
        eprintln!("usage: cache DIR QUOTA_MIB BLOCK_BYTES");
        std::process::exit(2);
    };
    let dir = Path::new(dir);
    let quota_bytes = quota_mib.parse::<u64>().unwrap() << 20;
    let len: usize = block_bytes.parse().unwrap();
    let limits = CacheLimits {
        quota_bytes,
        keep_free_bytes: 0,
    };
    let count = 2 * quota_bytes / (len as u64 + 82);
    let cache = DiskCache::open(dir, limits).unwrap();
    cache.wait_for_the_disk();
    let written = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut reads = Longest::default();
            while written.load(Ordering::Relaxed) < count {
                let number = written.load(Ordering::Relaxed).saturating_sub(5000);
                let _ = reads.time(|| cache.try_cached(&handle(number)));
                std::thread::sleep(Duration::from_micros(200));
            }
            reads.tell("a read of a block in the page cache");
        });
        let mut puts = Longest::default();
        for number in 0..count {
            puts.time(|| cache.put(handle(number), &frame(number, len)));
            written.store(number + 1, Ordering::Relaxed);
        }
        reading.join().unwrap();
        puts.tell("a put, waiting for the disk");
    });
    cache.finish_writing();
    let mib = (count * len as u64) >> 20;
    let seconds = began.elapsed().as_secs_f64();
    let evicted = cache.counters().evicted.load(Ordering::Relaxed);
    println!("{count} blocks, {mib} MiB in {seconds:.1} s; {evicted} blocks removed");
    drop(cache);
    let (before, began) = (rss_mib(), Instant::now());
    let cache = CacheStore(DiskCache::open(dir, limits).unwrap());
    let absent = [handle(u64::MAX)];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let found = runtime.block_on(cache.get_many(&absent, 0));
    assert!(found.unwrap().is_empty());
    let (loaded, rss) = (began.elapsed(), rss_mib() - before);
    let there = (0..count).filter(|number| cache.try_cached(&handle(*number)).is_some());
    println!(
        "opened in {loaded:?}, {rss:.1} MiB; {} blocks there",
        there.count()
    );
}
