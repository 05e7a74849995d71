//! Figure 7 (SFSRO Fig. 6): 40 MB by accesses of 8 KB, in order and at random, of random content and
//! of zeros.
//!
//! Every round opens a new view. Each of the four runs has a file of its own, so that no run finds the
//! cached blocks of another. In random order each block is read once.

use anyhow::Result;

use super::reading::{self, GOCRYPTFS, LOCAL, SQUASHFUSE, SSHFS};
use crate::dataset::{self, ACCESS_BYTES, BLOCK_FILES, Dice};
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, Placement, Reach, Reading, nothing};
use crate::peers::view::Viewer;

const fn metric(name: &'static str) -> Metric {
    Metric::rate_in(name, "MB/s")
}

const fn reach(metric: &'static str, peer: &'static str) -> Reach {
    Reach::new(metric, Placement::Pinned, peer, Bound::AtLeast(1.0))
}

/// Accesses of 8 KB.
pub const FIGURE: Figure = Figure {
    number: 7,
    title: "40 MB by 8 KB, cold",
    rounds: (5, 1),
    placements: &[Placement::Pinned],
    metrics: &[
        metric(BLOCK_FILES[0]),
        metric(BLOCK_FILES[1]),
        metric(BLOCK_FILES[2]),
        metric(BLOCK_FILES[3]),
    ],
    reaches: &[
        reach(BLOCK_FILES[0], SSHFS),
        reach(BLOCK_FILES[1], SSHFS),
        reach(BLOCK_FILES[2], SSHFS),
        reach(BLOCK_FILES[3], SSHFS),
        reach(BLOCK_FILES[0], SQUASHFUSE),
        reach(BLOCK_FILES[1], SQUASHFUSE),
        reach(BLOCK_FILES[2], SQUASHFUSE),
        reach(BLOCK_FILES[3], SQUASHFUSE),
        reach(BLOCK_FILES[0], GOCRYPTFS),
        reach(BLOCK_FILES[1], GOCRYPTFS),
        reach(BLOCK_FILES[2], GOCRYPTFS),
        reach(BLOCK_FILES[3], GOCRYPTFS),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::blocks(field)?;
    let mut line_up = LineUp::new();
    let peers = [SSHFS, SQUASHFUSE, GOCRYPTFS, LOCAL];
    for (name, viewer) in reading::viewers(field, "blocks", &tree, &peers) {
        let field = field.clone();
        line_up.add(
            &name,
            viewer.map(|viewer| move |round| measure(&viewer, &field, round)),
        );
    }
    Ok(line_up)
}

fn measure(viewer: &Viewer, field: &Field, round: u32) -> Result<Vec<Reading>> {
    let view = viewer.open(field)?;
    let mut readings = Vec::new();
    for (name, seed) in BLOCK_FILES.into_iter().zip(0..) {
        let path = view.dir().join(name);
        if matches!(viewer, Viewer::Local(_)) {
            reading::evict(&path)?;
        }
        let bytes = path.metadata()?.len();
        let mut offsets: Vec<u64> = (0..bytes).step_by(ACCESS_BYTES).collect();
        if name.ends_with("-random") {
            Dice::new(u64::from(round) * 4 + seed).shuffle(&mut offsets);
        }
        reading::back_free_memory();
        let seconds = reading::at(&path, &offsets, ACCESS_BYTES)?;
        readings.push((name, bytes as f64 / 1e6 / seconds));
    }
    Ok(readings)
}
