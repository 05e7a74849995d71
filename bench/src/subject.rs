//! Drives `bulla` through its command line, as a user does.
//!
//! Keys, caches and state are kept below the directory that the caller gives (`home`), never in the
//! account's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, anyhow};

use crate::field::Field;
use crate::figure::Build;
use crate::mounts::Mounted;
use crate::process::{self, Cost, Daemon};

/// `bulla` with its state below `home`.
pub fn bulla(binary: &Path, home: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env("HOME", home);
    command.env("XDG_CONFIG_HOME", home.join("config"));
    command.env("XDG_STATE_HOME", home.join("state"));
    command.env("XDG_CACHE_HOME", home.join("cache"));
    command
}

/// Makes the publisher's key.
pub fn new_key(binary: &Path, home: &Path) -> Command {
    let mut command = bulla(binary, home);
    command
        .args(["key", "new", "--no-passphrase", "--out"])
        .arg(home.join("key"));
    command
}

/// Publishes a tree into a repository.
pub fn publish(binary: &Path, home: &Path, tree: &Path, repo: &Path) -> Command {
    let mut command = bulla(binary, home);
    command
        .arg("publish")
        .arg(tree)
        .arg(repo)
        .arg("--key")
        .arg(home.join("key"));
    command.args(["--valid", "7d", "--json"]);
    command
}

/// A published tree.
#[derive(Debug, Clone)]
pub struct Published {
    binary: PathBuf,
    home: PathBuf,
    /// Its repository.
    pub repo: PathBuf,
    /// Its volume id.
    pub volume: String,
}

impl Published {
    /// Publishes a tree into a fresh repository named after the figure.
    pub fn new(field: &Field, name: &str, tree: &Path) -> Result<Published> {
        Self::by(field, Build::Now, name, tree)
    }

    /// The same with another build, which then also serves and mounts the tree.
    pub fn by(field: &Field, build: Build, name: &str, tree: &Path) -> Result<Published> {
        let published = Self::made(field, build, name, tree, |command, disk| {
            Ok((process::run(command, disk)?, 0))
        });
        Ok(published?.0)
    }

    /// The same, with its cost and the publisher's peak resident memory, bytes.
    pub fn watched(field: &Field, name: &str, tree: &Path) -> Result<(Published, Cost, u64)> {
        Self::made(field, Build::Now, name, tree, process::run_watched)
    }

    fn made(
        field: &Field,
        build: Build,
        name: &str,
        tree: &Path,
        run: impl FnOnce(&mut Command, &Path) -> Result<(Cost, u64)>,
    ) -> Result<(Published, Cost, u64)> {
        let binary = field.binary(build)?.to_owned();
        let home = field.fresh(&format!("{}-{name}", build.directory()))?;
        let repo = home.join("repo");
        process::run(&mut new_key(&binary, &home), field.work())?;
        let (cost, peak_bytes) = run(&mut publish(&binary, &home, tree, &repo), field.work())?;
        let volume = volume_of(&cost.stdout)?;
        let published = Published {
            volume,
            binary,
            home,
            repo,
        };
        Ok((published, cost, peak_bytes))
    }

    /// Reads and verifies everything directly from the repository. Returns the number of verified files.
    pub fn verify(&self, field: &Field) -> Result<(Cost, u64)> {
        let mut command = bulla(&self.binary, &self.home);
        command.args(["verify", "--json"]);
        command.arg(format!("{}@{}", self.volume, self.repo.display()));
        let cost = process::run(&mut command, field.work())?;
        let files = last_record(&cost.stdout)?
            .get("files")
            .and_then(serde_json::Value::as_u64);
        let files = files.context("verify --json printed no number of files")?;
        Ok((cost, files))
    }

    /// The same volume with the blocks of another copy of its repository.
    pub fn with_repo(&self, repo: &Path) -> Published {
        Published {
            repo: repo.to_owned(),
            ..self.clone()
        }
    }

    /// The same volume read with another binary.
    pub fn with_binary(&self, binary: &Path) -> Published {
        Published {
            binary: binary.to_owned(),
            ..self.clone()
        }
    }

    /// The same repository served and read by a build, an older one with state of its own.
    ///
    /// # Errors
    /// When that build does not take part.
    pub fn with_build(&self, field: &Field, build: Build, name: &str) -> Result<Published> {
        if build == Build::Now {
            return Ok(self.clone());
        }
        let home = field.fresh(&format!("{}-{name}", build.directory()))?;
        Ok(Published {
            binary: field.binary(build)?.to_owned(),
            home,
            ..self.clone()
        })
    }

    /// Prints a file of the volume, directly from the repository.
    pub fn cat(&self, path: &str) -> Result<Output> {
        let mut command = bulla(&self.binary, &self.home);
        command
            .arg("cat")
            .arg(format!("{}@{}", self.volume, self.repo.display()))
            .arg(path);
        command.output().context("starting bulla cat")
    }

    /// Publishes the tree once more.
    pub fn again(&self, field: &Field, tree: &Path) -> Result<()> {
        let mut command = publish(&self.binary, &self.home, tree, &self.repo);
        process::run(&mut command, field.work()).map(drop)
    }

    /// The command that updates a replica from a location.
    pub fn pull_command(&self, place: &str, replica: &Path) -> Command {
        let mut command = bulla(&self.binary, &self.home.join("follower"));
        command.args(["pull", "--json"]);
        command.arg(format!("{}@{place}", self.volume)).arg(replica);
        command
    }

    /// A command that reads the volume at a location: `ls`, `verify`, `extract`. Nothing is cached.
    pub fn read_command(&self, command: &str, place: &str) -> Command {
        let mut read = bulla(&self.binary, &self.home);
        read.arg(command).arg(format!("{}@{place}", self.volume));
        read
    }

    /// The command that judges a proof of a path, with the state directory of a stranger below `home`.
    pub fn check_command(&self, proof: &Path, home: &Path) -> Command {
        let mut check = bulla(&self.binary, home);
        check
            .arg("check")
            .arg(proof)
            .args(["--volume", &self.volume]);
        check
    }

    /// Serves the repository at a free port of 127.0.0.1.
    pub fn serve(&self, field: &Field) -> Result<(Daemon, u16)> {
        let port = process::free_port()?;
        let mut command = bulla(&self.binary, &self.home);
        command.arg("serve").arg(&self.repo);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        let mut daemon = Daemon::start("bulla serve", &mut command, &field.log("bulla-serve"))?;
        daemon.wait_for_port(port)?;
        Ok((daemon, port))
    }

    /// Serves the repository over HTTP too, on the second port.
    pub fn serve_web(&self, field: &Field) -> Result<(Daemon, u16)> {
        let (port, http) = (process::free_port()?, process::free_port()?);
        let mut command = bulla(&self.binary, &self.home);
        command.arg("serve").arg(&self.repo);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--http", &format!("127.0.0.1:{http}")]);
        let mut daemon = Daemon::start("bulla serve", &mut command, &field.log("bulla-serve"))?;
        daemon.wait_for_port(http)?;
        Ok((daemon, http))
    }

    /// Mounts from a location with more options; without a cache unless they name one.
    pub fn mount_from(
        &self,
        field: &Field,
        place: &str,
        options: &[&std::ffi::OsStr],
        dir: &Path,
    ) -> Result<Mounted> {
        let mut command = bulla(&self.binary, &self.home);
        command.arg("mount").arg(format!("{}@{place}", self.volume));
        command.arg(dir).arg("--foreground").args(options);
        Mounted::start("bulla mount", &mut command, dir, &field.log("bulla-mount"))
    }

    /// Mounts from the server at this port, with an empty cache of its own.
    pub fn mount(&self, field: &Field, port: u16, dir: &Path) -> Result<Mounted> {
        let cache = self.home.join("mount-cache");
        if cache.exists() {
            fs::remove_dir_all(&cache)?;
        }
        let mut command = bulla(&self.binary, &self.home);
        command.env("XDG_CACHE_HOME", cache);
        command.arg("mount");
        command.arg(format!("{}@bulla://127.0.0.1:{port}", self.volume));
        command.arg(dir).arg("--foreground");
        Mounted::start("bulla mount", &mut command, dir, &field.log("bulla-mount"))
    }
}

/// The volume id in the closing record that `publish --json` prints.
fn volume_of(stdout: &str) -> Result<String> {
    let record = last_record(stdout)?;
    let volume = record.get("volume").and_then(|v| v.as_str());
    Ok(volume
        .ok_or_else(|| anyhow!("publish --json printed no volume"))?
        .to_owned())
}

fn last_record(stdout: &str) -> Result<serde_json::Value> {
    let last = stdout.trim().lines().next_back().unwrap_or_default();
    serde_json::from_str(last).context("the last line of --json is not JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_is_in_the_last_record() {
        let printed = "{\"type\":\"progress\"}\n{\"type\":\"result\",\"volume\":\"vol1x\"}\n";
        assert_eq!(volume_of(printed).unwrap(), "vol1x");
        assert!(volume_of("published").is_err());
        assert!(volume_of("{}").is_err());
    }
}
