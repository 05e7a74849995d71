//! Arguments of the commands that read a SOURCE.

use std::path::PathBuf;
use std::time::Duration;

use ::mount::Ownership;
use clap::{Args, ValueEnum};
use trust::judge::Freshness;
use volume::VersionRef;

use crate::caching::Caching;
use crate::failure::{Failure, Kind, Outcome};
use crate::sources::parse_policy;
use crate::units::{parse_age, parse_count, parse_duration, parse_freshness, parse_position};

/// Where a volume is read from.
#[derive(Debug, Args)]
pub struct Reading {
    /// The volume: VOLUMEID@LOCATION, or a name from the configuration (`bulla source add`)
    pub source: String,
    /// Another location of the volume (repeatable)
    #[arg(long, value_name = "LOCATION")]
    pub mirror: Vec<String>,
    /// Time limit of each read over all locations [default: 30s, setting `deadline`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// The caches.
    #[command(flatten)]
    pub caching: Caching,
    /// Accept https servers with a certificate from an authority in this PEM file, and no others
    /// (setting `tls`)
    #[arg(long, value_name = "FILE", conflicts_with = "tls_unverified")]
    pub ca: Option<PathBuf>,
    /// Do not check the certificates of https servers. The volume id still protects what you read against
    /// changes, but others on the network can see it
    #[arg(long)]
    pub tls_unverified: bool,
    /// Which versions to accept: `strict` (valid ones), `grace=D` (also for D after the end of the
    /// validity, with a warning, if no location has a valid one) or `pinned=VERSION:RECORD` (only this
    /// record, valid or not) [default: strict, setting `freshness`]
    #[arg(long, value_name = "HOW", value_parser = parse_freshness)]
    pub freshness: Option<Freshness>,
    /// Accept only versions under this policy (pol1...) or a successor of it. It must be the first policy of the volume or
    /// one of the newest seven
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    pub policy: Option<[u8; 32]>,
}

/// `bulla mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// The volume to mount.
    #[command(flatten)]
    pub reading: Reading,
    /// The directory to mount on; the mount hides its content
    pub dir: PathBuf,
    /// Mount this version (a number, or a name of `publish --tag`), as long as a location keeps it, and stay there; of a
    /// shared volume: as it was after entry N, or a snapshot by its name
    #[arg(long, value_name = "VERSION", value_parser = parse_version_or_name, conflicts_with = "refresh")]
    pub at: Option<VersionRef>,
    /// How often to check for a new version [default: 30s, setting `refresh`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub refresh: Option<Duration>,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    pub foreground: bool,
    /// Serve Prometheus metrics at http://ADDR/metrics [default: off]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Allow other users to read the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Do not allow programs on the mount to be executed
    #[arg(long)]
    pub no_exec: bool,
    /// Fetch first what a program needs that starts on the mount, as FILE lists it (from --record). `none` fetches
    /// nothing first [default: the list in the volume at `.bulla/profile`, if its publisher put one there]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Write what programs read of the mount into FILE, a new file, for --profile
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// How old names and attributes of a shared volume may be; what is opened is always the newest [default: 1s]
    #[arg(long, value_name = "D", value_parser = parse_age)]
    pub attr: Option<Duration>,
    /// Locks of programs on files of a shared volume (flock, fcntl): `volume`, for all devices that mount it, or `local`,
    /// for this machine [default: volume]
    #[arg(long, value_name = "WHERE")]
    pub locks: Option<Locks>,
    /// Refuse every change of a shared volume; published volumes are read-only anyway
    #[arg(long, overrides_with = "read_only")]
    pub read_only: bool,
    /// Owner of the files: `mounter`, `published`, or numbers `UID:GID`
    #[arg(long, value_name = "WHO", default_value = "mounter", value_parser = parse_owner)]
    pub owner: Ownership,
}

/// How far locks of programs reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Locks {
    /// To all devices that mount the volume.
    Volume,
    /// To the programs of this machine.
    Local,
}

fn parse_owner(text: &str) -> Result<Ownership, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    match text {
        "mounter" => Ok(Ownership::Mounter),
        "published" => Ok(Ownership::Published),
        _ => text
            .split_once(':')
            .and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)))
            .map(|(uid, gid)| Ownership::Fixed { uid, gid })
            .ok_or_else(|| "expected mounter, published or UID:GID in numbers".to_owned()),
    }
}

/// `bulla umount`.
#[derive(Debug, Args)]
pub struct Umount {
    /// The mounted directory
    pub dir: PathBuf,
}

/// `bulla status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Show only the mount on this directory
    pub dir: Option<PathBuf>,
}

/// `bulla doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Unmount dead mounts, and remove the sockets of dead daemons
    #[arg(long)]
    pub fix: bool,
}

/// The past of a volume.
#[derive(Debug, Args)]
pub struct Past {
    /// Read this version (a number, or a name of `publish --tag`), as long as a location keeps it; of a shared volume: as it
    /// was after entry N, or a snapshot by its name. `bulla log` and `bulla share snapshots` show them
    #[arg(long, value_name = "VERSION", value_parser = parse_version_or_name)]
    pub at: Option<VersionRef>,
}

pub(super) fn parse_version_or_name(text: &str) -> Result<VersionRef, String> {
    text.parse()
        .map_err(|why| format!("`{text}` is no number or name of a version: {why}"))
}

/// `bulla ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// Show mode, links, owner, size and modification time of each entry
    #[arg(short, long)]
    pub long: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// The flags.
    #[command(flatten)]
    pub past: Past,
}

/// `bulla cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    pub path: std::ffi::OsString,
    /// The flags.
    #[command(flatten)]
    pub past: Past,
}

/// `bulla stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume [default: the root directory]
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// The flags.
    #[command(flatten)]
    pub past: Past,
}

/// `bulla extract`.
#[derive(Debug, Args)]
pub struct Extract {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The directory to write to; created if it does not exist. It must be empty, or hold what an interrupted run of the
    /// same command has left: then that goes on
    pub dir: PathBuf,
    /// Extract only this path: what is in it if it is a directory, else the file under its name
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// Set owner and group if the volume has them (root only)
    #[arg(long)]
    pub owner: bool,
    /// Leave out device files and other special files that cannot be created, and end with exit code 3
    #[arg(long)]
    pub skip_special: bool,
    /// The flags.
    #[command(flatten)]
    pub past: Past,
}

/// `bulla verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// Verify only this path and what is below it
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// Of the directory of a shared volume's server: mend what is damaged, from what is whole and from --from. The damaged
    /// files are kept
    #[arg(long)]
    pub repair: bool,
    /// With --repair: take what is damaged from this copy of the directory, of any age, or the log from this directory of
    /// a device (STATE/shared/VOLUMEID)
    #[arg(long, value_name = "DIR", requires = "repair")]
    pub from: Option<PathBuf>,
    /// Of the directory of a shared volume's server: read the log and the index, and no blocks
    #[arg(long)]
    pub skip_blocks: bool,
    /// The flags.
    #[command(flatten)]
    pub past: Past,
}

impl Verify {
    /// Refuses what is for the directories of servers.
    pub fn refuse_for_servers(&self) -> Outcome<()> {
        if !self.repair && !self.skip_blocks {
            return Ok(());
        }
        let error = "--repair and --skip-blocks are for the directory of a shared volume's server";
        let hint = "`bulla pull SOURCE REPO --paranoid` mends a replica of a published volume";
        Err(Failure::new(Kind::Usage, error).with_hint(hint))
    }
}

/// `bulla prefetch`.
#[derive(Debug, Args)]
pub struct Prefetch {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// Fetch only this path and what is below it
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// Fetch this version (a number, or a name of `publish --tag`), as long as a location keeps it
    #[arg(long, value_name = "VERSION", value_parser = parse_version_or_name)]
    pub at: Option<VersionRef>,
}

/// `bulla log`.
#[derive(Debug, Args)]
pub struct Log {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// Of a shared volume: list only what was done at this path and below it
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// How many of the newest entries to list
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count::<usize>)]
    pub max: usize,
    /// Of a shared volume: list only entries with smaller numbers than N
    #[arg(long, value_name = "N", value_parser = parse_position)]
    pub before: Option<u64>,
    /// Of a shared volume: list only entries of the last D, for example 2h or 7d
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Of a published volume: print what this machine has seen of it, as a text for another reader, who compares it
    #[arg(long, conflicts_with_all = ["max", "compare"])]
    pub seen: bool,
    /// Of a published volume: compare what this machine has seen with the text in FILE that another reader printed with
    /// --seen (`-` for stdin)
    #[arg(long, value_name = "FILE", conflicts_with = "max")]
    pub compare: Option<PathBuf>,
}

impl Log {
    /// Refuses what is for published volumes.
    pub fn refuse_published(&self) -> Outcome<()> {
        if !self.seen && self.compare.is_none() {
            return Ok(());
        }
        let error = "--seen and --compare are for published volumes, and this is a shared one";
        let hint = "`bulla share compare VOLUME` prints and compares what two devices have seen";
        Err(Failure::new(Kind::Usage, error).with_hint(hint))
    }

    /// Refuses what is for shared volumes.
    pub fn refuse_shared(&self) -> Outcome<()> {
        let given = [
            (!self.path.is_empty(), "PATH"),
            (self.before.is_some(), "--before"),
            (self.since.is_some(), "--since"),
        ];
        match given.iter().find(|(is_given, _)| *is_given) {
            None => Ok(()),
            Some((_, word)) => {
                let error = format!("{word} is for shared volumes, and this is a published one");
                let hint =
                    "`bulla diff SOURCE OLD NEW` shows which paths differ between two versions";
                Err(Failure::new(Kind::Usage, error).with_hint(hint))
            }
        }
    }
}

/// `bulla diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The older version, a number or a name [default: the one before the newest]; of a shared volume the number of an
    /// entry, as `bulla log` shows it: the volume as it was after it
    #[arg(value_parser = parse_version_or_name)]
    pub old: Option<VersionRef>,
    /// The newer version, or entry [default: the newest]
    #[arg(value_parser = parse_version_or_name)]
    pub new: Option<VersionRef>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_words_or_two_numbers() {
        assert_eq!(parse_owner("published"), Ok(Ownership::Published));
        let fixed = Ownership::Fixed { uid: 7, gid: 8 };
        assert_eq!(parse_owner("7:8"), Ok(fixed));
        for wrong in [
            "",
            "7",
            "7:",
            ":8",
            "7:8:9",
            "-1:0",
            "root:root",
            "4294967296:0",
        ] {
            assert!(parse_owner(wrong).is_err(), "{wrong}");
        }
    }
}
