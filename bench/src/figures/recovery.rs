//! Figure 14: a busy reader whose preferred mirror fails.
//!
//! Two mirrors hold the volume: the preferred one on the loopback, the other 10 ms away (`network`). A
//! program reads files of 8 KB through a mount, each once, in random order, one per millisecond. After a
//! third of the files the near mirror turns stale, sends wrong blocks, stops answering, or dies. The
//! figure is the increase of the 99th percentile of read times once the reader has noticed, which is
//! after the first read that takes 100 ms longer than usual. A failed read fails the row.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::dataset::{self, Dice};
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, nothing};
use crate::network::Far;
use crate::peers::view::mount_point;
use crate::process::{self, Daemon};
use crate::subject::Published;

const BOUND: &str = "what we said";
const UNPINNED: Placement = Placement::Unpinned;
/// A read that takes this much longer than usual shows that the reader has noticed.
const NOTICED_S: f64 = 0.1;

/// Recovery from a mirror.
pub const FIGURE: Figure = Figure {
    number: 14,
    title: "a busy reader whose preferred mirror turns bad",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        more("stale"),
        more("lying"),
        more("stalled"),
        more("dead"),
        Metric::count("slowest", "s, of all reads"),
    ],
    reaches: &[
        reach("stale"),
        reach("lying"),
        reach("stalled"),
        reach("dead"),
    ],
    derive: nothing,
    line_up,
};

const fn more(name: &'static str) -> Metric {
    Metric::count(name, "s more at p99, once noticed")
}

const fn reach(metric: &'static str) -> Reach {
    Reach::new(metric, UNPINNED, BOUND, Bound::AtMost(1.0))
}

#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Stale,
    Lying,
    Stalled,
    Dead,
}

const TURNS: [(&str, Turn); 4] = [
    ("stale", Turn::Stale),
    ("lying", Turn::Lying),
    ("stalled", Turn::Stalled),
    ("dead", Turn::Dead),
];

fn line_up(field: &Field) -> Result<LineUp> {
    let objects = dataset::objects(field)?;
    let mut line_up = LineUp::new();
    let bound = TURNS.map(|(name, _)| (name, 0.2));
    line_up.add(BOUND, Ok(move |_| Ok(bound.to_vec())));
    let field = field.clone();
    let ours = move |round| {
        let mut readings = Vec::new();
        let mut slowest_s: f64 = 0.0;
        for (name, turn) in TURNS {
            let (more_s, most_s) = measure(&field, &objects, turn, round).context(name)?;
            readings.push((name, more_s));
            slowest_s = slowest_s.max(most_s);
        }
        readings.push(("slowest", slowest_s));
        Ok(readings)
    };
    line_up.add(OURS, Ok(ours));
    Ok(line_up)
}

/// The increase of the 99th percentile after the fault is noticed, and the slowest read of all; seconds.
fn measure(field: &Field, objects: &Path, turn: Turn, round: u32) -> Result<(f64, f64)> {
    // A tree of its own, because an additional file makes the new version.
    let tree = copy(field, objects, "recovery-tree")?;
    let far_copy = Published::new(field, "recovery", &tree)?;
    let near_repo = copy(field, &far_copy.repo, "recovery-near")?;
    let near_copy = far_copy.with_repo(&near_repo);
    let (_far_server, far_port) = far_copy.serve(field)?;
    let (near_server, near_port) = near_copy.serve(field)?;
    let far = Far::new(far_port, 5)?;
    let mirror = format!("bulla://127.0.0.1:{}", far.port);
    let options = ["--mirror", &mirror, "--refresh", "300ms"].map(OsStr::new);
    let dir = mount_point(field)?;
    let place = format!("bulla://127.0.0.1:{near_port}");
    let _mounted = far_copy.mount_from(field, &place, &options, &dir)?;

    let mut order: Vec<u32> = (0..dataset::OBJECTS).collect();
    Dice::new(u64::from(round) + 14).shuffle(&mut order);
    let (before, after) = order.split_at(order.len() / 3);
    let mut usual = read(&dir, objects, before)?;
    let mut near_server = Some(near_server);
    turn_bad(
        turn,
        field,
        (&tree, &far_copy, &near_repo),
        &mut near_server,
    )?;
    let bad = read(&dir, objects, after)?;
    usual.sort_by(f64::total_cmp);
    let p99_before = percentile(&usual, 99);
    let noticed = bad.iter().position(|s| *s > p99_before + NOTICED_S);
    let mut rest = bad
        .get(noticed.map_or(0, |at| at + 1)..)
        .unwrap_or_default()
        .to_vec();
    rest.sort_by(f64::total_cmp);
    let slowest = bad.iter().copied().fold(0.0, f64::max);
    Ok(((percentile(&rest, 99) - p99_before).max(0.0), slowest))
}

fn turn_bad(
    turn: Turn,
    field: &Field,
    (tree, far_copy, near_repo): (&Path, &Published, &Path),
    near_server: &mut Option<Daemon>,
) -> Result<()> {
    match turn {
        Turn::Stale => {
            fs::write(
                tree.join("news"),
                b"a version of which the near mirror knows nothing",
            )?;
            far_copy.again(field, tree)
        }
        Turn::Lying => corrupt(near_repo),
        Turn::Stalled => {
            if let Some(server) = near_server {
                server.stall();
            }
            Ok(())
        }
        Turn::Dead => {
            drop(near_server.take());
            Ok(())
        }
    }
}

/// Flips one bit in each 4 KiB of the server's segments, so that it gives wrong answers.
fn corrupt(repo: &Path) -> Result<()> {
    for path in dataset::files(&repo.join("segments"))? {
        let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
        let len = file.metadata()?.len();
        let mut at = 2048;
        while at < len {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at)?;
            file.write_all_at(&byte.map(|b| b ^ 1), at)?;
            at += 4096;
        }
    }
    Ok(())
}

/// Reads these files and compares each with the published content. Returns the seconds of each.
fn read(dir: &Path, objects: &Path, order: &[u32]) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(order.len());
    for n in order {
        let name = format!("{n:04}");
        let began = Instant::now();
        let bytes = fs::read(dir.join(&name)).with_context(|| format!("reading {name}"))?;
        times.push(began.elapsed().as_secs_f64());
        ensure!(
            bytes == fs::read(objects.join(&name))?,
            "{name}: wrong bytes"
        );
        sleep(Duration::from_millis(1));
    }
    Ok(times)
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .copied()
        .unwrap_or_default()
}

fn copy(field: &Field, from: &Path, name: &str) -> Result<PathBuf> {
    let dir = field.fresh(name)?;
    let mut command = Command::new("cp");
    command.arg("-a").arg(from.join(".")).arg(&dir);
    process::run(&mut command, field.work())?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_99_is_the_slowest_hundredth() {
        let times: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(percentile(&times, 99), 989.0);
        assert_eq!(percentile(&[], 99), 0.0);
    }
}
