//! Figure 47: attaching after a crash, memory, and what verification costs.

use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};

use super::{UNPINNED, random};
use crate::disks::fio::{Extent, Job};
use crate::disks::protected::{Attached, Protected};
use crate::disks::{Content, Disk};
use crate::field::Field;
use crate::figure::{Bound, Build, Figure, LineUp, Metric, OURS, Reach, Reading, nothing};
use crate::figures::reading::UNVERIFIED;
use crate::{memory, process, unverified};

use super::sequential::pass;

/// Bytes of the ring in the issue, and of the device whose writes fill it.
const RING_BYTES: (u64, u64) = (1 << 30, 64 << 20);
const BYTES: (u64, u64) = (2 << 30, 128 << 20);
/// Bytes of the sparse device.
const SPARSE_BYTES: (u64, u64) = (1 << 40, 16 << 30);
const SECONDS: (u32, u32) = (5, 1);
/// Seconds that attaching may take beside reading the ring.
const MORE_S: f64 = 2.0;
/// Memory that a sparse device of 1 TiB may need.
const MEMORY_MIB: f64 = 256.0;

const RING: &str = "reading the ring, and 2 s";
const BOUND: &str = "what we said";

const ATTACH: Metric = Metric::time("attach", "s after kill -9");
const RING_MEMORY: Metric = Metric::count("full ring", "MiB resident");
const MEMORY: Metric = Metric::count("1 TiB", "MiB resident");
const READ: Metric = Metric::rate_in("read", "MB/s, cold");
const RANDOM: Metric = Metric::rate_in("random", "reads/s, QD 32");

/// Limits.
pub const FIGURE: Figure = Figure {
    number: 47,
    title: "a protected device attached after a crash, its memory, the cost of verification",
    rounds: (2, 1),
    placements: &[UNPINNED],
    metrics: &[ATTACH, RING_MEMORY, MEMORY, READ, RANDOM],
    reaches: &[
        Reach::new("attach", UNPINNED, RING, Bound::AtMost(1.0)),
        Reach::new("1 TiB", UNPINNED, BOUND, Bound::AtMost(1.0)),
        Reach::new("read", UNPINNED, UNVERIFIED, Bound::AtLeast(0.9)),
        Reach::new("random", UNPINNED, UNVERIFIED, Bound::AtLeast(0.9)),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    for build in field.builds() {
        let name = build.row(OURS);
        let protected = |of| protected(field, build, of);
        let (crashed, sparse) = (protected("crashed")?, protected("sparse")?);
        let (first, second) = (field.clone(), field.clone());
        line_up.add(&name, Ok(move |_| after_crash(&first, &crashed)));
        line_up.add(&name, Ok(move |_| sparse_memory(&second, &sparse)));
        let speed = Disk::Protected(protected("verified")?);
        let bytes = field.pick(BYTES);
        line_up.add(&name, Ok(move |_| speeds(&speed, bytes)));
    }
    if field.gate() {
        return Ok(line_up);
    }
    let ring = protected(field, Build::Now, "ring")?;
    let field = Rc::new(field.clone());
    let reader = field.clone();
    line_up.add(RING, Ok(move |_| read_ring(&reader, &ring)));
    line_up.add(BOUND, Ok(|_| Ok(vec![(MEMORY.name, MEMORY_MIB)])));
    let copy = unverified::build(&field).and_then(|binary| {
        unverified::control_device(&field, &binary)?;
        let protected = protected(&field, Build::Now, "unverified")?;
        let disk = Disk::Protected(protected.with_binary(&binary));
        let bytes = field.pick(BYTES);
        Ok(move |_| speeds(&disk, bytes))
    });
    line_up.add(UNVERIFIED, copy);
    Ok(line_up)
}

fn protected(field: &Field, build: Build, what: &str) -> Result<Protected> {
    let dir = field.fresh(&format!("limits-{what}-{}", build.directory()))?;
    let protected = Protected::new(field, field.binary(build)?, &dir, &dir)?;
    Ok(protected.with_ring(field.pick(RING_BYTES)))
}

/// Fills the ring, kills the process, and attaches again.
fn after_crash(field: &Field, protected: &Protected) -> Result<Vec<Reading>> {
    let disk = Disk::Protected(protected.clone());
    disk.renew(field.pick(BYTES), Content::Random)?;
    let attached = protected.attach()?;
    let fill = Job {
        extent: Extent::Bytes(field.pick(RING_BYTES)),
        ..random::WRITE
    };
    fill.run(attached.path())?;
    let full_mib = peak_mib(&attached)?;
    attached.kill();
    let start = Instant::now();
    let attached = protected.attach()?;
    let attach_s = start.elapsed().as_secs_f64();
    attached.detach()?;
    Ok(vec![(ATTACH.name, attach_s), (RING_MEMORY.name, full_mib)])
}

/// The time to read as many bytes as the ring has from a file on the same disk, and two seconds.
fn read_ring(field: &Field, protected: &Protected) -> Result<Vec<Reading>> {
    let path = &protected.image;
    crate::disks::image(path, field.pick(RING_BYTES), Content::Random)?;
    let mut read = Command::new("dd");
    read.arg(format!("if={}", path.display()));
    read.args(["of=/dev/null", "bs=1M", "iflag=direct"]);
    let cost = process::run(&mut read, field.work())?;
    Ok(vec![(ATTACH.name, cost.ran_s + MORE_S)])
}

/// The most memory of a process that serves a sparse device, under random writes and reads.
fn sparse_memory(field: &Field, protected: &Protected) -> Result<Vec<Reading>> {
    let disk = Disk::Protected(protected.clone());
    disk.renew(field.pick(SPARSE_BYTES), Content::Hole)?;
    let attached = protected.attach()?;
    for pattern in ["randwrite", "randread"] {
        let job = Job {
            pattern,
            extent: Extent::Seconds(field.pick(SECONDS)),
            options: &["--norandommap"],
            ..random::WRITE
        };
        job.run(attached.path())?;
    }
    let mib = peak_mib(&attached)?;
    attached.detach()?;
    // The log of such a device is large.
    std::fs::remove_file(&protected.log)?;
    std::fs::remove_file(&protected.image)?;
    Ok(vec![(MEMORY.name, mib)])
}

fn peak_mib(attached: &Attached) -> Result<f64> {
    let bytes = memory::peak_bytes(attached.pid()).context("the process has ended")?;
    Ok(bytes as f64 / f64::from(1 << 20))
}

/// Sequential and random reads of a device that was just attached.
fn speeds(disk: &Disk, bytes: u64) -> Result<Vec<Reading>> {
    disk.renew(bytes, Content::Random)?;
    let up = disk.up()?;
    let read = pass("read", bytes).run(up.path())?;
    let random = Job {
        pattern: "randread",
        extent: Extent::Bytes(bytes / 4),
        ..random::WRITE
    };
    let random = random.run(up.path())?;
    up.down()?;
    Ok(vec![
        (READ.name, read.mb_s()),
        (RANDOM.name, random.accesses_s),
    ])
}
