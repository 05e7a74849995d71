//! Figures 44 and 45: random reads and writes of 4 KiB.
//!
//! *Leaf cold*: each access is to another mebibyte, and so needs another page of the digests' tree, which
//! the process has not read since it was attached. *Slow*: on files whose accesses take 300 µs and syncs 1 ms
//! ([`crate::disks::slow`]).

use anyhow::Result;

use super::{UNPINNED, at_least, disks};
use crate::disks::fio::{self, Extent, Job};
use crate::disks::postmark::Dice;
use crate::disks::{Content, Disk};
use crate::field::Field;
use crate::figure::{Figure, LineUp, Metric, Reading, nothing};

/// Bytes of a device whose digests fit the caches.
const BYTES: (u64, u64) = (2 << 30, 64 << 20);
/// Bytes of the sparse device with one block for each page of digests.
const SPARSE_BYTES: (u64, u64) = (16 << 30, 256 << 20);
const SECONDS: (u32, u32) = (3, 1);
const READ_RING_BYTES: u64 = 256 << 20;
const RING_BYTES: u64 = 512 << 20;

const ONE: Metric = Metric::rate_in("QD 1", "reads/s");
const MANY: Metric = Metric::rate_in("QD 32", "reads/s");
const COLD_ONE: Metric = Metric::rate_in("leaf cold, QD 1", "reads/s");
const COLD_MANY: Metric = Metric::rate_in("leaf cold, QD 32", "reads/s");

const SLOW_ONE: Metric = Metric::rate_in("slow, QD 1", "reads/s");
const SLOW_MANY: Metric = Metric::rate_in("slow, QD 32", "reads/s");
const SLOW_COLD: Metric = Metric::rate_in("slow, leaf cold", "reads/s, QD 1");

/// Reads.
pub const READS: Figure = Figure {
    number: 44,
    title: "random reads of 4 KiB from a protected device",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        ONE, MANY, COLD_ONE, COLD_MANY, SLOW_ONE, SLOW_MANY, SLOW_COLD,
    ],
    reaches: &[
        at_least("QD 1", 0.65),
        at_least("QD 32", 0.75),
        at_least("leaf cold, QD 1", 0.7),
        at_least("leaf cold, QD 32", 0.45),
        at_least("slow, QD 1", 0.9),
        at_least("slow, QD 32", 0.9),
        at_least("slow, leaf cold", 0.7),
    ],
    derive: nothing,
    line_up: reads,
};

const BURST: Metric = Metric::rate_in("burst", "writes/s");
const BEYOND: Metric = Metric::rate_in("beyond the ring", "writes/s");
const SYNCED: Metric = Metric::rate_in("4K + fsync", "writes/s");
const ANCHORED: Metric = Metric::rate_in("4K + fsync, anchor", "writes/s");
const SLOW_SYNCED: Metric = Metric::rate_in("slow, 4K + fsync", "writes/s");

/// Writes.
pub const WRITES: Figure = Figure {
    number: 45,
    title: "random writes of 4 KiB to a protected device, its ring 512 MiB",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[BURST, BEYOND, SYNCED, ANCHORED, SLOW_SYNCED],
    reaches: &[
        at_least("burst", 0.9),
        at_least("beyond the ring", 0.4),
        at_least("4K + fsync", 0.5),
        at_least("4K + fsync, anchor", 0.35),
        at_least("slow, 4K + fsync", 1.3),
    ],
    derive: nothing,
    line_up: writes,
};

const READ: Job = Job {
    pattern: "randread",
    block_bytes: 4096,
    depth: 1,
    extent: Extent::Seconds(1),
    options: &[],
};
/// Reads one block of each mebibyte, in order.
const EACH_LEAF: Job = Job {
    pattern: "read:1020k",
    ..READ
};
/// Writes.
pub const WRITE: Job = Job {
    pattern: "randwrite",
    depth: 32,
    ..READ
};

fn reads(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "reads", READ_RING_BYTES)? {
        let sizes = (field.pick(BYTES), field.pick(SPARSE_BYTES));
        let seconds = field.pick(SECONDS);
        line_up.add(&name, Ok(move |_| read(&disk, sizes, seconds)));
    }
    Ok(line_up)
}

fn read(disk: &Disk, (bytes, sparse_bytes): (u64, u64), seconds: u32) -> Result<Vec<Reading>> {
    disk.renew(bytes, Content::Random)?;
    let up = disk.up()?;
    let warming = Job {
        extent: Extent::Bytes(bytes >> 8),
        ..EACH_LEAF
    };
    warming.run(up.path())?;
    let at = |depth| Job {
        depth,
        extent: Extent::Seconds(seconds),
        ..READ
    };
    let one = at(1).run(up.path())?;
    let many = at(32).run(up.path())?;
    up.down()?;
    let up = disk.up_slowly()?;
    warming.run(up.path())?;
    let slow_one = at(1).run(up.path())?;
    let slow_many = at(32).run(up.path())?;
    up.down()?;

    disk.renew(sparse_bytes, Content::Scattered)?;
    let log = disk.image().with_file_name("offsets");
    let offsets: Vec<_> = (0..sparse_bytes).step_by(1 << 20).collect();
    fio::log(&log, &shuffled(offsets), READ.block_bytes)?;
    let cold = |depth| {
        let up = disk.up()?;
        let ran = Job { depth, ..READ }.replay(up.path(), &log)?;
        up.down()?;
        anyhow::Ok(ran)
    };
    let (cold_one, cold_many) = (cold(1)?, cold(32)?);
    let up = disk.up_slowly()?;
    let slow_cold = READ.replay(up.path(), &log)?;
    up.down()?;
    Ok(vec![
        (ONE.name, one.accesses_s),
        (MANY.name, many.accesses_s),
        (COLD_ONE.name, cold_one.accesses_s),
        (COLD_MANY.name, cold_many.accesses_s),
        (SLOW_ONE.name, slow_one.accesses_s),
        (SLOW_MANY.name, slow_many.accesses_s),
        (SLOW_COLD.name, slow_cold.accesses_s),
    ])
}

/// The same numbers in an order that is the same in each run.
fn shuffled(mut numbers: Vec<u64>) -> Vec<u64> {
    let mut dice = Dice::new(44);
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, dice.index(last + 1));
    }
    numbers
}

fn writes(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "writes", RING_BYTES)? {
        let field = field.clone();
        line_up.add(&name, Ok(move |_| write(&field, &disk)));
    }
    Ok(line_up)
}

fn write(field: &Field, disk: &Disk) -> Result<Vec<Reading>> {
    disk.renew(field.pick(BYTES), Content::Random)?;
    let up = disk.up()?;
    let written = |extent| Job { extent, ..WRITE }.run(up.path());
    let (ring, quick) = (RING_BYTES, 16 << 20);
    let burst = written(Extent::Bytes(field.pick((ring / 4, quick))))?;
    // Fills the ring, so that the next job finds it full.
    written(Extent::Bytes(field.pick((ring, quick))))?;
    let beyond = written(Extent::Bytes(field.pick((2 * ring, quick))))?;
    let synced = Job {
        depth: 1,
        extent: Extent::Seconds(field.pick(SECONDS)),
        options: &["--fsync=1"],
        ..WRITE
    };
    let on_fast = synced.run(up.path())?;
    up.down()?;
    let up = disk.up_anchored()?;
    let anchored = synced.run(up.path())?;
    up.down()?;
    let up = disk.up_slowly()?;
    let on_slow = synced.run(up.path())?;
    up.down()?;
    Ok(vec![
        (BURST.name, burst.accesses_s),
        (BEYOND.name, beyond.accesses_s),
        (SYNCED.name, on_fast.accesses_s),
        (ANCHORED.name, anchored.accesses_s),
        (SLOW_SYNCED.name, on_slow.accesses_s),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_the_numbers_and_changes_their_order() {
        let sorted: Vec<u64> = (0..100).collect();
        let mut mixed = shuffled(sorted.clone());
        assert_ne!(mixed, sorted);
        mixed.sort_unstable();
        assert_eq!(mixed, sorted);
    }
}
