//! Figures 4 and 5: sequential read of a file of 1 GiB of random content.
//!
//! Every round opens a new view with a new server and empty client caches. Cold: the first read. Warm:
//! the second and third read. Both run pinned to one processor and unpinned.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::reading::{self, LOCAL, SQUASHFUSE, SSHFS, UNVERIFIED};
use crate::cpu;
use crate::dataset;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::outcome::Outcome;
use crate::peers::nginx::Nginx;
use crate::peers::view::Viewer;
use crate::process;
use crate::subject::Published;
use crate::unverified;

const BLAKE3: &str = "BLAKE3 alone";
const NGINX: &str = "nginx, curl to /dev/null";
const BOTH: &[Placement] = &[Placement::Pinned, Placement::Unpinned];
const SPEED: Metric = Metric::rate_in("speed", "MB/s");
/// The second read moves pages to the kernel's active list; the third one need not.
const AGAIN: Metric = Metric::rate_in("again", "MB/s");
const CPU: Metric = Metric::processor("cpu", "s/GB, all sides");
const HASHING: Metric = Metric::count("hashing", "s/GB");

/// Cold.
pub const COLD: Figure = Figure {
    number: 4,
    title: "sequential cold read of 1 GiB of random content, loopback server and mount",
    rounds: (5, 1),
    placements: BOTH,
    metrics: &[SPEED, CPU, HASHING],
    reaches: &[
        reach(Placement::Pinned, SSHFS, 3.0),
        reach(Placement::Unpinned, SSHFS, 3.0),
        reach(Placement::Pinned, SQUASHFUSE, 1.0),
        reach(Placement::Unpinned, SQUASHFUSE, 1.0),
        reach(Placement::Pinned, UNVERIFIED, 0.82),
        reach(Placement::Unpinned, UNVERIFIED, 0.90),
        Reach::new("hashing", Placement::Pinned, BLAKE3, Bound::AtMost(1.1)),
    ],
    derive: hashing,
    line_up: cold,
};

/// Warm.
pub const WARM: Figure = Figure {
    number: 5,
    title: "sequential warm read of 1 GiB of random content",
    rounds: (5, 1),
    placements: BOTH,
    metrics: &[SPEED, AGAIN],
    reaches: &[
        reach(Placement::Pinned, LOCAL, 0.75),
        reach(Placement::Unpinned, LOCAL, 0.75),
        Reach::new("again", Placement::Pinned, LOCAL, Bound::AtLeast(0.75)),
        Reach::new("again", Placement::Unpinned, LOCAL, Bound::AtLeast(0.75)),
    ],
    derive: nothing,
    line_up: warm,
};

const fn reach(placement: Placement, peer: &'static str, at_least: f64) -> Reach {
    Reach::new("speed", placement, peer, Bound::AtLeast(at_least))
}

fn cold(field: &Field) -> Result<LineUp> {
    let tree = dataset::large(field)?;
    let mut line_up = LineUp::new();
    for (name, viewer) in reading::viewers(field, "large", &tree, &[SSHFS, SQUASHFUSE]) {
        let field = field.clone();
        line_up.add(
            &name,
            viewer.map(|viewer| move |_| cold_round(&viewer, &field)),
        );
    }
    if field.gate() {
        return Ok(line_up);
    }
    let unverified = unverified(field, &tree);
    let copy = field.clone();
    line_up.add(
        UNVERIFIED,
        unverified.map(|viewer| move |_| cold_round(&viewer, &copy)),
    );
    let whole = field.clone();
    line_up.add(NGINX, Ok(move |_| curl(&whole)));
    let path = tree.join("random");
    line_up.add(BLAKE3, Ok(move |_| blake3_alone(&path)));
    Ok(line_up)
}

/// The copy without verification, after the control run.
fn unverified(field: &Field, tree: &Path) -> Result<Viewer> {
    field.bulla()?;
    let binary = unverified::build(field)?;
    unverified::control(field, &binary)?;
    let published = Published::new(field, "large-unverified", tree)?;
    Ok(Viewer::Bulla(published.with_binary(&binary)))
}

/// The processor time that verification adds to a read, round by round.
fn hashing(outcome: &mut Outcome, placement: Placement) {
    let cpu = |name| outcome.samples(name, placement, CPU.name);
    let (Some(with), Some(without)) = (cpu(OURS), cpu(UNVERIFIED)) else {
        return;
    };
    let samples = with.iter().zip(without).map(|(w, wo)| w - wo).collect();
    outcome.derived(OURS, placement, HASHING, samples);
}

fn cold_round(viewer: &Viewer, field: &Field) -> Result<Vec<Reading>> {
    let view = viewer.open(field)?;
    reading::back_free_memory();
    let before_s = view.cpu_s()? + cpu::own_s();
    let (bytes, seconds) = reading::whole(&view.dir().join("random"))?;
    let cpu_s = view.cpu_s()? + cpu::own_s() - before_s;
    ensure!(
        bytes == size(field)?,
        "read {bytes} bytes instead of the whole file"
    );
    let gigabytes = bytes as f64 / 1e9;
    Ok(vec![
        ("speed", bytes as f64 / 1e6 / seconds),
        ("cpu", cpu_s / gigabytes),
    ])
}

fn size(field: &Field) -> Result<u64> {
    Ok(dataset::large(field)?.join("random").metadata()?.len())
}

fn curl(field: &Field) -> Result<Vec<Reading>> {
    let tree = dataset::large(field)?;
    dataset::warm(&tree)?;
    let nginx = Nginx::start(field, "large", &tree)?;
    reading::back_free_memory();
    let before_s = nginx.cpu_s()?;
    let mut command = Command::new("curl");
    command.args(["-sSf", "-o", "/dev/null", "-w", "%{size_download}"]);
    command.arg(format!("http://127.0.0.1:{}/random", nginx.http));
    let cost = process::run(&mut command, field.work())?;
    let cpu_s = nginx.cpu_s()? - before_s + cost.cpu_s;
    let bytes: f64 = cost.stdout.trim().parse()?;
    ensure!(
        bytes == size(field)? as f64,
        "read {bytes} bytes instead of the whole file"
    );
    Ok(vec![
        ("speed", bytes / 1e6 / cost.ran_s),
        ("cpu", cpu_s / (bytes / 1e9)),
    ])
}

/// Processor time of hashing the content alone: keyed, in blocks of 64 KiB.
fn blake3_alone(path: &Path) -> Result<Vec<Reading>> {
    let content = std::fs::read(path)?;
    let before_s = cpu::own_s();
    for block in content.chunks(64 << 10) {
        std::hint::black_box(blake3::keyed_hash(&[7; 32], block));
    }
    let seconds = cpu::own_s() - before_s;
    Ok(vec![("hashing", seconds / (content.len() as f64 / 1e9))])
}

fn warm(field: &Field) -> Result<LineUp> {
    let tree = dataset::large(field)?;
    let mut line_up = LineUp::new();
    for (name, viewer) in reading::viewers(field, "large", &tree, &[LOCAL, SSHFS, SQUASHFUSE]) {
        let field = field.clone();
        line_up.add(
            &name,
            viewer.map(|viewer| move |_| warm_round(&viewer, &field)),
        );
    }
    Ok(line_up)
}

/// A new view each time. Speed depends on the host's memory behind the pages, which would stay the same
/// as long as the pages stay.
fn warm_round(viewer: &Viewer, field: &Field) -> Result<Vec<Reading>> {
    let view = viewer.open(field)?;
    let path = view.dir().join("random");
    if matches!(viewer, Viewer::Local(_)) {
        reading::evict(&path)?;
    }
    reading::back_free_memory();
    reading::whole(&path)?;
    let (bytes, second_s) = reading::whole(&path)?;
    let (_, third_s) = reading::whole(&path)?;
    ensure!(
        bytes == size(field)?,
        "read {bytes} bytes instead of the whole file"
    );
    let megabytes = bytes as f64 / 1e6;
    Ok(vec![
        ("speed", megabytes / second_s),
        ("again", megabytes / third_s),
    ])
}
