//! Arguments of the commands that keep and serve repositories, and need no key.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::reading::Reading;
use crate::units::{parse_count, parse_duration, parse_rate};

/// `bulla serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The repositories
    #[arg(required = true)]
    pub repo: Vec<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:28552, setting `listen`]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Serve the repositories over HTTP as well, at /VOLUMEID/ (setting `http`)
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Connections at a time; further ones are told to come back later [default: 16384]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>)]
    pub max_connections: Option<usize>,
    /// Connections at a time of one client: an IPv4 address, an IPv6 /64 [default: 4096]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>)]
    pub max_per_client: Option<usize>,
    /// Memory for answers that are asked for often, 0B for none [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    pub memory: Option<u64>,
    /// Hand out metrics at http://ADDR/metrics, for Prometheus [default: none]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
}

/// `bulla pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// What to follow.
    #[command(flatten)]
    pub reading: Reading,
    /// The repository to bring up to date; made when it is missing
    pub repo: PathBuf,
    /// Keep the newest N versions, and collect what neither they nor valid ones need [default: now
    /// and then, what no valid version needs]
    #[arg(long, value_name = "N", value_parser = parse_count::<u64>)]
    pub keep: Option<u64>,
    /// Receive at most so much a second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub bwlimit: Option<u64>,
    /// Hold only this path and what lies below (repeatable)
    #[arg(long, value_name = "PATH")]
    pub path: Vec<std::ffi::OsString>,
    /// Read and check what is here already, too, and fetch anew what is damaged
    #[arg(long)]
    pub paranoid: bool,
}

/// `bulla prune`.
#[derive(Debug, Args)]
pub struct Prune {
    /// The repository
    pub repo: PathBuf,
    /// Keep the newest N versions; those that are still valid are kept in any case [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_count::<u64>)]
    pub keep: Option<u64>,
    /// How long readers of the index before find its files [default: 10m]
    #[arg(long, value_name = "D", value_parser = parse_grace)]
    pub grace: Option<Duration>,
    /// Change nothing; show what would be freed
    #[arg(long)]
    pub dry_run: bool,
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    if text == "0s" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text)
}
