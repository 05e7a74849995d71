//! The words of `bulla share snapshot` and `bulla share retain`.

use std::time::Duration;

use clap::Args;
use trust::version_name::{BadVersionName, VersionName};
use trust_shared::decision::Label;

use super::places::parse_keep;
use super::waiting::Waiting;

/// `bulla share snapshot`.
#[derive(Debug, Args)]
pub struct ShareSnapshot {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The name of the snapshot
    #[arg(value_parser = parse_snapshot)]
    pub name: Label,
    /// Name the volume as it was after entry N [default: as it is now]
    #[arg(long, value_name = "N", conflicts_with = "remove")]
    pub at: Option<u64>,
    /// Take the name away
    #[arg(long)]
    pub remove: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share retain`.
#[derive(Debug, Args)]
pub struct ShareRetain {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// For how long, at least 1d [default: show it]
    #[arg(value_name = "TIME", value_parser = parse_keep)]
    pub keep: Option<Duration>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// A name that `--at` takes.
fn parse_snapshot(text: &str) -> Result<Label, String> {
    let name: VersionName = text
        .parse()
        .map_err(|why: BadVersionName| why.to_string())?;
    Label::new(&name.to_string()).map_err(|why| why.to_string())
}
