//! `--wait`, of the commands that write a repository.

use std::time::Duration;

use clap::Args;

use crate::units::parse_duration;

/// How long to wait for the lock of a repository.
#[derive(Debug, Clone, Args)]
pub struct LockWait {
    /// Wait up to D while another publish, renew, prune or pull writes the repository [default: do not wait]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}
