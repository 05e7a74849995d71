//! Arguments of `orderer` and `share`: volumes that several devices write.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use trust::statement::VolumeId;

use super::publishing::KeyNew;

/// `bulla orderer`.
#[derive(Debug, Subcommand)]
pub enum OrdererCommand {
    /// Create the key with which a server signs the order of writes; prints its public key
    New(KeyNew),
}

/// `bulla share`.
#[derive(Debug, Subcommand)]
pub enum ShareCommand {
    /// Check a file of evidence: whether it convicts a server or a device, and of what
    Check(ShareCheck),
}

impl ShareCommand {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            ShareCommand::Check(_) => "share check",
        }
    }
}

/// `bulla share check`.
#[derive(Debug, Args)]
pub struct ShareCheck {
    /// The file of evidence
    pub evidence: PathBuf,
    /// Refuse evidence about another volume than this one
    #[arg(long, value_name = "VOLUMEID", value_parser = parse_volume)]
    pub volume: Option<VolumeId>,
}

fn parse_volume(text: &str) -> Result<VolumeId, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}
