//! Figure 43: sequential writes to space that was trimmed, over old data, with the log on another disk;
//! sequential cold reads.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{UNPINNED, at_least, disks};
use crate::disks::fio::{Extent, Job};
use crate::disks::protected::Protected;
use crate::disks::{Content, Disk};
use crate::field::Field;
use crate::figure::{Figure, LineUp, Metric, OURS, Reading, nothing};

/// Bytes of the device and of each job.
const BYTES: (u64, u64) = (2 << 30, 64 << 20);
const RING_BYTES: u64 = 512 << 20;

const TRIMMED: Metric = Metric::rate_in("trimmed", "MB/s, write");
const IN_PLACE: Metric = Metric::rate_in("in place", "MB/s, write");
const OTHER_DISK: Metric = Metric::rate_in("log elsewhere", "MB/s, write in place");
const READ: Metric = Metric::rate_in("read", "MB/s, cold");

/// Sequential access.
pub const FIGURE: Figure = Figure {
    number: 43,
    title: "sequential writes and reads of a protected device, 1 MiB each",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[TRIMMED, IN_PLACE, OTHER_DISK, READ],
    reaches: &[
        at_least("trimmed", 0.8),
        at_least("in place", 0.4),
        at_least("log elsewhere", 0.7).beside("in place"),
        at_least("read", 0.85),
    ],
    derive: nothing,
    line_up,
};

/// A whole pass over the device.
pub const fn pass(pattern: &'static str, bytes: u64) -> Job {
    Job {
        pattern,
        block_bytes: 1 << 20,
        depth: 8,
        extent: Extent::Bytes(bytes),
        options: &[],
    }
}

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "sequential", RING_BYTES)? {
        let bytes = field.pick(BYTES);
        line_up.add(&name, Ok(move |_| measure(&disk, bytes)));
    }
    if !field.gate() {
        line_up.add(OURS, elsewhere(field));
    }
    Ok(line_up)
}

fn measure(disk: &Disk, bytes: u64) -> Result<Vec<Reading>> {
    disk.renew(bytes, Content::Zeros)?;
    let up = disk.up()?;
    let trimmed = pass("write", bytes).run(up.path())?;
    let in_place = pass("write", bytes).run(up.path())?;
    up.down()?;
    let up = disk.up()?;
    let read = pass("read", bytes).run(up.path())?;
    up.down()?;
    Ok(vec![
        (TRIMMED.name, trimmed.mb_s()),
        (IN_PLACE.name, in_place.mb_s()),
        (READ.name, read.mb_s()),
    ])
}

/// The log on the disk of another directory.
fn elsewhere(field: &Field) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    let other = field.other_disk();
    let other = other.context("no directory on another disk was given (--other-disk)")?;
    let device = |path: &Path| anyhow::Ok(std::fs::metadata(path)?.dev());
    ensure!(
        device(other)? != device(field.work())?,
        "{} is on the same disk as the work directory",
        other.display()
    );
    let dir = field.fresh("sequential-elsewhere")?;
    let protected = Protected::new(field, field.bulla()?, &dir, other)?;
    let disk = Disk::Protected(protected.with_ring(RING_BYTES));
    let bytes = field.pick(BYTES);
    Ok(move |_| {
        disk.renew(bytes, Content::Random)?;
        let up = disk.up()?;
        let written = pass("write", bytes).run(up.path())?;
        up.down()?;
        Ok(vec![(OTHER_DISK.name, written.mb_s())])
    })
}
