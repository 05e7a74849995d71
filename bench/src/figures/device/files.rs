//! Figure 42 (PFS Fig. 5 to 8): small files created, written, read cold and deleted.
//!
//! The file system is unmounted between the phases. Rates are those of all sizes together; cold reads of
//! files of 64 KiB, where the paper lost most, are shown separately too.

use anyhow::Result;

use super::{UNPINNED, at_least, disks, file_system};
use crate::disks::Disk;
use crate::disks::tree::Tree;
use crate::field::Field;
use crate::figure::{Figure, LineUp, Metric, Reading, nothing};

/// Sizes of files, bytes.
const SIZES: [u64; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The size that is shown separately.
const MEDIUM: u64 = 64 << 10;
/// Bytes of all files of one size.
const TOTAL_BYTES: (u64, u64) = (128 << 20, 4 << 20);
const IMAGE_BYTES: u64 = 2 << 30;
const RING_BYTES: u64 = 512 << 20;

const CREATE: Metric = Metric::rate_in("create", "MB/s");
const WRITE: Metric = Metric::rate_in("write", "MB/s");
const READ: Metric = Metric::rate_in("read", "MB/s, cold");
const READ_MEDIUM: Metric = Metric::rate_in("read-64K", "MB/s, cold");
const DELETE: Metric = Metric::rate_in("delete", "files/s");

/// Small files.
pub const FIGURE: Figure = Figure {
    number: 42,
    title: "files of 16 KiB to 1 MiB on a protected device",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[CREATE, WRITE, READ, READ_MEDIUM, DELETE],
    reaches: &[
        at_least("create", 0.95),
        at_least("delete", 0.95),
        at_least("write", 0.85),
        at_least("read", 0.8),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "files", RING_BYTES)? {
        let field = field.clone();
        line_up.add(&name, Ok(move |_| measure(&field, &disk)));
    }
    Ok(line_up)
}

fn measure(field: &Field, disk: &Disk) -> Result<Vec<Reading>> {
    let mut volume = file_system(field, disk, IMAGE_BYTES)?;
    let trees = SIZES.map(|file_bytes| Tree::of(file_bytes, field.pick(TOTAL_BYTES)));
    let root = volume.dir().to_owned();
    type Phase = fn(&Tree, &std::path::Path) -> Result<f64>;
    let phases: [Phase; 4] = [Tree::create, Tree::write, Tree::read, Tree::delete];
    let mut seconds = [0.0; 4];
    let mut medium_s = 0.0;
    for (number, (phase, total_s)) in phases.into_iter().zip(&mut seconds).enumerate() {
        for tree in &trees {
            let took_s = phase(tree, &root)?;
            *total_s += took_s;
            if number == 2 && tree.file_bytes == MEDIUM {
                medium_s = took_s;
            }
        }
        volume.remount()?;
    }
    volume.finish()?;
    let megabytes = trees.iter().map(Tree::bytes).sum::<u64>() as f64 / 1e6;
    let files = trees.iter().map(|tree| tree.files).sum::<u64>() as f64;
    let [create_s, write_s, read_s, delete_s] = seconds;
    Ok(vec![
        (CREATE.name, megabytes / create_s),
        (WRITE.name, megabytes / write_s),
        (READ.name, megabytes / read_s),
        (
            READ_MEDIUM.name,
            Tree::of(MEDIUM, field.pick(TOTAL_BYTES)).bytes() as f64 / 1e6 / medium_s,
        ),
        (DELETE.name, files / delete_s),
    ])
}
