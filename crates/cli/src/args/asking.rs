//! Arguments of the commands that need the cosignatures of witnesses: `publish`, `renew`, `policy install`.

use std::path::PathBuf;

use clap::Args;
use wire::HttpAddress;

/// How a new version or policy gets the cosignatures that the policy demands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Witnesses")]
pub struct Asking {
    /// A witness to ask for a cosignature, by the URL to which `add-checkpoint` is added (repeatable)
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub witness: Vec<HttpAddress>,
}

/// The same, by files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Witnesses")]
pub struct ByFile {
    /// Write what the witnesses are to cosign to FILE, and show nothing to readers yet
    #[arg(long, value_name = "FILE")]
    pub checkpoint_out: Option<PathBuf>,
    /// The size of the log that the witness has cosigned last, if it is not that of the version shown now
    #[arg(long, value_name = "N", requires = "checkpoint_out")]
    pub checkpoint_from: Option<u64>,
    /// A file that `bulla witness sign` wrote (repeatable, for copies that different witnesses have signed)
    #[arg(long, value_name = "FILE")]
    pub cosigned: Vec<PathBuf>,
}

fn parse_url(text: &str) -> Result<HttpAddress, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}
