//! Figure 46: beside dm-integrity in user-mode Linux, each as ratios to the plain device below it.
//!
//! This machine's kernel may have no device mapper, and a file system of the process cannot be compared
//! with a kernel in a process. So each has a base of its own, under the same kernel, and the ratios to the
//! bases are compared.

use std::path::Path;
use std::rc::Rc;

use anyhow::Result;

use super::sequential::pass;
use super::{BASE, UNPINNED, disks, random};
use crate::disks::fio::{Extent, Job, Ran};
use crate::disks::integrity::{self, Mode};
use crate::disks::uml::Uml;
use crate::disks::{Content, Disk, image};
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading};
use crate::outcome::Outcome;

/// Bytes of the image. Passes write three quarters of it, because checksums take some of it; random writes are a
/// quarter, because they are slow.
const BYTES: (u64, u64) = (1 << 30, 64 << 20);
/// So that random writes go far beyond it, as they go beyond the journal of dm-integrity.
const RING_BYTES: u64 = 64 << 20;

const UML_BASE: &str = "plain, user-mode Linux";
const JOURNAL: &str = "dm-integrity, journal";
const BITMAP: &str = "dm-integrity, bitmap";
const DIRECT: &str = "dm-integrity, direct";

/// Metrics: a value and its ratio to the base.
const TRIMMED: [Metric; 2] = both("trimmed", "MB/s", "trimmed, ratio");
const IN_PLACE: [Metric; 2] = both("in place", "MB/s", "in place, ratio");
const RANDOM: [Metric; 2] = both("random", "writes/s", "random, ratio");

/// Beside dm-integrity.
pub const FIGURE: Figure = Figure {
    number: 46,
    title: "writes beside dm-integrity, as ratios to the plain device below each",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        TRIMMED[0],
        TRIMMED[1],
        IN_PLACE[0],
        IN_PLACE[1],
        RANDOM[0],
        RANDOM[1],
    ],
    reaches: &[
        reach(TRIMMED[1], 1.3),
        reach(RANDOM[1], 1.3),
        reach(IN_PLACE[1], 0.9),
    ],
    derive,
    line_up,
};

const fn both(name: &'static str, unit: &'static str, ratio: &'static str) -> [Metric; 2] {
    [Metric::rate_in(name, unit), Metric::count(ratio, "× base")]
}

const fn reach(ratio: Metric, times: f64) -> Reach {
    Reach::new(ratio.name, UNPINNED, JOURNAL, Bound::AtLeast(times))
}

fn line_up(field: &Field) -> Result<LineUp> {
    let bytes = field.pick(BYTES);
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "integrity", RING_BYTES)? {
        line_up.add(&name, Ok(move |_| measure(&disk, bytes)));
    }
    if field.gate() {
        return Ok(line_up);
    }
    let dir = field.fresh("uml")?;
    let modes = [
        (UML_BASE, Mode::Base),
        (JOURNAL, Mode::Journal),
        (BITMAP, Mode::Bitmap),
        (DIRECT, Mode::Direct),
    ];
    match Uml::new(&dir, &field.log("uml")) {
        Ok(uml) => {
            let uml = Rc::new(uml);
            for (name, mode) in modes {
                let (uml, image) = (uml.clone(), dir.join("image"));
                line_up.add(name, Ok(move |_| in_uml(&uml, &image, mode, bytes)));
            }
        }
        Err(error) => {
            let why = format!("{error:#}");
            modes
                .iter()
                .for_each(|(name, _)| line_up.missing(name, &why));
        }
    }
    Ok(line_up)
}

/// The jobs, in their order: two passes, then random writes.
fn jobs(bytes: u64) -> [Job; 3] {
    let part = bytes / 4 * 3;
    let random = Job {
        extent: Extent::Bytes(bytes / 4),
        ..random::WRITE
    };
    [pass("write", part), pass("write", part), random]
}

fn measure(disk: &Disk, bytes: u64) -> Result<Vec<Reading>> {
    disk.renew(bytes, Content::Zeros)?;
    let up = disk.up()?;
    let ran: Result<Vec<Ran>> = jobs(bytes).iter().map(|job| job.run(up.path())).collect();
    let ran = ran?;
    up.down()?;
    Ok(readings(&ran))
}

fn in_uml(uml: &Uml, path: &Path, mode: Mode, bytes: u64) -> Result<Vec<Reading>> {
    image(path, bytes, Content::Zeros)?;
    Ok(readings(&integrity::run(uml, path, mode, &jobs(bytes))?))
}

fn readings(ran: &[Ran]) -> Vec<Reading> {
    let [trimmed, in_place, random] = ran else {
        return Vec::new();
    };
    vec![
        (TRIMMED[0].name, trimmed.mb_s()),
        (IN_PLACE[0].name, in_place.mb_s()),
        (RANDOM[0].name, random.accesses_s),
    ]
}

/// Adds the ratios to the bases, round by round.
fn derive(outcome: &mut Outcome, placement: Placement) {
    let rows = [
        (OURS, BASE),
        (JOURNAL, UML_BASE),
        (BITMAP, UML_BASE),
        (DIRECT, UML_BASE),
    ];
    for (row, base) in rows {
        for [rate, ratio] in [TRIMMED, IN_PLACE, RANDOM] {
            let samples = |name| outcome.samples(name, placement, rate.name);
            if let (Some(rates), Some(bases)) = (samples(row), samples(base)) {
                let ratios = rates.iter().zip(bases).map(|(rate, base)| rate / base);
                let ratios = ratios.collect();
                outcome.derived(row, placement, ratio, ratios);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::field::Scale;

    #[test]
    fn each_ratio_is_to_the_base_of_the_same_kernel() {
        let mut outcome = Outcome::new(46, "", Scale::Quick, Environment::default());
        let rates = [
            (OURS, [50.0, 60.0]),
            (BASE, [100.0, 100.0]),
            (JOURNAL, [5.0, 5.0]),
            (UML_BASE, [20.0, 10.0]),
        ];
        for (row, samples) in rates {
            outcome.derived(row, UNPINNED, RANDOM[0], samples.to_vec());
        }
        derive(&mut outcome, UNPINNED);
        let ratio = |row| outcome.samples(row, UNPINNED, RANDOM[1].name);
        assert_eq!(ratio(OURS).unwrap(), [0.5, 0.6]);
        assert_eq!(ratio(JOURNAL).unwrap(), [0.25, 0.5]);
        assert_eq!(ratio(BITMAP), None);
        outcome.judge(FIGURE.reaches);
        let judged: Vec<_> = outcome.verdicts.iter().map(|v| v.met).collect();
        assert_eq!(judged, [None, Some(true), None]);
    }
}
