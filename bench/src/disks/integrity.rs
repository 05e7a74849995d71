//! dm-integrity in user-mode Linux: a device with a checksum for each sector, in its three modes, and the
//! plain device under the same kernel.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::fio::{self, Job, Ran};
use super::uml::{DEVICE, RESULTS, Uml};

/// Longest run of one mode.
const LIMIT: Duration = Duration::from_secs(240);

/// What the device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The plain device: the base of the others.
    Base,
    /// Data and checksums go through a journal: a crash tears nothing (the default).
    Journal,
    /// A bitmap of regions whose checksums may be wrong after a crash.
    Bitmap,
    /// Checksums without protection from crashes.
    Direct,
}

impl Mode {
    /// The options of `integritysetup open`; none for the plain device.
    fn options(self) -> Option<&'static str> {
        match self {
            Mode::Base => None,
            Mode::Journal => Some(""),
            Mode::Bitmap => Some("--integrity-bitmap-mode"),
            Mode::Direct => Some("--integrity-no-journal"),
        }
    }
}

/// Runs jobs on a device of this mode over an image, one after the other.
///
/// The sector is 4096 bytes and the checksum crc32c, the fastest that dm-integrity has. All its checksums
/// are written before the first job.
pub fn run(uml: &Uml, image: &Path, mode: Mode, jobs: &[Job]) -> Result<Vec<Ran>> {
    // The kernel's memory is a file of this machine: its first use is slow.
    let mut script = "dd if=/dev/zero of=/tmp/memory bs=1M count=256\nrm /tmp/memory\n".to_owned();
    // `integritysetup format` writes the whole device, so the plain one is written once too.
    let _ = writeln!(
        script,
        "dd if=/dev/zero of={DEVICE} bs=1M oflag=direct || true"
    );
    let mut device = DEVICE;
    if let Some(options) = mode.options() {
        script.push_str(&uml.load("dm-integrity")?);
        script.push_str("export DM_DISABLE_UDEV=1\n");
        let kind = "--integrity crc32c";
        // Without `--no-wipe` this writes the checksums of the whole device.
        let _ = writeln!(
            script,
            "integritysetup format --batch-mode --sector-size 4096 {kind} {DEVICE}"
        );
        let _ = writeln!(
            script,
            "integritysetup open {kind} {options} {DEVICE} checked"
        );
        device = "/dev/mapper/checked";
    }
    for (number, job) in jobs.iter().enumerate() {
        let arguments = job.arguments(device).join(" ");
        let _ = writeln!(script, "fio {arguments} --output={RESULTS}/{number}.json");
    }
    if mode != Mode::Base {
        script.push_str("integritysetup close checked\n");
    }
    let results = uml.run(image, &script, LIMIT)?;
    let read = |(number, job): (usize, &Job)| {
        let path = results.join(format!("{number}.json"));
        let json = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        fio::parse(&json, job.pattern)
    };
    jobs.iter().enumerate().map(read).collect()
}
