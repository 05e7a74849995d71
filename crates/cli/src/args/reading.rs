//! Arguments of the commands that read a SOURCE.

use std::path::PathBuf;
use std::time::Duration;

use ::mount::Ownership;
use clap::Args;
use trust::judge::Freshness;

use crate::caching::Caching;
use crate::units::{parse_count, parse_duration, parse_freshness, parse_version};

/// Where a volume is read from.
#[derive(Debug, Args)]
pub struct Reading {
    /// VOLUMEID@LOCATION, or a name from the configuration
    pub source: String,
    /// Another place that has the volume (repeatable)
    #[arg(long, value_name = "LOCATION")]
    pub mirror: Vec<String>,
    /// How long an answer may take, all places tried [default: 30s, setting `deadline`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// What is kept of what was read.
    #[command(flatten)]
    pub caching: Caching,
    /// Believe https servers that an authority in this PEM file vouches for, and no others (setting
    /// `tls`)
    #[arg(long, value_name = "FILE", conflicts_with = "tls_unverified")]
    pub ca: Option<PathBuf>,
    /// Ask nobody who an https server is: what is read is proved by the volume id, but whoever sits in
    /// between sees what is read
    #[arg(long)]
    pub tls_unverified: bool,
    /// How old a statement may be: `strict`, `grace=D` (so much past its end, with a warning, where
    /// nothing fresher answers) or `pinned=VERSION:RECORD` (that record and no other, however old)
    /// [default: strict, setting `freshness`]
    #[arg(long, value_name = "HOW", value_parser = parse_freshness)]
    pub freshness: Option<Freshness>,
}

/// `bulla mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// What to mount.
    #[command(flatten)]
    pub reading: Reading,
    /// Where; what the directory holds is hidden meanwhile
    pub dir: PathBuf,
    /// How often to look for a new version [default: 30s, setting `refresh`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub refresh: Option<Duration>,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    pub foreground: bool,
    /// Hand out metrics at http://ADDR/metrics, for Prometheus [default: none]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Let other users read the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Let no program be started from the mount
    #[arg(long)]
    pub no_exec: bool,
    /// Who files belong to: `mounter`, `published`, or numbers `UID:GID`
    #[arg(long, value_name = "WHO", default_value = "mounter", value_parser = parse_owner)]
    pub owner: Ownership,
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
    /// Only the mount on this directory
    pub dir: Option<PathBuf>,
}

/// `bulla doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Unmount what is dead, and remove what dead daemons left
    #[arg(long)]
    pub fix: bool,
}

/// `bulla ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// One line with mode, size and time for each entry
    #[arg(short, long)]
    pub long: bool,
    /// Everything below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// `bulla cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    pub path: std::ffi::OsString,
}

/// `bulla stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume; the volume itself without one
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
}

/// `bulla extract`.
#[derive(Debug, Args)]
pub struct Extract {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The directory to fill; it is made when missing and must be empty
    pub dir: PathBuf,
    /// Set owner and group where the volume tells them (root only)
    #[arg(long)]
    pub owner: bool,
    /// Leave out device files and others that cannot be made, end with exit code 3
    #[arg(long)]
    pub skip_special: bool,
}

/// `bulla verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// Only this path and what lies below
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
}

/// `bulla log`.
#[derive(Debug, Args)]
pub struct Log {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// Entries to list, the newest
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count::<usize>)]
    pub max: usize,
}

/// `bulla diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The older version [default: the one before the newest]
    #[arg(value_parser = parse_version)]
    pub old: Option<u64>,
    /// The other version [default: the newest]
    #[arg(value_parser = parse_version)]
    pub new: Option<u64>,
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
