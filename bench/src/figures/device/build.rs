//! Figure 40 (PFS Fig. 10): OpenSSH is unpacked, configured and built on the device.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{BASE, UNPINNED, at_most, disks, file_system};
use crate::cpu;
use crate::dataset;
use crate::disks::Disk;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, Reach, Reading, nothing};
use crate::process;

/// Targets of `make`: everything at full scale, one program at the quick one.
const TARGETS: (&[&str], &[&str]) = (&["all"], &["ssh-keygen"]);
const IMAGE_BYTES: u64 = 1 << 30;
const RING_BYTES: u64 = 256 << 20;

const UNPACK: Metric = Metric::time("unpack", "s");
const CONFIGURE: Metric = Metric::time("configure", "s");
const BUILD: Metric = Metric::time("build", "s");
const CPU: Metric = Metric::processor("cpu", "s of the machine");

/// A package.
pub const FIGURE: Figure = Figure {
    number: 40,
    title: "OpenSSH unpacked, configured and built on a protected device",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[UNPACK, CONFIGURE, BUILD, CPU],
    reaches: &[
        at_most("build", 1.035),
        Reach::new("unpack", UNPINNED, BASE, Bound::AtMost(1.0)).or_even(),
        Reach::new("configure", UNPINNED, BASE, Bound::AtMost(1.0)).or_even(),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let archive = dataset::openssh(field)?;
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "build", RING_BYTES)? {
        let (field, archive) = (field.clone(), archive.clone());
        line_up.add(&name, Ok(move |_| measure(&field, &disk, &archive)));
    }
    Ok(line_up)
}

fn measure(field: &Field, disk: &Disk, archive: &Path) -> Result<Vec<Reading>> {
    let volume = file_system(field, disk, IMAGE_BYTES)?;
    let source: PathBuf = volume.dir().join("source");
    std::fs::create_dir(&source)?;
    let before_s = cpu::machine_s()?;

    let mut tar = Command::new("tar");
    tar.args(["--strip-components=1", "-xzf"]).arg(archive);
    let unpack = process::run(tar.arg("-C").arg(&source), volume.dir())?;

    let mut configure = Command::new("./configure");
    configure.arg("--quiet").current_dir(&source);
    let configure = process::run(&mut configure, volume.dir())?;

    let mut make = Command::new("make");
    let jobs = std::thread::available_parallelism()?;
    make.arg("-s").arg(format!("-j{jobs}"));
    make.args(field.pick(TARGETS)).current_dir(&source);
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        make.env_remove(name);
    }
    let build = process::run(&mut make, volume.dir())?;

    let cpu_s = cpu::machine_s()? - before_s;
    volume.finish()?;
    Ok(vec![
        (UNPACK.name, unpack.wall_s),
        (CONFIGURE.name, configure.wall_s),
        (BUILD.name, build.wall_s),
        (CPU.name, cpu_s),
    ])
}
