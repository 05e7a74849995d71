//! Loop devices with direct I/O.
//!
//! A [`Loop`] is detached when it is dropped. [`clear`] detaches those that a killed bench left over files
//! [`below`] the work directory, and no others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::short;

/// How long the kernel may take to let go of a device.
const GRACE: Duration = Duration::from_secs(10);

/// A loop device over a file.
pub struct Loop {
    device: PathBuf,
    detached: bool,
}

impl Loop {
    /// Attaches a file, past the page cache.
    pub fn over(file: &Path) -> Result<Loop> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on", "--sector-size=512"]);
        let device = PathBuf::from(short(losetup.arg(file))?.trim());
        let made = Loop {
            device,
            detached: false,
        };
        // Where the file system below refuses direct I/O, losetup only warns.
        let direct = of_kernel(&made.device, "dio")?;
        ensure!(direct == "1", "{} has no direct I/O", made.device.display());
        Ok(made)
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// Detaches it.
    ///
    /// # Errors
    /// If something still uses it.
    pub fn detach(mut self) -> Result<()> {
        self.detached = true;
        detach(&self.device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if !self.detached
            && let Err(error) = detach(&self.device)
        {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Loop devices over files below a directory. Their names are lost once what the files are on is unmounted.
pub fn below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = all()?;
    found.retain(|(_, file)| file.starts_with(directory));
    Ok(found.into_iter().map(|(device, _)| device).collect())
}

/// Detaches devices that a killed run has left.
pub fn clear(devices: &[PathBuf]) -> Result<()> {
    for device in devices {
        eprintln!("detaching {}, which an earlier run left", device.display());
        detach(device)?;
    }
    Ok(())
}

fn detach(device: &Path) -> Result<()> {
    short(Command::new("losetup").arg("--detach").arg(device))?;
    // While someone has it open, the kernel only remembers to detach it.
    let deadline = Instant::now() + GRACE;
    while of_kernel(device, "backing_file").is_ok() {
        if Instant::now() > deadline {
            bail!("{} is still in use", device.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// All loop devices with their files.
fn all() -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").context("reading /sys/block")? {
        let device = Path::new("/dev").join(entry?.file_name());
        if let Ok(file) = of_kernel(&device, "backing_file") {
            found.push((device, PathBuf::from(file)));
        }
    }
    Ok(found)
}

/// What the kernel says of a loop device; an error if it has no file.
fn of_kernel(device: &Path, name: &str) -> Result<String> {
    let base = device.file_name().context("a device has a name")?;
    let path = Path::new("/sys/block").join(base).join("loop").join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().to_owned())
}
