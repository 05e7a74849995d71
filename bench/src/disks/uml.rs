//! User-mode Linux: a kernel as a process, for what this machine's kernel does not have (dm-integrity).
//!
//! It boots with this machine's file system as its root, read-only, and with one block device over a file.
//! Its only process is a script of the bench, which writes its results to one directory of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, Daemon};

/// Debian's program and its modules.
const PROGRAM: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
/// Where the script finds the directory of results.
pub const RESULTS: &str = "/run/results";
/// The block device.
pub const DEVICE: &str = "/dev/ubda";
/// Memory of the kernel, MiB.
const MEMORY_MIB: u32 = 768;

/// A kernel to boot.
pub struct Uml {
    dir: PathBuf,
    log: PathBuf,
    modules: PathBuf,
}

impl Uml {
    /// Uses an empty directory for its files.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn new(dir: &Path, log: &Path) -> Result<Uml> {
        ensure!(
            Path::new(PROGRAM).exists(),
            "{PROGRAM} is missing: bench/peers.sh installs it"
        );
        let version = fs::read_dir(MODULES)
            .with_context(|| format!("reading {MODULES}"))?
            .next()
            .context("user-mode Linux has no modules")??;
        Ok(Uml {
            dir: dir.to_owned(),
            log: log.to_owned(),
            modules: version.path(),
        })
    }

    /// The commands that load a module and all that it needs.
    pub fn load(&self, module: &str) -> Result<String> {
        let table = fs::read_to_string(self.modules.join("modules.dep"))?;
        let files = needed(&table, module).with_context(|| format!("no module {module}"))?;
        let commands = files.iter().map(|file| {
            let path = self.modules.join(file);
            // One may be loaded already, for another module.
            format!("insmod {} 2>/dev/null || true\n", path.display())
        });
        Ok(commands.collect())
    }

    /// Boots, runs a script (`sh`, ended by its first error) and halts.
    ///
    /// # Errors
    /// If the script fails or takes too long; the message has the end of its output.
    pub fn run(&self, image: &Path, script: &str, limit: Duration) -> Result<PathBuf> {
        let results = self.dir.join("results");
        if results.exists() {
            fs::remove_dir_all(&results)?;
        }
        fs::create_dir_all(&results)?;
        let init = self.dir.join("init");
        fs::write(&init, whole(script, &results))?;
        process::make_executable(&init)?;
        let mut command = Command::new(PROGRAM);
        command.args([
            &format!("mem={MEMORY_MIB}M"),
            "root=/dev/root",
            "rootfstype=hostfs",
            "ro",
            "quiet",
            "con=null",
            "con0=null,fd:1",
            &format!("init={}", init.display()),
            &format!("uml_dir={}", self.dir.display()),
            &format!("ubd0={}", image.display()),
        ]);
        let kernel = Daemon::start("user-mode Linux", &mut command, &self.log)?;
        let deadline = Instant::now() + limit;
        while !kernel.has_ended()? {
            process::check_stop()?;
            if Instant::now() > deadline {
                bail!(
                    "user-mode Linux has not finished within {limit:?}: {}",
                    said(&results)
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = fs::read_to_string(results.join("code")).unwrap_or_default();
        ensure!(
            code.trim() == "0",
            "the script in user-mode Linux failed ({}): {}",
            code.trim(),
            said(&results)
        );
        Ok(results)
    }
}

/// The first process: prepares the file systems, runs the script, halts.
fn whole(script: &str, results: &Path) -> String {
    format!(
        "#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t proc none /proc
mount -t sysfs none /sys
mountpoint -q /dev || mount -t devtmpfs none /dev
mount -t tmpfs none /run
mount -t tmpfs none /tmp
mkdir {RESULTS} /run/cryptsetup
mount -t hostfs none {RESULTS} -o {}
(
set -e
cd /tmp
{script}
) >{RESULTS}/said 2>&1
echo $? >{RESULTS}/code
sync
echo o >/proc/sysrq-trigger
sleep 60
",
        results.display()
    )
}

/// The end of the script's output.
fn said(results: &Path) -> String {
    let text = fs::read_to_string(results.join("said")).unwrap_or_default();
    process::tail(&text)
}

/// The files of a module and of those that it needs, in the order of loading.
fn needed(table: &str, module: &str) -> Option<Vec<String>> {
    let ending = format!("/{module}.ko:");
    let line = table.lines().find(|line| {
        let (file, _) = line.split_once(' ').unwrap_or((line, ""));
        file.ends_with(&ending)
    })?;
    let mut files: Vec<_> = line
        .split([':', ' '])
        .filter(|file| !file.is_empty())
        .collect();
    // depmod lists the most basic module last.
    files.reverse();
    Some(files.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_in_the_order_of_their_needs() {
        let table =
            "kernel/md/dm-integrity.ko: kernel/xor.ko kernel/md/dm-mod.ko\nkernel/md/dm-mod.ko:\n";
        let right = [
            "kernel/md/dm-mod.ko",
            "kernel/xor.ko",
            "kernel/md/dm-integrity.ko",
        ];
        assert_eq!(needed(table, "dm-integrity").unwrap(), right);
        assert_eq!(needed(table, "dm-mod").unwrap(), ["kernel/md/dm-mod.ko"]);
        assert_eq!(needed(table, "mod"), None);
    }
}
