//! Figure 1: a kernel source tree is published for the first time, page cache warm.

use anyhow::Result;

use crate::dataset;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, Placement, Reach, Reading, nothing};
use crate::peers::archive::{self, Job};

/// Publishing a tree into an empty repository.
pub const FIGURE: Figure = Figure {
    number: 1,
    title: "publish a kernel source tree, page cache warm, until it is on the disk",
    rounds: (3, 1),
    placements: &[Placement::Unpinned],
    metrics: &[Metric::WALL, Metric::CPU, Metric::count("written", "bytes")],
    reaches: &[
        reach("tar | zstd -1 -T2", 1.15),
        reach("restic", 1.0 / 2.5),
        reach("ostree commit", 0.1),
    ],
    derive: nothing,
    line_up,
};

const fn reach(peer: &'static str, at_most: f64) -> Reach {
    Reach::new("wall", Placement::Unpinned, peer, Bound::AtMost(at_most))
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::linux(field)?;
    let mut line_up = LineUp::new();
    for archiver in archive::contestants(field, archive::TAR) {
        let (field, tree) = (field.clone(), tree.clone());
        let measure = move |_| -> Result<Vec<Reading>> {
            dataset::warm(&tree)?;
            let (cost, grown_bytes) = Job::new(&field, archiver, &tree)?.store()?;
            Ok(vec![
                ("wall", cost.wall_s),
                ("cpu", cost.cpu_s),
                ("written", grown_bytes as f64),
            ])
        };
        line_up.add(&archiver.row(), Ok(measure));
    }
    Ok(line_up)
}
