//! Figure 2: publishing the tree again after 100 of its files have changed.
//!
//! The tree is a copy, so the data set itself never changes. All repositories get the same changes, one
//! set per round.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::dataset::{self, Dice};
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, Placement, Reach, Reading, nothing};
use crate::peers::archive::{self, Archiver, Job};
use crate::process;

/// Only reads every file's attributes: the minimal cost of finding changes.
const FIND: &str = "find, lstat of every file";
/// About the minimal growth of a repository.
const CHANGED: &str = "the changed files alone, zstd -1";

/// Publishing again.
pub const FIGURE: Figure = Figure {
    number: 2,
    title: "publish again after 100 files changed",
    rounds: (5, 2),
    placements: &[Placement::Unpinned],
    metrics: &[Metric::WALL, Metric::CPU, Metric::count("new", "bytes")],
    reaches: &[
        reach("wall", FIND, 3.0),
        reach("wall", archive::TAR_INCREMENTAL.name, 1.0),
        reach("wall", archive::SQUASHFS.name, 1.0),
        reach("wall", archive::RESTIC.name, 1.0),
        reach("wall", archive::BORG.name, 1.0),
        reach("wall", archive::OSTREE.name, 1.0),
        reach("wall", archive::CASYNC.name, 1.0),
        reach("new", CHANGED, 3.0),
    ],
    derive: nothing,
    line_up,
};

const fn reach(metric: &'static str, peer: &'static str, at_most: f64) -> Reach {
    Reach::new(metric, Placement::Unpinned, peer, Bound::AtMost(at_most))
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = copy(field)?;
    let files = dataset::files(&tree)?;
    let mut line_up = LineUp::new();
    let disk = field.work().to_owned();
    let changed = Rc::new(RefCell::new(Vec::new()));
    if !field.gate() {
        line_up.add(FIND, Ok(find(tree.clone(), disk.clone())));
        line_up.add(CHANGED, Ok(compressed(changed.clone(), disk)));
    }
    for archiver in archive::contestants(field, archive::TAR_INCREMENTAL) {
        line_up.add(&archiver.row(), again(field, archiver, &tree));
    }
    let mut dice = Dice::new(2);
    line_up.before_round = Box::new(move |round| {
        *changed.borrow_mut() = change(&files, &mut dice, round)?;
        Ok(())
    });
    Ok(line_up)
}

/// A copy of the tree that may be changed.
pub(super) fn copy(field: &Field) -> Result<PathBuf> {
    let tree = field.fresh("tree")?;
    let mut command = Command::new("cp");
    command
        .arg("-a")
        .arg(dataset::linux(field)?.join("."))
        .arg(&tree);
    process::run(&mut command, field.work())?;
    Ok(tree)
}

/// Adds a line to a hundred files.
pub(super) fn change(files: &[PathBuf], dice: &mut Dice, round: u32) -> Result<Vec<PathBuf>> {
    let mut order: Vec<&PathBuf> = files.iter().collect();
    dice.shuffle(&mut order);
    let chosen: Vec<PathBuf> = order.into_iter().take(100).cloned().collect();
    for path in &chosen {
        let mut file = OpenOptions::new()
            .append(true)
            .open(path)
            .with_context(|| format!("changing {}", path.display()))?;
        writeln!(file, "/* changed in round {round} */")?;
    }
    Ok(chosen)
}

fn find(tree: PathBuf, disk: PathBuf) -> impl FnMut(u32) -> Result<Vec<Reading>> {
    move |_| {
        let mut command = Command::new("find");
        // No file has this many links, but find must read the attributes of each to know it.
        command.arg(&tree).args(["-links", "+60000"]);
        let cost = process::run(&mut command, &disk)?;
        Ok(vec![("wall", cost.ran_s), ("cpu", cost.cpu_s)])
    }
}

fn compressed(
    changed: Rc<RefCell<Vec<PathBuf>>>,
    disk: PathBuf,
) -> impl FnMut(u32) -> Result<Vec<Reading>> {
    move |_| {
        let mut command = Command::new("bash");
        command.args([
            "-c",
            r#"set -o pipefail; zstd -q -1 -c "$@" | wc -c"#,
            "bash",
        ]);
        command.args(changed.borrow().iter());
        let cost = process::run(&mut command, &disk)?;
        Ok(vec![("new", cost.stdout.trim().parse()?)])
    }
}

fn again(
    field: &Field,
    archiver: Archiver,
    tree: &Path,
) -> Result<impl FnMut(u32) -> Result<Vec<Reading>> + use<>> {
    eprintln!("  publishing for the first time: {}", archiver.row());
    let mut job = Job::new(field, archiver, tree)?;
    job.store()?;
    Ok(move |_| {
        let (cost, grown_bytes) = job.store()?;
        if archiver.build.is_some() {
            anyhow::ensure!(grown_bytes > 0, "the repository has not grown");
        }
        Ok(vec![
            ("wall", cost.wall_s),
            ("cpu", cost.cpu_s),
            ("new", grown_bytes as f64),
        ])
    })
}
