//! The words of `bulla share conflicts`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::waiting::Waiting;

/// `bulla share conflicts`.
#[derive(Debug, Args)]
pub struct ShareConflicts {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// With --take: the copies to settle. Else the directories and files to look at [default: all]
    pub path: Vec<OsString>,
    /// Settle these copies
    #[arg(long, value_name = "WHICH", requires = "path")]
    pub take: Option<Take>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// Which of two versions stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Take {
    /// The copy takes the place of the file
    Copy,
    /// The file stays, and the copy goes
    File,
    /// Both stay: the copy becomes `NAME (device N DATE)`
    Both,
}
