//! Arguments of `bulla prove` and `bulla check`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Reading;
use crate::units::{parse_number, parse_time};

/// `bulla prove`.
#[derive(Debug, Args)]
pub struct Prove {
    /// The volume to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    pub path: OsString,
    /// The file to write the proof to, a new file
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// What a script expects of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Expected {
    /// The path is in the volume.
    Present,
    /// The path is not in the volume.
    Absent,
}

/// `bulla check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The file: a proof that `bulla prove` made, or evidence; `-` is stdin
    pub file: PathBuf,
    /// The volume that it must be about: its id, a SOURCE, or a name from the configuration. A proof says nothing
    /// without it
    #[arg(long, value_name = "VOLUME")]
    pub volume: Option<String>,
    /// Of a proof: the path that it must be about [default: the path that the proof names]
    #[arg(long, value_name = "PATH")]
    pub path: Option<OsString>,
    /// Of a proof: end with exit code 10 or 1 if it shows the opposite. Without this flag, a valid proof of absence is
    /// a success too
    #[arg(long, value_name = "WHAT")]
    pub expect: Option<Expected>,
    /// Of a proof: judge it at this time (for example 2026-01-31T12:00:00Z) and by nothing that this machine remembers
    /// [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub at_time: Option<u64>,
    /// Of a proof: refuse policies with smaller numbers than N
    #[arg(long, value_name = "N", value_parser = parse_number)]
    pub least_policy: Option<u64>,
}
