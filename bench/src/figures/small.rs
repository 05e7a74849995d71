//! Figure 6 (SFSRO Fig. 5): 1,000 files of 1 KB in ten directories, opened, read and closed.
//!
//! Each round reads a set of files that this mount has not seen before, once ("first") and then ten more
//! times ("again", the mean: one pass over cached files is too short to time). Processor time is that of
//! the first pass.

use std::path::PathBuf;

use anyhow::Result;

use super::reading::{self, GOCRYPTFS, LOCAL, SQUASHFUSE, SSHFS};
use crate::cpu;
use crate::dataset;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, Placement, Reach, Reading, nothing};
use crate::peers::view::View;

const PASSES: u32 = 10;
const FILE_BYTES: usize = 1 << 10;

/// Small files.
pub const FIGURE: Figure = Figure {
    number: 6,
    title: "1,000 files of 1 KB in ten directories, first and again",
    rounds: (20, 3),
    placements: &[Placement::Pinned],
    metrics: &[
        Metric::rate_in("first", "files/s"),
        Metric::processor("cpu", "µs a file at first, all sides"),
        Metric::rate_in("again", "files/s"),
    ],
    reaches: &[
        reach("first", SQUASHFUSE, 1.0),
        reach("first", SSHFS, 10.0),
        reach("again", LOCAL, 0.5),
    ],
    derive: nothing,
    line_up,
};

const fn reach(metric: &'static str, peer: &'static str, at_least: f64) -> Reach {
    Reach::new(metric, Placement::Pinned, peer, Bound::AtLeast(at_least))
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::small(field)?;
    let mut line_up = LineUp::new();
    let peers = [SSHFS, SQUASHFUSE, GOCRYPTFS, LOCAL];
    for (name, viewer) in reading::viewers(field, "small", &tree, &peers) {
        let view = viewer.and_then(|viewer| viewer.open(field));
        let field = field.clone();
        let local = name == LOCAL;
        line_up.add(
            &name,
            view.map(|view| {
                move |round| {
                    let set = dataset::small_set(&field, round);
                    measure(&view, &set, local)
                }
            }),
        );
    }
    Ok(line_up)
}

fn measure(view: &View, set: &[PathBuf], evict: bool) -> Result<Vec<Reading>> {
    if evict {
        for path in set {
            reading::evict(&view.dir().join(path))?;
        }
    }
    let paths = || set.iter().map(PathBuf::as_path);
    let before_s = view.cpu_s()? + cpu::own_s();
    let first_s = reading::each(view.dir(), paths(), FILE_BYTES)?;
    let cpu_s = view.cpu_s()? + cpu::own_s() - before_s;
    let mut again_s = 0.0;
    for _ in 0..PASSES {
        again_s += reading::each(view.dir(), paths(), FILE_BYTES)?;
    }
    let files = set.len() as f64;
    Ok(vec![
        ("first", files / first_s),
        ("cpu", cpu_s * 1e6 / files),
        ("again", files * f64::from(PASSES) / again_s),
    ])
}
