//! Arguments of the commands that store and serve repositories: `serve`, `pull`, `prune`. None needs a key.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::lock_wait::LockWait;
use super::publishing::Passphrase;
use super::reading::Reading;
use crate::units::{parse_count, parse_duration, parse_rate};

/// `bulla serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The repositories to serve
    #[arg(required = true)]
    pub repo: Vec<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:28552, setting `listen`]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Also serve the repositories over HTTP on this address, at /VOLUMEID/ (setting `http`)
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Limit of simultaneous connections; further clients are told that the server is busy [default:
    /// 16384]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>)]
    pub max_connections: Option<usize>,
    /// Limit of simultaneous connections of one client (an IPv4 address or an IPv6 /64) [default: 4096]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>)]
    pub max_per_client: Option<usize>,
    /// Memory for frequently requested answers; 0B turns it off [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    pub memory: Option<u64>,
    /// Serve Prometheus metrics at http://ADDR/metrics [default: off]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Arguments for a shared volume.
    #[command(flatten)]
    pub shared: ServeShared,
}

/// Flags of `bulla serve` for a repository that is a shared volume.
#[derive(Debug, Args)]
#[command(next_help_heading = "Shared volumes")]
pub struct ServeShared {
    /// Make REPO the server of the shared volume that this file founds (`bulla share init --out GENESIS`), unless it is
    /// already
    #[arg(long, value_name = "GENESIS", requires = "orderer_key")]
    pub accept: Option<PathBuf>,
    /// The key file of this server (`bulla orderer new`), which signs the order of writes
    #[arg(long, value_name = "FILE")]
    pub orderer_key: Option<PathBuf>,
    /// The address for the devices of the shared volume [default: 127.0.0.1:28553]
    #[arg(long, value_name = "ADDR", requires = "orderer_key")]
    pub shared: Option<String>,
    /// Space for what was written and not moved to its place yet, at least 4MiB; only with --accept [default: 256MiB]
    #[arg(long, value_name = "SIZE", requires = "accept", value_parser = crate::units::parse_size)]
    pub ring: Option<u64>,
    /// When blocks that nobody needs any more are removed: once a day, never, or also at the start [default: auto]
    #[arg(long, value_name = "WHEN", value_enum, requires = "orderer_key")]
    pub collect: Option<Collect>,
    /// Keep what was replaced for so long, at least 1d; a volume's `share retain` counts more [default: 30d]
    #[arg(long, value_name = "TIME", requires = "orderer_key", value_parser = parse_keep)]
    pub keep: Option<Duration>,
    /// A quarter of a day lasts so long, for tests.
    #[arg(long, hide = true, value_parser = parse_duration)]
    pub quarter: Option<Duration>,
    /// Where the passphrase of the key comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// When blocks that nobody needs are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Collect {
    /// Once a day, in a quiet moment, and when space is short
    Auto,
    /// Never
    Never,
    /// At the start, and then as with auto
    Now,
}

/// A retention: clients rely on a block for half a day after they have asked for it.
pub fn parse_keep(text: &str) -> Result<Duration, String> {
    let keep = parse_duration(text)?;
    match keep < share_server::host::MIN_KEEP {
        true => Err("at least 1d".to_owned()),
        false => Ok(keep),
    }
}

/// `bulla pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// The volume to pull.
    #[command(flatten)]
    pub reading: Reading,
    /// The repository to update; created if it does not exist
    pub repo: PathBuf,
    /// Keep the newest N versions and those that are still valid; free the space of all others [default:
    /// keep the valid versions, and free space only now and then]
    #[arg(long, value_name = "N", value_parser = parse_count::<u64>)]
    pub keep: Option<u64>,
    /// Receive at most SIZE per second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub bwlimit: Option<u64>,
    /// Store only this path and what is below it (repeatable)
    #[arg(long, value_name = "PATH")]
    pub path: Vec<std::ffi::OsString>,
    /// Also verify the blocks that are stored already, and fetch damaged ones again
    #[arg(long)]
    pub paranoid: bool,
    /// Waiting for the lock.
    #[command(flatten)]
    pub lock_wait: LockWait,
}

/// `bulla prune`.
#[derive(Debug, Args)]
pub struct Prune {
    /// The repository to prune
    pub repo: PathBuf,
    /// Keep the newest N versions; versions that are still valid are always kept [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_count::<u64>)]
    pub keep: Option<u64>,
    /// How long to keep the removed files for readers that still use the previous index [default: 10m]
    #[arg(long, value_name = "D", value_parser = parse_grace)]
    pub grace: Option<Duration>,
    /// Change nothing; show how much would be freed
    #[arg(long)]
    pub dry_run: bool,
    /// Waiting for the lock.
    #[command(flatten)]
    pub lock_wait: LockWait,
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    if text == "0s" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text)
}
