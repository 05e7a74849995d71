//! Figure 29: trees of small files in a shared volume: put, listed, moved, looked for in the log, removed.
//!
//! What counts is the ratio of `rm -r` to `put -r` of the same tree: a removal must not stand still beside the folds of its
//! device, whose shelf has room for some thousand files.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::dataset;
use crate::field::{Field, Scale};
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading};
use crate::outcome::Outcome;
use crate::process;
use crate::shared::server;
use crate::shared::volume::{FOUNDER, Volume};

const BOUND: &str = "what we said";
const UNPINNED: Placement = Placement::Unpinned;
/// Files of a directory where there are many.
const IN_ONE: u64 = 1000;

const PUT: Metric = Metric::time("put", "s, put -r");
const RATIO: Metric = Metric::count("rm/put", "rm -r / put -r");

/// Small files in a shared volume.
pub const FIGURE: Figure = Figure {
    number: 29,
    title: "trees of small files in a shared volume",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        PUT,
        Metric::time("rm", "s, rm -r"),
        RATIO,
        Metric::count("ls/put", "ls -R / put -r"),
        Metric::count("mv/put", "mv / put -r"),
        Metric::count("log/put", "log / put -r"),
    ],
    reaches: &[Reach::new(RATIO.name, UNPINNED, BOUND, Bound::AtMost(1.0))],
    derive: largest,
    line_up,
};

const fn sizes(scale: Scale) -> &'static [u64] {
    match scale {
        Scale::Full => &[1_000, 10_000, 100_000],
        Scale::Quick => &[1_000, 12_000],
    }
}

fn name_of(files: u64, directories: u64) -> String {
    match directories {
        1 => format!("{},000 files in one directory", files / 1000),
        _ => format!("{},000 files in {directories}", files / 1000),
    }
}

/// Files, and the directories that they are in.
fn trees(scale: Scale) -> impl Iterator<Item = (u64, u64)> {
    let many = |files: &u64| (*files, (files / IN_ONE).max(10));
    let sizes = sizes(scale).iter();
    sizes.flat_map(move |files| [(*files, 1), many(files)])
}

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    line_up.add(BOUND, Ok(|_| Ok(vec![(RATIO.name, 1.5)])));
    for (files, directories) in trees(field.scale) {
        let field = field.clone();
        let measure = move |_| measure(&field, files, directories);
        line_up.add(&name_of(files, directories), Ok(measure));
    }
    Ok(line_up)
}

fn measure(field: &Field, files: u64, directories: u64) -> Result<Vec<Reading>> {
    let dir = field.fresh("removed")?;
    let tree = dir.join("tree");
    make(&tree, files, directories)?;
    dataset::warm(&tree)?;
    let volume = Volume::create(&dir)?;
    let (_server, port) = server::start(field, &volume.server_dir())?;
    let home = volume.home(FOUNDER, port)?;
    let (bulla, state) = (field.bulla()?.to_owned(), volume.machine(FOUNDER));
    let run = |words: &[&str]| -> Result<f64> {
        process::check_stop()?;
        let mut command = Command::new(&bulla);
        command.env("BULLA_STATE_DIR", &state).args(words);
        Ok(process::run(&mut command, field.work())?.wall_s)
    };
    let (from, name) = (tree.to_string_lossy(), home.name());
    let put_s = run(&["put", "-r", &from, name])?;
    let ls_s = run(&["ls", "-R", name])?;
    let mv_s = run(&["mv", name, "tree", "moved"])?;
    let log_s = run(&["log", name])?;
    let rm_s = run(&["rm", "-r", name, "moved"])?;
    fs::remove_dir_all(&dir)?;
    Ok(vec![
        (PUT.name, put_s),
        ("rm", rm_s),
        (RATIO.name, rm_s / put_s),
        ("ls/put", ls_s / put_s),
        ("mv/put", mv_s / put_s),
        ("log/put", log_s / put_s),
    ])
}

/// Files of a few bytes, each with another content.
fn make(tree: &Path, files: u64, directories: u64) -> Result<()> {
    let each = files / directories;
    for number in 0..directories {
        let directory = match directories {
            1 => tree.to_owned(),
            _ => tree.join(format!("d{number:03}")),
        };
        fs::create_dir_all(&directory)?;
        for file in 0..each {
            let content = format!("file {file} of directory {number}\n");
            fs::write(directory.join(format!("f{file:06}")), content)?;
        }
    }
    Ok(())
}

/// Our row: the largest ratio of each round.
fn largest(outcome: &mut Outcome, placement: Placement) {
    let rows = trees(outcome.scale).filter_map(|(files, directories)| {
        let row = name_of(files, directories);
        let samples = outcome.samples(&row, placement, RATIO.name);
        samples.map(<[f64]>::to_vec)
    });
    let rows: Vec<Vec<f64>> = rows.collect();
    let rounds = rows.iter().map(Vec::len).min().unwrap_or(0);
    let worst = |round: usize| {
        let ratios = rows.iter().filter_map(|row| row.get(round));
        ratios.copied().fold(0.0, f64::max)
    };
    if rounds > 0 {
        let samples = (0..rounds).map(worst).collect();
        outcome.derived(OURS, placement, RATIO, samples);
    }
}
