//! How long commands of shared volumes wait.

use std::time::Duration;

use clap::Args;

use crate::units::parse_duration;

/// How long to wait for the server and other devices.
#[derive(Debug, Clone, Args)]
pub struct Waiting {
    /// Time limit of each step that needs the server [default: 30s, setting `deadline`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
}
