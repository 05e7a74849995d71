//! A file protected by bulla: `protect enrol`, `attach` and `detach`, through the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::drop_pages;
use crate::field::Field;
use crate::process::{Daemon, short};
use crate::subject;

/// A protected file, its log and its key.
#[derive(Debug, Clone)]
pub struct Protected {
    /// The file that holds the data.
    pub image: PathBuf,
    /// The log.
    pub log: PathBuf,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    key: PathBuf,
    anchor: Option<PathBuf>,
    binary: PathBuf,
    home: PathBuf,
    output: PathBuf,
}

impl Protected {
    /// Files in a directory; the log may be in another one.
    pub fn new(field: &Field, binary: &Path, dir: &Path, log_dir: &Path) -> Result<Protected> {
        Ok(Protected {
            image: dir.join("image"),
            log: log_dir.join("log"),
            ring_bytes: 1 << 30,
            // `enrol` makes it.
            key: dir.join("key"),
            anchor: None,
            binary: binary.to_owned(),
            home: field.work().join("run/home"),
            output: field.log("protect"),
        })
    }

    /// The same with a ring of this size.
    pub fn with_ring(self, ring_bytes: u64) -> Protected {
        Protected { ring_bytes, ..self }
    }

    /// The same, reached by other paths.
    pub fn with_files(&self, image: &Path, log: &Path) -> Protected {
        Protected {
            image: image.to_owned(),
            log: log.to_owned(),
            ..self.clone()
        }
    }

    /// The same, run by another binary.
    pub fn with_binary(&self, binary: &Path) -> Protected {
        Protected {
            binary: binary.to_owned(),
            ..self.clone()
        }
    }

    /// The same with an anchor beside it, which is made from the log. The device must not be attached.
    pub fn with_anchor(&self) -> Result<Protected> {
        let anchor = self.image.with_file_name("anchor");
        if anchor.exists() {
            fs::remove_file(&anchor)?;
        }
        let mut set = subject::bulla(&self.binary, &self.home);
        set.args(["protect", "anchor", "set"]).arg(&anchor);
        set.arg("--log").arg(&self.log);
        short(set.arg("--key-file").arg(&self.key))?;
        Ok(Protected {
            anchor: Some(anchor),
            ..self.clone()
        })
    }

    /// Enrols the file as it lies, with a new log.
    pub fn enrol(&self) -> Result<()> {
        if self.log.exists() {
            fs::remove_file(&self.log)?;
        }
        let ring = format!("{}MiB", self.ring_bytes >> 20);
        short(
            self.protect("enrol")
                .arg("--ring")
                .arg(ring)
                .arg("--no-recovery-key"),
        )?;
        drop_pages(&self.log)?;
        drop_pages(&self.image)
    }

    /// Attaches it as a loop device.
    pub fn attach(&self) -> Result<Attached> {
        drop_pages(&self.log)?;
        if self.output.exists() {
            fs::remove_file(&self.output)?;
        }
        let mut attach = self.protect("attach");
        attach.args(["--foreground", "--json"]);
        if let Some(anchor) = &self.anchor {
            attach.arg("--anchor").arg(anchor);
        }
        let mut daemon = Daemon::start("bulla protect attach", &mut attach, &self.output)?;
        let mut device = None;
        daemon.wait_until("printed its device", || {
            device = fs::read_to_string(&self.output)
                .ok()
                .as_deref()
                .and_then(printed);
            device.is_some()
        })?;
        Ok(Attached {
            device: device.context("no device")?,
            daemon: Some(daemon),
            protected: self.clone(),
        })
    }

    fn detach(&self) -> Result<()> {
        let mut detach = subject::bulla(&self.binary, &self.home);
        short(detach.args(["protect", "detach"]).arg(&self.image)).map(drop)
    }

    fn protect(&self, verb: &str) -> Command {
        let mut command = subject::bulla(&self.binary, &self.home);
        command.args(["protect", verb]).arg(&self.image);
        command.arg("--log").arg(&self.log);
        command.arg("--key-file").arg(&self.key);
        command
    }
}

/// The device in the lines that `attach --json` has printed so far.
fn printed(text: &str) -> Option<PathBuf> {
    let records = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut devices = records.filter_map(|record| Some(record.get("place")?.as_str()?.into()));
    devices.next()
}

/// An attached device. Dropping it detaches it.
pub struct Attached {
    device: PathBuf,
    // None once it is detached.
    daemon: Option<Daemon>,
    protected: Protected,
}

impl Attached {
    /// The block device.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// The process that serves it.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().map_or(0, Daemon::pid)
    }

    /// Detaches it.
    ///
    /// # Errors
    /// If that fails, or the process does not end.
    pub fn detach(mut self) -> Result<()> {
        let daemon = self.daemon.take();
        self.protected.detach()?;
        let ended = daemon.is_some_and(|daemon| daemon.ended());
        ensure!(ended, "the process goes on after detach");
        Ok(())
    }

    /// Kills the process (SIGKILL), as a crash does.
    pub fn kill(mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            if let Err(error) = self.protected.detach() {
                eprintln!("warning: {error:#}");
            }
            drop(daemon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_found_among_other_lines() {
        let text = "{\"type\":\"progress\"}\nwarning: x\n{\"type\":\"attached\",\"place\":\"/dev/loop7\"}\n";
        assert_eq!(printed(text), Some("/dev/loop7".into()));
        assert_eq!(printed("{\"type\":\"progress\"}\n{\"pla"), None);
    }
}
