//! Figure 24: a device catches up with a shared volume by replaying its log.
//!
//! The log is written by 64 devices, each of which makes a new version of its own file again and again (`shared::author`).
//! Then a device that was admitted and has never seen the volume starts with an empty home, in a process of its own:
//! *catch-up* is the time until it has verified and written down the log and may write itself, *look* until it has then
//! found the newest version of one file. Then it starts again with what it has. The server is another process.
//!
//! *from-checkpoint*: another new device begins with a checkpoint of all but the last 10,000 leaves, and does the same.

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::field::{Field, Scale, disk_bytes};
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading};
use crate::outcome::Outcome;
use crate::process;
use crate::shared::author::{self, AUTHORS};
use crate::shared::volume::Volume;
use crate::shared::{catch_up, server};

const BOUND: &str = "what we said";
const UNPINNED: Placement = Placement::Unpinned;
/// Leaves after the checkpoint.
const TAIL: u64 = 10_000;
/// Devices that a log is made for: each round needs two of its own.
const READERS: u32 = 32;

const CATCH_UP: Metric = Metric::time("catch-up", "s");
const CPU: Metric = Metric::processor("cpu", "s of the device");
const EACH: Metric = Metric::count("each", "µs an entry");
const LOOK: Metric = Metric::time("look", "s");
const AGAIN: Metric = Metric::time("look-again", "s");
const RESTART: Metric = Metric::time("restart", "s");
const MEMORY: Metric = Metric::count("memory", "bytes");
const RESTARTED: Metric = Metric::count("restarted", "bytes of memory");
const HOME: Metric = Metric::count("home", "bytes on disk");
const BEGUN: Metric = Metric::time("from-checkpoint", "s");
const BEGUN_MEMORY: Metric = Metric::count("from-checkpoint-memory", "bytes");
const CHECKPOINT: Metric = Metric::time("checkpoint", "s to make one");
const FILL: Metric = Metric::count("fill", "entries/s, made");

/// Catching up.
pub const FIGURE: Figure = Figure {
    number: 24,
    title: "a device catches up with a shared volume",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        CATCH_UP,
        CPU,
        EACH,
        LOOK,
        AGAIN,
        RESTART,
        MEMORY,
        RESTARTED,
        HOME,
        BEGUN,
        BEGUN_MEMORY,
        CHECKPOINT,
        FILL,
    ],
    reaches: &[
        reach("catch-up"),
        reach("cpu"),
        reach("restart"),
        reach("memory"),
        reach("from-checkpoint"),
        reach("from-checkpoint-memory"),
    ],
    derive: largest,
    line_up,
};

const fn reach(metric: &'static str) -> Reach {
    Reach::new(metric, UNPINNED, BOUND, Bound::AtMost(1.0))
}

const fn sizes(scale: Scale) -> &'static [u64] {
    match scale {
        Scale::Full => &[1_000, 10_000, 100_000, 1_000_000],
        Scale::Quick => &[1_000, 4_000],
    }
}

fn name_of(entries: u64) -> String {
    match entries {
        1_000_000.. => format!("{} million entries", entries / 1_000_000),
        _ => format!("{},000 entries", entries / 1000),
    }
}

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    let bounds = vec![
        (CATCH_UP.name, 10.0),
        (CPU.name, 10.0),
        (RESTART.name, 10.0),
        (MEMORY.name, f64::from(64 << 20)),
        (BEGUN.name, 1.0),
        (BEGUN_MEMORY.name, f64::from(64 << 20)),
    ];
    line_up.add(BOUND, Ok(move |_| Ok(bounds.clone())));
    for entries in sizes(field.scale) {
        let row = Rc::new(Row {
            field: field.clone(),
            entries: *entries,
            log: OnceCell::new(),
            checkpoint: OnceCell::new(),
        });
        line_up.add(&name_of(*entries), Ok(move |round| row.measure(round)));
    }
    Ok(line_up)
}

/// A log of some length.
struct Row {
    field: Field,
    entries: u64,
    /// The volume, and how many entries a second were made.
    log: OnceCell<(Volume, f64)>,
    /// Seconds that a checkpoint took, once it is at the server.
    checkpoint: OnceCell<f64>,
}

impl Row {
    fn log(&self) -> Result<&(Volume, f64)> {
        if let Some(log) = self.log.get() {
            return Ok(log);
        }
        let dir = self.field.fresh(&format!("catch-up-{}", self.entries))?;
        let volume = Volume::create(&dir)?;
        let began = Instant::now();
        author::fill(&volume, self.entries, READERS)?;
        let rate = self.entries as f64 / began.elapsed().as_secs_f64();
        Ok(self.log.get_or_init(|| (volume, rate)))
    }

    fn measure(&self, round: u32) -> Result<Vec<Reading>> {
        ensure!(round < READERS / 2, "a round needs a device of its own");
        let (volume, fill) = self.log()?;
        process::check_stop()?;
        let (_server, port) = server::start(&self.field, &volume.server_dir())?;
        let reader = AUTHORS + round;
        volume.home(reader, port)?;
        let state = volume.machine(reader);
        let first = catch_up::measure(&self.field, &state, false)?;
        ensure!(first.leaves >= self.entries, "{} leaves", first.leaves);
        let home_bytes = disk_bytes(&state)?;
        let again = catch_up::measure(&self.field, &state, false)?;
        ensure!(again.leaves >= first.leaves, "{} leaves", again.leaves);
        let checkpoint = self.checkpoint(&state)?;
        // A log of a million entries leaves a large home.
        std::fs::remove_dir_all(&state)?;
        let reader = reader + READERS / 2;
        volume.home(reader, port)?;
        let state = volume.machine(reader);
        let begun = catch_up::measure(&self.field, &state, true)?;
        ensure!(begun.leaves >= first.leaves, "{} leaves", begun.leaves);
        std::fs::remove_dir_all(&state)?;
        Ok(vec![
            (CATCH_UP.name, first.running_s),
            (CPU.name, first.cpu_s),
            (EACH.name, first.running_s * 1e6 / self.entries as f64),
            (LOOK.name, first.first_look_s),
            (AGAIN.name, first.look_s),
            (RESTART.name, again.running_s),
            (MEMORY.name, first.peak_bytes as f64),
            (RESTARTED.name, again.peak_bytes as f64),
            (HOME.name, home_bytes as f64),
            (BEGUN.name, begun.running_s),
            (BEGUN_MEMORY.name, begun.peak_bytes as f64),
            (CHECKPOINT.name, checkpoint),
            (FILL.name, *fill),
        ])
    }

    /// The server has a checkpoint, of all but the tail.
    fn checkpoint(&self, state: &Path) -> Result<f64> {
        if let Some(took) = self.checkpoint.get() {
            return Ok(*took);
        }
        let took = catch_up::checkpoint(state, TAIL.min(self.entries / 2))?;
        Ok(*self.checkpoint.get_or_init(|| took))
    }
}

/// Our row: the longest log.
fn largest(outcome: &mut Outcome, placement: Placement) {
    let Some(row) = sizes(outcome.scale).last().map(|size| name_of(*size)) else {
        return;
    };
    for metric in FIGURE.metrics {
        let samples = outcome.samples(&row, placement, metric.name);
        if let Some(samples) = samples.map(<[f64]>::to_vec) {
            outcome.derived(OURS, placement, *metric, samples);
        }
    }
}
