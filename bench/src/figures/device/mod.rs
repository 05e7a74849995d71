//! Figures 40 to 47: a protected device beside the plain one.
//!
//! The base of all ratios is the same work on a plain loop device with direct I/O over a file on the same
//! disk. Each measurement of a contestant starts with a new file (`disks`).

mod build;
mod files;
mod integrity;
mod limits;
mod mail;
mod random;
mod sequential;

use std::path::PathBuf;

use anyhow::Result;

pub use build::FIGURE as BUILD;
pub use files::FIGURE as FILES;
pub use integrity::FIGURE as INTEGRITY;
pub use limits::FIGURE as LIMITS;
pub use mail::FIGURE as MAIL;
pub use random::{READS, WRITES};
pub use sequential::FIGURE as SEQUENTIAL;

use crate::disks::ext4::Ext4;
use crate::disks::protected::Protected;
use crate::disks::{Content, Disk};
use crate::field::Field;
use crate::figure::{Bound, OURS, Placement, Reach};

/// The plain loop device: the base of the ratios.
pub const BASE: &str = "plain loop";
const UNPINNED: Placement = Placement::Unpinned;

/// A goal for a rate, as a multiple of the base's.
const fn at_least(metric: &'static str, times: f64) -> Reach {
    Reach::new(metric, UNPINNED, BASE, Bound::AtLeast(times))
}

/// A goal for a time, as a multiple of the base's.
const fn at_most(metric: &'static str, times: f64) -> Reach {
    Reach::new(metric, UNPINNED, BASE, Bound::AtMost(times))
}

/// The builds of bulla and the plain device, with their names and files in directories of this figure.
fn disks(field: &Field, figure: &str, ring_bytes: u64) -> Result<Vec<(String, Disk)>> {
    let mut found = Vec::new();
    for build in field.builds() {
        let dir = field.fresh(&format!("{figure}-{}", build.directory()))?;
        let protected = Protected::new(field, field.binary(build)?, &dir, &dir)?;
        let disk = Disk::Protected(protected.with_ring(ring_bytes));
        found.push((build.row(OURS), disk));
    }
    if !field.gate() {
        found.push((BASE.to_owned(), plain(field, figure)?));
    }
    Ok(found)
}

fn plain(field: &Field, figure: &str) -> Result<Disk> {
    let dir = field.fresh(&format!("{figure}-plain"))?;
    Ok(Disk::Plain(dir.join("image")))
}

/// A new file system on a new image of zeros, and the directory where it is mounted.
fn file_system(field: &Field, disk: &Disk, bytes: u64) -> Result<Ext4> {
    disk.renew(bytes, Content::Zeros)?;
    let dir: PathBuf = field.fresh("mounted")?;
    Ext4::make(disk, &dir)
}
